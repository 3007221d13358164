from __future__ import annotations

import numpy as np
import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics.differences import (
    Kind,
    Unexplained,
    change,
    gained_throughput,
    independent_changes,
    paired_changes,
    paired_throughput_reduction,
    pairs,
)
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def estimate(point: float | None, lower: float | None, upper: float | None, unit: str = "tok/s") -> Estimate:
    required = None if lower is not None and upper is not None else 500
    return Estimate(point, lower, upper, 0.95, 200, "given", unit, required)


BASE, LESS = estimate(200.0, 190.0, 210.0), estimate(150.0, 140.0, 160.0)


@pytest.mark.parametrize(
    ("kind", "point", "unit"),
    [
        ("difference", -50.0, "tok/s"),
        ("relative_change", -0.25, "ratio"),
        ("reduction", 0.25, "ratio"),
        ("ratio", 0.75, "ratio"),
    ],
)
def test_four_ways_to_put_it(kind: Kind, point: float, unit: str) -> None:
    found = change(BASE, LESS, kind)
    assert found.point == pytest.approx(point)
    assert (found.unit, found.n) == (unit, 200)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < point < found.upper
    assert found.n_required is None


def test_known_ends() -> None:
    found = change(BASE, LESS)
    assert (found.lower, found.upper) == pytest.approx((-50 - 200**0.5, -50 + 200**0.5))
    relative, reduction = change(BASE, LESS, "relative_change"), change(BASE, LESS, "reduction")
    assert relative.upper is not None
    assert reduction.lower == pytest.approx(-relative.upper)
    ratio = change(BASE, LESS, "ratio")
    assert ratio.upper == pytest.approx(1 + relative.upper)


def test_an_open_arm_leaves_the_change_open_and_says_what_would_close_it() -> None:
    found = change(estimate(200.0, 190.0, None), LESS, "reduction")
    assert found.upper is None or found.lower is None
    assert found.n_required == 500
    # The baseline may be any higher, so the reduction may.
    assert found.lower is not None


def test_undefined_arms() -> None:
    nothing = estimate(None, None, None)
    assert change(nothing, LESS).method == "the baseline is undefined"
    assert change(BASE, nothing).method == "the candidate is undefined"
    zero = estimate(0.0, 0.0, 1.0)
    assert change(zero, LESS, "ratio").method == "the baseline is zero"
    assert change(zero, LESS).point == 150
    gone = change(BASE, zero, "reduction")
    assert (gone.point, gone.lower, gone.upper) == (1.0, None, None)


def test_only_like_compares_with_like() -> None:
    with pytest.raises(ValueError, match="does not compare"):
        change(BASE, estimate(1.0, 0.0, 2.0, unit="ms"))


def test_independent_samples() -> None:
    random = np.random.default_rng(1)
    before, after = random.lognormal(4, 0.5, size=2000), random.lognormal(3, 0.5, size=2000)
    found = independent_changes("ttft_reduction", before, after, "reduction")
    assert list(found) == [f"ttft_reduction.{name}" for name in ("p50", "p95", "p99", "mean")]
    for value in found.values():
        assert value.lower is not None
        assert value.upper is not None
        assert value.lower < 1 - np.exp(-1) < value.upper
    p95 = 1 - np.percentile(after, 95) / np.percentile(before, 95)
    assert found["ttft_reduction.p95"].point == pytest.approx(p95)


def test_a_small_sample_supports_no_p99_but_a_crude_one() -> None:
    random = np.random.default_rng(1)
    before, after = random.lognormal(size=(2, 200))
    found = independent_changes("x", before, after)["x.p99"]
    assert found.point is not None
    assert found.closed
    assert found.kind is EstimateKind.CRUDE
    few = independent_changes("x", before[:80], after[:80])["x.p99"]
    assert (few.lower, few.upper) == (None, None)
    arms = [distribution("x", arm[:80])["x.p99"].n_required for arm in (before, after)]
    assert few.n_required == max(arms)  # type: ignore[type-var]
    assert few.n_required == pytest.approx(368, rel=0.3)


def arm(*latencies: tuple[int, float], failed: tuple[int, ...] = ()) -> Records:
    """Requests by index, submitted in the order given, with a TTFT in ms."""
    rows = []
    for place, (index, latency) in enumerate(latencies):
        at = 1000.0 * place
        outcome = Outcome.TIMEOUT if index in failed else Outcome.OK
        rows.append(row(index, submitted=at, chunks=(at + latency, at + latency + 50), outcome=outcome))
    return Records.from_rows(rows)


def test_pairs_are_the_same_requests_in_the_order_of_the_baseline() -> None:
    before = arm((3, 30), (1, 10), (2, 20), (4, 40), (5, 50), failed=(4,))
    after = arm((1, 11), (2, 22), (3, 33), (4, 44), (6, 66))
    found = pairs("ttft", [before], [after])
    assert found.baseline[0].tolist() == [30, 10, 20]
    assert found.candidate[0].tolist() == [33, 11, 22]
    assert pairs("e2e", [before], [after]).baseline[0].tolist() == [80, 60, 70]


def test_runs_pair_with_runs() -> None:
    found = pairs("ttft", [arm((1, 10)), arm((1, 20))], [arm((1, 11)), arm((1, 22))])
    assert [run.tolist() for run in found.candidate] == [[11], [22]]
    with pytest.raises(ValueError, match="2 runs do not pair with 1"):
        pairs("ttft", [arm((1, 10)), arm((1, 20))], [arm((1, 11))])


def test_overhead_of_pairs_is_sharper_than_that_of_arms() -> None:
    random = np.random.default_rng(1)
    base = random.lognormal(5, 1, size=1000)
    slower = base + random.normal(20, 2, size=1000)
    first, second = arm(*enumerate(base)), arm(*enumerate(slower))
    found = paired_changes("overhead", pairs("ttft", [first], [second]))
    apart = independent_changes("overhead", base, slower)
    for name, value in found.items():
        assert value.point == pytest.approx(apart[name].point, abs=1e-3)
        assert value.lower is not None
        assert value.upper is not None
        # Beyond P99 there are ten requests, the same in both arms: MOVER knows of no noise between them.
        assert value.lower < 20 < value.upper or name == "overhead.p99"
        assert value.upper - value.lower < 0.8 * (apart[name].upper - apart[name].lower)  # type: ignore[operator]
    assert found["overhead.mean"].n == 1000
    mean = found["overhead.mean"]
    assert mean.upper - mean.lower == pytest.approx(4 * 2 / 1000**0.5, rel=0.6)  # type: ignore[operator]


def test_paired_reduction() -> None:
    base = np.random.default_rng(1).lognormal(5, 1, size=1000)
    arms = pairs("ttft", [arm(*enumerate(base))], [arm(*enumerate(base / 4))])
    found = paired_changes("ttft_reduction", arms, "reduction", statistics=("p50", "p99"))
    for value in found.values():
        assert value.unit == "ratio"
        ends = (value.point, value.lower, value.upper)
        assert ends == pytest.approx((0.75, 0.75, 0.75), abs=1e-4)


def test_few_pairs() -> None:
    base = np.random.default_rng(1).lognormal(5, 1, size=20)
    arms = pairs("ttft", [arm(*enumerate(base))], [arm(*enumerate(base + 1))])
    found = paired_changes("x", arms)
    assert found["x.p99"].n_required is not None
    assert found["x.p99"].n_required >= 368
    nothing = paired_changes("x", pairs("ttft", [arm((1, 5))], [arm((2, 5))]))
    assert not any(value.defined for value in nothing.values())
    assert paired_changes("x", pairs("ttft", [], []))["x.p50"].n == 0


def window(*, tokens: int = 10, later_ms: float = 0.0) -> Window:
    """2,000 replies at random instants over 20 s."""
    at_ms = np.sort(np.random.default_rng(1).uniform(0, 20_000, 2_000)) + later_ms
    rows = [
        row(i, submitted=at, chunks=(at,), chunk_tokens=(tokens,), tokens=tokens)
        for i, at in enumerate(at_ms)
    ]
    return Window(Records.from_rows(rows), EPOCH_NS + 2 * 10**9, EPOCH_NS + 20 * 10**9)


def test_rates_at_one_offered_load_are_compared_slice_by_slice() -> None:
    """Known: a tenth fewer tokens in every reply; the variation of the arrivals is the same in both."""
    before, after = window(), window(tokens=9)
    found = paired_throughput_reduction(before, after)
    assert found.point == pytest.approx(0.1, abs=1e-9)
    assert found.lower is not None
    assert found.upper is not None
    assert found.upper - found.lower < 0.005
    later = paired_throughput_reduction(before, window(later_ms=50.0))
    assert later.lower is not None
    assert later.upper is not None
    assert later.lower <= 0.0 <= later.upper


def test_no_tokens_are_no_rate_to_compare() -> None:
    empty = Window(Records.from_rows([]), 0, 1_000_000_000)
    assert paired_throughput_reduction(empty, window()).point is None


def test_a_change_is_a_lower_bound_only_where_more_of_a_part_makes_it_more() -> None:
    bound = LESS.at_least(Reason.RANGE_ENDED, "every tested load held")
    more, less = change(BASE, bound, "relative_change"), change(BASE, bound, "reduction")
    assert (more.kind, more.reason, more.upper) == (EstimateKind.BOUND, Reason.RANGE_ENDED, None)
    assert (less.kind, less.reason, less.lower) == (EstimateKind.SAMPLE, None, None)
    falls = change(bound, BASE, "reduction")
    assert (falls.kind, falls.upper) == (EstimateKind.BOUND, None)
    assert change(bound, bound, "reduction").kind is EstimateKind.SAMPLE


@pytest.mark.parametrize(
    ("size", "half_width", "ok", "voids"),
    [
        (0.03, 0.0, True, False),
        (0.05, 0.01, False, False),
        (0.05, 0.06, True, False),
        (0.30, 0.10, False, True),
        (0.30, 0.40, True, False),
    ],
)
def test_a_difference_is_chance_as_far_as_its_interval_reaches(
    size: float, half_width: float, ok: bool, voids: bool
) -> None:
    """And beyond three percent, which one engine shows, no farther."""
    found = Unexplained("halves differ", size, half_width)
    assert (found.ok, found.voids) == (ok, voids)


def test_throughput_that_filters_add_is_not_explained() -> None:
    ends = {
        "[a]": (-0.08, -0.05),
        "[b]": (-0.08, 0.02),
        "[c]": (0.3, 0.4),
        "[d]": (-0.5, None),
        "": (-0.08, -0.05),
    }
    metrics = {
        f"throughput_reduction{name}": estimate(point, point - 0.03, upper, "ratio")
        for name, (point, upper) in ends.items()
    }
    found = gained_throughput(metrics)
    assert [each.ok for each in found] == [False, True, True, True]
    assert found[0].size == 0.08
    assert found[0].half_width == pytest.approx(0.03)
    assert (found[0].what.id, found[0].what.parameters["metric"]) == (
        "gained_throughput",
        "throughput_reduction[a]",
    )
