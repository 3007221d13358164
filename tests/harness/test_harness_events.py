"""``--llm-records=events``: each change of state on a line, equal to the records and in the order of time."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.harness.execution import AT_ONCE, OF_REQUESTS, EventLog, events_of, path_in
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING, OUTCOMES
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

PLAN = LoadPlan("measure", SYNTHETIC_UNIFORM, ClosedLoop(4), 40, seed=3)


def seen(scenario: str = "fast?fault=http_error,reset&fault_rate=0.3", requests: int = 40) -> Observation:
    return ReplayEngine(parse_scenario(scenario)).run(PLAN.with_(requests=requests))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_events_equal_the_records() -> None:
    load = seen()
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    outcomes = {}
    for each in events_of(load):
        if "request" in each:
            found[each["request"]][each["event"]].append(each["at_ns"])
            outcomes |= {each["request"]: each["outcome"]} if "outcome" in each else {}
    records = load.records
    for row, name in enumerate(records.request_id):
        own = found[name]
        for event, column in OF_REQUESTS.items():
            at_ns = int(getattr(records, column)[row])
            assert own[event] == ([] if at_ns == MISSING else [at_ns])
        chunks = records.chunk_ns[records.chunk_offsets[row] : records.chunk_offsets[row + 1]]
        assert own["chunk"] == chunks.tolist()
        assert outcomes[name] == str(OUTCOMES[records.outcome[row]])
    assert len(set(outcomes.values())) > 1


def test_events_are_in_the_order_of_time_and_of_a_request() -> None:
    load = seen("fast")
    events = list(events_of(load))
    instants = [each["at_ns"] for each in events]
    assert instants == sorted(instants)
    assert (events[0]["event"], events[-1]["event"]) == ("load_started", "tracking_stopped")
    assert (instants[0], instants[-1]) == (load.started_ns, load.ended_ns)
    assert sum(each["event"] == "load_stopped" for each in events) == 1
    stopped = next(at for at, each in enumerate(events) if each["event"] == "load_stopped")
    assert not any(each["event"] == "request_sent" for each in events[stopped:])
    first = [each["event"] for each in events if each.get("request") == load.records.request_id[0]]
    assert first[:5] == ["request_due", "request_issued", "request_sent", "first_byte", "first_event"]
    assert first[-1] == "request_completed"


def test_a_file_grows_by_a_load_at_a_time_and_can_be_read_whenever_it_ends(tmp_path: Path) -> None:
    told: list[int] = []
    log = EventLog(
        path_in(tmp_path, "events", ".jsonl.gz", None), [lambda *, events: told.append(len(events))]
    )
    load = seen("fast", 200)
    log.load(PLAN, load, "test_a")
    first = lines(tmp_path / "events.jsonl.gz")
    log.load(PLAN, load, "test_b")
    log.end()
    every = lines(tmp_path / "events.jsonl.gz")
    assert every[: len(first)] == first
    assert [each["event"] for each in every].count("session_started") == 1
    assert every[0]["schema"] == "pytest-llmbench/events/1.0"
    assert every[-1] == {"event": "session_ended", "at_ns": load.ended_ns}
    assert {each.get("test") for each in every} == {None, "test_a", "test_b"}
    assert sum(told) == len(every)
    assert max(told) == AT_ONCE < len(first)
    for worker, name in ((None, "events-2.jsonl.gz"), ("gw0", "events-gw0.jsonl.gz")):
        assert path_in(tmp_path, "events", ".jsonl.gz", worker).name == name


def test_a_full_disk_costs_the_events_and_nothing_else(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "absent" / "events.jsonl.gz", [])
    log.load(PLAN, seen(), "test_a")
    [finding] = log.findings
    assert "the events cannot be written: No such file" in finding.message
    log.end()


def test_a_session_writes_them_and_shows_them_to_hooks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_llmbench_events(events):
            print("shown", len(events), events[0]["event"])
        """
    )
    pytester.makepyfile(
        """
        from pytest_llmbench import llmbench

        @llmbench.ttft(p99_ms=500, requests=20)
        def test_a(llm_result): ...

        @llmbench.ttft(p50_ms=500, requests=20)
        def test_the_same_load(llm_result): ...
        """
    )
    asked = ["--llm-endpoint=replay", "-s", "-p", "no:cacheprovider"]
    result = pytester.runpytest_inprocess(*asked, "--llm-report=report", "--llm-records=events")
    result.assert_outcomes(passed=2)
    every = lines(pytester.path / "report" / "events.jsonl.gz")
    # Of two tests that share a load the one that sent it has the events.
    sent = [each for each in every if each["event"] == "request_sent" and each["load"] == "measure"]
    assert len(sent) == 20
    shown = re.findall(r"shown (\d+) ", result.stdout.str())
    assert sum(map(int, shown)) == len(every)
    again = pytester.runpytest_inprocess(*asked, "--llm-report=report", "--llm-records=events")
    again.assert_outcomes(passed=2)
    folder = pytester.path / "report"
    kept = [path.relative_to(folder).parts[0][:8] for path in folder.rglob("events*")]
    assert sorted(kept) == ["earlier-", "events-2"]
    refused = pytester.runpytest_inprocess(*asked, "--llm-records=events")
    refused.stderr.fnmatch_lines(["*--llm-records=events needs --llm-report*"])
