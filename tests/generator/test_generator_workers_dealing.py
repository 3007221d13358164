"""How a plan is dealt to workers: exactly, with nothing drawn twice, and as the declared process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from planned_load import TextWorkload
from scipy import stats

from pytest_llmbench.arrivals.schedule import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.workers.sharding import active_workers, deal, owners, split
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest

MakePlan = Callable[..., LoadPlan]


def indices(shards: list[LoadPlan]) -> list[list[int]]:
    return [[request.index for request in shard.workload.requests(10**6, shard.seed)] for shard in shards]


@pytest.mark.parametrize(("total", "parts", "expected"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (1, 1, [1])])
def test_a_split_is_exact(total: int, parts: int, expected: list[int]) -> None:
    assert split(total, parts) == expected


@pytest.mark.parametrize("first", [0, 17])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_an_open_loop_is_one_schedule_dealt_by_position(plan: MakePlan, workers: int, first: int) -> None:
    load = OpenLoop(50.0)
    whole = plan(100, load=load, first=first, seed=5)
    shards = deal(whole, workers)
    assert len(shards) == workers
    assert indices(shards) == [list(range(first + own, first + 100, workers)) for own in range(workers)]
    drawn = schedule_ns(load, first + 100, arrival_seed(5))
    expected = drawn[first:] - (drawn[first - 1] if first else 0)
    together = np.empty(100, dtype=np.int64)
    for own, shard in enumerate(shards):
        assert isinstance(shard.load, OpenLoop)
        assert shard.requests == len(shard.load.offsets_ns)
        # What the worker's generator makes of it, in floating point and back.
        together[own::workers] = schedule_ns(shard.load, shard.requests, 0)
    assert together.tolist() == expected.tolist()


def test_the_superposition_is_poisson(plan: MakePlan) -> None:
    """KS test of the merged gaps, index of dispersion of the merged counts; each share of 4 is Erlang."""
    shards = deal(plan(4000, load=OpenLoop(100.0), seed=11), 4)
    loads = [shard.load for shard in shards]
    instants = (
        np.sort(np.concatenate([load.offsets_ns for load in loads if isinstance(load, OpenLoop)])) / 1e9
    )
    gaps = np.diff(instants, prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=0.01).cdf).pvalue > 0.01
    counts = np.histogram(instants, bins=np.arange(0.0, instants[-1], 0.5))[0]
    dispersion = counts.var(ddof=1) / counts.mean()
    low, high = stats.chi2.ppf([0.005, 0.995], len(counts) - 1) / (len(counts) - 1)
    assert low < dispersion < high
    load = loads[0]
    assert isinstance(load, OpenLoop)
    one = np.diff(load.offsets_ns) / 1e9
    assert stats.kstest(one, stats.gamma(4, scale=0.01).cdf).pvalue > 0.01
    assert stats.kstest(one, stats.expon(scale=0.04).cdf).pvalue < 1e-6


@pytest.mark.parametrize(
    ("concurrency", "workers", "slots"), [(5, 2, [3, 2]), (8, 3, [3, 3, 2]), (2, 4, [1, 1])]
)
def test_a_closed_loop_is_dealt_in_proportion_to_slots(
    plan: MakePlan, concurrency: int, workers: int, slots: list[int]
) -> None:
    shards = deal(plan(concurrency * 10, load=ClosedLoop(concurrency)), workers)
    assert [shard.load for shard in shards] == [ClosedLoop(own) for own in slots]
    assert [shard.requests for shard in shards] == [10 * own for own in slots]
    assert [shard.max_requests for shard in shards] == [None] * len(slots)
    assert sorted(chain(*indices(shards))) == list(range(concurrency * 10))


def test_requests_and_ceiling_of_a_timed_closed_loop_are_split_exactly(plan: MakePlan) -> None:
    whole = plan(11, load=ClosedLoop(5), duration_s=2.0, max_requests=101, first=3)
    shards = deal(whole, 3)
    assert sum(shard.requests for shard in shards) == 11
    assert sum(shard.ceiling for shard in shards) == 101
    assert all(shard.duration_s == 2.0 and shard.first == 0 for shard in shards)
    assert sorted(chain(*indices(shards))) == list(range(3, 104))
    # At least 11 are sent: those of the lowest numbers, whoever has them.
    assert sorted(
        chain(*(own[: shard.requests] for own, shard in zip(indices(shards), shards, strict=True)))
    ) == [*range(3, 14)]


@pytest.mark.parametrize(
    ("load", "requests", "expected"),
    [
        (OpenLoop(5.0), 100, 4),
        (OpenLoop(5.0), 3, 3),
        (OpenLoop(5.0), 0, 1),
        (ClosedLoop(2), 100, 2),
        (ClosedLoop(9), 1, 1),
    ],
)
def test_there_are_no_workers_without_work(
    plan: MakePlan, load: OpenLoop | ClosedLoop, requests: int, expected: int
) -> None:
    whole = plan(requests, load=load)
    assert active_workers(whole, 4) == expected == len(deal(whole, 4))
    assert set(owners(whole, expected).tolist()) == (set(range(expected)) if requests else set())


def test_what_is_dealt_is_remembered_by_nobody(plan: MakePlan) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(deal(plan(3), 1)[0].workload)


class _Counted(Sequence[int]):
    """Token ids of a type that no worker could load."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return range(3)[place]


@dataclass(frozen=True)
class _OfCounted(TextWorkload):
    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [replace(request, token_ids=_Counted()) for request in super().requests(count, seed)]


def test_requests_can_be_loaded_by_a_process_without_the_suite(plan: MakePlan) -> None:
    (shard,) = deal(plan(2, workload=_OfCounted()), 1)
    assert [request.token_ids for request in shard.workload.requests(2, 1)] == [[0, 1, 2]] * 2


def test_a_plan_that_cannot_be_dealt_is_told_in_words(plan: MakePlan) -> None:
    assert len(plan(-1, load=ClosedLoop(0), duration_s=0.0).mistakes()) == 3
    with pytest.raises(SuiteError, match="positive number of requests per second"):
        deal(plan(3, load=OpenLoop(-1.0), workload=TextWorkload()), 2)
