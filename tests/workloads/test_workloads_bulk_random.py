"""BulkRandom is random.Random: the same values for single draws, bulk draws and any mixture of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.workloads.stream import BulkRandom

SEEDS = st.one_of(st.integers(0, 2**64), st.sampled_from([0, 1, 42, 2**31, 2**32 - 1, 2**32, 10**40]))
SPANS = st.one_of(
    st.integers(1, 2**32 - 1),
    st.integers(0, 31).flatmap(lambda bits: st.sampled_from([2**bits, max(2**bits - 1, 1), 2**bits + 1])),
)


@settings(max_examples=150)
@given(seed=SEEDS, span=SPANS, low=st.integers(0, 1000), count=st.integers(0, 400))
def test_bulk_draws_equal_randint(seed, span, low, count):
    high = min(low + span - 1, 2**32 - 2)
    plain = random.Random(seed)
    assert list(BulkRandom(seed).randints(low, high, count)) == [
        plain.randint(low, high) for _ in range(count)
    ]


DRAWS = st.one_of(
    st.tuples(st.just("randint"), st.integers(0, 5000)),
    st.tuples(st.just("bulk"), st.integers(0, 300)),
    st.tuples(st.just("random"), st.just(0)),
    st.tuples(st.just("bits"), st.integers(0, 200)),
    st.tuples(st.just("lognormal"), st.just(0)),
    st.tuples(st.just("gauss"), st.just(0)),
    st.tuples(st.just("shuffle"), st.integers(0, 20)),
    st.tuples(st.just("bytes"), st.integers(0, 20)),
)


def drawn(generator: random.Random, kind: str, size: int) -> object:
    if kind == "bulk":
        if isinstance(generator, BulkRandom):
            return list(generator.randints(0, 100_255, size))
        return [generator.randint(0, 100_255) for _ in range(size)]
    if kind == "shuffle":
        items = list(range(size))
        generator.shuffle(items)
        return items
    draws = {
        "randint": lambda: generator.randint(0, size),
        "random": generator.random,
        "bits": lambda: generator.getrandbits(size),
        "lognormal": lambda: generator.lognormvariate(5.5, 1.0),
        "gauss": lambda: generator.gauss(0.0, 1.0),
        "bytes": lambda: generator.randbytes(size),
    }
    return draws[kind]()


@settings(max_examples=150)
@given(seed=SEEDS, draws=st.lists(DRAWS, max_size=30))
def test_any_mixture_of_draws_equals_pythons(seed, draws):
    plain, bulk = random.Random(seed), BulkRandom(seed)
    for kind, size in draws:
        assert drawn(bulk, kind, size) == drawn(plain, kind, size)


def test_draws_across_many_refills():
    """Longer than any block of words, and longer than the estimate for one bulk draw can cover at once."""
    plain, bulk = random.Random(9), BulkRandom(9)
    for count in (1, 100_000, 3, 5000, 70_000):
        expected = [plain.randint(0, 2**16) for _ in range(count)]  # about half of the words fall outside
        assert list(bulk.randints(0, 2**16, count)) == expected


def test_seeding_again_starts_again():
    generator = BulkRandom(5)
    generator.gauss()  # keeps a second value back, which seeding has to forget
    generator.seed(6)
    plain = random.Random(6)
    assert generator.gauss() == plain.gauss()
    assert list(generator.randints(0, 99, 50)) == [plain.randint(0, 99) for _ in range(50)]


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 4), (0, 2**32 - 1), (2**32, 2**33)])
def test_ranges_it_cannot_draw_are_refused(low, high):
    with pytest.raises(ValueError, match="between 0 and"):
        BulkRandom(1).randints(low, high, 1)


def test_negative_bits_are_refused():
    with pytest.raises(ValueError, match="non-negative"):
        BulkRandom(1).getrandbits(-1)


def test_its_state_cannot_be_taken_for_pythons():
    generator = BulkRandom(1)
    with pytest.raises(NotImplementedError):
        generator.getstate()
    with pytest.raises(NotImplementedError):
        generator.setstate(random.Random(1).getstate())
