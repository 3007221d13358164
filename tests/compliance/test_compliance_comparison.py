"""Rules that bind two or more systems in one report: met by a complete comparison, each broken alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from compared_runs import both, by_facts, compared, other_hardware, other_tokenizer, with_theirs
from mutations import Mutation, assert_unconditional, stating, with_field, without

from pytest_llmbench.compliance.audit import COMPARISON, audit, load_catalogue, status_of
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.judgement import ComplianceVerdict, Status

CATALOGUE = load_catalogue()
Situation = Callable[[], Evidence]


ROWS: dict[str, tuple[Situation, Mutation]] = {
    "M-6.1-identical-workload": (compared, with_theirs(workload__sequence_sha256="0" * 64)),
    "M-6.1-equivalent-boundary": (compared, with_theirs(sut__components=["router", "cache"])),
    "M-6.1-comparable-hardware": (other_hardware, without("comparison.normalisation")),
    "M-6.1-same-load": (compared, with_theirs(load__rate_rps=40.0)),
    "S-4.4.2-option-b-cl100k": (other_tokenizer, with_theirs(tokenizer__counting_option="A")),
    "P-6.2-tokens-per-gpu-second": (
        other_hardware,
        with_field("comparison.tokens_per_gpu_second", "theirs", 0),
    ),
    "P-6.2-method-stated": (other_hardware, stating({"comparison.normalisation": ""})),
    "P-6.3-confidence-intervals": (compared, stating({"comparison.metrics": ["tpot.p50"]})),
    "P-6.3-three-runs": (compared, with_field("comparison.runs", "theirs", 2)),
    "P-6.3-statistical-test": (compared, stating({"comparison.tests": [{"metric": "ttft.p50"}]})),
    "P-6.4-checklist": (compared, with_field("comparison.checklist", "warmup", None)),
}


@pytest.mark.parametrize("situation", [compared, other_hardware, other_tokenizer, by_facts])
def test_complete_comparison_is_unconditional(situation: Situation) -> None:
    assert_unconditional(audit(situation()))


@pytest.mark.parametrize("entry", ROWS)
def test_mutation_breaks_its_entry_and_the_verdict(entry: str) -> None:
    situation, mutation = ROWS[entry]
    assert status_of(CATALOGUE[entry], situation()).status is Status.MET
    broken = audit(mutation(situation()))
    blocks = CATALOGUE[entry].verdict_effect == "blocks"
    kept_from = ComplianceVerdict.CONDITIONAL if blocks else ComplianceVerdict.UNCONDITIONAL
    assert entry in {each.id for each in broken.keeping_from(kept_from)}
    expected = ComplianceVerdict.NOT_COMPLIANT if blocks else ComplianceVerdict.CONDITIONAL
    assert broken.verdict is expected


def test_every_entry_for_comparisons_that_counts_has_a_row() -> None:
    counting = {
        entry.id
        for entry in CATALOGUE.values()
        if COMPARISON in entry.applies_to and entry.verdict_effect != "none"
    }
    assert ROWS.keys() == counting


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("M-6.1-identical-workload", "comparison.sequences"),
        ("M-6.1-equivalent-boundary", "comparison.boundaries"),
        ("M-6.1-same-load", "comparison.loads"),
    ],
)
def test_facts_stand_for_a_system_without_a_result(entry: str, key: str) -> None:
    base = by_facts()
    assert status_of(CATALOGUE[entry], base).status is Status.MET
    other = stating({key: both({"x": 1}) | {"theirs": {"x": 2}}})(base)
    assert status_of(CATALOGUE[entry], other).status is Status.UNMET
    assert status_of(CATALOGUE[entry], without(key)(base)).reason.startswith(f"no evidence: {key}")


def test_one_system_is_no_comparison() -> None:
    alone = dataclasses.replace(compared(), systems=1)
    assert not {entry.id for entry in audit(alone).requirements} & ROWS.keys()
