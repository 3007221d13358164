"""Bad servers of gRPC, and what the load generator makes of a call to each.

PYTHONPATH=tests:tests/extras python tests/extras/grpc/grpc_faces.py --write  # into tests/hostile/tables.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc_replies import HEADERS, REPLIES
from grpc_script import GrpcTalk, calls, ping
from http2_frames import away, header_block
from hyperframe.frame import ContinuationFrame, HeadersFrame, PushPromiseFrame, SettingsFrame
from scripted_server import ScriptedServer

from pytest_llmbench.extras.grpc.messages import prefixed
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.model.records import OUTCOMES, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import dialect_at

PAGE = Path(__file__).parents[2] / "hostile" / "tables.md"
BEGIN, END = "<!-- gRPC: tests/extras/grpc/grpc_faces.py --write -->\n", "<!-- end of gRPC -->\n"
PATIENT = Deadlines(connect_s=15.0, first_byte_s=15.0, between_chunks_s=15.0, total_s=30.0, drain_s=30.0)
IMPATIENT = Deadlines(connect_s=15.0, first_byte_s=0.4, between_chunks_s=0.4, total_s=0.4, drain_s=15.0)
Face = Callable[[GrpcTalk, Sequence[bytes]], None]
"""What a server does with a call, of which these messages would be the reply."""


@dataclass(frozen=True)
class Prompts:
    """A text and token ids, of which a dialect takes the one or the other."""

    name: str = "prompts"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [
            PlannedRequest(index, max_tokens=8, input_tokens=1, text="hello", token_ids=(15339,))
            for index in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        return {}


def _after(first: int, then: Callable[[GrpcTalk, Sequence[bytes]], bytes]) -> Face:
    """So many messages of the reply, then something else, and the connection stays open."""

    def face(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
        talk.send(talk.ok() + talk.data(b"".join(reply[:first])) if first else talk.ok())
        talk.send(then(talk, reply))

    return face


def _ends(*trailers: tuple[str, str]) -> Callable[[GrpcTalk, Sequence[bytes]], bytes]:
    return lambda talk, _: talk.head(*trailers, end=True)


def _says(payload: bytes) -> Face:
    """A message, then the reply, which is well."""
    return _after(0, lambda talk, reply: talk.data(payload) + talk.data(b"".join(reply)) + talk.end())


def _endless(
    first: int, again: Callable[[GrpcTalk, Sequence[bytes]], bytes], *, headers: bool = True
) -> Face:
    def face(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
        if headers:
            talk.send(talk.ok() + (talk.data(b"".join(reply[:first])) if first else b""))
        while not talk.conversation.server.stopping.is_set():
            talk.send(again(talk, reply))
            talk.conversation.wait(0.001)

    return face


def _byte_by_byte(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
    talk.send(talk.ok() + talk.data(b"\0" + (1 << 20).to_bytes(4, "big")))
    _endless(0, lambda talk, _: talk.data(b"x"), headers=False)(talk, reply)


def _closes(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
    talk.send(talk.ok() + talk.data(b"".join(reply)))
    talk.conversation.half_close()


def _of_kind(kind: str) -> Face:
    def face(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
        talk.send(talk.head((":status", "200"), *([("content-type", kind)] if kind else [])))
        talk.send(talk.data(b"".join(reply)) + talk.end())

    return face


def _without_end(talk: GrpcTalk, _: Sequence[bytes]) -> bytes:
    """A header block, of which more comes for ever."""
    begun = HeadersFrame(talk.stream, header_block(HEADERS)).serialize()
    return begun + ContinuationFrame(talk.stream, b"\0\1a\1b" * 3000).serialize() * 12


def _unpacks(talk: GrpcTalk, _: Sequence[bytes]) -> bytes:
    """A header of 4 KB in the table, and 16,000 references to it."""
    block = header_block(HEADERS) + b"\x40\x01a\x7f\x81\x1e" + b"a" * 4000 + b"\xbe" * 12_000
    return HeadersFrame(talk.stream, block, flags=["END_HEADERS"]).serialize()


def _pushes(talk: GrpcTalk, _: Sequence[bytes]) -> bytes:
    block = header_block([(":method", "GET")])
    return PushPromiseFrame(talk.stream, promised_stream_id=2, data=block, flags=["END_HEADERS"]).serialize()


def _longer(by: int) -> Callable[[GrpcTalk, Sequence[bytes]], bytes]:
    """The first message says that it is longer than it is."""

    def then(talk: GrpcTalk, reply: Sequence[bytes]) -> bytes:
        first = reply[0]
        length = int.from_bytes(first[1:5], "big") + by
        return talk.data(b"\0" + length.to_bytes(4, "big") + first[5:] + b"".join(reply[1:])) + talk.end()

    return then


def _whole(talk: GrpcTalk, reply: Sequence[bytes]) -> None:
    talk.reply(reply)


FACES: dict[str, Face] = {
    "a message that is no protobuf": _says(prefixed(b"\xff" * 40)),
    "a message cut within a field": _after(
        0, lambda talk, reply: talk.data(prefixed(reply[0][5:-1]) + b"".join(reply[1:])) + talk.end()
    ),
    "empty messages alone": _after(0, lambda talk, _: talk.data(prefixed(b"") * 3) + talk.end()),
    "no message, status 0": _after(0, lambda talk, _: talk.end()),
    "a length of 4 GiB": _says(b"\0\xff\xff\xff\xff"),
    "a length of one more": _after(0, _longer(1)),
    "a length of one less": _after(0, _longer(-1)),
    "a compressed flag, and nothing compressed": _says(b"\x01" + prefixed(b"plain")[1:]),
    "a flag of 255": _says(b"\xff" + prefixed(b"")[1:]),
    "the trailers of gRPC-Web in the body": _after(
        3, lambda talk, _: talk.data(b"\x80\0\0\0\x0dgrpc-status:0", "END_STREAM")
    ),
    "trailers without a status": _after(3, _ends(("server", "x"))),
    "a status that is no number": _after(3, _ends(("grpc-status", "fine"))),
    "a status beyond the last": _after(3, _ends(("grpc-status", "99"))),
    "an error of 14 KB behind the reply": _after(
        3, _ends(("grpc-status", "13"), ("grpc-message", "%00%1B%5B2J" * 1300))
    ),
    "no trailers": _after(2, lambda talk, reply: talk.data(reply[2], "END_STREAM")),
    "closed before the trailers": _closes,
    "RST_STREAM in the midst": _after(1, lambda talk, _: talk.reset(2)),
    "RST_STREAM before the trailers, without an error": _after(3, lambda talk, _: talk.reset(0)),
    "GOAWAY in the midst, which takes the call back": _after(1, lambda talk, _: away(0, 11, b"enough")),
    "text/html": _of_kind("text/html"),
    "application/grpc-web": _of_kind("application/grpc-web+proto"),
    "no content type": _of_kind(""),
    "a frame of 16 MB": _after(1, lambda talk, _: b"\xff\xff\xff" + bytes(6)),
    "headers that never end": _after(0, _without_end),
    "headers that unpack to 50 MB": _after(0, _unpacks),
    "a push": _after(1, _pushes),
}
"""Each comes to an end by itself."""
STALLING: dict[str, Face] = {
    "silence in the midst": _after(1, lambda talk, _: b""),
    "GOAWAY in the midst, then silence": _after(1, lambda talk, _: away(talk.stream)),
    "messages without end": _endless(0, lambda talk, reply: talk.data(reply[0])),
    "empty frames without end": _endless(1, lambda talk, _: talk.data(b"")),
    "a message of 1 MB, byte by byte": _byte_by_byte,
    "pings without end": _endless(1, lambda talk, _: ping()),
    "settings without end": _endless(1, lambda talk, _: SettingsFrame(0).serialize()),
    "early hints without end": _endless(0, lambda talk, _: talk.head((":status", "103")), headers=False),
}
"""None of them comes to an end: the deadline does."""


@contextmanager
def serving(turn: Callable[[GrpcTalk], None]) -> Iterator[str]:
    """The URL of a server that does this with each call."""
    server = ScriptedServer(calls(turn, MAX_CONCURRENT_STREAMS=10_000), read_body=False)
    try:
        yield f"grpc://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextmanager
def generating(url: str, dialect: str) -> Iterator[Callable[..., Records]]:
    """A load generator for that server: gives the records of so many requests, one after the other."""
    prompts: Any = "token_ids" if dialect == "sglang-grpc" else "text"
    with LoadGenerator(
        Target.parse(url), dialect_at("grpc://h:1", dialect), model="m", prompt_form=prompts
    ) as generator:

        def load(requests: int, deadlines: Deadlines = PATIENT) -> Records:
            plan = LoadPlan("load", Prompts(), ClosedLoop(1), requests, seed=1, deadlines=deadlines)
            return generator.run(plan).records

        yield load


def outcomes(records: Records) -> list[str]:
    return [OUTCOMES[number].value for number in records.outcome]


def met(name: str, dialect: str) -> Records:
    """The record of a call to that face, and of one that the same server then answers well."""
    face = (FACES | STALLING)[name]
    turns = iter([face])
    deadlines = IMPATIENT if name in STALLING else PATIENT
    with (
        serving(lambda talk: next(turns, _whole)(talk, REPLIES[dialect])) as url,
        generating(url, dialect) as load,
    ):
        first = load(1, deadlines)
        assert outcomes(load(1)) == ["ok"], "the call after it"
        return first


def row(name: str) -> str:
    """The line of the table."""
    return f"| {name} | {' | '.join(f'`{outcomes(met(name, each))[0]}`' for each in REPLIES)} |"


def table() -> list[str]:
    head = f"| what the server does | {' | '.join(f'`{name}`' for name in REPLIES)} |"
    return [head, "|---" * (len(REPLIES) + 1) + "|", *map(row, FACES | STALLING)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    asked = parser.parse_args()
    lines = table()
    print("\n".join(lines))
    if asked.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
