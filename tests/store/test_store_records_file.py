"""records/*.jsonl"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_results import make_record
from stored_rows import rows_of, written

from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.redaction import keep_secret
from pytest_llmbench.store.record_line import RECORDS_SCHEMA, row_reader
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter, read_runs
from pytest_llmbench.store.schema import iso_utc

ANCHOR = ClockAnchor(monotonic_ns=123_456_789_012_345, wall_ns=1_768_901_400_125_000_001)
HEADER = RecordsHeader(ANCHOR, "a.py::a", {"load": "20 req/s"})


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _wait_for_lines(path: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and len(_lines(path)) >= count:
            return _lines(path)
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {count} lines")


def test_record_line_keeps_nanoseconds(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", [make_record(0)])
    line = json.loads(_lines(path)[1])
    assert line["scheduled_ns"] == 9_007_199_254_740_993
    assert line["first_content_ns"] - line["submitted_ns"] == 123_456_789 - 20_003
    assert line["chunk_ns"] == [9_007_199_378_197_782, 9_007_199_384_740_994]


def test_names_and_order_of_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", [make_record(0)])
    assert " ".join(json.loads(_lines(path)[1])) == (
        "index request_id phase class_label scheduled_ns dispatched_ns submitted_ns first_byte_ns "
        "first_event_ns first_nonempty_ns first_reasoning_ns first_content_ns last_content_ns "
        "finished_ns input_tokens output_tokens requested_input_tokens requested_max_tokens "
        "cached_tokens reasoning_tokens http_status coalesced_chunks unresolved_chunks "
        "first_content_early_ns stale_retries unshown_tokens shared_prefix_tokens prefix_id session "
        "turn session_turns queue_wait_ns prefill_ns generation_ns model_load_ns preemptions "
        "preempted_tokens thinking_end_ns last_reasoning_ns critical_evictions draft_tokens "
        "accepted_draft_tokens cut_after_ns "
        "reasoning_token_source thinking_end_reason token_source outcome error finish_reason schema_check "
        "answer_check end_before_cut answered_by contradiction chunk_ns chunk_tokens server_token_ns "
        "attribution server_timings label"
    )


BY_KIND: dict[str, list[Any]] = {
    "Instant": [None, 0, 5, 7, 9],
    "Number": [None, 0, 3],
    "Whole": [0, 5],
    "Text": ["", "chat"],
    "Words": [None, "", "stop"],
    "SourceOf": list(TokenSource),
    "OutcomeOf": list(Outcome),
    "Several": [(), [1], [1, 1], [5, 9], [0, 0], [9, 5, 7]],
    "str": ["none", "exact"],
    "dict[str, float]": [{}, {"queue_s": 0.5}],
}
VALUES = {
    each.name: st.sampled_from(BY_KIND[str(each.type)])
    for each in dataclasses.fields(RequestRecord)
    if each.name not in ("index", "request_id", "phase")
}


@settings(max_examples=200)
@given(
    values=st.fixed_dictionaries(VALUES),
    request_id=st.sampled_from(["", "a-12", "a-1", "12", "a-12-"]),
    label=st.sampled_from(["", "measure"]),
)
def test_a_compact_line_says_what_the_whole_one_says(
    values: dict[str, Any], request_id: str, label: str
) -> None:
    """Whatever of a record is missing, is zero, or is the instant of a chunk."""
    record = RequestRecord(index=12, request_id=request_id, phase=Phase.MEASURE, **values)
    read = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("r.jsonl", "r.compact.jsonl"):
            path = Path(folder) / name
            with RecordsWriter(path, HEADER) as writer:
                writer.write(record, label)
            first, line = path.read_bytes().splitlines()
            read.append(row_reader(json.loads(first))(line))
    assert read[0] == read[1] == (record, label)


def test_a_compact_line_as_it_is_documented(tmp_path: Path) -> None:
    """An open-loop reply of three chunks whose first content is in the second."""
    record = RequestRecord(
        7, "0f3a-7", Phase.MEASURE, scheduled_ns=990, dispatched_ns=995, submitted_ns=1000,
        first_byte_ns=1040, first_event_ns=1040, first_nonempty_ns=1050, first_content_ns=1062,
        chunk_ns=[1050, 1062, 1075], chunk_tokens=[1, 1, 1], last_content_ns=1075, finished_ns=1080,
        input_tokens=20, output_tokens=3,
        requested_input_tokens=20, requested_max_tokens=16, outcome=Outcome.OK, server_token_ns=[5, 17, 30],
        token_source=TokenSource.SERVER_USAGE, first_reasoning_ns=None,
    )  # fmt: skip
    path = written(tmp_path / "r.compact.jsonl", [record])
    first, line = map(json.loads, _lines(path))
    assert (first["schema"], first["compact"]) == (RECORDS_SCHEMA, True)
    assert line == {
        "index": 7, "id_prefix": "0f3a-", "phase": "measure", "submitted_ns": 1000, "scheduled_after_ns": -10,
        "dispatched_after_ns": -5, "first_byte_after_ns": 40, "first_event_after_ns": 40,
        "first_content_after_ns": 62, "chunk_gaps_ns": [50, 12, 13], "chunk_tokens": 1,
        "finished_after_ns": 80, "input_tokens": 20, "output_tokens": 3, "requested_max_tokens": 16,
        "token_source": "server_usage", "outcome": "ok", "server_token_gaps_ns": [5, 12, 13],
        "label": "measure",
    }  # fmt: skip


def test_a_compact_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its instants are whole, its ends are written, and what is not there was not asked for."""
    header = {"anchor": {"monotonic_ns": 1, "wall_ns": 2}, "schema": "pytest-llmbench/records/1.6"}
    line = {
        "index": 3, "request_id": "a-3", "phase": "measure", "scheduled_ns": 990, "dispatched_ns": 995,
        "submitted_ns": 1000, "first_byte_ns": 1040, "chunk_ns": [1050, 1062], "chunk_tokens": [1, 1],
        "finished_ns": 1080, "input_tokens": 20, "output_tokens": 2, "outcome": "ok", "label": "measure",
    }  # fmt: skip
    path = tmp_path / "r.compact.jsonl"
    path.write_text("\n".join(map(json.dumps, (header | {"compact": True}, line))) + "\n")
    (run,) = read_runs(path).runs
    assert run.label == "measure"
    expected = RequestRecord(
        3, "a-3", Phase.MEASURE, scheduled_ns=990, dispatched_ns=995, submitted_ns=1000, first_byte_ns=1040,
        first_event_ns=1050, first_nonempty_ns=1050, first_content_ns=1050, chunk_ns=[1050, 1062],
        chunk_tokens=[1, 1], last_content_ns=1062, finished_ns=1080, input_tokens=20, output_tokens=2,
        outcome=Outcome.OK,
    )  # fmt: skip
    assert row_reader(header | {"compact": True})(json.dumps(line).encode()) == (expected, "measure")


@pytest.mark.parametrize(
    "line",
    [
        '{"index": 1, "request_id": "a", "phase": "measure", "finished_after_ns": 5}',
        '{"index": 1, "request_id": "a", "phase": "measure", "submitted_ns": 5, "chunk_gaps_ns": ["x"]}',
        '{"id_prefix": "a", "phase": "measure"}',
        '{"index": 1, "request_id": "a", "phase": "measure", "chunk_gaps_ns": 5}',
    ],
)
def test_a_compact_line_that_is_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.compact.jsonl"
    RecordsWriter(path, HEADER).close()
    path.write_text(path.read_text() + f"{line}\n{line}\n")
    with pytest.raises(StoreError, match="line 2 is not a record"):
        read_runs(path)


def test_the_first_line_anchors_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    RecordsWriter(path, HEADER).close()
    header = json.loads(_lines(path)[0])
    assert header["anchor"] == {
        "monotonic_ns": ANCHOR.monotonic_ns,
        "wall_ns": ANCHOR.wall_ns,
        "wall": "2026-01-20T09:30:00.125Z",
    }
    assert (header["schema"], header["nodeid"]) == ("pytest-llmbench/records/1.9", "a.py::a")
    assert header["plan"] == {"load": "20 req/s"}


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    written = [make_record(0, phase=Phase.WARMUP), make_record(1), make_record(2, Outcome.TIMEOUT)]
    with RecordsWriter(path, HEADER) as writer:
        for row in written:
            writer.write(row, str(row.phase))
    assert rows_of(path) == list(zip(written, ("warmup", "measure", "measure"), strict=True))


def test_numpy_columns_are_written_as_lists(tmp_path: Path) -> None:
    row = make_record(0)
    row.chunk_ns = np.array([1, 2], dtype=np.int64)  # type: ignore[assignment]
    row.output_tokens = np.int64(7)  # type: ignore[assignment]
    written(tmp_path / "r.jsonl", [row], "")
    ((read, _),) = rows_of(tmp_path / "r.jsonl")
    assert (read.chunk_ns, read.output_tokens) == ([1, 2], 7)


def test_records_reach_the_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with RecordsWriter(path, HEADER, flush_interval_s=0.02) as writer:
        writer.write(make_record(0))
        assert len(_wait_for_lines(path, 2)) == 2


def test_a_killed_run_keeps_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pytest_llmbench.model.observation import ClockAnchor\n"
        "from pytest_llmbench.model.record import Phase\n"
        "from pytest_llmbench.model.record import RequestRecord\n"
        "from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter\n"
        "writer = RecordsWriter(Path(sys.argv[1]), RecordsHeader(ClockAnchor(1, 2)))\n"
        "for i in range(3):\n"
        "    writer.write(RequestRecord(i, str(i), Phase.MEASURE))\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        _wait_for_lines(path, 4)
    finally:
        child.kill()
        child.wait()
    assert [row.index for row, _ in rows_of(path)] == [0, 1, 2]


@pytest.mark.parametrize("content", ["", "{", '{"anchor": {}}', "[]"])
def test_a_file_without_header(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(StoreError, match="no header line"):
        read_runs(tmp_path / "r.jsonl")


def test_records_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    RecordsWriter(path, HEADER).close()
    path.write_text(path.read_text().replace("records/1.9", "records/9.0"))
    with pytest.raises(StoreError, match=r"records/9\.0"):
        read_runs(path)


def test_a_canary_key_is_in_no_record(tmp_path: Path) -> None:
    canary = "sk-canary-0123456789"
    row = make_record(0, Outcome.HTTP_ERROR)
    row.error = f"401: {canary} is not known"
    row.finish_reason = row.answered_by = canary
    row.server_timings = {canary: 1.0}
    path = tmp_path / "r.jsonl"
    header = RecordsHeader(ANCHOR, plan={"url": f"https://host?key={canary}"})
    keep_secret(canary)
    with RecordsWriter(path, header) as writer:
        writer.write(row)
    assert canary not in path.read_text()
    assert rows_of(path)[0][0].error == "401: [redacted] is not known"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"r\.jsonl: cannot write the records"):
        RecordsWriter(tmp_path / "file" / "r.jsonl", HEADER)


def test_a_disk_that_fails_later_is_told_at_the_end() -> None:
    reader, pipe = os.pipe()
    try:
        writer = RecordsWriter(Path(f"/proc/self/fd/{pipe}"), HEADER, flush_interval_s=60)
        os.close(reader)
        writer.write(make_record(0))
        writer.write(make_record(1))
        with pytest.raises(StoreError, match="2 records could not be written"):
            writer.close()
        writer.close()  # a second time is harmless
    finally:
        os.close(pipe)


def test_a_failed_disk_does_not_hide_what_ended_the_run() -> None:
    reader, pipe = os.pipe()

    def run() -> None:
        with RecordsWriter(Path(f"/proc/self/fd/{pipe}"), HEADER, flush_interval_s=60) as writer:
            os.close(reader)
            writer.write(make_record(0))
            raise KeyError("the run's own")

    try:
        with pytest.raises(KeyError) as caught:
            run()
    finally:
        os.close(pipe)
    assert "1 records could not be written" in caught.value.__notes__[0]


def _stalled(pipe: int, most_waiting: int) -> RecordsWriter:
    return RecordsWriter(Path(f"/proc/self/fd/{pipe}"), HEADER, most_waiting=most_waiting)


def _long(index: int) -> RequestRecord:
    row = make_record(index)
    row.error = "e" * 1000
    return row


def test_a_disk_that_stands_still_makes_writing_wait_and_loses_nothing() -> None:
    """A pipe takes 64 KiB before it stands still; some 2 KiB a line, 200 KiB may wait."""
    reader, pipe = os.pipe()
    read: list[bytes] = []
    written: list[int] = []
    writer = _stalled(pipe, 200_000)

    def write() -> None:
        for index in range(1000):
            writer.write(_long(index))
            written.append(index)
        writer.close()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        writing.join(0.5)
        held = len(written)
        assert 80 < held < 300  # what may wait, what is being written, and what the pipe took
        os.close(pipe)
        while chunk := os.read(reader, 1 << 16):
            read.append(chunk)
    finally:
        os.close(reader)
        writing.join(20)
    lines = b"".join(read).splitlines()
    assert [json.loads(line)["index"] for line in lines[1:]] == list(range(1000))
    (note,) = writer.notes
    assert "could not keep up" in str(note)
    waited = note.parameters["waited"]
    assert isinstance(waited, Amount)
    assert waited.value is not None
    assert 0.2 < waited.value < 10


def test_what_is_larger_than_all_that_may_wait_is_written_too(tmp_path: Path) -> None:
    with RecordsWriter(tmp_path / "r.jsonl", HEADER, most_waiting=10) as writer:
        for index in range(30):
            writer.write(_long(index))
    assert [row.index for row, _ in rows_of(tmp_path / "r.jsonl")] == list(range(30))


def test_a_disk_that_has_failed_holds_nothing_up() -> None:
    reader, pipe = os.pipe()
    try:
        writer = _stalled(pipe, 5000)
        os.close(reader)
        for index in range(50):
            writer.write(_long(index))
        with pytest.raises(StoreError, match="50 records could not be written"):
            writer.close()
    finally:
        os.close(pipe)


def test_a_disk_that_keeps_up_is_not_worth_a_word(tmp_path: Path) -> None:
    with RecordsWriter(tmp_path / "r.jsonl", HEADER) as writer:
        writer.write(make_record(0))
    assert writer.notes == ()


def test_much_that_waits_is_written_before_the_second_is_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with RecordsWriter(path, HEADER, flush_interval_s=60, most_waiting=20_000) as writer:
        for index in range(12):
            writer.write(_long(index))
        assert len(_wait_for_lines(path, 4)) >= 4


def test_closing_after_an_error_of_the_run_keeps_that_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), RecordsWriter(tmp_path / "r.jsonl", HEADER):
        raise KeyError("the run's own")


@settings(max_examples=40)
@given(wall_ns=st.integers(min_value=0, max_value=4_000_000_000 * 10**9))
def test_instants_round_down_to_milliseconds(wall_ns: int) -> None:
    text = iso_utc(wall_ns)
    assert text.endswith("Z")
    seconds = np.datetime64(text[:-1], "ms").astype(np.int64)
    assert int(seconds) == wall_ns // 1_000_000


def test_a_file_written_before_a_field_existed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    row = make_record(0)
    row.preemptions, row.server_token_ns = 2, [5, 6]
    written(path, [row], "")
    assert rows_of(path)[0][0] == row
    header, line = _lines(path)
    values = json.loads(line)
    for name in ("preemptions", "server_token_ns", "queue_wait_ns", "prefix_id"):
        del values[name]
    path.write_text(header.replace("records/1.9", "records/1.0") + "\n" + json.dumps(values) + "\n")
    (run,) = read_runs(path).runs
    assert run.records.preemptions.tolist() == [MISSING]
    old = rows_of(path)[0][0]
    assert (old.preemptions, old.server_token_ns, old.queue_wait_ns, old.prefix_id) == (None, (), None, None)
    assert old.chunk_ns == row.chunk_ns
