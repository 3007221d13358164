"""Entries of single tests: met by a complete run, and each broken alone decides the verdict by its name."""

from __future__ import annotations

import pytest
from effect_rows import ROWS as EFFECTS
from replayed_runs import KEYWORDS, complete
from search_rows import ROWS as SEARCHES
from search_rows import Own

from pytest_llmbench.compliance.audit import (
    ALL,
    COMPARISON,
    DERIVED,
    applicable,
    audit,
    load_catalogue,
    status_of,
)
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict, Status

ROWS = {**SEARCHES, **EFFECTS}
CATALOGUE = load_catalogue()
CASES = [
    pytest.param(test, entry, case, id=f"{test}-{entry}")
    for test, rows in ROWS.items()
    for entry, case in rows.items()
]
SITUATIONAL = {
    "M-4.3.2.1-synthetic-uniform-for-engine",
    "S-4.3.2.3-conversation-for-gateway",
}
"""Of several tests, broken in the situations of the TTFT test, which alone rest on siblings."""


def statuses(compliance: Compliance) -> dict[str, Status]:
    return {entry.id: entry.status for entry in compliance.requirements}


@pytest.mark.parametrize(("test", "entry", "case"), CASES)
def test_mutation_breaks_its_entry_and_the_verdict(test: str, entry: str, case: Own) -> None:
    base = complete(test, case.options, **case.keywords)
    assert status_of(CATALOGUE[entry], base).status is Status.MET
    broken = audit(case.mutation(base))
    assert statuses(broken)[entry] is Status.UNMET
    blocks = CATALOGUE[entry].verdict_effect == "blocks"
    kept_from = ComplianceVerdict.CONDITIONAL if blocks else ComplianceVerdict.UNCONDITIONAL
    assert entry in {each.id for each in broken.keeping_from(kept_from)}
    assert broken.verdict is not ComplianceVerdict.UNCONDITIONAL
    if blocks:
        assert broken.verdict is ComplianceVerdict.NOT_COMPLIANT


@pytest.mark.parametrize("test", KEYWORDS)
def test_every_entry_of_the_test_that_counts_has_a_row(test: str) -> None:
    counting = {
        entry.id
        for entry in applicable(test)
        if entry.verdict_effect != "none"
        and not {ALL, COMPARISON}.intersection(entry.applies_to)
        and entry.id not in DERIVED
    }
    assert counting - SITUATIONAL == ROWS[test].keys()
