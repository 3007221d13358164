"""Workloads with the lengths of a trace: contents from the seed, beginnings shared as in the trace."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.workloads.adapted import realised_sharing
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload

WHERE = DatasetIdentity("Mooncake", "2024", "first minute")
PLAIN = (TraceEntry(0, 10, 5), TraceEntry(1.5, 20, 6), TraceEntry(1.5, 30, 7))
HASHED = (
    TraceEntry(0, 20, 5, (0, 1, 2)),
    TraceEntry(10, 24, 5, (0, 1, 3)),
    TraceEntry(20, 9, 5, (7, 8)),
    TraceEntry(30, 14, 5, (0, 1)),
)


def trace(entries, **changes):
    return TraceWorkload(
        **{"name": "a trace", "entries": entries, "dataset": WHERE, "block_tokens": 8} | changes
    )


def test_lengths_are_those_of_the_trace_again_and_again():
    requests = trace(PLAIN).requests(7, 3)
    assert [(r.input_tokens, r.max_tokens) for r in requests] == [
        (10, 5), (20, 6), (30, 7), (10, 5), (20, 6), (30, 7), (10, 5),
    ]  # fmt: skip
    assert all(len(request.token_ids) == request.input_tokens for request in requests)
    assert list(requests[0].token_ids) != list(requests[3].token_ids)
    assert trace(PLAIN).offsets_ns == (0, 1_500_000, 1_500_000)


def test_prompts_begin_alike_where_the_trace_says_so():
    requests = trace(HASHED).requests(8, 3)
    first, second, third, fourth = (list(request.token_ids) for request in requests[:4])
    assert first[:16] == second[:16]
    assert first[16:] != second[16:20]
    assert fourth == first[:14]
    assert third[:8] != first[:8]
    shared = [(request.prefix_id, request.shared_prefix_tokens) for request in requests[:4]]
    assert shared == [(None, 0), (0, 16), (None, 0), (0, 14)]
    # The next pass through the trace has the same structure and another content.
    again = requests[4:]
    assert [request.prefix_id for request in again] == [None, 0, None, 0]
    assert list(again[0].token_ids) != first
    assert list(again[0].token_ids[:16]) == list(again[1].token_ids[:16])


def test_hash_ids_may_be_as_large_as_hashes_are():
    large = [
        replace(entry, hash_ids=tuple((1 << 63) + block for block in entry.hash_ids)) for entry in HASHED
    ]
    found = trace(tuple(large)).requests(4, 3)
    assert [request.prefix_id for request in found] == [None, 0, None, 0]
    assert [list(r.token_ids[:8]) == list(found[0].token_ids[:8]) for r in found] == [True, True, False, True]


def test_the_sequence_is_deterministic_and_extends():
    made = trace((*PLAIN[:1], *HASHED[1:]))
    assert list(made.requests(3, 5)) == list(made.requests(11, 5)[:3])
    assert list(made.requests(3, 5)) != list(made.requests(3, 6))


def test_the_specification_is_complete_and_states_the_sharing():
    for entries, fraction in ((PLAIN, 0.0), (HASHED, 0.5)):
        made = trace(entries)
        assert check_specification(made) == []
        assert workload(made) is made
        stated = made.specification()
        assert json.loads(json.dumps(stated)) == stated
        assert stated["prefix_sharing"]["fraction"] == fraction
    assert stated["prefix_sharing"]["length"]["params"]["max"] == 16
    assert trace(HASHED) == made != trace(PLAIN)
    facts = realised_sharing(made, 0, 4, 3)
    assert facts == {"realised_fraction": 0.5, "contexts": [16], "realised_by_rank": [2]}


def test_mistakes_are_listed_together():
    wrong = (TraceEntry(5, 0, 3), TraceEntry(4, 20, 3, (1,)), TraceEntry(6, 5, -1))
    with pytest.raises(SuiteError, match="4 mistakes") as caught:
        trace(wrong, name="conversation")
    wrong = "2 entries have an input or output length below 1 or above 10,000,000, the first is number 0"
    assert wrong in str(caught.value)
    with pytest.raises(SuiteError, match="no entries"):
        trace(())
