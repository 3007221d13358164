"""``pytest-llmbench trace describe``: known answers, every format, and what is not known said so."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_llmbench.__main__ import main
from pytest_llmbench.arrivals import schedule_ns
from pytest_llmbench.harness.workloads.describe import Arrivals, shape_of_trace, shape_of_workload
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.store.traces.reading import read_trace
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.trace import TraceWorkload

ROWS = [
    {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]},
    {"timestamp": 60_000, "input_length": 1536, "output_length": 20, "hash_ids": [1, 2, 3]},
    {"timestamp": 120_000, "input_length": 512, "output_length": 30, "hash_ids": [9]},
    {"timestamp": 240_000, "input_length": 700, "output_length": 40, "hash_ids": [1, 8]},
    {"timestamp": 250_000, "input_length": 700, "output_length": 0},
]
AGENTIC: list[dict[str, Any]] = [
    {"request_id": "a", "session_id": "s", "input_length": 600, "output_length": 5, "timestamp": 0},
    {"request_id": "b", "session_id": "s", "input_length": 900, "output_length": 5, "wait_for": ["a"],
     "delay": 500, "tool_wait_ms": 1500},
    {"request_id": "c", "session_id": "t", "input_length": 100, "output_length": 5, "timestamp": 10_000},
]  # fmt: skip


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    content = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_figures_of_a_trace_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    shape = shape_of_trace(read_trace(jsonl(tmp_path / "m.jsonl", ROWS)), "m")
    assert shape.shared_tokens.tolist() == [0, 1024, 0, 512]
    assert shape.sharers == 0.5
    assert shape.cacheable == 1536 / 3772
    assert shape.left_out == 1
    assert shape.arrivals is not None
    assert shape.arrivals.rate == 3 / 240
    gaps = np.array([60, 60, 120])
    assert shape.arrivals.variation == np.std(gaps) / np.mean(gaps)
    assert shape.arrivals.busiest == 1 / 60
    assert shape.turns is shape.pauses_s is shape.growth_tokens is None


def test_the_sessions_of_a_trace_as_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonl(tmp_path / "a.jsonl", AGENTIC)
    file = tmp_path / "w.toml"
    file.write_text(
        '[workloads.agents]\nkind = "trace"\nsessions = true\npath = "a.jsonl"\ndataset = "d"\n'
        'version = "1"\nsubset_method = "all"\n'
    )
    assert main(["trace", "describe", str(file), "--plot", str(tmp_path / "s.svg")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "w.toml: agents (sessions of a trace), 3 requests" in said
    assert "arrivals: 0.10 sessions/s over" in said
    assert "sessions: 2 with 3 requests, 50 % of them with one" in said
    assert "sharing: 33.33 % of the requests begin like an earlier one, with 37.5 % of" in said
    assert "sessions per second" in (tmp_path / "s.svg").read_text("utf-8")


def test_sessions_turns_pauses_and_growth(tmp_path: Path) -> None:
    shape = shape_of_trace(read_trace(jsonl(tmp_path / "a.jsonl", AGENTIC)), "a")
    assert shape.turns is not None
    assert shape.pauses_s is not None
    assert shape.growth_tokens is not None
    assert sorted(shape.turns.tolist()) == [1, 2]
    assert shape.pauses_s.tolist() == [2.0]
    assert shape.growth_tokens.tolist() == [300]
    assert not shape.sharing_known


@pytest.mark.parametrize(("burstiness", "about"), [(0.4, 0.4), (1.0, 1.0), (4.0, 4.0)])
def test_burstiness_is_what_such_arrivals_were_made_with(burstiness: float, about: float) -> None:
    drawn = schedule_ns(OpenLoop(20, "gamma", burstiness), 20_000, 7)
    found = Arrivals((drawn - drawn[0]) / 1e9)
    assert found.burstiness == pytest.approx(about, rel=0.06)
    assert found.rate == pytest.approx(20, rel=0.05)
    clock = Arrivals(np.arange(5.0))
    assert (clock.variation, clock.burstiness, clock.busiest) == (0, None, None)


def test_a_workload_shares_what_its_realised_requests_do() -> None:
    shape = shape_of_workload(workload("profile:FUNC"), "", 50, 3)
    requests = workload("profile:FUNC").requests(50, 3)
    seen: set[int | None] = set()
    shared = [r.shared_prefix_tokens if r.prefix_id in seen or seen.add(r.prefix_id) else 0 for r in requests]
    assert shape.shared_tokens.tolist() == shared
    assert shape.arrivals is None


def test_a_trace_as_a_workload_has_the_shape_of_its_file(tmp_path: Path) -> None:
    trace = read_trace(jsonl(tmp_path / "m.jsonl", ROWS))
    made = TraceWorkload("t", trace.entries, DatasetIdentity("d", "1", "all"))
    drawn, read = shape_of_workload(made, "", 1_000, 42), shape_of_trace(trace, "m")
    assert drawn.shared_tokens.tolist() == read.shared_tokens.tolist()
    assert drawn.input_tokens.tolist() == read.input_tokens.tolist()
    assert drawn.arrivals is not None
    assert read.arrivals is not None
    assert drawn.arrivals.at_s.tolist() == read.arrivals.at_s.tolist()


def test_the_command_tells_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = jsonl(tmp_path / "m.jsonl.gz", ROWS), tmp_path / "m.svg"
    assert main(["trace", "describe", str(path), "--plot", str(plot)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for told in (
        "m.jsonl.gz: mooncake, 4 requests (rows without tokens left out: 1)", "input tokens 943",
        "arrivals: 0.0125 req/s over 240 s, 0.0167 req/s in the busiest minute",
        "sharing: 50 % of the requests begin like an earlier one, with 40.72 % of the input tokens",
    ):  # fmt: skip
        assert told in said
    words = "".join(ET.parse(plot).getroot().itertext())
    assert all(label in words for label in ("tokens", "input", "output", "requests per second"))
    first = plot.read_bytes()
    assert main(["trace", "describe", str(path), "--plot", str(plot)]) == 0
    assert plot.read_bytes() == first


def test_what_a_format_does_not_say_is_said_to_be_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}
    plot = tmp_path / "c.svg"
    assert main(["trace", "describe", str(jsonl(tmp_path / "c.jsonl", [chat])), "--plot", str(plot)]) == 0
    assert "share of sessions" in "".join(ET.parse(plot).getroot().itertext())
    said = capsys.readouterr().out
    assert "arrivals: no instants" in said
    assert "sessions: 1 with 1 requests, 100 % of them with one" in said
    assert main(["trace", "describe", str(jsonl(tmp_path / "a.jsonl", AGENTIC))]) == 0
    assert "sharing: unknown" in capsys.readouterr().out


def test_files_of_workloads_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    lengths = "input_tokens = 5\noutput_tokens = 6\n"
    file.write_text(f"[workloads.a]\n{lengths}[workloads.b]\n{lengths}")
    assert main(["trace", "describe", str(file), "--requests=20"]) == 0
    said = capsys.readouterr().out
    assert "w.toml: a (drawn with seed 42), 20 requests" in said
    assert "w.toml: b " in said
    assert main(["trace", "describe", str(file), "--workload=b", "--requests=20"]) == 0
    assert "w.toml: a" not in capsys.readouterr().out
    assert main(["trace", "describe", "profile:CHAT", "--requests=20"]) == 0
    assert "suggests ttft.p99 <= 500 ms (a suggestion, not applied)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{tmp}/none.jsonl"], "cannot be read"),
        (["profile:CHIT"], "did you mean 'profile:CHAT'"),
        (["{tmp}/w.toml", "--workload=x"], "no workload 'x'; there are: a"),
        (["{tmp}/w.toml", "--requests=0"], "give at least 1"),
        (["{tmp}/w.jsonl"], "line 2: input_length is -1"),
        (["{tmp}/m.jsonl", "--plot", "{tmp}"], "{tmp}"),
        (["{tmp}/m.jsonl", "--trace-format=azure"], "line 1: ContextTokens is missing"),
    ],
)
def test_what_cannot_be_described_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    (tmp_path / "w.toml").write_text("[workloads.a]\ninput_tokens = 5\noutput_tokens = 6\n")
    jsonl(tmp_path / "m.jsonl", ROWS)
    jsonl(tmp_path / "w.jsonl", [ROWS[0], ROWS[1] | {"input_length": -1}])
    given = [each.replace("{tmp}", str(tmp_path)) for each in arguments]
    assert main(["trace", "describe", *given]) == 2
    assert told.replace("{tmp}", str(tmp_path)) in capsys.readouterr().err
