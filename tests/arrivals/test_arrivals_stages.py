"""Loads whose rate changes: arrivals follow the rate of each stage, by a law that is Poisson's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.arrivals import schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import (
    STAGES,
    OpenLoop,
    mean_rate,
    ramp,
    requests_of,
    spike,
    stage_mistakes,
    stages_of,
    steps,
)

SPIKE = spike(5, 50, before_s=60, for_s=10, after_s=60)


def load(entries: list, burstiness: float = 1.0) -> OpenLoop:
    stages = stages_of(entries)
    return OpenLoop(mean_rate(stages), STAGES, burstiness, stages=stages)


def arrivals_s(entries: list, count: int | None = None, seed: int = 1, burstiness: float = 1.0) -> np.ndarray:
    made = load(entries, burstiness)
    return schedule_ns(made, count or requests_of(made.stages) or 0, seed) / 1e9


RATES = st.floats(4, 200)


@given(st.lists(st.tuples(st.floats(0.5, 30), RATES, RATES), min_size=1, max_size=5), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_each_stage_has_as_many_arrivals_as_its_rate_says(lengths, seed):
    ends = np.cumsum([length for length, _, _ in lengths]).tolist()
    entries = [(at, (first, last)) for at, (_, first, last) in zip([0.0, *ends], lengths, strict=False)]
    entries.append((ends[-1], 0))
    stages = stages_of(entries)
    total = requests_of(stages)
    assert total is not None
    due = arrivals_s(entries, seed=seed)
    assert len(due) == total
    assert (np.diff(due) >= 0).all()
    assert due[-1] <= ends[-1] + 1e-6
    for stage in stages:
        share = (stage.requests or 0) / sum(each.requests or 0 for each in stages)
        here = int(((due >= stage.at_s) & (due < (stage.end_s or 0))).sum())
        assert stats.binomtest(here, total, min(1.0, share)).pvalue > 1e-6


def test_within_a_ramp_arrivals_have_its_law():
    due = arrivals_s([(0, (0, 100)), (100, 0)])
    assert len(due) == 5000
    assert stats.kstest(due, lambda t: (t / 100) ** 2).pvalue > 0.001
    down = arrivals_s([(0, (100, 0)), (100, 0)])
    assert stats.kstest(down, lambda t: 1 - (1 - t / 100) ** 2).pvalue > 0.001


def test_regular_gaps_on_the_clock_of_the_load_are_exact():
    """With hardly any randomness request i of N is due when i/(N + 1) of the load is."""
    due = arrivals_s([(0, 10, "slow"), (10, 100, "fast"), (11, 0, "pause"), (20, 10, "slow_again"), (30, 0)],
                     burstiness=1e9)  # fmt: skip
    assert len(due) == 300
    assert due[0] == pytest.approx(300 / 301 / 10, rel=1e-3)
    at_100 = 10 + (100 * 300 / 301 - 100) / 100 if 100 * 300 / 301 > 100 else 100 * 300 / 301 / 10
    assert due[99] == pytest.approx(at_100, rel=1e-3)
    assert not ((due > 11) & (due < 20)).any()
    ramped = arrivals_s([(0, (0, 20)), (10, 0)], burstiness=1e9)
    assert ramped[49] == pytest.approx(np.sqrt(50 * 100 / 101), rel=1e-3)


def test_without_an_end_the_last_rate_goes_on_and_fewer_are_the_beginning_of_more():
    entries = [(0, 5), (60, 50)]
    many, few = arrivals_s(entries, 20_000), arrivals_s(entries, 1000)
    assert (many[:1000] == few).all()
    assert (many < 60).sum() == pytest.approx(300, abs=5 * 300**0.5)
    gaps = np.diff(many[many > 60])
    assert stats.kstest(gaps, stats.expon(scale=1 / 50).cdf).pvalue > 0.001
    assert (arrivals_s(SPIKE, 50) == arrivals_s(SPIKE)[:50]).all()
    assert (arrivals_s(SPIKE, seed=2) != arrivals_s(SPIKE)).any()


def test_one_stage_without_an_end_is_a_poisson_load_of_its_rate():
    plain = schedule_ns(OpenLoop(40.0), 500, 7)
    assert np.abs(schedule_ns(load([(0, 40)]), 500, 7) - plain).max() <= 1


def test_shapes_by_name_are_lists():
    assert SPIKE == [(0, 5, "before"), (60, 50, "spike"), (70, 5, "after"), (130, 0, "end")]
    assert ramp(1, 9, 10, 5) == [(0, (1, 9), "ramp"), (10, 9, "top"), (15, 0, "end")]
    assert steps([1, 2], 10) == [(0, 1, "step1"), (10, 2, "step2"), (20, 0, "end")]
    assert load(SPIKE).peak_rate == 50
    assert mean_rate(stages_of(SPIKE)) == pytest.approx(1100 / 130)
    assert "spike 50 req/s from 60 s" in load(SPIKE).describe()
    assert stages_of([[0, 5], [60, [5, 50]], [90, 0]]) == stages_of([(0, 5), (60, (5, 50)), (90, 0)])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "must be a list of 1 to 1000 stages"),
        (5, "must be a list"),
        ([(0, -1)], "entry 1 is"),
        ([(0, float("inf"))], "entry 1 is"),
        ([(0, 5, "a b")], "entry 1 is"),
        ([(0, True)], "entry 1 is"),
        ([(0, 5), (10, 5, "x", 1)], "entry 2 is"),
        ([(0, (1, 2, 3))], "entry 1 is"),
        ([(1, 5)], "the first stage begins at 0"),
        ([(0, 5), (9, 6), (9, 7)], "seconds ascend"),
        ([(0, 5, "a"), (9, 6, "a")], "a name twice"),
        ([(0, (5, 6))], "ends with a ramp"),
        ([(0, 0)], "nothing would be sent"),
        ([(0, 0.01), (1, 0)], "has 0 requests"),
        ([(0, 1e6), (1e7, 0)], "give 1 to 100,000,000"),
    ],
)
def test_what_is_no_list_of_stages_is_told(wrong, told):
    (found,) = stage_mistakes(wrong)
    assert told in found


def test_more_requests_than_the_stages_have_are_refused():
    with pytest.raises(SuiteError, match="the stages end after 1100 requests, 1200 are asked for"):
        schedule_ns(load(SPIKE), 1200, 1)
