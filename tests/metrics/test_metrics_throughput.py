from __future__ import annotations

import numpy as np
import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics import throughput
from pytest_llmbench.metrics.throughput import (
    Window,
    completion_rate,
    input_token_throughput,
    output_token_throughput,
    request_throughput,
)
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import Records

MS = 1_000_000


def window(rows: list[RequestRecord], start_ms: float = 0.0, end_ms: float = 1000.0) -> Window:
    return Window(Records.from_rows(rows), EPOCH_NS + round(start_ms * MS), EPOCH_NS + round(end_ms * MS))


def poisson_run(rate: float, seconds: float, seed: int) -> Window:
    random = np.random.default_rng(seed)
    arrivals = np.sort(random.uniform(0, seconds * 1e3, random.poisson(rate * seconds)))
    rows = [
        row(index, submitted=at - 100, chunks=(at - 50, at), tokens=10, chunk_tokens=(5, 5))
        for index, at in enumerate(arrivals)
    ]
    return window(rows, 0, seconds * 1e3)


def test_totals_over_duration() -> None:
    rows = [row(0, chunks=(100.0, 200.0)), row(1, submitted=50.0, chunks=(300.0, 400.0, 500.0))]
    seen = [window(rows, 0, 2000)]
    assert output_token_throughput(seen, seed=1).point == pytest.approx(5 / 2)
    assert input_token_throughput(seen, seed=1).point == pytest.approx(200 / 2)
    assert request_throughput(seen, seed=1).point == pytest.approx(2 / 2)
    assert output_token_throughput(seen, seed=1).unit == "tok/s"
    assert request_throughput(seen, seed=1).unit == "req/s"


def test_failed_requests_give_nothing() -> None:
    rows = [row(0), row(1, submitted=1.0, outcome=Outcome.TRUNCATED)]
    seen = [window(rows)]
    assert output_token_throughput(seen, seed=1).point == pytest.approx(3.0)
    assert input_token_throughput(seen, seed=1).point == pytest.approx(100.0)
    assert request_throughput(seen, seed=1).point == pytest.approx(1.0)


def test_tokens_count_by_arrival_inside_the_window() -> None:
    rows = [row(0, chunks=(100.0, 600.0, 1100.0), chunk_tokens=(1, 4, 5), tokens=10)]
    early, late = window(rows, 0, 600), window(rows, 600, 1200)
    assert output_token_throughput([early], seed=1).point == pytest.approx(5 / 0.6)
    assert output_token_throughput([late], seed=1).point == pytest.approx(5 / 0.6)
    assert request_throughput([early], seed=1).point == 0.0
    assert request_throughput([late], seed=1).point == pytest.approx(1 / 0.6)
    assert input_token_throughput([early], seed=1).point == pytest.approx(100 / 0.6)
    assert input_token_throughput([late], seed=1).point == 0.0


def test_tokens_without_attribution_spread_over_the_chunks() -> None:
    rows = [row(0, chunks=(100.0, 600.0, 700.0, 800.0), chunk_tokens=(), tokens=100)]
    assert output_token_throughput([window(rows, 0, 500)], seed=1).point == pytest.approx(25 / 0.5)
    assert output_token_throughput([window(rows, 0, 1000)], seed=1).point == pytest.approx(100.0)


def test_tokens_without_chunks_arrive_at_the_end() -> None:
    rows = [row(0, chunks=(), tokens=7, finished=400.0)]
    assert output_token_throughput([window(rows)], seed=1).point == pytest.approx(7.0)


def test_a_total_with_a_part_missing_is_undefined() -> None:
    lacking = row(1, submitted=1.0, input_tokens=None)
    lacking.output_tokens = None
    seen = [window([row(0), lacking])]
    for rate in (output_token_throughput(seen, seed=1), input_token_throughput(seen, seed=1)):
        assert not rate.defined
        assert rate.n == 2
        assert "no token count" in rate.method
    assert request_throughput(seen, seed=1).point == pytest.approx(2.0)


def test_a_failed_request_owes_no_count() -> None:
    lacking = row(1, submitted=1.0, outcome=Outcome.TIMEOUT, input_tokens=None)
    lacking.output_tokens = None
    assert output_token_throughput([window([row(0), lacking])], seed=1).point == pytest.approx(3.0)


def test_nothing_sent_is_undefined_and_nothing_done_is_zero() -> None:
    assert not output_token_throughput([window([])], seed=1).defined
    assert not request_throughput([], seed=1).defined
    assert not request_throughput([window([row(0)], 5, 5)], seed=1).defined
    dead = request_throughput([window([row(0, outcome=Outcome.DISCONNECTED)])], seed=1)
    assert (dead.point, dead.lower, dead.upper, dead.n) == (0.0, None, None, 0)


def test_few_requests_leave_the_interval_open() -> None:
    estimate = request_throughput([poisson_run(20, 1, seed=2)], seed=1)
    assert estimate.n < 30
    assert not estimate.closed
    assert estimate.n_required is not None
    assert estimate.n_required >= 30


def test_interval_of_poisson_requests() -> None:
    """The count of a Poisson process varies by its square root."""
    estimate = request_throughput([poisson_run(50, 40, seed=3)], seed=1)
    assert estimate.lower is not None
    assert estimate.upper is not None
    assert estimate.lower < 50 < estimate.upper
    assert estimate.upper - estimate.lower == pytest.approx(2 * 1.96 * np.sqrt(50 / 40), rel=0.2)
    assert estimate.method.startswith("count / duration over 400 time slices at effective n=")


@pytest.mark.slow
def test_coverage_of_rates() -> None:
    held = {"requests": [], "tokens": []}
    for seed in range(60):
        run = [poisson_run(30, 20, seed=seed)]
        for name, estimate, truth in (
            ("requests", request_throughput(run, seed=1), 30.0),
            ("tokens", output_token_throughput(run, seed=1), 300.0),
        ):
            assert estimate.lower is not None
            assert estimate.upper is not None
            held[name].append(estimate.lower <= truth <= estimate.upper)
    assert np.mean(held["requests"]) >= 0.88
    assert np.mean(held["tokens"]) >= 0.88


def test_runs_of_unequal_length_are_weighed_by_time() -> None:
    fast = [row(index, submitted=index, chunks=(10.0 * index + 5,)) for index in range(100)]
    slow = [row(index, submitted=index, chunks=(100.0 * index + 5,)) for index in range(30)]
    estimate = request_throughput([window(fast, 0, 1000), window(slow, 0, 3000)], seed=1)
    assert estimate.point == pytest.approx(130 / 4)
    assert estimate.n == 130


def test_completion_rate() -> None:
    outcomes = [Outcome.OK] * 97 + [Outcome.HTTP_ERROR, Outcome.TIMEOUT, Outcome.REFUSED]
    np.random.default_rng(1).shuffle(outcomes)  # type: ignore[arg-type]
    rows = [row(index, submitted=float(index), outcome=outcome) for index, outcome in enumerate(outcomes)]
    estimate = completion_rate([Records.from_rows(rows)])
    assert (estimate.point, estimate.n, estimate.unit) == (0.97, 100, "ratio")
    assert estimate.method == "Clopper-Pearson interval at effective n=100"
    # 95 % of 97 in 100: (0.9148, 0.9938), and a little more, since what they are worth is an estimate
    assert estimate.lower == pytest.approx(0.91, abs=0.012)
    assert estimate.upper == pytest.approx(0.994, abs=0.003)


def test_completion_rate_without_failures_is_not_certain() -> None:
    rows = [row(index, submitted=float(index)) for index in range(50)]
    estimate = completion_rate([Records.from_rows(rows), Records.from_rows(rows)])
    assert (estimate.point, estimate.upper, estimate.n) == (1.0, 1.0, 100)
    assert estimate.lower == pytest.approx(0.025**0.01)


def test_failures_in_one_burst_tell_less() -> None:
    def rate(outcomes: list[Outcome]) -> Estimate:
        rows = [row(index, submitted=float(index), outcome=outcome) for index, outcome in enumerate(outcomes)]
        return completion_rate([Records.from_rows(rows)])

    burst = [Outcome.OK] * 500 + [Outcome.TIMEOUT] * 100 + [Outcome.OK] * 400
    spread = [Outcome.TIMEOUT if index % 10 == 0 else Outcome.OK for index in range(1000)]
    assert (rate(burst).lower, rate(burst).upper) == (None, None)
    assert rate(burst).n_required is not None
    assert 0.85 < (rate(spread).lower or 0.0) < 0.9


def test_completion_rate_of_nothing_is_undefined() -> None:
    assert not completion_rate([]).defined
    assert not completion_rate([Records.from_rows([])]).defined


def test_rates_of_observations() -> None:
    from pytest_llmbench.model.observation import ClockAnchor, Observation
    from pytest_llmbench.model.plan import LoadPlan, OpenLoop
    from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

    rows = [row(0, chunks=(100.0, 200.0)), row(1, submitted=1.0, outcome=Outcome.EMPTY)]
    seen = Observation(
        plan=LoadPlan("rates", SYNTHETIC_UNIFORM, OpenLoop(1.0), 2, seed=1),
        records=Records.from_rows(rows),
        started_ns=EPOCH_NS,
        ended_ns=EPOCH_NS + 500 * MS,
        anchor=ClockAnchor(0, 0),
    )
    found = throughput.rates([seen], seed=1)
    assert {name: estimate.point for name, estimate in found.items()} == pytest.approx(
        {
            "output_token_throughput": 4.0,
            "input_token_throughput": 200.0,
            "request_throughput": 2.0,
            "completion_rate": 0.5,
        }
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("slices", [1, 3, 5, 10, 200, 400])
def test_tokens_of_a_slice_are_those_that_arrived_in_it(slices: int, weighted: bool) -> None:
    """An instant on the border of two slices belongs to the one that it ends; 1.2 s make whole borders."""
    rng = np.random.default_rng(5)
    rows = []
    for index in range(60):
        at = np.sort(rng.integers(0, 1250, 7) * rng.choice([1.0, 0.25]))
        sizes = tuple(rng.integers(1, 4, 7).tolist()) if weighted else (1,) * 7
        chunks = tuple(map(float, at))
        rows.append(row(index, submitted=-1.0, chunks=chunks, chunk_tokens=sizes, tokens=sum(sizes)))
    expected = np.zeros(slices)
    for each in rows:
        for at_ns, tokens in zip(each.chunk_ns, each.chunk_tokens, strict=True):
            place = -((EPOCH_NS - at_ns) * slices // (1200 * MS)) - 1
            if 0 <= place < slices:
                expected[place] += tokens
    seen = window(rows, 0, 1200)
    assert seen.in_finest_slices is not None
    assert seen.in_finest_slices.whole is not weighted
    found = throughput.output_tokens_per_slice(seen, slices)
    assert found is not None
    np.testing.assert_array_equal(found, expected) if not weighted else np.testing.assert_allclose(
        found, expected
    )
