"""Laws of lengths: what they draw, what they say about themselves, and what they refuse."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.workloads.lengths import (
    LENGTH_TYPES,
    Choice,
    Empirical,
    Fixed,
    LogNormal,
    Normal,
    Uniform,
    mean_between,
    probability_between,
)

LAWS = [
    Fixed(7),
    Uniform(3, 9),
    Normal(20, 6, 10, 40),
    LogNormal(2.5, 0.8, 4, 60),
    Choice((8, 16, 64)),
    Empirical((5, 9, 9, 30)),
    Empirical((5, 9, 30), (1, 2.5, 0.5)),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_drawn_lengths_follow_the_stated_law(law):
    generator = random.Random(1)
    n = 20_000
    drawn = [law.draw(generator) for _ in range(n)]
    assert (min(drawn), max(drawn)) == law.bounds or isinstance(law, Normal)
    assert law.bounds[0] <= min(drawn) <= max(drawn) <= law.bounds[1]
    for tokens in sorted(set(drawn)):
        share, expected = sum(length >= tokens for length in drawn) / n, law.at_least(tokens)
        assert abs(share - expected) < 5 * math.sqrt(0.25 / n)
    spread = max(drawn) - min(drawn)
    assert abs(sum(drawn) / n - mean_between(law)) <= 5 * spread / math.sqrt(n)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_laws_state_themselves_in_json_and_in_the_drafts_words(law):
    assert law.type in LENGTH_TYPES
    assert json.loads(json.dumps(law.params)) == law.params
    assert law.at_least(law.bounds[0]) == 1.0
    assert law.at_least(law.bounds[1] + 1) == 0.0
    assert law.at_least(law.bounds[0] - 5) == 1.0
    assert law.at_least(law.bounds[1] + 5) == 0.0
    assert hash(law) == hash(eval(repr(law)))


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        (LogNormal(5.5, 1.0, 32, 4096), 399.6),
        (LogNormal(4.5, 1.2, 16, 2048), 180.0),
        (Uniform(128, 512), 320.0),
        (Choice((1, 2, 6)), 3.0),
        (Empirical((10, 20), (3, 1)), 12.5),
        (Normal(100, 1, 1, 200), 100.0),
    ],
)
def test_known_means(law, mean):
    assert mean_between(law) == pytest.approx(mean, abs=0.05)


def test_mean_and_probability_of_a_range():
    assert mean_between(Uniform(1, 100), 11, 20) == pytest.approx(15.5)
    assert probability_between(Uniform(1, 100), 11, 20) == pytest.approx(0.1)
    weights = Counter({3: 1, 5: 2, 8: 1})
    law = Empirical.histogram(weights)
    assert mean_between(law, 4, 8) == pytest.approx((2 * 5 + 8) / 3)
    assert mean_between(law, 5, 5) == pytest.approx(5)
    # Clamping puts the tail beyond the cap onto the cap itself, and the range holds it.
    assert probability_between(LogNormal(5.5, 1.0, 32, 4096), 4096, 4096) == pytest.approx(0.00242, abs=5e-5)
    with pytest.raises(SuiteError, match="gives no length from 101"):
        mean_between(Uniform(1, 100), 101, 200)
    with pytest.raises(SuiteError, match="gives no length"):
        mean_between(law, 6, 7)


def test_rounding_is_half_to_even_and_clamps():
    class Half(random.Random):
        def __init__(self, value):
            super().__init__(0)
            self.value = value

        def normalvariate(self, mu=0.0, sigma=1.0):
            return self.value

    assert Normal(10, 1, 1, 100).draw(Half(12.5)) == 12
    assert Normal(10, 1, 1, 100).draw(Half(13.5)) == 14
    assert Normal(10, 1, 5, 100).draw(Half(4.4)) == 5
    assert Normal(10, 1, 1, 100).draw(Half(1000.0)) == 100
    assert LogNormal(10, 1, 1, 100).draw(Half(math.log(40))) == 40


def test_draws_take_what_they_say_from_the_generator():
    for law, call in [
        (Normal(50, 5, 1, 100), lambda g: g.normalvariate(50, 5)),
        (LogNormal(2, 1, 1, 100), lambda g: g.lognormvariate(2, 1)),
        (Choice((4, 5, 6)), lambda g: g.choice((4, 5, 6))),
        (Empirical((4, 5, 6)), lambda g: g.random()),
    ]:
        mine, plain = random.Random(3), random.Random(3)
        for _ in range(5):
            law.draw(mine)
            call(plain)
        assert mine.random() == plain.random()


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    weights=st.lists(st.integers(0, 4), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_an_empirical_law_never_draws_what_has_no_weight(lengths, weights, seed):
    weights = weights[: len(lengths)]
    if not sum(weights):
        return
    law, generator = Empirical(tuple(lengths), tuple(weights)), random.Random(seed)
    possible = {length for length, weight in zip(lengths, weights, strict=True) if weight}
    assert {law.draw(generator) for _ in range(50)} <= possible
    assert law.bounds == (min(possible), max(possible))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fixed(0), "at least 1"),
        (lambda: Uniform(0, 1.5), "2 mistakes"),
        (lambda: Uniform(5, 4), "lower bound comes first"),
        (lambda: Normal(math.nan, 0, 5, 4), "3 mistakes"),
        (lambda: LogNormal("x", -1, 0, 1.5), "4 mistakes"),
        (lambda: LogNormal(1, True, 1, 2), "sigma is True"),
        (lambda: Choice(()), "at least one"),
        (lambda: Choice([4, 5]), "give a tuple"),
        (lambda: Choice((4, 0, 2.5)), "2 mistakes"),
        (lambda: Empirical((1, 2), (1,)), "one weight for each"),
        (lambda: Empirical((1, 2), (0, 0)), "not all 0"),
        (lambda: Empirical((1, 2), (1, -1)), "none negative"),
        (lambda: Empirical((1, 2), (1, math.nan)), "none negative"),
    ],
)
def test_mistakes_are_listed(make, said):
    with pytest.raises(SuiteError, match=said):
        make()
