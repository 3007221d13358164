"""Sequences that are drawn once: the same slices as drawing anew, bounded, from several threads."""

from __future__ import annotations

import hashlib
import json
from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads import sequence
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import (
    LoadDigest,
    begin_loads,
    drawn,
    drawn_sha256,
    follow_known,
    forget_drawn,
    passing,
    sequence_json,
    sequence_sha256,
    slices_sha256,
    stretches_sha256,
)
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SMALL = SyntheticWorkload("small", Uniform(1, 9), Fixed(4))


class Counting(StreamedWorkload):
    """Numbers its requests and counts how many were drawn."""

    name = "counting"

    def __init__(self, input_tokens=1):
        self.drawn = 0
        self.input_tokens = input_tokens

    def _stream(self, seed):
        index = 0
        while True:
            self.drawn += 1
            yield PlannedRequest(index, max_tokens=1, input_tokens=self.input_tokens, text=f"{seed}/{index}")
            index += 1

    def specification(self):
        return {}


class Foreign:
    """A workload without a stream."""

    name = "foreign"
    standard = False

    def __init__(self):
        self.calls = []

    def requests(self, count, seed):
        self.calls.append(count)
        return list(islice(Counting().stream(seed), count))


class Unhashable(Foreign):
    __hash__ = None


class UnhashableStream(Counting):
    __hash__ = None


def indices(requests):
    return [request.index for request in requests]


@settings(max_examples=60)
@given(
    slices=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6), seed=st.integers(0, 9)
)
def test_slices_are_those_of_drawing_anew(slices, seed):
    for first, count in slices:
        assert list(drawn(SMALL, first, count, seed)) == list(SMALL.requests(first + count, seed)[first:])


def test_nothing_is_drawn_twice():
    made = Counting()
    for first in range(0, 1000, 100):
        assert indices(drawn(made, first, 100, 1)) == list(range(first, first + 100))
    assert indices(drawn(made, 0, 1000, 1)) == list(range(1000))
    assert made.drawn == 1000


def test_what_is_handed_out_can_be_changed_without_harm():
    made = Counting()
    drawn(made, 0, 10, 1).clear()
    assert indices(drawn(made, 0, 10, 1)) == list(range(10))


def test_no_more_is_kept_than_the_cap(monkeypatch):
    made = Counting(input_tokens=sequence.CACHED_TOKENS // 1000)
    for first in range(0, 5000, 500):
        assert indices(drawn(made, first, 500, 1)) == list(range(first, first + 500))
    assert made.drawn == 5000  # going on never draws again
    remembered = sequence._sequences.of(made, 1)
    assert len(remembered._cached[0].kept) <= 1300
    assert remembered._cached[0].tokens == len(remembered._cached[0].kept) * made.input_tokens
    assert indices(drawn(made, 0, 10, 1)) == list(range(10))  # but going back does
    assert made.drawn == 5010


def test_a_slice_beyond_the_cap_is_answered_and_only_its_end_is_kept():
    made = Counting(input_tokens=sequence.CACHED_TOKENS)
    assert indices(drawn(made, 1, 3, 1)) == [1, 2, 3]
    assert len(sequence._sequences.of(made, 1)._cached[0].kept) == 1
    assert indices(drawn(made, 4, 2, 1)) == [4, 5]
    assert made.drawn == 6  # going on never draws again


def test_what_is_forgotten_is_drawn_again_but_not_for_its_digest():
    counting = Counting()
    digest, before = drawn_sha256(counting, 0, 10, 1), drawn(counting, 0, 10, 1)
    forget_drawn()
    assert drawn_sha256(counting, 0, 10, 1) == digest
    assert counting.drawn == 10
    assert drawn(counting, 0, 10, 1) == before
    assert counting.drawn == 20


def test_a_foreign_workload_is_asked_once():
    made = Foreign()
    assert indices(drawn(made, 10, 20, 1)) == list(range(10, 30))
    assert indices(drawn(made, 0, 25, 1)) == list(range(25))
    assert made.calls == [30]
    assert indices(drawn(made, 20, 20, 1)) == list(range(20, 40))
    assert made.calls == [30, 40]


def test_an_unhashable_workload_is_drawn_every_time():
    made = Unhashable()
    for _ in range(2):
        assert indices(drawn(made, 3, 2, 1)) == [3, 4]
        assert drawn_sha256(made, 3, 2, 1) == sequence_sha256(made.requests(5, 1)[3:])
    assert made.calls == [5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("kind", [Counting, UnhashableStream])
def test_going_through_a_long_sequence_draws_each_once_and_keeps_few(kind, monkeypatch):
    monkeypatch.setattr(sequence, "CACHED_TOKENS", 256 * 500)  # of the one cache that all sequences share
    made = kind()
    for number, request in enumerate(passing(made, 7, 20_000, 3)):
        assert (request.index, request.text) == (7 + number, f"3/{7 + number}")
        assert made.drawn <= 7 + number + sequence.AT_ONCE
        if kind is Counting and number % 1000 == 0:
            assert len(sequence._sequences.of(made, 3)._cached[0].kept) <= 500 + sequence.AT_ONCE
    assert number == 19_999
    digest = drawn_sha256(made, 7, 20_000, 3)
    assert made.drawn <= 2 * 20_007 + sequence.AT_ONCE
    assert digest == sequence_sha256(kind().requests(20_007, 3)[7:])


def test_a_mistake_while_drawing_leaves_the_tape_usable():
    class Failing(Counting):
        fails = True

        def _stream(self, seed):
            if self.fails:
                raise SuiteError("not yet")
            return super()._stream(seed)

    made = Failing()
    with pytest.raises(SuiteError, match="not yet"):
        drawn(made, 0, 5, 1)
    made.fails = False
    assert indices(drawn(made, 0, 5, 1)) == list(range(5))


def test_several_threads_get_the_same_sequence():
    made = SyntheticWorkload("threads", Uniform(1, 99), Fixed(4))
    plain = made.requests(3000, 5)

    def right(k):
        first = k * 37 % 2000
        return list(drawn(made, first, 900, 5)) == list(plain[first : first + 900])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(30)))


def test_the_digest_of_several_slices_is_that_of_all_their_requests():
    requests = [*SMALL.requests(30, 1)[20:], *SMALL.requests(5, 1)]
    for _ in range(2):
        assert slices_sha256(SMALL, [(20, 10), (0, 5)], 1) == sequence_sha256(requests)
    assert slices_sha256(SMALL, [[20, 10]], 1) == drawn_sha256(SMALL, 20, 10, 1)
    assert slices_sha256(Unhashable(), [(1, 1), (0, 1)], 1) == sequence_sha256(
        Unhashable().requests(2, 1)[::-1]
    )


def taken(made, seed, first, count, *, follows=True):
    """A load that takes these requests: its digest."""
    load = LoadDigest(made, seed, first, follows=follows)
    for request in drawn(made, first, count, seed):
        load.add(request)
    return load.end()


def test_what_a_load_takes_is_hashed_once():
    made = Counting()
    own = taken(made, 1, 5, 10)
    forget_drawn()
    before = made.drawn
    assert drawn_sha256(made, 5, 10, 1) == own
    assert made.drawn == before
    assert own == sequence_sha256(Counting().requests(15, 1)[5:])


def test_loads_that_follow_one_another_are_hashed_together():
    made = Counting()
    for seed, first, count in ((1, 0, 10), (1, 10, 5), (2, 0, 7), (3, 0, 1)):
        taken(made, seed, first, count)
    forget_drawn()
    before = made.drawn
    together = stretches_sha256(made, [(1, 0, 15), (2, 0, 7), (3, 0, 1)])
    assert stretches_sha256(made, [(1, 0, 15)]) == drawn_sha256(made, 0, 15, 1)
    assert made.drawn == before
    plain = Counting()
    assert together == sequence_sha256([*plain.requests(15, 1), *plain.requests(7, 2), *plain.requests(1, 3)])
    # What nobody has hashed goes on from what is known, and is drawn alone.
    longer = stretches_sha256(made, [(1, 0, 15), (2, 0, 7), (4, 2, 3)])
    assert made.drawn == before + 5
    assert longer == sequence_sha256(
        [*plain.requests(15, 1), *plain.requests(7, 2), *plain.requests(5, 4)[2:]]
    )


def test_a_load_of_another_test_is_followed():
    made = Counting()
    for seed, first, count in ((1, 0, 4), (1, 4, 4), (2, 0, 4)):
        taken(made, seed, first, count)
    begin_loads()
    follow_known(made, (1, 0, 4))
    follow_known(made, (1, 4, 4))
    taken(made, 3, 0, 4)
    forget_drawn()
    before = made.drawn
    together = stretches_sha256(made, [(1, 0, 8), (3, 0, 4)])
    assert made.drawn == before
    assert together == sequence_sha256([*Counting().requests(8, 1), *Counting().requests(4, 3)])


@pytest.mark.parametrize(
    ("loads", "asked", "redrawn"),
    [
        ([(1, 0, 4), (2, 1, 4)], [(1, 0, 4), (2, 1, 4)], 5),  # begins in the middle
        ([(1, 0, 4), (2, 0, 4), (1, 0, 4)], [(1, 0, 4), (2, 0, 4)], 0),  # comes again
        ([(1, 0, 4), (9, 0, 2, "warm-up"), (2, 0, 4)], [(1, 0, 4), (2, 0, 4)], 0),
        ([(1, 0, 4), (2, 0, 4), (2, 2, 4)], [(1, 0, 4), (2, 0, 6)], 6),  # overlaps
        ([(1, 0, 4), (2, 0, 0), (3, 0, 4)], [(1, 0, 4), (3, 0, 4)], 0),  # took nothing
    ],
)
def test_loads_that_do_not_follow_are_hashed_anew(loads, asked, redrawn):
    begin_loads()
    made, plain = Counting(), Counting()
    for seed, first, count, *kind in loads:
        taken(made, seed, first, count, follows=not kind)
    forget_drawn()
    before = made.drawn
    expected = [each for seed, first, count in asked for each in plain.requests(first + count, seed)[first:]]
    assert stretches_sha256(made, asked) == sequence_sha256(expected)
    assert made.drawn == before + redrawn


def test_the_least_recent_digests_and_sequences_are_forgotten(monkeypatch):
    monkeypatch.setattr(sequence, "_DIGESTS", 8)
    monkeypatch.setattr(sequence, "CACHED_TOKENS", 256 * 20)
    made = Counting()
    for seed in range(30):
        drawn_sha256(made, 0, 10, seed)
    assert len(sequence._digests._known) <= 8
    assert [key for key in sequence._sequences._kept if key[0] is made] == [(made, 28), (made, 29)]
    before = made.drawn
    assert drawn_sha256(made, 0, 10, 29) == sequence_sha256(drawn(made, 0, 10, 28 + 1))
    assert made.drawn == before
    assert drawn_sha256(made, 0, 10, 0) == sequence_sha256(Counting().requests(10, 0))
    assert made.drawn == before + 10


def test_digests_are_remembered_and_those_of_the_slices():
    made = Counting()
    first = drawn_sha256(made, 10, 20, 1)
    assert first == sequence_sha256(drawn(made, 10, 20, 1))
    before = made.drawn
    assert drawn_sha256(made, 10, 20, 1) == first
    assert made.drawn == before
    assert drawn_sha256(SYNTHETIC_UNIFORM, 0, 100, 42) == (
        "aa2c099e10846e167bc132907b0da01d5715807166afd31a709906b812dbb226"
    )


@settings(max_examples=60)
@given(
    ids=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 100_300), max_size=20),
    kind=st.sampled_from([list, tuple, lambda ids: array("I", ids), lambda ids: array("q", ids)]),
)
def test_the_fast_text_is_the_compact_json(ids, kind):
    requests = [PlannedRequest(0, max_tokens=3, input_tokens=len(ids), token_ids=kind(ids))] * 2
    expected = json.dumps([[3, ids], [3, ids]], separators=(",", ":"))
    assert sequence_json(requests) == expected
    assert sequence_sha256(requests) == hashlib.sha256(expected.encode()).hexdigest()


class Author(Foreign):
    """A workload of an author, of the requests that it is given."""

    def __init__(self, *requests):
        self.given = list(requests)

    def requests(self, count, seed):
        return self.given[:count]


HI = reference_tokenizer().encode("hi")
LONG = tuple(range(1000, 1320))


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ([PlannedRequest(0, 8, 320, LONG, text="hi")], "a text that its token ids do not spell"),
        ([PlannedRequest(0, 8, 1, [10**9], text="hi")], "a text that its token ids do not spell"),
        ([PlannedRequest(0, 8, 320, HI)], "has 1 token ids, and input_tokens is 320"),
        ([PlannedRequest(0, 8, 320, text="hi")], "has 320 tokens in a text of 2 characters"),
        ([PlannedRequest(0, 8, 1, HI, shared_prefix_tokens=2)], "shares 2 tokens and has 1"),
        (
            [PlannedRequest(k, 8, 320, ids, prefix_id=3, shared_prefix_tokens=300)
             for k, ids in enumerate([LONG, LONG[::-1]])],
            "request 1 does not begin with prefix 3",
        ),
    ],
)  # fmt: skip
def test_what_is_digested_counted_and_shared_is_what_is_sent(asked, wrong):
    with pytest.raises(SuiteError, match=wrong):
        drawn(Author(*asked), 0, 2, 1)
    with pytest.raises(SuiteError, match=wrong):
        WithFixedOutput(Author(*asked), 9).requests(2, 1)


def test_ids_that_spell_the_text_are_taken():
    shared = [
        PlannedRequest(k, 8, 320, LONG[:300] + (k,) * 20, prefix_id=3, shared_prefix_tokens=300)
        for k in (0, 1)
    ]
    asked = [PlannedRequest(0, 8, 1, HI, text="hi"), PlannedRequest(1, 8, 3, text="hi"), *shared]
    assert list(drawn(Author(*asked), 0, 4, 1)) == asked
