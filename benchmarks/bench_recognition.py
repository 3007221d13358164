"""What a reply costs where it is recognised as it ends, and where its bytes are handed over instead.

    python benchmarks/bench_recognition.py [--replies 400] [--turns 7]

*Recognised* is what the measuring process does: it compares a response with a known one, makes the record
and packs it for the coordinator, who unpacks it. *Handed over* is the other design: the measuring process
looks at the last bytes only, and packs what it has received; the coordinator unpacks it and reads it exactly
(httptools, the dialect, no recognition). Both take turns on the same responses in one process. Least times,
so with warm caches; sending and receiving are the same for both and left out.
"""

from __future__ import annotations

import argparse
import json
import marshal
import tempfile
import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_llmbench.generator.http.http1 import ReplyParser
from pytest_llmbench.generator.http.known_replies import KnownReplies
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.generator.reply_reader import ReplyReader
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.reply import read_stream
from pytest_llmbench.wire.stream import chunks_of

WORDS = [" a", " tree", " in", " the", " garden", " blue", " of", " mountain", " he", " seven", " river"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DIALECT = dialect("openai-chat")
_request = attrgetter(
    "request_id", "index", "max_tokens", "input_tokens", "class_label", "shared_prefix_tokens", "prefix_id"
)


def event(identity: str, choices: list[Any], **more: Any) -> bytes:
    data = {"id": identity, "object": "chat.completion.chunk", "created": 1_763_700_000, "model": "small"}
    told = b"data: " + json.dumps(data | {"choices": choices} | more).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(told), told)


def response(number: int, tokens: int, reads: int) -> list[bytes]:
    """A response in so many reads."""
    identity = f"chatcmpl-{number:016x}"
    events = [
        event(
            identity, [{"index": 0, "delta": {"content": WORDS[(number + at) % 11]}, "finish_reason": None}]
        )
        for at in range(tokens)
    ]
    usage = {"prompt_tokens": 300, "completion_tokens": tokens, "total_tokens": 300 + tokens}
    events += [event(identity, [{"index": 0, "delta": {}, "finish_reason": "length"}])]
    events += [event(identity, [], usage=usage), b"e\r\ndata: [DONE]\n\n\r\n" + LAST]
    if reads == 1:
        return [HEAD + b"".join(events)]
    return [HEAD + events[0], *events[1 : reads - 1], b"".join(events[reads - 1 :])]


def exchange_of(number: int, reads: Sequence[bytes]) -> Exchange:
    request = PreparedRequest(f"0123456789ab-{number}", b"", number, 256, 300)
    exchange = Exchange(request, 1_000, 2_000, lambda _: None, submitted_ns=3_000)
    exchange.stamps = [10_000_000 + 5_000_000 * at for at in range(len(reads))]
    exchange.unparsed = list(reads)
    exchange.end, exchange.finished_ns = End.COMPLETE, exchange.stamps[-1]
    return exchange


def finished(steps: Any) -> RequestRecord:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            record: RequestRecord = stop.value
            return record


def parsed(exchange: Exchange) -> Exchange:
    parser = ReplyParser()
    parser.begin()
    exchange.bodies = [parser.feed(data) for data in exchange.unparsed]
    exchange.status, exchange.headers = parser.status, parser.headers
    return exchange


class Recognised:
    def __init__(self, taught: Sequence[Exchange]) -> None:
        self.known, self.reader = KnownReplies(), ReplyReader(DIALECT)
        for exchange in taught:  # as the connection and the reader do together
            reads = list(exchange.unparsed)
            parsed(exchange)

            def teach(lesson: Any, exchange: Exchange = exchange, reads: list[bytes] = reads) -> None:
                self.known.learn(reads, exchange.bodies, 200, lesson)

            exchange.teach = teach
            finished(self.reader.steps(exchange))

    def measuring(self, exchanges: Sequence[Exchange], path: Path) -> None:
        writer = SpoolWriter(path, flush_s=60.0)
        for exchange in exchanges:
            known = self.known.read(exchange.unparsed)
            if known is None:
                raise SystemExit("a reply was not recognised")
            exchange.known, exchange.status = known, known.status
            writer.write(finished(self.reader.steps(exchange)))
        writer.close()

    def coordinator(self, path: Path) -> list[RequestRecord]:
        return SpoolReader(path).read()


class HandedOver:
    def measuring(self, exchanges: Sequence[Exchange], path: Path) -> None:
        waiting = []
        for exchange in exchanges:
            if not exchange.unparsed[-1].endswith(LAST) or not exchange.unparsed[0].startswith(HEAD):
                raise SystemExit("a reply has no end")
            values = (
                _request(exchange.request), exchange.scheduled_ns, exchange.dispatched_ns,
                exchange.submitted_ns, exchange.finished_ns, exchange.stamps, exchange.unparsed,
            )  # fmt: skip
            waiting.append(marshal.dumps(values))
        path.write_bytes(b"".join(waiting))

    def coordinator(self, path: Path) -> list[RequestRecord]:
        found = []
        with path.open("rb") as file:
            while file.peek(1):
                found.append(self._read(marshal.load(file)))
        return found

    def _read(self, values: tuple[Any, ...]) -> RequestRecord:
        (name, index, most, asked, *_), scheduled, dispatched, submitted, finished_ns, stamps, reads = values
        request = PreparedRequest(name, b"", index, most, asked)
        exchange = Exchange(request, scheduled, dispatched, lambda _: None, submitted_ns=submitted)
        exchange.stamps, exchange.unparsed, exchange.finished_ns = stamps, reads, finished_ns
        parsed(exchange)
        record = RequestRecord(
            index=index, request_id=name, phase=ReplyReader(DIALECT).phase, scheduled_ns=scheduled,
            dispatched_ns=dispatched, submitted_ns=submitted, first_byte_ns=stamps[0],
            finished_ns=finished_ns, requested_max_tokens=most, requested_input_tokens=asked,
            http_status=exchange.status,
        )  # fmt: skip
        chunks = list(chunks_of(zip(exchange.bodies, stamps, strict=False), DIALECT))
        read_stream(chunks, ended="eof").fill(record)
        return record


def timed(
    turns: int, way: Recognised | HandedOver, responses: Sequence[list[bytes]], path: Path
) -> tuple[float, float, list[RequestRecord]]:
    """The least times of a reply in both processes in µs, and the records."""
    own, other, records = float("inf"), float("inf"), []
    for _ in range(turns):
        exchanges = [exchange_of(number, each) for number, each in enumerate(responses)]
        began = time.perf_counter()
        way.measuring(exchanges, path)
        handed = time.perf_counter()
        records = way.coordinator(path)
        own = min(own, (handed - began) / len(responses) * 1e6)
        other = min(other, (time.perf_counter() - handed) / len(responses) * 1e6)
    return own, other, records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replies", type=int, default=400)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(f"{'µs per reply':40} {'measuring':>10} {'coordinator':>12} {'together':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for tokens, reads in ((16, 1), (16, 16), (64, 64), (256, 1), (256, 256)):
            responses = [response(number, tokens, reads) for number in range(options.replies)]
            taught = [exchange_of(number, each) for number, each in enumerate(responses[:20])]
            ways = {"recognised": Recognised(taught), "handed over": HandedOver()}
            said = []
            for name, way in ways.items():
                own, other, records = timed(options.turns, way, responses, Path(folder) / "spool")
                what = f"{tokens} tokens in {reads} reads, {name}"
                print(f"{what:40} {own:10.1f} {other:12.1f} {own + other:10.1f}", flush=True)
                said.append(list(map(_said, records)))
            if said[0] != said[1]:
                raise SystemExit("the two read differently")


def _said(record: RequestRecord) -> tuple[Any, ...]:
    return record.index, record.output_tokens, tuple(record.chunk_ns), record.finish_reason, record.outcome


if __name__ == "__main__":
    main()
