"""Warnings on how replies came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_runs import answer

from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.model.judgement import Finding, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, OUTCOMES, TOKEN_SOURCES, Records
from pytest_llmbench.workloads.catalogue import workload

SEEN = answer(LoadPlan("measure", workload("synthetic-uniform"), OpenLoop(20.0), 100, seed=42))


def warnings(records: Records, check: str) -> list[Finding]:
    judged = validity([replace(SEEN, records=records)], Budget())
    assert judged.verdict is ValidityVerdict.VALID
    return [found for found in judged.findings if found.check == check]


@pytest.mark.parametrize(("share", "late", "told"), [(0.4, 0.0, 0), (0.6, 0.0, 1), (0.6, 0.2, 0)])
def test_chunks_that_come_in_lots_are_a_warning(share: float, late: float, told: int) -> None:
    chunks = np.diff(SEEN.records.chunk_offsets)
    together, ours = (np.round(chunks * part).astype(np.int64) for part in (share, late))
    found = warnings(
        replace(SEEN.records, coalesced_chunks=together, unresolved_chunks=ours), "gathered_chunks"
    )
    assert [(each.ok, each.voids) for each in found] == [(False, False)] * told
    assert all(each.value == pytest.approx(share, abs=0.05) for each in found)


@pytest.mark.parametrize(("uncounted", "told"), [(0, 0), (1, 0), (2, 1), (60, 1), (100, 0)])
def test_replies_without_a_count_beside_others_with_one_are_a_warning(uncounted: int, told: int) -> None:
    sources = np.full(100, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8)
    sources[:uncounted] = TOKEN_SOURCES.index(TokenSource.CHUNK_COUNT)
    found = warnings(replace(SEEN.records, token_source=sources), "counted_differently")
    assert [each.value for each in found] == [uncounted / 100] * told
    assert all(f"{100 - uncounted} of 100 replies" in each.message for each in found)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (TokenSource.SERVER_USAGE, ()),
        (TokenSource.CHUNK_USAGE, ()),
        (TokenSource.TOKENIZER_FILE, ()),
        (TokenSource.NONE, ()),
        (TokenSource.REFERENCE_TOKENIZER, ("by the reference tokenizer",)),
        (TokenSource.CHUNK_COUNT, ("as chunks with text",)),
    ],
)
def test_a_server_that_counts_no_reply_is_a_warning(source: TokenSource, told: Sequence[str]) -> None:
    """The file of its own tokenizer counts as it does."""
    sources = np.full(100, TOKEN_SOURCES.index(source), dtype=np.int8)
    found = warnings(replace(SEEN.records, token_source=sources), "server_counts")
    assert [(each.ok, each.voids) for each in found] == [(False, False)] * len(told)
    assert all(words in each.message for words, each in zip(told, found, strict=True))


def test_finish_reasons_that_are_not_known_are_a_warning() -> None:
    told = ["stop"] * 50 + ["max_tokens"] * 40 + ["ran dry"] * 9 + ["so be it"]
    (found,) = warnings(replace(SEEN.records, finish_reason=told), "unknown_finish")
    assert (found.ok, found.value) == (False, 0.1)
    assert "'ran dry': 9, 'so be it': 1" in found.message
    assert warnings(replace(SEEN.records, finish_reason=["eos"] * 100), "unknown_finish") == []


@pytest.mark.parametrize(("thoughts", "told"), [(300, 0), (MISSING, 1)])
def test_hidden_reasoning_need_not_keep_to_the_limit(thoughts: int, told: int) -> None:
    """Where it is counted apart, what is left has to."""
    sources = np.full(100, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8)
    asked = SEEN.records.requested_max_tokens
    counts = {"output_tokens": asked + 300, "reasoning_tokens": np.full(100, thoughts)}
    records = replace(SEEN.records, token_source=sources, first_reasoning_ns=np.full(100, MISSING), **counts)
    found = warnings(records, "output_limits")
    assert [each.ok for each in found] == [False] * told


def test_counts_that_cannot_be_are_a_warning() -> None:
    told = [None] * 98 + ["54 of 10 input tokens cached"] * 2
    (found,) = warnings(replace(SEEN.records, contradiction=told), "contradicted_counts")
    assert (found.ok, found.value) == (False, 0.02)
    assert "2 of 100 replies" in found.message
    assert "54 of 10 input tokens cached" in found.message
    assert warnings(SEEN.records, "contradicted_counts") == []


@pytest.mark.parametrize(("times", "ignore_eos", "told"), [(0.6, False, 0), (0.4, False, 1), (0.4, True, 0)])
def test_replies_much_shorter_than_asked_for_are_a_warning(times: float, ignore_eos: bool, told: int) -> None:
    asked = SEEN.records.requested_max_tokens
    sources = np.full(100, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8)
    tokens = np.round(asked * times).astype(np.int64)
    records = replace(SEEN.records, output_tokens=tokens, token_source=sources, finish_reason=["stop"] * 100)
    seen = replace(SEEN, plan=replace(SEEN.plan, ignore_eos=ignore_eos), records=records)
    judged = validity([seen], Budget())
    found = [each for each in judged.findings if each.check == "ended_early"]
    assert [(each.ok, each.voids) for each in found] == [(False, False)] * told
    assert all(each.value == pytest.approx(times, abs=0.01) for each in found)


def test_tokens_that_nobody_counted_are_a_difference_too() -> None:
    sources = np.full(100, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8)
    sources[:50] = TOKEN_SOURCES.index(TokenSource.NONE)
    tokens = np.where(np.arange(100) < 50, MISSING, 10)
    (found,) = warnings(
        replace(SEEN.records, token_source=sources, output_tokens=tokens), "counted_differently"
    )
    assert found.value == 0.5


@pytest.mark.parametrize(
    ("named", "told", "said"),
    [
        ([None] * 100, [], ""),
        (
            ["m-2026"] * 100,
            [True],
            "all replies name a model other than the requested one (m-2026: 1",
        ),
        (["m-small"] * 7 + [None] * 93, [False], "(the requested one, or none: 93, m-small: 7)"),
        (["m-small"] + ["m-large"] * 99, [False], "(m-large: 99, m-small: 1)"),
        ([f"m-{i % 6}" for i in range(100)], [False], "m-0: 17, m-1: 17, m-2: 17, m-3: 17, …)"),
    ],
)
def test_replies_of_several_models_are_a_warning(
    named: list[str | None], told: list[bool], said: str
) -> None:
    found = warnings(replace(SEEN.records, answered_by=named), "other_models")
    assert [each.ok for each in found] == told
    assert not any(each.voids for each in found)
    assert all(said in each.message for each in found)


def test_only_replies_that_are_measured_name_a_model_and_variants_may_be_of_others() -> None:
    records = SEEN.records
    failed = replace(records, answered_by=["m-small"] * 7 + [None] * 93, outcome=_failed(records.outcome, 7))
    assert _other_models([replace(SEEN, records=failed)]) == []
    guarded = replace(SEEN, plan=replace(SEEN.plan, variant="no_filter"))
    other = replace(guarded, records=replace(records, answered_by=["m-guarded"] * 100))
    (found,) = _other_models([SEEN, other])
    assert found.ok
    (found,) = _other_models([SEEN, replace(other, plan=SEEN.plan)])
    assert not found.ok
    assert found.value == 0.5


def _failed(outcomes: np.ndarray[Any, np.dtype[np.int8]], count: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    found = outcomes.copy()
    found[:count] = OUTCOMES.index(Outcome.TRUNCATED)
    return found


def _other_models(seen: Sequence[Observation]) -> list[Finding]:
    return [each for each in validity(seen, Budget()).findings if each.check == "other_models"]
