"""The facts that the audit reads are those of one published table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from compared_runs import by_facts, compared, other_hardware, other_tokenizer
from level_mutations import without_levels
from mutations import stating, without
from replayed_runs import KEYWORDS, complete
from search_rows import CLOSED, SEVERAL
from situations import SITUATIONS, engine_over_sse

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.compliance.evidence_view import FACT_KEYS, EvidenceView
from pytest_llmbench.model.facts import Fact, Facts


class RecordingFacts(Facts):
    """Facts that remember which keys were asked for."""

    __slots__ = ("asked",)

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Fact:
        self.asked.add(key)
        return super().__getitem__(key)

    def value(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().value(key, default)


def keys_read(evidence: Evidence) -> set[str]:
    facts = RecordingFacts(evidence.result.facts)
    siblings = [dataclasses.replace(s, facts=RecordingFacts(s.facts)) for s in evidence.siblings]
    result = dataclasses.replace(evidence.result, facts=facts)
    audit(dataclasses.replace(evidence, result=result, siblings=tuple(siblings)))
    return facts.asked.union(*(s.facts.asked for s in siblings if isinstance(s.facts, RecordingFacts)))


def keys_read_anywhere() -> set[str]:
    builds = (*SITUATIONS.values(), engine_over_sse)
    changes = (
        without("network.significant", "guardrails.systems"),
        stating({"streaming.chunking": "multi"}),
    )
    changed = [change(SITUATIONS["gateway"]()) for change in changes]
    changed += [compared(), other_hardware(), other_tokenizer(), by_facts(), *_of_every_test()]
    return set().union(*(keys_read(build()) for build in builds), *(keys_read(run) for run in changed))


def _of_every_test() -> list[Evidence]:
    """The complete runs of the other tests, and those that take other ways through the predicates."""
    option_a = complete("itl", SEVERAL, method="A")
    watched = stating({"isolation.failure_monitoring": "a dashboard"})(complete("memory_pressure"))
    closed = complete("throughput", **CLOSED)
    fewer = without_levels("output_filter")(complete("guardrail"))
    fewer = stating({"workload.standard": False})(fewer)
    return [*(complete(test) for test in KEYWORDS), option_a, watched, closed, fewer]


def test_only_keys_of_the_table_are_read_and_all_of_them() -> None:
    assert keys_read_anywhere() == FACT_KEYS.keys()


def test_a_key_outside_the_table_is_a_programming_error() -> None:
    with pytest.raises(KeyError, match=r"sut\.modelname"):
        EvidenceView(SITUATIONS["gateway"]()).fact("sut.modelname")


def test_every_key_says_what_it_states() -> None:
    assert all(meaning.strip() for meaning in FACT_KEYS.values())
    assert list(FACT_KEYS) == list(dict.fromkeys(FACT_KEYS))
