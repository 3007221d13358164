"""``--llm-workers ray``: as an option, in notes, and what other machines' clocks do to the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess, worker_notes
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.harness.sut.workers import clock_facts, clocked
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.model.records import Records

ONE = {"host": "a", "workers": [1], "method": "one clock", "offset_ms": 0.0, "error_ms": 0.0}
NEAR = {"host": "b", "workers": [2], "method": "round trips", "offset_ms": 5.0, "error_ms": 0.25}
FAR = {"host": "c", "workers": [3], "method": "round trips", "offset_ms": -7.0, "error_ms": 4.0}


def known(**values: Any) -> Facts:
    return Facts.of(Origin.DETECTED, {f"clock.{name}": value for name, value in values.items()})


@pytest.mark.parametrize(
    ("given", "kept"),
    [("ray", "ray"), (" RAY:10.0.0.1:6379", "ray:10.0.0.1:6379"), ("ray://h:10001?workers=8",) * 2],
)
def test_a_cluster_is_a_value_of_the_option(given: str, kept: str) -> None:
    settings = Settings.from_options({"workers": given})
    assert settings.workers == kept
    sut_access = SUTAccess.to(SUT("http://127.0.0.1:9/v1"), settings, None)
    assert sut_access.ray == RaySpec.parse(given)
    assert sut_access.workers == 1


def test_mistakes_in_it_are_told_with_the_option() -> None:
    with pytest.raises(SuiteError, match=r"(?s)--llm-workers: .*workers=0 is neither .*got 'ray\?workers=0'"):
        Settings.from_options({"workers": "ray?workers=0"})
    with pytest.raises(SuiteError, match=r"--llm-workers: .*ray\[:ADDRESS\].*got 'raytracer'"):
        Settings.from_options({"workers": "raytracer"})
    sut_access = SUTAccess.to(SUT("http://127.0.0.1:9/v1"), Settings(workers="2"), None)
    assert (sut_access.ray, sut_access.workers) == (None, 2)


def test_a_replay_does_not_need_the_cluster() -> None:
    (note,) = worker_notes(RaySpec("auto", 4), replay=True)
    assert "ray:auto?workers=4 has no effect on a replay" in str(note)
    assert worker_notes(RaySpec("auto", 400)) == ()


def test_workers_that_share_our_clock_change_no_evidence() -> None:
    assert clock_facts([ONE], known(topology="single_machine", method="shared clock")) == Facts()
    assert clock_facts([], Facts()) == Facts()


def test_the_round_trips_are_the_evidence_where_the_system_has_our_clock() -> None:
    found = clock_facts([ONE, NEAR, FAR], known(topology="single_machine", method="shared clock"))
    assert {key: fact.value for key, fact in found.items()} == {
        "clock.topology": "distributed",
        "clock.method": "other",
        "clock.accuracy_ms": 4.0,
    }


def test_elsewhere_their_error_comes_on_top() -> None:
    found = clock_facts([NEAR], known(topology="distributed", method="ntp", accuracy_ms=1.5))
    assert found.value("clock.accuracy_ms") == 1.75
    assert "clock.method" not in found
    # Nothing is known between this machine and the system: round trips to the workers do not change that.
    assert set(clock_facts([NEAR], known(topology="distributed"))) == {"clock.topology"}


def test_the_evidence_is_in_what_an_executor_returns() -> None:
    plan = LoadPlan("measure", None, ClosedLoop(1), 1, 1)  # type: ignore[arg-type]
    seen = Observation(
        plan,
        Records.from_rows(()),
        0,
        1,
        ClockAnchor(0, 0),
        facts=Facts.of(Origin.MEASURED, {"clock.workers": [FAR]}),
    )

    class Inner:
        said: list[str]

        def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
            return replace(seen, plan=plan)

        def stop(self, reason: str) -> None:
            self.said = [reason]

        def close(self) -> None:
            self.said = [*self.said, "closed"]

    inner = Inner()
    executor = clocked(inner, known(topology="single_machine"))
    assert executor.run(plan).facts.value("clock.accuracy_ms") == 4.0
    executor.stop("enough")
    executor.close()
    assert inner.said == ["enough", "closed"]
