"""Servers of gRPC that break: no call to them succeeds, hangs or spoils the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from grpc_faces import BEGIN, END, FACES, PAGE, PATIENT, STALLING, generating, met, outcomes, serving
from grpc_replies import REPLIES
from grpc_script import GrpcTalk, ping

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes import control_plane
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.endpoint import examine

LISTED = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
NAMES, ROWS = LISTED[0], {line.split(" | ")[0].removeprefix("| "): line for line in LISTED[2:]}


READ_PAST = {
    "a message that is no protobuf",
    "a message cut within a field",
    "a compressed flag, and nothing compressed",
}
"""The preflight finds a reply behind the message that it cannot read; measured requests are `undecodable`."""


def test_the_page_has_them_all() -> None:
    assert list(ROWS) == [*FACES, *STALLING]
    assert NAMES.endswith(f"| {' | '.join(f'`{name}`' for name in REPLIES)} |")


@pytest.mark.parametrize("dialect", REPLIES)
@pytest.mark.parametrize("name", FACES | STALLING)
def test_a_face(name: str, dialect: str) -> None:
    """As the page says, and the call after it succeeds."""
    records = met(name, dialect)
    (outcome,) = outcomes(records)
    assert outcome != "ok"
    written = ROWS[name].strip("| ").split(" | ")[1 + list(REPLIES).index(dialect)]
    assert written == f"`{outcome}`", records.error
    error = records.error[0] or ""
    assert error.isprintable()
    assert 0 < len(error) <= 400


def sent(dialect: str, turn: Callable[[GrpcTalk, int], None], count: int) -> list[str]:
    """The outcomes of so many calls, one after the other."""
    turns = iter(range(count))
    with serving(lambda talk: turn(talk, next(turns))) as url, generating(url, dialect) as load:
        return outcomes(load(count, PATIENT))


@pytest.mark.parametrize("dialect", REPLIES)
def test_a_connection_cut_at_every_byte_of_a_reply(dialect: str) -> None:
    messages = b"".join(REPLIES[dialect])

    def whole(talk: GrpcTalk) -> bytes:
        return talk.ok() + talk.data(messages) + talk.end()

    def turn(talk: GrpcTalk, at: int) -> None:
        talk.send(whole(talk)[:at])
        talk.conversation.half_close()

    size = len(whole(GrpcTalk(None, None, stream=1)))  # type: ignore[arg-type]
    found = sent(dialect, turn, size + 1)
    assert set(found[:size]) == {"disconnected"}
    assert found[size] == "ok"


def boundaries(reply: Sequence[bytes]) -> list[int]:
    """The lengths at which a body ends with a whole message, and has text before."""
    return [len(b"".join(reply[:count])) for count in range(1, len(reply) + 1)]


@pytest.mark.parametrize("dialect", REPLIES)
def test_messages_cut_at_every_byte_in_a_call_that_ends_well(dialect: str) -> None:
    """The status says that all is well, and part of the reply is missing. Of KServe's protocol any whole
    message may be the last one."""
    body = b"".join(REPLIES[dialect])

    def turn(talk: GrpcTalk, at: int) -> None:
        talk.send(talk.ok() + (talk.data(body[:at]) if at else b"") + talk.end())

    found = sent(dialect, turn, len(body) + 1)
    well = boundaries(REPLIES[dialect]) if dialect == "kserve-grpc" else [len(body)]
    assert [at for at, outcome in enumerate(found) if outcome == "ok"] == well
    assert set(found) == {"empty", "truncated", "ok"}


@pytest.mark.parametrize("dialect", ["vllm-grpc", "kserve-grpc"])
@pytest.mark.parametrize("name", FACES | STALLING)
def test_the_preflight_refuses_a_face(name: str, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words, and in time: a server that floods it is one that does not answer. None of them speaks TLS,
    for whose answer some are waited."""
    monkeypatch.setattr(control_plane, "_TLS_WITHIN_S", 0.1)
    access = Access(connect_s=15.0, answer_s=0.1 if name in STALLING else 30.0)
    face = (FACES | STALLING)[name]
    began = time.monotonic()
    with serving(lambda talk: face(talk, REPLIES[dialect])) as url:
        try:
            examine(url, model="m", api=dialect, access=access)
            said = ""
        except SUTError as error:
            said = str(error)
    assert bool(said) is (name not in READ_PAST)
    assert len(said) < 1500
    assert said.replace("\n", "").isprintable()
    assert time.monotonic() - began < 60


def test_a_flood_is_no_answer() -> None:
    """There is always something to read, so that no read by itself takes too long."""

    def flood(talk: GrpcTalk) -> None:
        while not talk.conversation.server.stopping.is_set():
            talk.send(ping() * 1000)

    with serving(flood) as url, pytest.raises(SUTError, match="answer"):
        examine(url, model="m", api="vllm-grpc", access=Access(connect_s=15.0, answer_s=0.3))
