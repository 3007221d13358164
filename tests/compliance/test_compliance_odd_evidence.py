"""An audit never fails on what it is given: another test's result, nothing at all, nothing but failures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from complete_run import complete as canned
from mutations import unmet, with_result
from replayed_runs import KEYWORDS, complete
from test_compliance_verdicts import nothing_known

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.judgement import ComplianceVerdict, Status
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, OUTCOMES, Records

BLOCKED = ComplianceVerdict.NOT_COMPLIANT


def with_records(evidence: Evidence, change: object) -> Evidence:
    runs = tuple(
        dataclasses.replace(run, records=change(run.records))  # type: ignore[operator]
        for run in evidence.result.observations
    )
    return with_result(observations=runs)(evidence)


def all_failed(records: Records) -> Records:
    return dataclasses.replace(
        records, outcome=np.full(len(records), OUTCOMES.index(Outcome.TIMEOUT), dtype=np.int8)
    )


def instantaneous(records: Records) -> Records:
    """Every instant is the submission: all latencies and gaps are zero."""
    at_ns = records.submitted_ns
    return dataclasses.replace(
        records,
        first_content_ns=at_ns.copy(),
        last_content_ns=at_ns.copy(),
        finished_ns=at_ns.copy(),
        chunk_ns=np.repeat(at_ns, np.diff(records.chunk_offsets)),
    )


def unknown_counts(records: Records) -> Records:
    missing = np.full(len(records), MISSING, dtype=np.int64)
    return dataclasses.replace(records, input_tokens=missing, output_tokens=missing.copy())


def empty(records: Records) -> Records:
    return records.select(np.zeros(len(records), dtype=bool))


ODD = (all_failed, instantaneous, unknown_counts, empty, Records.without_streams)


@pytest.mark.parametrize("test", KEYWORDS)
@pytest.mark.parametrize("change", ODD)
def test_odd_records_are_unmet_not_an_error(test: str, change: object) -> None:
    assert audit(with_records(complete(test), change)).verdict is BLOCKED


@pytest.mark.parametrize("test", KEYWORDS)
def test_the_result_of_another_test_is_no_evidence(test: str) -> None:
    for other in KEYWORDS:
        if other != test:
            assert audit(Evidence(test, complete(other).result)).verdict is BLOCKED
    assert audit(Evidence(test, canned().result)).verdict is BLOCKED
    assert audit(Evidence(test, nothing_known().result, systems=2)).verdict is BLOCKED


def test_levels_that_the_generator_could_not_offer_say_nothing() -> None:
    """Whatever such a level claims is no matter: without its role it would break the saturation rules."""
    evidence = complete("throughput")
    wrong = dataclasses.replace(evidence.result.levels[-1], queue_growing=True, saturated=False)

    def verdict(role: str) -> ComplianceVerdict:
        levels = (*evidence.result.levels, dataclasses.replace(wrong, role=role))
        return audit(with_result(levels=levels)(evidence)).verdict

    assert verdict("probe (not offered)") is audit(evidence).verdict
    assert verdict("probe") is BLOCKED


def test_a_range_that_ended_before_saturation_found_no_maximum() -> None:
    """Nothing is altered: the range alone is too short, and every level of it holds."""
    search = {"max_rate": 1.5, "rate_step": 0.5}
    short = audit(complete("throughput", **search))
    assert "P-5.2.3-binary-search" in unmet(short)
    assert short.verdict is BLOCKED


def test_limits_on_latency_take_the_place_of_the_ten_fold_rule() -> None:
    """The reported level breaks that rule and keeps the limit. An overloaded one keeps no limit."""
    wide = complete("throughput", ttft_p99_ms=5_000.0, arrival="poisson")
    (place,) = (i for i, level in enumerate(wide.result.levels) if level.role == "reported")
    reported = wide.result.levels[place]
    assert (reported.saturated, reported.overloaded) == (True, False)
    entries = ("P-5.2.3-binary-search", "P-5.2.2.3-slo-semantics", "P-5.2.3.1-saturation-p99-10x")

    def statuses(evidence: Evidence) -> dict[str, Status]:
        return {one.id: one.status for one in audit(evidence).requirements if one.id in entries}

    assert statuses(wide) == dict.fromkeys(entries, Status.MET)
    levels = list(wide.result.levels)
    levels[place] = dataclasses.replace(reported, overloaded=True)
    found = statuses(with_result(levels=tuple(levels))(wide))
    assert found["P-5.2.3-binary-search"] is Status.UNMET
    assert found["P-5.2.2.3-slo-semantics"] is Status.UNMET
