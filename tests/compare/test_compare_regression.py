"""Two arms compared: known intervals, the verdict rule, and values that have no ratio."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmbench.compare.regression import better_of, compared, log_ratio
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.judgement import Better, Comparison, ComparisonVerdict

T_2 = 4.302652729696142
"""Student's t, 97.5 %, two degrees of freedom."""


def of(
    baseline: list[float | None], candidate: list[float | None], *, better: Better = "lower",
    margin: float = 0.05, paired: bool = False,
) -> Comparison:  # fmt: skip
    return compared("ttft.p99", "ms", better, baseline, candidate, margin=margin, paired=paired)


def test_paired_interval_is_students() -> None:
    ratios = [1.10, 1.12, 1.14]
    found = of([100.0, 200.0, 50.0], [100 * 1.10, 200 * 1.12, 50 * 1.14], paired=True)
    logs = np.log(ratios)
    half = T_2 * logs.std(ddof=1) / math.sqrt(3)
    assert found.change.point == pytest.approx(math.expm1(logs.mean()))
    assert found.change.lower == pytest.approx(math.expm1(logs.mean() - half))
    assert found.change.upper == pytest.approx(math.expm1(logs.mean() + half))


def test_unpaired_interval_is_welchs() -> None:
    from scipy.stats import ttest_ind

    before, after = [100.0, 104.0, 97.0, 101.0], [110.0, 118.0, 107.0]
    found = of(list(before), list(after))
    interval = ttest_ind(np.log(after), np.log(before), equal_var=False).confidence_interval()
    assert found.change.lower == pytest.approx(math.expm1(interval.low))
    assert found.change.upper == pytest.approx(math.expm1(interval.high))


def test_detectable_effect_is_found_four_times_out_of_five() -> None:
    """By simulation, not by the formula that gave it. Four runs tell the noise: it may be more."""
    rng, noise, runs, margin = np.random.default_rng(5), 0.03, 4, 0.05
    typical = [1.0, math.exp(noise * math.sqrt(3)), 1.0, math.exp(noise * math.sqrt(3))]
    assert np.log(typical).std(ddof=1) == pytest.approx(noise)
    mde = of([1.0] * runs, list(typical), margin=margin, paired=True).mde
    assert mde is not None
    found = 0
    true_noise = noise * np.sqrt((runs - 1) / rng.chisquare(runs - 1, (4000, 1)))
    for pairs in np.exp(rng.normal(math.log1p(mde), true_noise, (4000, runs))):
        ratio = log_ratio([1.0] * runs, pairs.tolist(), paired=True)
        found += ratio.point - ratio.halfwidth > math.log1p(margin)
    assert found / 4000 == pytest.approx(0.8, abs=0.02)


def test_detectable_effect_of_a_rate_is_a_drop() -> None:
    found = of([100.0, 101.0, 99.0], [100.0, 101.0, 99.0], better="higher", margin=0.02)
    assert found.mde is not None
    assert 0.02 < found.mde < 0.1


@pytest.mark.parametrize(
    ("candidate", "better", "margin", "verdict"),
    [
        ([110.0, 110.5, 109.5], "lower", 0.05, ComparisonVerdict.REGRESSED),
        ([90.0, 90.5, 89.5], "lower", 0.05, ComparisonVerdict.IMPROVED),
        ([100.1, 100.4, 99.8], "lower", 0.05, ComparisonVerdict.EQUIVALENT),
        ([97.0, 104.0, 89.0], "lower", 0.10, ComparisonVerdict.INCONCLUSIVE),
        ([93.0, 99.0, 90.0], "lower", 0.08, ComparisonVerdict.NOT_WORSE),
        ([105.0, 105.5, 104.5], "lower", 0.05, ComparisonVerdict.INCONCLUSIVE),
        ([90.0, 90.5, 89.5], "higher", 0.05, ComparisonVerdict.REGRESSED),
        ([110.0, 110.5, 109.5], "higher", 0.05, ComparisonVerdict.IMPROVED),
        ([95.0, 95.5, 94.5], "higher", 0.05, ComparisonVerdict.INCONCLUSIVE),
        ([99.0, 99.5, 98.5], "higher", 0.05, ComparisonVerdict.EQUIVALENT),
    ],
)
def test_verdicts(
    candidate: list[float | None], better: Better, margin: float, verdict: ComparisonVerdict
) -> None:
    found = of([100.0, 100.3, 99.7], candidate, better=better, margin=margin)
    assert found.verdict is verdict, (found.change, found.reason)


def test_runs_that_all_measured_the_same() -> None:
    same = of([12.0] * 3, [12.0] * 3)
    assert (same.verdict, same.mde, same.change.lower) == (ComparisonVerdict.EQUIVALENT, None, 0.0)
    assert of([12.0] * 3, [14.0] * 3).verdict is ComparisonVerdict.REGRESSED


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], "baseline has 2 runs: at least 3"),
        ([], [1.0], "baseline has 0 runs and candidate has 1 run"),
        ([1.0, 2.0, 3.0], [1.0, None, 3.0], "undefined in 1 of 3 runs of candidate"),
        ([1.0, 2.0, 3.0], [1.0, math.nan, math.inf], "undefined in 2 of 3 runs of candidate"),
        ([0.0, 0.0, 0.0], [0.1, 0.2, 0.1], "baseline measured 0 in a run"),
        ([1.0, 2.0, 3.0], [1.0, -2.0, 3.0], "candidate measured -2 in a run"),
    ],
)
def test_what_has_no_ratio_is_inconclusive_and_says_why(
    baseline: list[float | None], candidate: list[float | None], said: str
) -> None:
    found = of(baseline, candidate)
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert said in found.reason
    assert found.change.point is None


def test_wild_noise_leaves_the_interval_open() -> None:
    found = of([1e-300, 1.0, 1e300], [1.0, 1e300, 1e-300])
    assert found.verdict is ComparisonVerdict.INCONCLUSIVE
    assert found.change.upper is None


def test_pairs_of_unequal_number_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match=r"3 runs .* paired with 4"):
        of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], paired=True)


def test_which_way_is_better() -> None:
    assert better_of("ttft.p99") == "lower"
    assert better_of("fail_rate") == "lower"
    assert better_of("jain_index") == "higher"
    assert better_of("cache_hit_rate") == "higher"
    assert better_of("output_token_throughput[90%]") == "higher"
    assert better_of("tokens_in_flight") is None
    with pytest.raises(SuiteError, match=r"ttft\.p98"):
        better_of("ttft.p98")
