"""What happens to a system while load is running: its process ends, or a command is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut import variant_executor
from pytest_llmbench.harness.sut.embedded import Replayed
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened
from pytest_llmbench.harness.sut.variant_executor import VariantExecutor, event_command
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PLAN = LoadPlan("test", SyntheticWorkload("small", Fixed(8), Fixed(2)), ClosedLoop(1), 3, 1)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(variant_executor, "time", SimpleNamespace(sleep=waited.append))
    return waited


TORN = Replayed(scenario="fast?fault=reset&fault_rate=1")
"""An engine that tears every connection."""


class Running(Endpoint):
    """Such an engine in a process that ends ``told``."""

    def __init__(self, ended: Callable[[], str | None]) -> None:
        super().__init__()
        self._ended = ended

    def open(self) -> Opened:
        return replace(TORN.open(), ended=self._ended)


def test_the_end_of_a_process_is_awaited_where_connections_broke(waits: list[float]) -> None:
    told = "the server ended with status 1"
    seen = VariantExecutor(Running(lambda: told if len(waits) == 2 else None)).run(PLAN)
    assert seen.interrupted == f"{told} while load was running"
    assert len(waits) == 2


def test_where_there_is_no_process_nothing_is_waited_for(waits: list[float]) -> None:
    seen = VariantExecutor(TORN).run(PLAN)
    assert seen.records.has_outcome(Outcome.DISCONNECTED).all()
    assert seen.interrupted is None
    assert waits == []


ENGINE = Replayed(scenario="fast")


class Slow(Endpoint):
    """An engine whose loads last 0.3 s, on the usual clock."""

    def open(self) -> Opened:
        opened = ENGINE.open()
        engine = opened.executor

        class Executor:
            def run(self, plan: LoadPlan, on_record: object = None) -> Observation:
                started_ns = time.monotonic_ns()
                time.sleep(0.3)
                return replace(engine.run(plan), started_ns=started_ns)

        return replace(opened, executor=Executor())


@pytest.mark.usefixtures("however_late")
def test_it_happens_while_load_is_running_and_its_instant_is_told(tmp_path: Path) -> None:
    done = tmp_path / "done"
    seen = VariantExecutor(Slow()).run(PLAN.with_(event=f"touch {done}", event_at_s=0.05))
    assert done.exists()
    assert 0.04 < seen.facts.value(LoadFact.EVENT_AT_S, 0.0) < 0.3
    assert VariantExecutor(Slow()).run(PLAN).facts.value(LoadFact.EVENT_AT_S) is None


def test_in_virtual_time_nothing_happens(tmp_path: Path) -> None:
    done = tmp_path / "done"
    seen = VariantExecutor(ENGINE).run(PLAN.with_(event=f"touch {done}", event_at_s=0.001))
    assert not done.exists()
    assert seen.facts.value(LoadFact.EVENT_AT_S) is None


def test_a_load_that_ended_first_says_so() -> None:
    with (
        pytest.raises(SuiteError, match="the load ended before second 5, so nothing happened in it"),
        event_command(PLAN.with_(event="true", event_at_s=5.0), time.monotonic_ns),
    ):
        pass


@pytest.mark.usefixtures("however_late")
def test_a_command_that_fails_or_does_not_end_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLAN.with_(event="echo no such pod >&2; exit 3", event_at_s=0.001)
    with (
        pytest.raises(SUTError, match="ended with status 3: no such pod"),
        event_command(plan, time.monotonic_ns),
    ):
        time.sleep(0.2)
    monkeypatch.setattr(variant_executor, "_AFTER_LOAD_S", 0.1)
    with (
        pytest.raises(SUTError, match=r"did not end within 0\.10 s after the load"),
        event_command(plan.with_(event="sleep 60"), time.monotonic_ns),
    ):
        time.sleep(0.2)


def test_an_event_is_part_of_what_a_load_is() -> None:
    assert PLAN.with_(event="true").key != PLAN.key
    assert PLAN.with_(event="true", event_at_s=2.0).key != PLAN.with_(event="true").key
