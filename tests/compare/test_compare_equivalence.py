"""What is looked at before two arms are compared: lengths of their answers, and whose cache helped."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.compare.comparability import cache_apart, mann_whitney, output_lengths

GENERATOR = np.random.default_rng(5)
LENGTHS = np.round(GENERATOR.lognormal(4.8, 0.5, 3000))


def test_cliffs_delta_of_a_case_counted_by_hand() -> None:
    # 9 pairs: 30 and 40 exceed 10, 20 and 25 (six), 20 exceeds 10, equals 20, is below 25: 7 + 1/2 of 9.
    finding = output_lengths(np.array([10.0, 20.0, 25.0]), np.array([20.0, 30.0, 40.0]))
    assert finding is not None
    assert finding.value == pytest.approx(2 * 7.5 / 9 - 1)
    assert mann_whitney(np.array([10.0, 20.0, 25.0]), np.array([20.0, 30.0, 40.0]))[0] == 7.5


@pytest.mark.parametrize("shift", [0.0, 3.0, 40.0])
def test_mann_whitney_is_that_of_scipy(shift: float) -> None:
    from scipy.stats import mannwhitneyu

    first, second = LENGTHS[:400], LENGTHS[400:700] + shift
    wanted = mannwhitneyu(second, first, method="asymptotic")
    assert mann_whitney(first, second) == pytest.approx((wanted.statistic, wanted.pvalue), rel=1e-9)


def test_equal_answers_are_alike() -> None:
    same = output_lengths(LENGTHS, LENGTHS)
    assert same is not None
    assert same.ok
    assert same.value == 0.0
    fixed = output_lengths(np.full(50, 128.0), np.full(50, 128.0))
    assert fixed is not None
    assert fixed.ok


def test_chance_is_not_a_difference() -> None:
    halves = GENERATOR.permutation(LENGTHS)
    finding = output_lengths(halves[:1500], halves[1500:])
    assert finding is not None
    assert finding.ok, finding.message


def test_longer_answers_are_a_warning_that_names_their_effect() -> None:
    finding = output_lengths(LENGTHS, LENGTHS * 1.2)
    assert finding is not None
    assert not finding.ok
    assert not finding.voids
    assert "a change of 20 %" in finding.message
    assert "answer differently" in finding.message


def test_a_difference_too_small_to_matter_is_fine_however_sure_it_is() -> None:
    many = np.tile(LENGTHS, 100)
    finding = output_lengths(many, many + 1)
    assert finding is not None
    assert finding.ok, finding.message


def test_no_answers_say_nothing() -> None:
    assert output_lengths(np.empty(0), LENGTHS) is None
    assert output_lengths(LENGTHS, np.empty(0)) is None


def test_a_cache_that_helps_one_arm_only_is_a_warning() -> None:
    alone = cache_apart(0.0, 0.6)
    both = cache_apart(0.60, 0.62)
    assert alone is not None
    assert both is not None
    assert (alone.ok, both.ok) == (False, True)
    assert cache_apart(None, None) is None


@pytest.mark.parametrize(
    ("baseline", "candidate", "which"), [(None, 0.3, "candidate"), (0.3, None, "baseline")]
)
def test_so_is_one_of_an_arm_beside_another_that_does_not_tell(
    baseline: float | None, candidate: float | None, which: str
) -> None:
    found = cache_apart(baseline, candidate)
    assert found is not None
    assert (found.ok, found.voids, found.value) == (False, False, 0.3)
    assert found.message.startswith(f"30 % of the input of the {which} came from a prefix cache")


def test_an_arm_without_a_cache_beside_another_that_does_not_tell_is_nothing_to_speak_of() -> None:
    assert cache_apart(None, 0.0) is None
    assert cache_apart(0.0, None) is None
