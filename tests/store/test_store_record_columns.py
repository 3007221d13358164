"""Compact lines made of columns: the bytes that the rows of the same records give."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmbench import redaction
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.records import MISSING, OnRecords, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.redaction import keep_secret
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.replay.records import rows_of
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.store.record_line import compact_line, compact_lines, encoded_line
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.catalogue import with_cuts
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PLAIN = SyntheticWorkload("plain", Uniform(20, 400), Uniform(1, 60))
SESSIONS = SessionWorkload("turns", Uniform(2, 4), Uniform(20, 60), Uniform(5, 40), Uniform(100, 900))
HEADER = RecordsHeader(ClockAnchor(1_000_000_000, 1_768_901_400_125_000_001), "a.py::a")
CASES: dict[str, tuple[str, Workload, Load]] = {
    "plain": ("fast", PLAIN, OpenLoop(40)),
    "closed": ("fast?max_waiting=3&max_num_seqs=4", PLAIN, ClosedLoop(12)),
    "sessions": ("fast?prefix_caching=on", SESSIONS, SessionSlots(6)),
    "cuts": ("fast", with_cuts(PLAIN, Cuts(0.4, Uniform(2, 60))), OpenLoop(40)),
    "thoughts": (
        "fast?scheduler=phase&think_mean_tokens=30&output_kv_share=0.2&kv_blocks=140&context_limit_tokens=1024",
        PLAIN,
        ClosedLoop(16),
    ),
    "server's clock": ("fast?server_timestamps=true&tokens_per_chunk=4", PLAIN, OpenLoop(40)),
    "drafts": ("fast?speculative_tokens=3", PLAIN, OpenLoop(40)),
    "faults": ("fast?fault=reset,stall,http_error,buffering&fault_rate=0.3", PLAIN, OpenLoop(40)),
    "guardrails": ("fast?input_filter=enabled&input_refusal_share=0.3", PLAIN, OpenLoop(40)),
}


def replayed(scenario: str, workload: Workload, load: Load, *, generates: bool = True) -> Records:
    plan = LoadPlan("lines", workload, load, 120, seed=3)
    return ReplayEngine(parse_scenario(scenario), generates=generates).run(plan).records


def by_rows(records: Records, label: str) -> list[bytes]:
    return [encoded_line(compact_line(row, label)) for row in rows_of(records)]


def by_columns(records: Records, label: str) -> list[bytes]:
    return [encoded_line(line) for some in compact_lines(records, label) for line in some]


@pytest.mark.parametrize("case", CASES)
def test_the_lines_are_those_of_the_rows(case: str) -> None:
    records = replayed(*CASES[case])
    assert len(records) >= 120
    assert by_columns(records, "rate 100 %") == by_rows(records, "rate 100 %")
    assert by_columns(records, "") == by_rows(records, "")


def test_replies_that_are_documents() -> None:
    records = replayed("fast", PLAIN, OpenLoop(40), generates=False)
    assert by_columns(records, "a") == by_rows(records, "a")


def test_a_single_request_and_none() -> None:
    records = replayed("fast", PLAIN, OpenLoop(40))
    assert by_columns(records.part(5, 6), "a") == by_rows(records.part(5, 6), "a")
    assert by_columns(records.part(5, 5), "a") == []


def test_more_requests_than_are_made_at_once() -> None:
    parts = [replayed("fast", PLAIN, OpenLoop(rate)) for rate in range(30, 40)]
    records = Records.concatenate(parts)
    assert len(records) > 1024
    assert by_columns(records, "a") == by_rows(records, "a")


def _without(records: Records, *names: str) -> Records:
    """Every third request without these instants."""
    gone = np.arange(len(records)) % 3 == 0
    return replace(records, **{name: np.where(gone, MISSING, getattr(records, name)) for name in names})


ODD: dict[str, Any] = {
    "no submission": lambda r: _without(r, "submitted_ns"),
    "no end": lambda r: _without(r, "finished_ns", "last_content_ns"),
    "no counts": lambda r: _without(r, "input_tokens", "output_tokens", "coalesced_chunks"),
    "no prefix of ids": lambda r: replace(r, request_id=[f'"{i}" {{%s}} é' for i in range(len(r))]),
    "ids of both kinds": lambda r: replace(r, request_id=[f"x-{i // 2}" for i in range(len(r))]),
    "signs in texts": lambda r: replace(r, error=["100 %", None, '"\n'] * (len(r) // 3)),
    "text that is no Unicode": lambda r: replace(r, error=["\ud800"] * len(r)),
    "one class": lambda r: replace(r, class_label=["50 % \u2028"] * len(r)),
    "chunks of several tokens": lambda r: replace(r, chunk_tokens=np.arange(len(r.chunk_ns)) // 200 + 1),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_no_replay_gives(odd: str) -> None:
    records = ODD[odd](replayed("fast", PLAIN, OpenLoop(40)))
    assert by_columns(records, "a") == by_rows(records, "a")


class _Takes:
    """Where the records of a load go to in a session."""

    def __init__(self, writer: RecordsWriter) -> None:
        self._writer = writer
        self.rows = 0

    def __call__(self, record: Any) -> None:
        self.rows += 1
        self._writer.write(record, "a")

    def columns(self, records: Records) -> bool:
        return self._writer.write_columns(records, "a")


def _written(path: Path, **changes: Any) -> tuple[list[bytes], int]:
    """The lines of a replay's file, and how many of its requests came as rows."""
    engine = ReplayEngine(parse_scenario("fast?fault=http_error&fault_rate=0.5"))
    with RecordsWriter(path, HEADER, **changes) as writer:
        takes = _Takes(writer)
        assert isinstance(takes, OnRecords)
        engine.run(LoadPlan("lines", PLAIN, OpenLoop(40), 200, seed=3), takes)
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()[1:], takes.rows


@pytest.fixture
def without_secrets() -> Iterator[None]:
    """Modules of other tests keep some as soon as they are imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_KNOWN", set())
        redaction._redactor.cache_clear()
        yield
    redaction._redactor.cache_clear()


@pytest.mark.usefixtures("without_secrets")
def test_a_writer_of_compact_lines_takes_columns(tmp_path: Path) -> None:
    lines, rows = _written(tmp_path / "a.compact.jsonl.gz")
    assert (len(lines), rows) == (200, 0)
    assert _written(tmp_path / "b.compact.jsonl.gz", most_waiting=4096) == (lines, 0)
    keep_secret("in no record at all")  # with a secret in the process each text is looked at
    assert _written(tmp_path / "c.compact.jsonl.gz") == (lines, 0)


def test_whole_lines_are_made_of_rows(tmp_path: Path) -> None:
    lines, rows = _written(tmp_path / "a.jsonl.gz")
    assert (len(lines), rows) == (200, 200)
    assert b'"scheduled_ns":' in lines[0]
