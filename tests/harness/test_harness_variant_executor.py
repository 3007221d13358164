"""What happens between a load and its observation, by the kind of server behind a variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_llmbench.harness.sut import variant_executor
from pytest_llmbench.harness.sut.embedded import Replayed
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened
from pytest_llmbench.harness.sut.variant_executor import VariantExecutor
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
