"""``--llm-profile``: the engine's profiler around a further load, which nothing is judged by."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.harness import profiling
from pytest_llmbench.harness.allowance import Allowance, Budgets
from pytest_llmbench.harness.profiling import profile, profiled_load
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.disclosure import SUTFile
from pytest_llmbench.probes.sut_schema import Profile, SUTTables
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

TESTS = """
    from pytest_llmbench import llmbench, ms, ttft

    @llmbench.job(prompts=40, concurrency=4, workload="work", slo=[ttft.p50 <= 0.001 * ms])
    def test_fails():
        pass

    @llmbench.job(prompts=40, concurrency=4, workload="work")
    def test_passes():
        pass

    @llmbench.job(prompts=40, concurrency=4, workload="work", fresh=True)
    def test_own_assertion(llm_result):
        assert llm_result.ttft.p50 is None
"""
SECONDS = "[profile]\nseconds = 0.1\ntimeout_s = 0.4\n"


@pytest.fixture
def measured(suite: Suite, however_late: None) -> Any:
    suite.write(TESTS, SMALL_WARMUP)
    (suite.path / "work.toml").write_text("[workloads.work]\ninput_tokens = 16\noutput_tokens = 4\n", "utf-8")

    def run(endpoint: str, sut: str, *options: str) -> dict[str, dict[str, Any]]:
        (suite.path / "sut.toml").write_text(SECONDS + sut, "utf-8")
        suite.measure(endpoint, "--llm-workloads=work.toml", "--llm-sut=sut.toml", *options)
        return suite.entries

    return run


def told(entry: dict[str, Any]) -> list[str]:
    of_ours = ("profiled", "not_profiled", "profiler_left_on")
    pairs = zip(entry["notes"], entry["note_data"], strict=True)
    return [text for text, data in pairs if data["id"] in of_ours]


def test_failed_tests_are_profiled_and_no_figure_moves(
    measured: Any, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", str(suite.path / "traces"))
    found = measured("sim", 'files = "traces/*.json"\n', "--llm-profile=failed", "--llm-records=events")
    assert told(found["test_passes"]) == []
    assert found["test_passes"]["profile_files"] == []
    for name in ("test_fails", "test_own_assertion"):
        entry = found[name]
        (note,) = told(entry)
        requests = int(re.match(r"profiled under (\d+) further requests like those of ", note)[1])  # type: ignore[index]
        (path,) = entry["profile_files"]
        assert path.startswith("../traces/")
        trace = json.loads((suite.path / "out" / path).read_text("utf-8"))
        assert len(trace["traceEvents"]) == requests
        assert entry["outcome"] == "failed"
        assert entry["counts"]["submitted"] == 40
        assert entry["metrics"]["ttft.p50"]["n"] == 40
        assert f'<a href="{path}">{path}</a>' in (suite.path / "out" / "report.html").read_text("utf-8")
    lines = gzip.decompress((suite.path / "out" / "events.jsonl.gz").read_bytes()).splitlines()
    loads = {(each["test"], each["load"]) for line in lines if "test" in (each := json.loads(line))}
    assert sum(load == "profile" for _, load in loads) == 2
    kept = b"".join(gzip.decompress(path.read_bytes()) for path in (suite.path / "out/records").iterdir())
    assert b'"profile"' not in kept


def profiled(url: str, folder: Path, budget: int = 1000, **asked: Any) -> tuple[list[str], list[str]]:
    """Notes and names of files of a system at ``url`` whose SUT file says so."""
    engine = ReplayEngine(parse_scenario("fast"))
    load = engine.run(LoadPlan("measure", SYNTHETIC_UNIFORM, ClosedLoop(4), 40, seed=3))
    tables = SUTTables(profile=Profile(seconds=0.1, timeout_s=0.4, **asked))
    opened = SimpleNamespace(
        virtual=False,
        over_http=bool(url),
        access=SimpleNamespace(access=Access(), file=SUTFile(folder / "sut.toml", Facts(), tables)),
        executor=SimpleNamespace(base=SimpleNamespace(base_url=url)),
    )
    result = SimpleNamespace(levels=(), observations=(load,))
    allowance = Allowance(Budgets(budget, 10**9, 1e9, 1e9, 10**9))
    anchor = ClockAnchor(0, 0)
    found = profile(
        cast("OpenSUT", opened),
        cast("TestResult", result),
        lambda plan: allowance.run(plan, engine.run, lambda: anchor),
    )
    return [str(note) for note in found.notes], [path.name for path in found.files]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("absent", r"not profiled: profile.start: POST \S+/start_profile answered with status 404, .*"),
        ("fails", r"not profiled: .* answered with status 500, .*the profiler failed.*"),
        ("hangs", r"not profiled: \S+/start_profile: connected, but no answer within 0.2 s .*"),
    ],
)
def test_a_profiler_that_does_not_work_is_a_note(state: str, said: str, tmp_path: Path) -> None:
    with EmbeddedEngine.start(f"fast?profiler={state}") as engine:
        (note,), files = profiled(engine.url, tmp_path)
    assert re.fullmatch(said, note)
    assert not files


RAN = r"profiled under \d+ further requests like those of measure, .*: no figure and no verdict uses them"


@pytest.mark.parametrize(
    ("start", "stop", "said", "files"),
    [
        ("touch a.trace", "touch b.trace", [RAN + "; files: .*a.trace, .*b.trace"], ["a.trace", "b.trace"]),
        ("true", "true", [RAN + r"; no file matches \*.trace \(profile.files\)"], []),
        ("no-such-program", "true", ["not profiled: profile.start_command: no-such-program cannot .*"], []),
        ("ls no-such-file", "true", ["not profiled: .* ended with status [12]: ls: .*no-such-file.*"], []),
        ("sleep 60", "true", ["not profiled: profile.start_command: sleep had not ended within 0.4 s"], []),
        ("true", "false", [RAN + ".*", "the profiler may still be on: .* ended with status 1"], []),
    ],
)
def test_commands_of_the_sut_file(
    start: str, stop: str, said: list[str], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_WRITTEN_WITHIN_S", 0.1)
    (tmp_path / "old.trace").touch()
    os.utime(tmp_path / "old.trace", (0, 0))
    commands = {"start_command": start.split(), "stop_command": stop.split()}
    notes, found = profiled("", tmp_path, files="*.trace", **commands)
    assert [bool(re.fullmatch(*pair)) for pair in zip(said, notes, strict=True)] == [True] * len(said), notes
    assert found == files


def test_many_files_are_counted_and_a_system_within_this_process_needs_commands(tmp_path: Path) -> None:
    many = ["sh", "-c", "touch $(seq -f %03g.trace 25)"]
    (note,), files = profiled("", tmp_path, files="*.trace", start_command=["true"], stop_command=many)
    assert note.endswith("019.trace, " + str(tmp_path / "020.trace") + " and 5 more")
    assert len(files) == 20
    (note,), files = profiled("", tmp_path)
    assert note == (
        "not profiled: the system is called within this process: give profile.start_command in the SUT file"
    )


def test_a_replay_has_nothing_to_profile(measured: Any, suite: Suite) -> None:
    found = measured("replay", "", "--llm-profile=failed")
    assert told(found["test_fails"]) == [
        "not profiled: a replay runs in virtual time and has no process to profile"
    ]
    refused = suite.measure("replay", "--llm-workloads=work.toml", "--llm-profile=test_suite.py::test_fail")
    refused.stderr.fnmatch_lines(["*no marked test has this node id*test_suite.py::test_fails"])


def test_a_failed_comparison_is_profiled_and_split(suite: Suite) -> None:
    suite.write(
        """
        @llmbench.ttft(rate=20, requests=50)
        @llmbench.no_regression("tpot.p50", max_slowdown=0.03)
        def test_gate(): ...
        """,
        SMALL_WARMUP,
    )
    slower = "replay:fast?decode_us_per_sequence=600"
    suite.measure(slower, "--llm-baseline-endpoint=replay", "--llm-runs=4", "--llm-profile=failed")
    (entry,) = suite.report["tests"]
    assert told(entry) == ["not profiled: a replay runs in virtual time and has no process to profile"]
    rows = entry["tables"]["change_split"]["rows"]
    assert [row[0] for row in rows] == [
        "Queue", "Prefill", "Decode", "Outside", "End-to-end latency, mean",
    ]  # fmt: skip
    assert all("[" in row[3] for row in rows if row[0] != "Outside")
    assert rows[3][1:] == ["0.05 ms", "0.05 ms", "0 ms"]  # a constant of the replay


def test_the_budgets_of_the_session_bound_it_and_the_profiler_is_switched_off(tmp_path: Path) -> None:
    commands = {"start_command": ["true"], "stop_command": ["touch", "stopped"]}
    (note,), _ = profiled("", tmp_path, budget=1, **commands)
    assert note.startswith("not profiled: profile: with this load the session sends 4 requests, more than ")
    assert "--llm-caps=requests=" in note
    assert (tmp_path / "stopped").exists()


@pytest.mark.parametrize("load", [OpenLoop(50.0), ClosedLoop(8)])
def test_the_load_is_cut_to_its_seconds_with_prompts_of_its_own(load: Load) -> None:
    plan = LoadPlan("measure", SYNTHETIC_UNIFORM, load, 400, seed=3, fresh_state=True, most_failures=3)
    engine = ReplayEngine(parse_scenario("fast"))
    seen = engine.run(plan)
    asked = profiled_load(seen, seen.duration_s / 4)
    again = engine.run(asked)
    assert len(again.records) == pytest.approx(100, rel=0.2)
    assert again.duration_s == pytest.approx(seen.duration_s / 4, rel=0.2)
    assert (asked.phase, asked.label, asked.fresh_state) == (Phase.PROBE, "profile", False)
    assert asked.seed != plan.seed
    assert profiled_load(seen, 1e6).most_requests == 400
