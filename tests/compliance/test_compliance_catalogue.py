"""The catalogue: complete, consistent, and answered for."""

from __future__ import annotations

import re

import numpy as np
import pytest
from mutations import stating, with_columns, with_metric
from situations import SITUATIONS

from pytest_llmbench.compliance.audit import DERIVED, PREDICATES, audit
from pytest_llmbench.compliance.catalogue import DRAFT, ambiguities, applicable, load_catalogue
from pytest_llmbench.compliance.checks.registry import Checks, merged
from pytest_llmbench.compliance.conditions import CONDITIONS
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.compliance.look import Look
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import OUTCOMES

TESTS = (
    "ttft", "throughput", "tradeoff", "itl", "capacity", "fairness", "prefix_cache", "memory_pressure",
    "long_context", "guardrail",
)  # fmt: skip


def test_whole_catalogue_is_shipped() -> None:
    catalogue = load_catalogue()
    assert len(catalogue) == 261
    assert len(ambiguities()) == 48
    assert all(entry.id == requirement_id for requirement_id, entry in catalogue.items())
    assert load_catalogue() is catalogue


def test_fields_hold_what_they_may() -> None:
    for entry in load_catalogue().values():
        assert entry.verdict_effect in ("blocks", "downgrades", "none")
        assert entry.keyword in ("MUST", "SHOULD", "MAY", "PROCEDURE")
        assert set(entry.applies_to) <= {*TESTS, "all", "comparison"}
        assert entry.id[0] == {"MUST": "M", "SHOULD": "S", "MAY": "O", "PROCEDURE": "P"}[entry.keyword]
        assert entry.statement.strip()


def test_every_decision_that_is_named_exists() -> None:
    texts = " ".join(f"{entry.evidence} {entry.notes}" for entry in load_catalogue().values())
    assert set(re.findall(r"AMB-\d\d", texts)) <= ambiguities().keys()


def test_what_binds_ttft() -> None:
    entries = applicable("ttft")
    assert len(entries) == 121
    assert all({"ttft", "all"} & set(entry.applies_to) for entry in entries)


def test_comparison_binds_from_two_systems_on() -> None:
    one, two = applicable("ttft"), applicable("ttft", systems=2)
    added = set(two) - set(one)
    assert added
    assert all(entry.applies_to == ("comparison",) for entry in added)


def test_every_entry_for_ttft_has_a_predicate() -> None:
    assert {entry.id for entry in applicable("ttft")} == PREDICATES.keys() | DERIVED.keys()


def test_every_predicate_answers_for_an_entry() -> None:
    assert PREDICATES.keys() <= load_catalogue().keys()
    assert not PREDICATES.keys() & DERIVED.keys()


def test_every_condition_for_ttft_has_an_evaluator() -> None:
    assert {entry.condition for entry in applicable("ttft")} == CONDITIONS.keys()


ALWAYS = {
    "always",
    "open-loop runs and the open-loop capability itself",
    "P99 is reported (always, see M-5.1.4.1-percentiles)",
}
OFF_THE_COMPLETE = {
    "no request succeeds": with_columns(
        outcome=lambda codes: np.full_like(codes, OUTCOMES.index(Outcome.TIMEOUT))
    ),
    "all prompts equally long": with_columns(input_tokens=lambda tokens: np.full_like(tokens, 320)),
    "no P99.9": with_metric("ttft.p99_9", point=None),
    "names not known": stating({"guardrails.systems": "not known"}),
    "not published": stating({"publication.intended": False}),
    "skewed": stating({"workload.name": "synthetic-skewed"}),
}


@pytest.fixture(scope="module")
def runs() -> list[Evidence]:
    complete = [build() for build in SITUATIONS.values()]
    return complete + [mutation(complete[0]) for mutation in OFF_THE_COMPLETE.values()]


@pytest.mark.parametrize("text", CONDITIONS)
def test_condition_decides(text: str, runs: list[Evidence]) -> None:
    """It holds in one run and, unless it is meant to hold always, fails in another."""
    assert {bool(CONDITIONS[text](Look(run))) for run in runs} == (
        {True} if text in ALWAYS else {True, False}
    )


def test_an_entry_has_one_predicate() -> None:
    area = Checks()
    area("M-1")(lambda look: look.met(""))
    with pytest.raises(ValueError, match="M-1 has two predicates"):
        area("M-1")
    with pytest.raises(ValueError, match="two areas answer for M-1"):
        merged(area, area)


def test_an_entry_that_nothing_checks_is_unmet() -> None:
    """Entries of tests that this version does not audit yet count as no evidence, never as met."""
    ttft = SITUATIONS["gateway"]()
    compliance = audit(Evidence("itl", ttft.result))
    unchecked = [
        entry for entry in compliance.requirements if entry.id not in PREDICATES.keys() | DERIVED.keys()
    ]
    assert unchecked
    assert {(str(entry.status), entry.reason) for entry in unchecked} == {
        ("unmet", "no evidence: this version does not check it")
    }


def test_draft_revision() -> None:
    assert DRAFT == "draft-gaikwad-llm-benchmarking-methodology-00"
