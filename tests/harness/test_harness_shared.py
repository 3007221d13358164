"""Sharing of runs between tests, the second audit, engine metrics around a run."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from pytest_llmbench.harness.execution import SharedRuns
from pytest_llmbench.harness.session import Bench, BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.address import with_engine_metrics
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PLAN = LoadPlan("measure", SyntheticWorkload("small", Fixed(8), Fixed(2)), ClosedLoop(2), 4, seed=1)
WARM = PLAN.with_(phase=Phase.WARMUP)


@pytest.fixture(scope="module")
def seen() -> Observation:
    return ReplayEngine(parse_scenario("fast")).run(PLAN)


def test_another_test_gets_the_run_under_its_own_plan(seen: Observation) -> None:
    runs = SharedRuns()
    runs.keep("sut", PLAN, "t::a", "s", seen)
    given = runs.find("sut", PLAN.with_(label="level 80%"), "t::b", "s")
    assert given is not None
    assert given.shared_from == "t::a"
    assert given.plan.label == "level 80%"
    assert given.records is seen.records


def test_nobody_gets_it_twice_and_the_owner_never(seen: Observation) -> None:
    runs = SharedRuns()
    runs.keep("sut", PLAN, "t::a", "s", seen)
    assert runs.find("sut", PLAN, "t::a", "s") is None
    assert runs.find("sut", PLAN, "t::b", "s") is not None
    assert runs.find("sut", PLAN, "t::b", "s") is None  # a second attempt measures anew …
    runs.keep("sut", PLAN, "t::b", "s", seen)
    again = runs.find("sut", PLAN, "t::a", "s")
    assert again is not None
    assert again.shared_from == "t::b"  # … and what it measured is the newer one


def test_another_sut_and_another_load_are_not_it(seen: Observation) -> None:
    runs = SharedRuns()
    runs.keep("sut", PLAN, "t::a", "s", seen)
    assert runs.find("other", PLAN, "t::b", "s") is None
    for change in ({"seed": 2}, {"requests": 5}, {"variant": "x"}, {"load": ClosedLoop(3)}):
        assert runs.find("sut", PLAN.with_(**change), "t::b", "s") is None


def test_a_restart_ends_warm_ups_and_not_measurements(seen: Observation) -> None:
    runs = SharedRuns()
    runs.keep("sut", WARM, "t::a", "before", seen)
    runs.keep("sut", PLAN, "t::a", "before", seen)
    assert runs.find("sut", WARM, "t::b", "after") is None
    assert runs.find("sut", WARM, "t::b", "before") is not None
    assert runs.find("sut", PLAN, "t::b", "after") is not None


def test_what_is_never_kept(seen: Observation) -> None:
    runs = SharedRuns()
    fresh = PLAN.with_(fresh_state=True)
    runs.keep("sut", fresh, "t::a", "s", seen)
    runs.keep("sut", PLAN, "t::a", "s", replace(seen, interrupted="Ctrl-C"))
    runs.keep("sut", PLAN, "t::a", "s", replace(seen, stopped="no answer"))
    assert runs.find("sut", fresh, "t::b", "s") is None
    assert runs.find("sut", PLAN, "t::b", "s") is None


def test_memory_is_bounded(seen: Observation) -> None:
    runs = SharedRuns(limit_bytes=2 * seen.records.nbytes)
    plans = [PLAN.with_(seed=seed) for seed in range(4)]
    for plan in plans:
        runs.keep("sut", plan, "t::a", "s", seen)
    found = [runs.find("sut", plan, "t::b", "s") is not None for plan in plans]
    assert found == [False, False, True, True]


@pytest.fixture
def session() -> Iterator[BenchSession]:
    bench = BenchSession(Settings(endpoint="replay", scale="quick"))
    yield bench
    bench.close()


def measured(session: BenchSession, nodeid: str, **given: Any) -> Any:
    test = definition("ttft")
    parameters = build(test.parameters, given)
    sut = session.sut_from_settings()
    return session.measure(nodeid, test, parameters, sut, session.default_warmup())


@pytest.fixture
def full_session() -> Iterator[BenchSession]:
    """At full scale: only a test that meets its own floors is evidence for another."""
    bench = BenchSession(Settings(endpoint="replay", scale="full"))
    yield bench
    bench.close()


def test_two_tests_one_run(session: BenchSession) -> None:
    shown: list[tuple[Any, Any]] = []
    session.on_progress = lambda plan, progress: shown.append((plan and plan.title, progress))
    first = measured(session, "t::a", concurrency=4, p50_ms=500)
    second = measured(session, "t::b", concurrency=4, p99_ms=900)
    assert [run.shared_from for run in first.result.observations] == [None]
    assert [run.shared_from for run in second.result.observations] == ["t::a"]
    assert second.result.warmup == first.result.warmup
    assert second.result.ttft.p50 == first.result.ttft.p50
    assert second.entry("passed")["shared"] is True
    assert first.entry("passed")["shared"] is False
    assert ("measure", "shared with t::a, nothing is sent") in shown
    again = measured(session, "t::b", concurrency=4, p99_ms=900)
    assert [run.shared_from for run in again.result.observations] == [None]
    anew = measured(session, "t::c", concurrency=4, fresh=True)
    assert [run.shared_from for run in anew.result.observations] == [None]


@pytest.mark.parametrize("asked", [True, False])
def test_requests_ask_for_their_whole_length_where_the_sut_says_so(
    session: BenchSession, asked: bool
) -> None:
    bench = Bench(session, SUT("replay", ignore_eos=asked), session.default_warmup())
    assert [run.plan.ignore_eos for run in bench.measure(concurrency=4).observations] == [asked]


def test_records_of_a_shared_run_are_written_once(tmp_path: Any) -> None:
    bench = BenchSession(Settings(endpoint="replay", scale="quick", report=tmp_path))
    first = measured(bench, "t::a", concurrency=4)
    second = measured(bench, "t::b", concurrency=4)
    bench.close()
    packed = [(tmp_path / m.records_file).read_bytes() for m in (first, second)]
    lengths = [len(gzip.decompress(each).splitlines()) for each in packed]
    assert lengths[0] > 50
    assert lengths[1] == 1  # its header


def test_a_later_test_is_seen_by_the_second_audit(full_session: BenchSession) -> None:
    """AMB-05: an open-loop TTFT result needs a Poisson run, which may be another test."""
    session = full_session
    load = {"rate": 200, "workload": SyntheticWorkload("short", Fixed(16), Fixed(16))}  # soon replayed
    uniform = measured(session, "t::uniform", arrival="uniform", **load)
    assert unmet(uniform.entry("passed")["compliance"], "poisson")
    assert session.reaudit() == []
    poisson = measured(session, "t::poisson", **load)
    (again,) = session.reaudit()
    assert (again["nodeid"], again["duration_s"]) == ("t::uniform", uniform.duration_s)
    assert not unmet(again["compliance"], "poisson")
    before = {r["id"]: r["status"] for r in uniform.entry("passed")["compliance"]["requirements"]}
    after = {r["id"]: r["status"] for r in again["compliance"]["requirements"]}
    changed = {name for name in before if before[name] != after[name]}
    assert changed  # what needs the streams, which are gone by now, is as it was
    assert all("poisson" in name or "arrival" in name for name in changed)
    assert not unmet(poisson.entry("passed")["compliance"], "poisson")


def unmet(compliance: Any, part: str) -> list[str]:
    return [r["id"] for r in compliance["requirements"] if part in r["id"] and r["status"] == "unmet"]


class FakeProbe:
    def __init__(self, absent: str | None = None) -> None:
        self.absent = absent
        self.calls: list[str] = []

    def before(self) -> str | None:
        self.calls.append("before")
        return self.absent

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> EngineReadings | None:
        self.calls.append("stop")
        return EngineReadings(np.array([1]), {}, {}, {"preemptions": 2.0}, source="http://x/metrics")

    def close(self) -> None:
        self.calls.append("close")


class FakeGenerator:
    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.closed = False

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        if plan.seed == 13:
            raise ValueError("broken")
        return replace(self.seen, plan=plan, engine=None)

    def stop(self, reason: str) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_the_engine_is_read_around_measured_load_only(seen: Observation) -> None:
    probe, inner = FakeProbe(), FakeGenerator(seen)
    executor = with_engine_metrics(inner, lambda: cast(Any, probe))
    assert executor.run(WARM).engine is None
    assert probe.calls == []
    measured_run = executor.run(PLAN)
    assert probe.calls == ["before", "start", "stop"]
    assert measured_run.engine is not None
    assert measured_run.engine.totals_after == {"preemptions": 2.0}
    assert measured_run.facts.value("engine.metrics") == "http://x/metrics"
    with pytest.raises(ValueError, match="broken"):
        executor.run(PLAN.with_(seed=13))
    assert probe.calls[-1] == "stop"
    executor.close()
    assert inner.closed
    assert probe.calls[-1] == "close"


def test_without_a_page_it_is_asked_once_and_the_reason_is_told(seen: Observation) -> None:
    probe = FakeProbe("no metrics page of the engine: HTTP 404")
    executor = with_engine_metrics(FakeGenerator(seen), lambda: cast(Any, probe))
    for _ in range(2):
        run = executor.run(PLAN)
        assert run.engine is None
        assert run.facts.value("engine.metrics") == (
            "not measurable: no metrics page of the engine: HTTP 404"
        )
    assert probe.calls == ["before"]


def test_over_grpc_there_is_no_page_to_be_asked_for(seen: Observation) -> None:
    absent = "a gRPC server has no metrics page"
    executor = with_engine_metrics(FakeGenerator(seen), lambda: pytest.fail("it is asked for"), absent)
    run = executor.run(PLAN)
    assert run.engine is None
    assert run.facts.value("engine.metrics") == f"not measurable: {absent}"
    executor.close()
