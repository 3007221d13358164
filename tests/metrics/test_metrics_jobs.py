"""The metrics of a job: by which factor each may be off, and what stays as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from metric_rows import row

from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.metrics.jobs import assumed_factor, job_goodput, job_metrics
from pytest_llmbench.model.estimate import Estimate, EstimateKind, SavedSpread
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records

FACTORS = {
    "output_token_throughput": 1.5, "makespan": 1.5, "total_token_throughput": 1.5, "goodput": 1.5,
    "request_throughput[steady]": 1.5,
    "ttft.mean": 1.5, "ttft.p50": 1.5, "tpot.p50": 1.5, "e2e.mean": 1.5, "ttft.min": 1.5,
    "ttft.p90": 1.75, "ttft.p95": 1.75, "ttft.p99": 1.75, "e2e.p99": 1.75, "ttft[0-256].p99": 1.75,
    "tpot.p95": 1.75, "itl.p90": 1.75, "ttft[chat].p50": 1.5,
    "tpot.p99": 2.5, "itl.p99": 2.5, "itl[chat].p99": 2.5, "tpot[a.b].p99": 2.5, "itl.p99_9": 2.5,
    "ttft.p99_9": 2.5, "e2e.max": 2.5, "itl.std": 2.5, "output_itl.p99": 2.5,
    "goodput_share": None, "completion_rate": None, "jain_index": None, "critical_evictions": None,
    "my_own_metric": None, "my_own_metric.p99": None, "": None, "ttft[": None, ".p99": None,
}  # fmt: skip


@pytest.mark.parametrize("metric", FACTORS)
def test_the_factor_of_each_kind_of_metric(metric: str) -> None:
    assert assumed_factor(metric) == FACTORS[metric]


def test_waits_of_an_open_loop_amplify_what_rates_do_not() -> None:
    assert assumed_factor("ttft.p50", open_loop=True) == 2.0
    assert assumed_factor("ttft.p95", open_loop=True) == 3.0
    assert assumed_factor("itl.p99", open_loop=True) == 3.0
    assert assumed_factor("output_token_throughput", open_loop=True) == 1.5
    assert assumed_factor("goodput_share", open_loop=True) is None


def test_every_metric_of_the_catalogue_has_a_factor_or_none() -> None:
    for each in (each for each in METRICS.values() if not each.by_turn):  # sessions are no jobs
        name = f"{each.name}.{each.statistics[0]}" if each.is_family else each.name
        factor = assumed_factor(name)
        of_energy = each.of_machine and each.unit in ("J", "tokens")
        assert (factor is not None) == (of_energy or each.unit in ("ms", "s", "tok/s", "req/s")), name
        assert factor is None or factor <= (assumed_factor(name, open_loop=True) or 0.0)


def sample(point: float | None, unit: str = "ms") -> Estimate:
    return Estimate(point, None, None, 0.95, 300, "a sample", unit, n_required=900)


def test_one_run() -> None:
    found = job_metrics({"ttft.p50": sample(100.0), "completion_rate": sample(1.0, "ratio")}, {}, {})
    p50 = found["ttft.p50"]
    assert (p50.point, p50.n, p50.n_required, p50.runs) == (100.0, 300, None, 1)
    assert (p50.lower, p50.upper) == (pytest.approx(100 / 1.5), pytest.approx(150.0))
    assert (p50.kind, p50.method) == (
        EstimateKind.ASSUMED_SPREAD, "exact in its run, assumed to spread by a factor of 1.5",
    )  # fmt: skip
    assert found["completion_rate"] == sample(1.0, "ratio")


def test_three_runs_have_their_geometric_mean() -> None:
    found = job_metrics({"ttft.p50": sample(210.0)}, {"ttft.p50": (100.0, 200.0, 400.0)}, {})["ttft.p50"]
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert found.point == pytest.approx(200.0)
    assert (found.lower, found.upper) == pytest.approx((200 / math.exp(half), 200 * math.exp(half)), rel=1e-5)
    assert (found.kind, found.runs) == (EstimateKind.RUNS, 3)
    assert found.method == "geometric mean of 3 runs, t with 2 degrees of freedom on logarithms"


@pytest.mark.parametrize(
    ("of_sessions", "told"), [(False, "between 6 earlier runs"), (True, "between 6 earlier sessions")]
)
def test_a_saved_spread_of_its_own_name_only(of_sessions: bool, told: str) -> None:
    saved = {"ttft.p50": SavedSpread(0.04, 6, of_sessions)}
    found = job_metrics({"ttft.p50": sample(100.0), "ttft.p99": sample(300.0)}, {}, saved)
    assert found["ttft.p50"].kind is EstimateKind.SAVED_SPREAD
    assert found["ttft.p50"].method == f"exact in its run, spread of 4 % {told}"
    assert found["ttft.p50"].upper == pytest.approx(100 * math.exp(2.570582 * 0.04), rel=1e-5)
    assert found["ttft.p99"].kind is EstimateKind.ASSUMED_SPREAD


@pytest.mark.parametrize(
    ("point", "runs"),
    [
        (None, ()), (0.0, ()), (-1.0, ()), (5.0, (5.0, None, 5.0)), (5.0, (5.0, 0.0, 5.0)),
        (None, (None, None, None)),
    ],
)  # fmt: skip
def test_undefined_and_zero_stay_as_they_are(point: float | None, runs: tuple[float | None, ...]) -> None:
    by_run = {"ttft.p50": runs} if runs else {}
    assert job_metrics({"ttft.p50": sample(point)}, by_run, {})["ttft.p50"] == sample(point)


def job(latencies_ms: list[float | None]) -> Records:
    """Requests with these latencies to the first token; None: it failed."""
    return Records.from_rows([
        row(i, chunks=() if ms is None else (ms, ms + 10), outcome=Outcome.OK if ms else Outcome.HTTP_ERROR)
        for i, ms in enumerate(latencies_ms)
    ])  # fmt: skip


def of_goodput(share: float) -> dict[str, Estimate]:
    rate = Estimate(10.0, 10 / 1.5, 15.0, 0.95, 100, "", "req/s")
    good = Estimate(10 * share, 10 / 1.5 * share, 15 * share, 0.95, 100, "", "req/s")
    return {
        "goodput_share": sample(share, "ratio"), "goodput": good, "output_token_goodput": good,
        "request_throughput": rate, "output_token_throughput": rate,
    }  # fmt: skip


def goodput(runs: list[Records], limit: float, share: float) -> Mapping[str, Estimate]:
    return job_goodput(of_goodput(share), runs, [("ttft", limit)])


@pytest.mark.parametrize(
    ("latencies", "limit", "ends"),
    [
        pytest.param([100.0 + i / 10 for i in range(100)], 500.0, (1.0, 1.0, 1.0), id="far within"),
        pytest.param([99.0] * 100, 100.0, (0.0, 1.0, 1.0), id="just within: maybe beyond next time"),
        pytest.param([101.0] * 100, 100.0, (0.0, 0.0, 1.0), id="just beyond: maybe good next time"),
        # 40 of them are at most 40, 22 at most 40 / 1.75, 70 at most 40 · 1.75.
        pytest.param([*range(1, 101)], 40.0, (0.22, 0.4, 0.7), id="longer and shorter"),
        pytest.param([10.0] * 90 + [None] * 10, 1e6, (0.9, 0.9, 0.9), id="failures are beyond any limit"),
    ],
)
def test_the_share_of_one_run_is_that_of_longer_and_shorter_latencies(
    latencies: list[float | None], limit: float, ends: tuple[float, float, float]
) -> None:
    share = goodput([job(latencies)], limit, ends[1])["goodput_share"]
    assert (share.lower, share.point, share.upper) == pytest.approx(ends)
    assert (share.kind, share.runs, share.n_required) == (EstimateKind.ASSUMED_SPREAD, 1, None)


def test_rates_of_good_requests_reach_as_far_as_their_share() -> None:
    within, beyond = (goodput([job([ms] * 100)], 100.0, share) for ms, share in ((99.0, 1.0), (101.0, 0.0)))
    assert within["goodput"].lower == within["output_token_goodput"].lower == 0.0
    assert beyond["goodput"].upper == pytest.approx(15.0)


def test_five_runs_at_the_cliff_know_how_much_their_latencies_vary() -> None:
    """All within the limit in all runs, by 1 %, while the runs differ by 3 %: luck."""
    near = [job([level] * 50) for level in (93.0, 99.0, 96.0, 94.0, 98.0)]
    lucky = goodput(near, 99.5, 1.0)["goodput_share"]
    assert (lucky.point, lucky.kind, lucky.runs) == (1.0, EstimateKind.RUNS, 5)
    assert lucky.lower == 1.0  # the mean is 96 ± 3.3 %: 99.2
    assert goodput(near, 99.1, 1.0)["goodput_share"].lower == 0.0
    calm = goodput([job([99.0] * 50)] * 3, 100.0, 1.0)["goodput_share"]
    assert calm.lower == 0.0  # three runs alike: the floor of their spread
    assert goodput([job([99.0] * 50)] * 5, 100.0, 1.0)["goodput_share"].lower == 1.0


def test_runs_in_which_some_failed() -> None:
    runs = [job([10.0] * 96 + [None] * failed) for failed in (4, 0, 2)]
    share = goodput(runs, 100.0, 0.98)["goodput_share"]
    assert share.point == pytest.approx((96 / 100 + 1 + 96 / 98) / 3)
    assert share.lower is not None
    assert share.upper is not None
    assert 0.94 <= share.lower <= 0.97
    assert share.upper == 1.0


def test_nothing_to_judge() -> None:
    metrics = of_goodput(1.0)
    assert job_goodput(metrics, [job([])], [("ttft", 100.0)]) == metrics
    assert job_goodput(metrics, [], [("ttft", 100.0)]) == metrics
