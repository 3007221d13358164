"""What is fed with bytes of any kind: each either reads them or refuses them in words, and says one thing.

A target raises :class:`AssertionError` where two readings of the same bytes differ, and lets through
whatever the code under it should not have raised.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hostile_server import ABSURD_PAGE, event, words
from small_tokenizer import byte_level, content_of

from pytest_llmbench.compare.limits import Noise
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.generator.http.http1 import NotHTTPError, ReplyParser
from pytest_llmbench.harness.comparison.calibrate import table
from pytest_llmbench.harness.execution import LOADS_SCHEMA, read_loads
from pytest_llmbench.harness.recover import _report_of
from pytest_llmbench.harness.selftest.certificate import beyond
from pytest_llmbench.harness.selftest.certificate import read as read_certificate
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Fact, Facts, Origin
from pytest_llmbench.model.observation import EngineReadings, HostLimits, SelfCheck
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.record import Phase, RequestRecord
from pytest_llmbench.probes.disclosure import read_sut_file, read_tokenizer
from pytest_llmbench.probes.engine_metrics import read_page
from pytest_llmbench.store.baselines import Baseline, BaselineTest, read_baseline, read_calibration
from pytest_llmbench.store.datasets import code_texts, conversations, read_rows
from pytest_llmbench.store.entries import entry_from_error
from pytest_llmbench.store.files import read_report
from pytest_llmbench.store.journal import (
    JOURNAL_SCHEMA,
    begun,
    ended,
    finished,
    judged,
    read_journal,
    reaudited,
    selected,
)
from pytest_llmbench.store.objects import encoded, rebuilt
from pytest_llmbench.store.perf_catalogue import INPUT, OUTPUT, SYSTEM, read_catalogue
from pytest_llmbench.store.record_line import RECORDS_SCHEMA
from pytest_llmbench.store.records_file import read_runs
from pytest_llmbench.store.rows import Rows
from pytest_llmbench.store.schema import Environment, Generator, Report, Sut
from pytest_llmbench.store.traces.reading import FORMATS, read_trace, trace_of
from pytest_llmbench.wire.catalogue import DIALECTS
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.error_replies import classify_status, classify_unstreamed
from pytest_llmbench.wire.reply import StreamSummary, read_stream
from pytest_llmbench.wire.stream import chunks_of, events_of
from pytest_llmbench.wire.uniform import ReplyMemory, read_uniform
from pytest_llmbench.wire.usage import refuse_impossible
from pytest_llmbench.workloads.lengths import Uniform

Target = Callable[[bytes], None]
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def cut(data: bytes) -> list[bytes]:
    """The first byte says how often, the rest is cut evenly."""
    body = data[1:]
    size = max(1, len(body) // (1 + data[0] % 8)) if data else 1
    return [body[at : at + size] for at in range(0, len(body), size)]


def http(data: bytes) -> None:
    """A response in several reads; then as one."""
    pieces = cut(data)
    with suppress(NotHTTPError):
        parser, received = ReplyParser(), b""
        for piece in pieces:
            received += parser.feed(piece)
        whole = ReplyParser()
        assert whole.feed(b"".join(pieces)) == received
        assert (whole.status, whole.complete, whole.framing) == (
            parser.status,
            parser.complete,
            parser.framing,
        )
        if parser.status is not None:
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in parser.headers
            }
            classify_status(parser.status, headers, received)
            classify_unstreamed(headers, received)


def stream(data: bytes) -> None:
    """The events of a reply, quickly and exactly, whole and in pieces; then all that is made of them."""
    read(data, DIALECTS.values())


def read(data: bytes, dialects: Iterable[Dialect]) -> None:
    """The events of a reply in these dialects, whole and in pieces; then all that is made of them."""
    pieces = cut(data)
    reads = [(piece, 1_000 * (at + 1)) for at, piece in enumerate(pieces)]
    at_once = [(b"".join(pieces), 1_000)] if pieces else []
    for spoken in dialects:
        said = [
            [(e.event, e.data, e.problem, e.terminated) for e in events_of(each, protocol=spoken.protocol)]
            for each in (reads, at_once)
        ]
        assert said[0] == said[1]
        chunks = list(chunks_of(reads, spoken))
        if not (spoken.accumulates or spoken.ends_with_body):
            assert chunks == [spoken.decode(each) for each in events_of(reads, protocol=spoken.protocol)]
        exact = read_stream(chunks)
        memory = ReplyMemory()
        for _ in range(2):  # the second time from memory
            usual = read_uniform(pieces, [at for _, at in reads], spoken, memory, teach=None)
            assert usual is None or _values(usual) == _values(exact)
        record = RequestRecord(0, "0", Phase.MEASURE, "", 0)
        exact.fill(record)
        record.requested_max_tokens, record.finished_ns, record.dispatched_ns = 16, 10_000, 0
        refuse_impossible(record, 100, len(data))


def _values(summary: StreamSummary) -> dict[str, Any]:
    """Of the texts, which the quick reading leaves out, nothing."""
    values = {each.name: getattr(summary, each.name) for each in fields(StreamSummary)}
    for name in ("text", "reasoning"):
        del values[name]
    return {
        name: list(v) if isinstance(v, Sequence) and not isinstance(v, str) else v
        for name, v in values.items()
    }


def page(data: bytes) -> None:
    """An engine's metrics page."""
    with suppress(ValueError, OverflowError):
        read_page(data.decode(errors="replace"))


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def of_a_file(name: str, reader: Callable[[Path], object]) -> Target:
    def target(data: bytes) -> None:
        path = _folder() / name
        path.write_bytes(data)
        with suppress(LLMBenchError):
            reader(path)

    return target


def _jsonl(path: Path) -> None:
    with suppress(LLMBenchError):
        read_trace(path, "jsonl")
    rows = list(read_rows(path, "jsonl"))
    placed = Rows(tuple(("line", row) for row in rows), ())
    for known in FORMATS:  # also those that the first row does not look like
        with suppress(LLMBenchError):
            trace_of(placed, str(path), known)  # type: ignore[arg-type]
    with suppress(LLMBenchError):
        conversations(rows, path)
    with suppress(LLMBenchError):
        code_texts(rows, path, ["python"])


_ROW = RequestRecord(
    0, "r", Phase.MEASURE, "", 1, chunk_ns=[3, 4], chunk_tokens=[1, 1], server_timings={"a": 1.0}
)
_RECORDS = [
    {"anchor": {"monotonic_ns": 1, "wall_ns": 1}, "schema": RECORDS_SCHEMA, "nodeid": "n"},
    *({**asdict(_ROW), "label": label} for label in ("a", "b")),
]
_METRIC = {"point": 1.0, "lower": None, "upper": 2.0, "level": 0.95, "n": 1, "method": "m", "unit": "ms"}
_SAVED = "2026-01-20T09:30:00.000Z"
_BASELINE = Baseline(
    name="a",
    saved=_SAVED,
    generator_version="1",
    machine="m",
    tests=[
        BaselineTest(
            nodeid="n",
            test="ttft",
            identity={"a": 1},
            runs=1,
            by_run={"ttft.p99": [1.0]},
            metrics={"ttft.p99": Estimate(**_METRIC)},
        )
    ],
)
_CALIBRATION = {
    "saved": _SAVED,
    "generator_version": "1",
    "machine": "m",
    "nodeid": "n",
    "identity": {"a": 1},
    "runs": 8,
    "noise": {
        "ttft.p99": {
            "unit": "ms", "better": "lower", "runs": 8, "mean_log": 1.0, "spread_log": 0.1, "proposed": 9.0,
            "false_alarms": 0.01,
        }
    },
}  # fmt: skip
_SELFTEST = {
    "date": "2026-01-20",
    "extent": "full",
    "trusted": True,
    "highest_rate_rps": 5000.0,
    "highest_streams": 100,
    "gentle": {"ttft_error": {"p50": 1.0, "p99": 2.0}, "itl_error": {"p99": 3.0}},
    "worst_ttft_error_p99_us": 4.0,
    "workers": 2,
    "over": "grpc",
}
_LOADS = {
    "schema": LOADS_SCHEMA,
    "setting": encoded(
        {
            "facts": Facts({"a": Fact(1, Origin.DECLARED, "file")}),
            "law": Uniform(1, 2),
            "readings": EngineReadings(np.array([1, 2]), {"kv": np.array([0.5, 1.0])}),
            "limits": (HostLimits(),),
        }
    ),
}
_LENGTHS = {"mean": 9, "standard_deviation": 2, "min": 1, "max": 20, "distribution_type": "normal"}
_REPORT = Report(
    generator=Generator(version="1"),
    started=_SAVED,
    environment=Environment(
        python="3", implementation="C", platform="p", machine="m", cpu_count=1, settings={"a": [1, None]}
    ),
    sut=Sut(endpoint="http://u:p@h/v1?key=x", model="m", api="a"),
    tests=[entry_from_error(nodeid="n", test="ttft", section="5.1", error="e")],
)


def _journal(path: Path) -> None:
    _report_of(read_journal(path), path.parent)


def _selftest(path: Path) -> None:
    found = read_certificate(path)
    if found is not None:
        load = SimpleNamespace(load=OpenLoop(1e9))
        beyond([SimpleNamespace(plan=load, selfcheck=SelfCheck())], found, found.workers)  # type: ignore[list-item]


def _calibration(path: Path) -> None:
    for name, entry in getattr(read_calibration(path), "noise", {}).items():
        noise = Noise(
            name, entry.unit, entry.better, entry.runs, entry.mean_log, entry.spread_log, of_job=False
        )
        table([noise])


_JOURNAL = [
    {
        "schema": JOURNAL_SCHEMA,
        "pid": 1,
        **_REPORT.model_dump(mode="json", include={"started", "generator", "environment", "sut"}),
    },
    selected(["n", "b"]),
    begun("n"),
    judged(_REPORT.plain()["tests"][0]),
    ended("n"),
    reaudited([{"nodeid": "n", "duration_s": None, "compliance": _REPORT.plain()["tests"][0]["compliance"]}]),
    finished(0),
]

TARGETS: dict[str, tuple[Target, list[bytes]]] = {
    "http": (
        http,
        [
            b"\x03" + _HEAD + b"Content-Length: 5\r\n\r\nhello",
            b"\x02" + _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b'\x01HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\n\r\n{"error": {"message": "x"}}',
        ],
    ),
    "stream": (
        stream,
        [
            b"\x04" + words(),
            b"\x00" + words(6, usage={"completion_tokens": 10**12}, more={"timings": {"queue_ms": 1e300}}),
            b"\x02" + event({"error": {"message": "x", "code": 1}}) + b"data: [DONE]\r\n\r\n: note\r\n\r\n",
            b"\x01"
            + event({"choices": [{"text": "a", "finish_reason": None}], "usage": {"prompt_tokens": 1}}),
        ],
    ),
    "page": (page, [ABSURD_PAGE.encode()]),
    "report": (of_a_file("report.json", read_report), [json.dumps(_REPORT.plain()).encode()]),
    "baseline": (of_a_file("baseline.json", read_baseline), [json.dumps(_BASELINE.plain()).encode()]),
    "journal": (of_a_file("journal.jsonl", _journal), ["\n".join(map(json.dumps, _JOURNAL)).encode()]),
    "calibration": (of_a_file("calibration.json", _calibration), [json.dumps(_CALIBRATION).encode()]),
    "selftest": (of_a_file("selftest.json", _selftest), [json.dumps(_SELFTEST).encode()]),
    "loads": (
        of_a_file("loads.json", lambda path: rebuilt(read_loads(path).get("setting"))),
        [json.dumps(_LOADS).encode()],
    ),
    "catalogue": (
        of_a_file("catalogue.json", read_catalogue),
        [
            json.dumps(
                dict.fromkeys((INPUT, OUTPUT, SYSTEM), _LENGTHS) | {"number_of_turns": _LENGTHS}
            ).encode()
        ],
    ),
    "tokenizer": (
        of_a_file("tokenizer.json", read_tokenizer),
        [content_of(byte_level())],
    ),
    "records": (
        of_a_file("records.jsonl", read_runs),
        ["\n".join(map(json.dumps, _RECORDS)).encode()],
    ),
    "rows": (
        of_a_file("rows.jsonl", _jsonl),
        [
            b'{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}\n',
            b'{"TIMESTAMP": "2023-11-16 18:15:46.68", "ContextTokens": 4, "GeneratedTokens": 1}\n',
            b'{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n',
            b'{"request_id": "a", "input_length": 2, "output_length": 3, "timestamp": 0}\n'
            b'{"request_id": "b", "input_length": 2, "output_length": 3, "wait_for": ["a"], "delay": 5}\n',
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
            b'{"name": "chat", "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01Z", '
            b'"attributes": {"gen_ai.usage.input_tokens": 2, "gen_ai.usage.output_tokens": 3}}\n',
        ],
    ),
    "csv": (
        of_a_file("rows.csv", lambda path: read_trace(path, "csv")),
        [b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,4,1\n"],
    ),
    "sut": (
        of_a_file("sut.toml", read_sut_file),
        [(Path(__file__).parents[1] / "docs" / "examples" / "sut.toml").read_bytes()],
    ),
    "workloads": (
        of_a_file("workloads.toml", read_workload_file),
        [b'[workloads.a]\ninput_tokens = 5\noutput_tokens = { kind = "uniform", min = 1, max = 2 }\n'],
    ),
}
"""Name: what is done with the bytes, and where to begin."""

__all__ = ["TARGETS"]


def begin(target: Target, seeds: Sequence[bytes]) -> None:
    """Feed a target with what it begins with, and with what is no such thing at all."""
    for seed in (*seeds, b"", b"\x00", b"\xff" * 50, b"[" * 100, *(seed[: len(seed) // 2] for seed in seeds)):
        target(seed)


_HERE = "another value"
OTHER_VALUES = (
    b"1e999", b"-1e300", b"NaN", b"1" + b"0" * 5000, b"1" + b"0" * 30, b"-1", b"0", b"true", b"null", b'"x"',
    b'"\\ud83d"', b'"' + b"9" * 5000 + b'"', b"[]", b"{}", b'["x"]', b'{"x": "x"}', b"[" * 60 + b"]" * 60,
    b"[" * 100_000, b'{"$array": [1], "dtype": "' + b"9" * 5000 + b'"}',
)  # fmt: skip


def with_other_values(target: Target, seeds: Sequence[bytes]) -> None:
    """Feed a target of JSON with every value in turn, or a sample of them, replaced by another."""
    changed = [each for seed in seeds for each in _with_other_values(seed)]
    for data in random.Random(1).sample(changed, min(120, len(changed))):
        target(data)


def _with_other_values(seed: bytes) -> Iterator[bytes]:
    lines = seed.splitlines()
    for number, line in enumerate(lines):
        content = json.loads(line)
        for place in list(_places(content)):
            told = json.dumps(_replaced(content, place, _HERE)).encode()
            for other in OTHER_VALUES:
                changed = told.replace(json.dumps(_HERE).encode(), other, 1)
                yield b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content if isinstance(content, list) else ())
    )
    for key, value in inner:
        yield from _places(value, (*path, key))


def _replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = content.copy()
    changed[path[0]] = _replaced(content[path[0]], path[1:], value)
    return changed
