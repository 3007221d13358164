"""What a request costs part by part, in every process that has to do with it; sending and receiving left out.

    python benchmarks/bench_parts.py [--requests 2000] [--turns 7]

Each part is done with all requests at once, in turns with the others, and the least CPU time is printed: so
with warm caches, and without what parts take from one another. Prompts are those of the default workload (320
tokens on average), replies have 16 tokens. Recognising a reply is ``bench_recognition.py``'s part.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.generator.http.request_head import RequestHead
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.generator.records.supply import Supply
from pytest_llmbench.generator.workers.sharding import Deal
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.workloads.sequence import AT_ONCE, forget_drawn, sequence_sha256, text_of, texts_of
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

SEED, TOKENS = 42, 16
Part = Callable[[], object]


@dataclass(frozen=True)
class Parts:
    """What the parts work on, made beforehand."""

    count: int
    directory: Path
    requests: list[PlannedRequest]
    with_texts: list[PlannedRequest]
    blocks: list[tuple[bytes, bytes]]
    """Of the same requests, packed: frames and instants."""
    records: list[RequestRecord]

    @classmethod
    def of(cls, count: int, directory: Path) -> Parts:
        dealt = Deal(_plan(count), 1, as_text=True).blocks()
        blocks = [(block.frames, block.instants) for _, block in dealt]
        requests = list(SYNTHETIC_UNIFORM.requests(count, SEED))
        worded = [replace(each, text=text_of(each)) for each in requests]
        records = [_record(index) for index in range(count)]
        parts = cls(count, directory, requests, worded, blocks, records)
        parts.spooled()
        return parts

    def all(self) -> dict[tuple[str, str], Part]:
        return {
            ("pytest's", "drawing the ids of a prompt"): lambda: SYNTHETIC_UNIFORM.requests(self.count, SEED),
            ("pytest's", "making text of it"): self.texts,
            ("pytest's", "drawing, making text, packing and dealing, together"): self.dealt,
            ("pytest's", "the digest of what was sent"): lambda: sequence_sha256(self.requests),
            ("measuring", "unpacking a request"): self.unpacked,
            ("measuring", "encoding it"): self.encoded,
            ("measuring", "packing a record"): self.spooled,
            ("pytest's", "unpacking it"): self.read,
            ("pytest's", "its line, compressed"): self.written,
            ("pytest's", "columns of the records"): self.columns,
        }

    def texts(self) -> None:
        some = AT_ONCE // 2
        for first in range(0, self.count, some):
            texts_of(self.requests[first : first + some])

    def dealt(self) -> None:
        forget_drawn()
        for _, block in Deal(_plan(self.count), 1, as_text=True).blocks():
            pickle.dumps(block, pickle.HIGHEST_PROTOCOL)

    def unpacked(self) -> list[PlannedRequest]:
        supply = Supply(self.directory)
        for frames, instants in self.blocks:
            supply.add(frames, instants)
        try:
            return list(supply.requests(self.count))
        finally:
            supply.close()

    def encoded(self) -> None:
        spoken, options = dialect("openai-chat"), EncodeOptions("model")
        head = RequestHead(Target.parse("http://127.0.0.1:8000/v1"), "/v1/chat/completions")
        for request in self.with_texts:
            head.wire(f"0123456789ab-{request.index}", spoken.encode(request, options))

    def spooled(self) -> None:
        writer = SpoolWriter(self.directory / "spool")
        for record in self.records:
            writer.write(record)
        writer.close()

    def read(self) -> int:
        return sum(map(len, SpoolReader(self.directory / "spool").batches()))

    def written(self) -> None:
        with RecordsWriter(
            self.directory / "lines.compact.jsonl.gz", RecordsHeader(ClockAnchor(0, 0))
        ) as writer:
            for record in self.records:
                writer.write(record)

    def columns(self) -> int:
        log = RecordLog()
        for columns in SpoolReader(self.directory / "spool").columns():
            log.extend(Records.from_columns(columns))
        return len(log.records())


def _plan(count: int) -> LoadPlan:
    return LoadPlan("measure", SYNTHETIC_UNIFORM, ClosedLoop(64), count, SEED)


def _record(index: int) -> RequestRecord:
    """A record as a reply of tokens at once leaves it: with stamps that repeat."""
    at_ns = 10_000_000_000 + index * 47_123
    first_ns = at_ns + 1_312_000 + index * 7919 % 99_991
    return RequestRecord(
        request_id=f"0123456789ab-{index}",
        index=index,
        phase=Phase.MEASURE,
        outcome=Outcome.OK,
        token_source=TokenSource.SERVER_USAGE,
        attribution="exact",
        scheduled_ns=at_ns,
        dispatched_ns=at_ns + 4_913 + index % 517,
        submitted_ns=at_ns + 61_200 + index * 31 % 9_973,
        first_byte_ns=first_ns,
        first_event_ns=first_ns,
        first_nonempty_ns=first_ns,
        first_content_ns=first_ns,
        chunk_ns=[first_ns] * TOKENS,
        chunk_tokens=(1,) * TOKENS,
        last_content_ns=first_ns,
        finished_ns=first_ns + 21_000,
        input_tokens=128 + index * 37 % 385,
        output_tokens=TOKENS,
        requested_input_tokens=128 + index * 37 % 385,
        requested_max_tokens=64 + index * 13 % 193,
        shared_prefix_tokens=0,
        coalesced_chunks=TOKENS - 1,
        finish_reason="length",
        http_status=200,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmbench-parts-") as name:
        parts = Parts.of(options.requests, Path(name)).all()
        least = dict.fromkeys(parts, float("inf"))
        for _ in range(options.turns):
            for part, work in parts.items():
                began_s = time.process_time()
                work()
                least[part] = min(least[part], time.process_time() - began_s)
    print("| part | process | µs |\n|---|---|---|")
    for (process, part), seconds in least.items():
        print(f"| {part} | {process} | {seconds / options.requests * 1e6:.1f} |")


if __name__ == "__main__":
    main()
