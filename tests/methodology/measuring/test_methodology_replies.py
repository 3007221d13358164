"""Warnings on how replies came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from canned_runs import answer

from pytest_llmbench.methodology.measuring.validity import Budget, validity
from pytest_llmbench.model.judgement import Finding, ValidityVerdict
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
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
