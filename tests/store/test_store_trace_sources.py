"""Traces whose rows look alike and mean other things: sizes of blocks, units of time, sources by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads import describe
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.store.traces.reading import read_trace
from pytest_llmbench.store.traces.request import Trace
from pytest_llmbench.store.traces.sessions import sessions_of_trace
from pytest_llmbench.store.traces.sources import UNIT_MS, Meaning
from pytest_llmbench.workloads.trace import TraceWorkload

EVERY_S = 18.0
"""Seconds between requests, 0.0555 a second."""
EPOCH_S = 1_753_780_607.0


def row(number: int, unit: str = "ms", block: int = 512, begin_s: float = 0.0) -> dict[str, Any]:
    at = round((begin_s + EVERY_S * number) * 1000.0 / UNIT_MS[unit])
    blocks = -(-1000 // block)
    shared = list(range(blocks // 2))
    ids = [*shared, *(1000 * number + each for each in range(blocks, 2 * blocks - len(shared)))]
    return {"timestamp": at, "input_length": 1000, "output_length": 5, "hash_ids": ids}


def written(folder: Path, rows: list[Any] | Any, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)) if isinstance(rows, list) else json.dumps(rows))
    return path


def rate_per_s(trace: Trace) -> float:
    return 1000.0 * (len(trace.requests) - 1) / (trace.requests[-1].offset_ms or 0.0)


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_a_unit_that_nobody_said_is_not_taken_for_milliseconds(tmp_path: Path, unit: Any) -> None:
    path = written(tmp_path, [row(each, unit) for each in range(50)])
    with pytest.raises(SuiteError, match="time_unit"):
        read_trace(path)
    assert rate_per_s(read_trace(path, meaning=Meaning(time_unit=unit))) == pytest.approx(1 / EVERY_S)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_dates_tell_their_unit(tmp_path: Path, unit: str) -> None:
    trace = read_trace(written(tmp_path, [row(each, unit, begin_s=EPOCH_S) for each in range(50)]))
    assert rate_per_s(trace) == pytest.approx(1 / EVERY_S)
    assert any(f"timestamp in {unit}" in step for step in trace.steps)


def test_fractions_are_no_milliseconds_unless_that_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, [row(each) | {"timestamp": 61.114 + 900 * each} for each in range(9)])
    with pytest.raises(SuiteError, match="timestamp has fractions"):
        read_trace(path)
    assert rate_per_s(read_trace(path, meaning=Meaning(time_unit="ms"))) == pytest.approx(1 / 0.9)
    assert rate_per_s(read_trace(path, trace="mooncake")) == pytest.approx(1 / 0.9)


@pytest.mark.parametrize("block", [16, 64, 1024])
def test_hash_ids_have_to_fit_the_input(tmp_path: Path, block: int) -> None:
    path = written(tmp_path, [row(each, block=block) for each in range(20)])
    many = "too few" if block > 512 else "too many"
    with pytest.raises(SuiteError, match=rf"line 1: .* {many} for 1000 tokens in blocks of 512") as caught:
        read_trace(path)
    assert f"blocks of {block} tokens fit: block_tokens = {block}" in str(caught.value)
    trace = read_trace(path, meaning=Meaning(block_tokens=block))
    assert trace.block_tokens == block
    with pytest.raises(SuiteError, match="in blocks of 128"):
        read_trace(path, meaning=Meaning(block_tokens=128))


def test_the_keys_stand_in_the_file_of_workloads(tmp_path: Path) -> None:
    written(tmp_path, [row(each, "s", 64) for each in range(20)])
    table = 'kind = "trace"\npath = "t.jsonl"\ndataset = "d"\nversion = "1"\nsubset_method = "all"\n'
    file = tmp_path / "w.toml"
    file.write_text(f'[workloads.t]\n{table}block_tokens = 64\ntime_unit = "s"\n')
    made = read_workload_file(file)["t"]
    assert isinstance(made, TraceWorkload)
    assert made.offsets_ns[1] == round(EVERY_S * 1e9)
    requests = made.requests(20, 1)
    assert requests[1].shared_prefix_tokens == 8 * 64
    file.write_text(f'[workloads.t]\n{table}trace_format = "azure"\nblock_tokens = 64\n')
    with pytest.raises(SuiteError, match="block_tokens do not apply to the format azure"):
        read_workload_file(file)


def test_bailian(tmp_path: Path) -> None:
    def chat(number: int, parent: int, at_s: float) -> dict[str, Any]:
        told = row(number, block=16) | {"timestamp": at_s, "type": "text", "turn": 1}
        return {"chat_id": number, "parent_chat_id": parent, **told}

    rows = [chat(1, -1, 61.114), chat(2, -1, 62.5), chat(3, 1, 71.114), chat(4, 3, 81.614), chat(9, 8, 90.0)]
    trace = read_trace(written(tmp_path, rows))
    assert (trace.format, trace.block_tokens) == ("bailian", 16)
    assert [each.offset_ms for each in trace.requests] == pytest.approx([0, 1386, 10_000, 20_500, 28_886])
    assert [each.session for each in trace.requests] == ["1", "2", "1", "1", "8"]
    first = sessions_of_trace(trace, "t").sessions[0]
    assert [turn.pause_ms for turn in first.turns[1:]] == pytest.approx([10_000, 10_500])


WEKA = {
    "id": "c1",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 7, "hash_ids": [1, 2], "api_time": 2.0},
        {"t": 5.0, "type": "s", "in": 192, "out": 9, "hash_ids": [1, 2, 3], "api_time": 1.0},
        {"t": 5.5, "type": "subagent", "requests": [{"t": 0.0, "in": 64, "out": 3, "hash_ids": [1]}]},
        {"t": 9.0, "type": "s", "in": 193, "out": 4, "hash_ids": [1, 2, 3, 4], "think_time": 0.5},
    ],
}


def test_weka(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, [WEKA, WEKA | {"id": "c2"}]))
    assert (trace.format, trace.block_tokens, trace.is_timed) == ("weka", 64, False)
    first, second = ([each for each in trace.requests if each.session == name] for name in ("c1", "c2"))
    assert [(each.input_tokens, each.output_tokens) for each in first] == [(130, 7), (192, 9), (193, 4)]
    assert [each.pause_ms for each in first] == [None, 3000.0, 500.0]
    assert first[0].hash_ids[:2] == first[1].hash_ids[:2]
    assert not {*first[0].hash_ids} & {*second[0].hash_ids}
    assert len(first[0].hash_ids) == 3
    sessions = sessions_of_trace(trace, "t").sessions
    assert sorted(len(each.turns) for each in sessions) == [1, 1, 3, 3]
    alone = read_trace(written(tmp_path, WEKA, "one.json"))
    assert [each.input_tokens for each in alone.requests if each.session == "c1"] == [130, 192, 193]


def test_lmbench_and_guidellm_by_name(tmp_path: Path) -> None:
    rows = [row(each, "ns", 64, EPOCH_S) for each in range(9)]
    path = written(tmp_path, [each | {"timestamp": str(each["timestamp"])} for each in rows])
    lmbench = read_trace(path, trace="lmbench")
    assert (lmbench.block_tokens, rate_per_s(lmbench)) == (64, pytest.approx(1 / EVERY_S))
    plain = [{key: value for key, value in row(each, "s").items() if key != "hash_ids"} for each in range(9)]
    assert rate_per_s(read_trace(written(tmp_path, plain), trace="guidellm")) == pytest.approx(1 / EVERY_S)


def test_describe_takes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, [row(each, "s", 16) for each in range(30)])
    assert describe.main(["describe", str(path), "--block-tokens=16", "--time-unit=s"]) == 0
    assert "0.05" in capsys.readouterr().out
    with pytest.raises(SuiteError, match="--time-unit"):
        describe.main(["describe", str(path)])
