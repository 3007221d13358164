"""The catalogue: complete, consistent, and answered for."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from compared_runs import compared, other_hardware, other_tokenizer
from level_mutations import only_levels, without_levels
from mutations import stating, with_columns, with_metric, with_result, without
from replayed_runs import complete
from search_rows import SEVERAL
from situations import SITUATIONS

from pytest_llmbench.compliance.audit import (
    CONDITIONS,
    DERIVED,
    DRAFT,
    ambiguities,
    applicable,
    load_catalogue,
    predicate_of,
    predicates,
    status_of,
)
from pytest_llmbench.compliance.checks.registry import Checks, merged
from pytest_llmbench.compliance.evidence import Evidence, EvidenceView
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES

TESTS = (
    "ttft", "throughput", "tradeoff", "itl", "capacity", "fairness", "prefix_cache", "memory_pressure",
    "long_context", "guardrail",
)  # fmt: skip


def test_whole_catalogue_is_shipped() -> None:
    catalogue = load_catalogue()
    assert len(catalogue) == 261
    assert len(ambiguities()) == 49
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


def test_every_entry_has_a_predicate() -> None:
    assert load_catalogue().keys() == predicates().keys() | DERIVED.keys()
    assert not predicates().keys() & DERIVED.keys()


def test_an_entry_is_answered_by_the_modules_that_its_tests_import() -> None:
    found = {name for name, entry in load_catalogue().items() if predicate_of(entry) is not None}
    assert found == predicates().keys()


def test_every_condition_has_an_evaluator() -> None:
    assert {entry.condition for entry in load_catalogue().values()} == CONDITIONS.keys()


OFF_THE_COMPLETE = {
    "no request succeeds": with_columns(
        outcome=lambda codes: np.full_like(codes, OUTCOMES.index(Outcome.TIMEOUT))
    ),
    "all prompts equally long": with_columns(input_tokens=lambda tokens: np.full_like(tokens, 320)),
    "no P99.9": with_metric("ttft.p99_9", point=None),
    "names not known": stating({"guardrails.systems": "not known"}),
    "not published": stating({"publication.intended": False}),
    "skewed": stating({"workload.name": "synthetic-skewed"}),
    "accelerators not counted": without("sut.hardware.accelerator_count"),
    "cache off": stating({"sut.prefix_caching": "disabled"}),
    "no claim which system is better": stating({"comparison.claim": False}),
}


def silent(evidence: Evidence) -> Evidence:
    """The engine told nothing about itself."""
    runs = tuple(dataclasses.replace(run, engine=None) for run in evidence.result.observations)
    return with_result(observations=runs)(evidence)


def with_levels() -> list[Evidence]:
    """Runs of the other tests, and what they are without some of their levels."""
    lengths = complete("long_context")
    return [
        complete("throughput"),
        complete("throughput", ttft_p99_ms=150.0),
        without_levels("reported")(complete("throughput")),
        *(complete("itl", SEVERAL, method=option) for option in ("A", "B")),
        complete("itl", SEVERAL + "&server_timestamps=true", method="C"),
        complete("prefix_cache"),
        complete("memory_pressure"),
        without_levels("baseline")(complete("guardrail")),
        silent(lengths),
        only_levels(lambda level: level.label == "1024")(lengths),
        compared(),
        other_hardware(),
        other_tokenizer(),
    ]


@pytest.fixture(scope="module")
def runs() -> list[Evidence]:
    canned = [build() for build in SITUATIONS.values()]
    changed = [mutation(canned[0]) for mutation in OFF_THE_COMPLETE.values()]
    return canned + changed + with_levels()


@pytest.mark.parametrize("condition", CONDITIONS)
def test_condition_decides(condition: str, runs: list[Evidence]) -> None:
    """It holds in one run and, unless it is meant to hold always, fails in another."""
    assert {bool(CONDITIONS[condition](EvidenceView(run))) for run in runs} == (
        {True} if condition == "always" else {True, False}
    )


def test_an_entry_has_one_predicate() -> None:
    area = Checks()
    area("M-1")(lambda view: view.met(""))
    with pytest.raises(ValueError, match="M-1 has two predicates"):
        area("M-1")
    with pytest.raises(ValueError, match="two areas answer for M-1"):
        merged(area, area)


def test_an_entry_that_nothing_checks_is_unmet() -> None:
    """An entry of a later catalogue counts as no evidence, never as met."""
    known = load_catalogue()["M-4.4.1-vocab-size"]
    found = status_of(dataclasses.replace(known, id="M-9.9-new"), SITUATIONS["gateway"]())
    assert (str(found.status), found.reason) == ("unmet", "no evidence: this version does not check it")


def test_draft_revision() -> None:
    assert DRAFT == "draft-gaikwad-llm-benchmarking-methodology-00"
