"""Entries that bind every test: each is met by the complete run of each test, and broken alone is unmet."""

from __future__ import annotations

import dataclasses

import pytest
from complete_run import some
from mutations import (
    Mutation,
    alone,
    assert_unconditional,
    stating,
    together,
    unable,
    with_columns,
    with_plan,
    without,
)
from replayed_runs import KEYWORDS, by_itself, complete
from test_compliance_mutations import ROWS

from pytest_llmbench.compliance.audit import ALL, DERIVED, audit, load_catalogue, status_of
from pytest_llmbench.compliance.evidence import BY_SIBLINGS, Evidence
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import ComplianceVerdict, Status
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.records import MISSING

CATALOGUE = load_catalogue()
SHARED_ENTRIES = [
    entry
    for entry in CATALOGUE.values()
    if ALL in entry.applies_to and entry.verdict_effect != "none" and entry.id not in DERIVED
]
OTHERWISE: dict[str, Mutation] = {
    "M-4.2.3-poisson": unable("arrival.poisson"),
    "M-4.2.4-closed-loop": with_plan(load=ClosedLoop(0)),
    "M-4.2.5-request-isolation": unable("open_loop"),
    "M-4.2.6-record-submit-time": with_columns(submitted_ns=some(MISSING)),
    "M-4.2.6-record-first-token": with_columns(first_content_ns=some(MISSING)),
    "M-4.3.3-deterministic-seed": stating({"workload.sequence_sha256": "0" * 64}),
    "P-A.2-synthetic-skewed-params": stating({"workload.stop": ["\n"]}),
    "M-4.4.2-counting-option": stating({"tokenizer.counting_option": "C"}),
    "M-4.5.1-warmup-volume": stating({"warmup.requests_ok": 99}),
    "M-4.5.1-queue-drained": stating({"warmup.drained": False}),
    "S-4.8.2-comparative-runs": together(alone, without("guardrails.comparative_run")),
}
"""Entry → how it is broken in any test, where its row for the TTFT test breaks that alone, or another part of
its rule."""
SHARED = {case.entry: case.mutation for case in ROWS} | OTHERWISE
OF_TTFT = {"M-4.3.2.1-synthetic-uniform-for-engine", "S-4.3.2.3-conversation-for-gateway"}
"""Entries of the sections that bind every test, which bind the TTFT test alone."""


@pytest.mark.parametrize("test", KEYWORDS)
def test_complete_run_of_every_test_is_unconditional(test: str) -> None:
    assert_unconditional(audit(complete(test)))


@pytest.mark.parametrize("test", ["throughput", "itl", "long_context"])
def test_replay_of_an_engine_needs_nothing_declared(test: str) -> None:
    """At the engine boundary, where gRPC is advised: what the engine says of itself is enough."""
    compliance = audit(by_itself(test))
    assert [entry.reason for entry in compliance.keeping_from(ComplianceVerdict.UNCONDITIONAL)] == []
    status = {entry.id: entry.status for entry in compliance.requirements}
    assert status["P-B.1.2-grpc-points"] is Status.MET
    assert status["S-4.6.1-grpc-for-engine"] is Status.MET


@pytest.mark.parametrize("test", KEYWORDS)
def test_every_shared_entry_is_broken_in_every_test_it_binds(test: str) -> None:
    base = complete(test)
    unbroken = []
    for entry in SHARED_ENTRIES:
        before = status_of(entry, base).status
        if before is Status.NOT_APPLICABLE:
            continue
        assert before is Status.MET
        assert entry.id in SHARED, f"{entry.id} binds {test} and has no mutation"
        if status_of(entry, SHARED[entry.id](base)).status is not Status.UNMET:
            unbroken.append(entry.id)
    assert unbroken == []


@pytest.mark.parametrize("test", KEYWORDS)
def test_only_the_named_entries_look_at_siblings(test: str) -> None:
    base = complete(test)
    alone = {entry.id: entry.status for entry in audit(dataclasses.replace(base, siblings=())).requirements}
    beside = {entry.id: entry.status for entry in audit(base).requirements}
    assert {name for name in beside if beside[name] is not alone[name]} <= BY_SIBLINGS


def shared_with_another_test(evidence: Evidence) -> Evidence:
    """The first run was measured by a test that ran before this one was warmed up."""
    (at, *_) = range(len(evidence.result.observations))
    late = max(run.ended_ns for run in evidence.result.observations[:1]) + 1
    owner = evidence.result
    result = dataclasses.replace(
        owner,
        observations=(
            dataclasses.replace(owner.observations[at], shared_from="gates/test_a.py::test_a"),
            *owner.observations[1:],
        ),
        warmup=dataclasses.replace(owner.warmup, last_finished_ns=late),
        facts=owner.facts | Facts.of(Origin.GENERATOR, {"manifest.frozen_ns": late}),
    )
    return dataclasses.replace(evidence, result=result, siblings=(owner, *evidence.siblings))


@pytest.mark.parametrize("entry", ["M-4.1-sut-boundary-declared", "M-4.5.1-queue-drained"])
def test_a_shared_run_rests_on_the_test_that_measured_it(entry: str) -> None:
    shared = shared_with_another_test(complete("throughput"))
    assert status_of(CATALOGUE[entry], shared).status is Status.MET
    ownerless = dataclasses.replace(shared, siblings=())
    assert status_of(CATALOGUE[entry], ownerless).status is Status.UNMET


def test_entries_of_the_common_sections_bind_every_test() -> None:
    common = {name for name in SHARED if name[2:4] in ("4.", "A.", "B.")}
    assert {entry.id for entry in SHARED_ENTRIES} == common - OF_TTFT


@pytest.mark.parametrize("test", KEYWORDS)
def test_a_broken_shared_entry_decides_the_verdict(test: str) -> None:
    """Once for a blocking and once for an advised entry: the whole audit, not the entry alone."""
    blocked = audit(SHARED["M-4.4.1-vocab-size"](complete(test)))
    assert blocked.verdict is ComplianceVerdict.NOT_COMPLIANT
    assert [entry.id for entry in blocked.keeping_from(ComplianceVerdict.CONDITIONAL)] == [
        "M-4.4.1-vocab-size"
    ]
    advised = audit(SHARED["S-4.7.4-timestamp-format"](complete(test)))
    assert advised.verdict is ComplianceVerdict.CONDITIONAL


def test_one_bad_run_among_many_is_found() -> None:
    """Not the largest run: any of them counts."""
    base = complete("tradeoff")
    smallest = min(range(len(base.runs)), key=lambda place: len(base.runs[place].records))
    broken: Evidence = with_columns(smallest, http_status=lambda column: column * 0 + 500)(base)
    entry = CATALOGUE["M-4.2.6-record-status"]
    assert status_of(entry, broken).status is Status.UNMET
