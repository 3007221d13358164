"""Measuring processes that are started before it is known what they measure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from pytest_llmbench.generator.workers.pool import WorkerPool
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.early_workers import EarlyWorkers

URL = "http://127.0.0.1:1/v1"


def processes() -> list[int]:
    """Those that this one has started."""
    return [each.pid for each in psutil.Process().children()]


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    before = set(processes())
    yield
    assert set(processes()) <= before


def started(**settings: object) -> tuple[EarlyWorkers, list[int]]:
    before = set(processes())
    early = EarlyWorkers(Settings.model_validate({"endpoint": URL, **settings}))
    return early, [pid for pid in processes() if pid not in before]


def test_they_are_up_when_they_are_taken_and_are_given_once() -> None:
    early, own = started(workers=2)
    assert len(own) == 2
    pool = early.take(2, ())
    assert isinstance(pool, WorkerPool)
    assert early.take(2, ()) is None
    early.close()  # which is not about those that were taken
    assert [member.process.pid for member in pool.members(2)] == own
    pool.close()


def test_other_workers_than_those_are_not_given() -> None:
    early, own = started()
    assert early.take(2, ()) is None
    assert early.take(1, (0,)) is None
    assert len(own) == 1
    early.close()
    early.close()


def test_none_is_given_into_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    early, own = started()
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    assert early.take(1, ()) is None
    assert len(own) == 1
    assert own[0] not in processes()


def test_the_test_that_is_running_is_no_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    early, own = started()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_another (setup)")
    pool = early.take(1, ())
    assert pool is not None
    assert [member.process.pid for member in pool.members(1)] == own
    pool.close()


@pytest.mark.parametrize(
    "settings",
    [{"endpoint": "replay"}, {"endpoint": "python:os:getcwd"}, {"workers": 0}, {"workers": "ray"}],
    ids=lambda settings: next(iter(settings.values())),
)
def test_none_is_started_where_none_measures(settings: dict[str, object]) -> None:
    early, own = started(**settings)
    assert own == []
    assert early.take(1, ()) is None
    early.close()
