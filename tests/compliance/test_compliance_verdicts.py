"""Whole runs, complete in every situation, and the two policies."""

from __future__ import annotations

import pytest
from mutations import alone, assert_unconditional, stating, together, unmet, with_run
from situations import SITUATIONS, engine_over_sse

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import ComplianceVerdict, Status
from pytest_llmbench.model.result import TestResult, WarmupReport

READERS_ADVICE = {"S-0-consult-terminology", "S-1-consult-terminology-first"}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_complete_run_is_unconditional(situation: str) -> None:
    compliance = audit(SITUATIONS[situation]())
    assert_unconditional(compliance)
    assert compliance.draft == "draft-gaikwad-llm-benchmarking-methodology-00"


def test_complete_gateway_run_leaves_only_readers_advice_open() -> None:
    assert unmet(audit(SITUATIONS["gateway"]())) == READERS_ADVICE


def test_engine_over_sse_is_conditional_for_want_of_grpc() -> None:
    compliance = audit(engine_over_sse())
    assert compliance.verdict is ComplianceVerdict.CONDITIONAL
    (missing,) = compliance.keeping_from(ComplianceVerdict.UNCONDITIONAL)
    assert missing.id == "S-4.6.1-grpc-for-engine"
    assert "sse" in missing.reason
    assert compliance.keeping_from(ComplianceVerdict.CONDITIONAL) == ()


def nothing_known() -> Evidence:
    return Evidence(
        "ttft",
        TestResult(
            test="ttft",
            section="5.1",
            title="Time to First Token",
            metrics={},
            tables=(),
            plots=(),
            configuration=(),
            observations=(),
            warmup=WarmupReport(),
            facts=Facts(),
        ),
    )


def test_without_evidence_nothing_but_structural_entries_is_met() -> None:
    compliance = audit(nothing_known())
    assert compliance.verdict is ComplianceVerdict.NOT_COMPLIANT
    assert compliance.verdict_literal is ComplianceVerdict.NOT_COMPLIANT
    met = {entry.id for entry in compliance.requirements if entry.status is Status.MET}
    assert met == {
        "M-4.2.3-open-loop",
        "M-4.2.3-poisson",
        "S-4.2.3-uniform-bursty",
        "M-4.2.4-closed-loop",
        "M-4.2.5-async-or-threads",
    }


def test_missing_evidence_is_named() -> None:
    reasons = {entry.id: entry.reason for entry in audit(nothing_known()).requirements}
    assert reasons["M-4.4.1-tokenizer-name-version"] == "no evidence: tokenizer.name, tokenizer.version"
    assert reasons["M-5.1.4.3-sample-count-stated"] == "no evidence: metric ttft.p50"
    assert reasons["M-4.2.6-record-status"] == "no evidence: measured records"


def test_silence_does_not_take_an_entry_out() -> None:
    """Clock topology, network and warm-up not stated: the entries about them bind, and are unmet."""
    compliance = audit(nothing_known())
    assert {
        "M-4.7.2-sync-10ms",
        "M-4.5.1-warmup-volume",
        "P-5.1.4.2-by-input-length",
        "M-4.3-custom-fully-specified",
    } <= unmet(compliance)


def test_literal_policy_ignores_constraints_without_a_keyword() -> None:
    broken = audit(with_run(interrupted="Ctrl-C")(SITUATIONS["gateway"]()))
    assert broken.verdict is ComplianceVerdict.NOT_COMPLIANT
    assert broken.verdict_literal is ComplianceVerdict.UNCONDITIONAL
    assert [entry.id for entry in broken.keeping_from(ComplianceVerdict.CONDITIONAL)] == [
        "P-5.1.3-run-to-count"
    ]


def test_literal_policy_keeps_the_keywords() -> None:
    broken = together(alone, with_run(interrupted="Ctrl-C"))(SITUATIONS["gateway"]())
    assert audit(broken).verdict_literal is ComplianceVerdict.CONDITIONAL
    broken = stating({"tokenizer.vocab_size": 0})(broken)
    assert audit(broken).verdict_literal is ComplianceVerdict.NOT_COMPLIANT


def test_statuses_carry_what_a_report_prints() -> None:
    for entry in audit(SITUATIONS["gateway"]()).requirements:
        assert entry.reason
        assert entry.statement
        assert entry.level in ("MUST", "SHOULD", "MAY", "PROCEDURE")
        assert entry.effect in ("blocks", "downgrades", "none")


def test_answers_show_what_they_rest_on() -> None:
    entries = {entry.id: entry for entry in audit(SITUATIONS["gateway"]()).requirements}
    assert entries["M-5.1.2.2-open-loop-params"].evidence == {
        "load.model": "open",
        "load.rate_rps": 50.0,
        "load.arrival": "poisson",
    }
    assert entries["M-5.1.2.1-request-count-p999"].evidence["measured_requests"] == 10_050
    assert entries["M-4.2.3-poisson"].evidence["capability.arrival.poisson"] is True


def test_not_applicable_says_why() -> None:
    entries = {entry.id: entry for entry in audit(SITUATIONS["gateway"]()).requirements}
    closed = entries["M-5.1.2.2-closed-loop-params"]
    assert closed.status is Status.NOT_APPLICABLE
    assert closed.reason == "its condition does not hold: load.model == closed"
    assert closed.evidence == {"load.model": "open"}
