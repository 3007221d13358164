"""The load generator and what it stores of each request: contradictions between claim and record."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from complete_run import CONCURRENCY, FAILED, REQUESTS, some
from mutations import (
    Mutation,
    restated,
    together,
    with_columns,
    with_run,
)
from situations import SITUATIONS

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence, in_flight_peak
from pytest_llmbench.model.judgement import RequirementStatus, Status
from pytest_llmbench.model.observation import HostLimits
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.records import MISSING


def status(entry: str, evidence: Evidence) -> RequirementStatus:
    return next(found for found in audit(evidence).requirements if found.id == entry)


def gateway(*mutations: Mutation) -> Evidence:
    return together(*mutations)(SITUATIONS["gateway"]())


def test_the_coarser_of_declared_and_observed_clock_counts() -> None:
    (run,) = SITUATIONS["gateway"]().result.observations
    coarse = dataclasses.replace(run.selfcheck, clock_resolution_ns=15_600_000)
    found = status("M-4.2.1-timer-resolution-1ms", gateway(with_run(selfcheck=coarse)))
    assert found.status is Status.UNMET
    assert found.evidence["clock_resolution_ns"] == 15_600_000


def in_one_chunk(evidence: Evidence) -> Evidence:
    """Every reply arrives at once, at the instant of its first content."""
    records = evidence.records
    return with_columns(
        chunk_offsets=lambda _: np.arange(REQUESTS + 1),
        chunk_ns=lambda _: records.first_content_ns.copy(),
        chunk_tokens=lambda _: records.output_tokens.copy(),
        last_content_ns=lambda _: records.first_content_ns.copy(),
    )(evidence)


def test_replies_in_one_chunk_each_are_no_stream() -> None:
    found = status("M-4.2.2-per-chunk-arrival", in_one_chunk(SITUATIONS["gateway"]()))
    assert found.status is Status.UNMET
    assert "not a stream" in found.reason


def test_replies_of_one_token_each_need_no_second_chunk() -> None:
    one_token = with_columns(output_tokens=lambda tokens: np.ones_like(tokens))
    evidence = one_token(in_one_chunk(SITUATIONS["gateway"]()))
    assert status("M-4.2.2-per-chunk-arrival", evidence).status is Status.MET
    assert status("M-4.2.6-record-subsequent-tokens", evidence).status is Status.NOT_APPLICABLE


def test_a_last_chunk_after_the_last_content_is_inconsistent() -> None:
    late = with_columns(last_content_ns=lambda at: at - 1)
    assert status("M-4.2.2-per-chunk-arrival", gateway(late)).status is Status.UNMET


def test_growing_send_lag_violates_isolation() -> None:
    ramp = with_columns(scheduled_ns=lambda at: at - np.linspace(0, 4e6, REQUESTS).astype(np.int64))
    found = status("M-4.2.5-request-isolation", gateway(ramp))
    assert found.status is Status.UNMET
    assert "grew" in found.reason


def test_isolation_of_a_closed_loop_is_the_generators_alone() -> None:
    assert status("M-4.2.5-request-isolation", SITUATIONS["closed_loop"]()).status is Status.MET


def test_stricter_limits_of_the_host_cost_no_class() -> None:
    stricter = HostLimits(send_lag_ns=1_000_000, rate_share=0.99, empty_slot_share=0.0)
    held = gateway(with_run(host_limits=stricter))
    assert audit(held).verdict is audit(gateway()).verdict
    assert status("M-4.2.5-request-isolation", held).status is Status.MET


def test_isolation_needs_the_schedule() -> None:
    unscheduled = with_columns(scheduled_ns=lambda at: np.full_like(at, MISSING))
    found = status("M-4.2.5-request-isolation", gateway(unscheduled))
    assert (found.status, found.reason) == (
        Status.UNMET,
        "no evidence: record.scheduled_ns, record.dispatched_ns",
    )


def test_slow_replacement_contradicts_the_closed_loop() -> None:
    slow = with_columns(scheduled_ns=lambda at: at - 30_000_000)
    found = status("M-4.2.4-closed-loop", slow(SITUATIONS["closed_loop"]()))
    assert found.status is Status.UNMET
    assert "late" in found.reason


@pytest.mark.parametrize(("late", "met"), [(1, True), (2, True), (3, False)])
def test_a_lone_late_replacement_of_few_does_not(late: int, met: bool) -> None:
    """Of twenty lags the longest is their P99."""

    def change(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        at[5 : 5 + late] -= 30_000_000
        return at

    evidence = SITUATIONS["closed_loop"]()
    (run,) = evidence.runs
    few = together(with_run(records=run.records.part(0, 20)), with_columns(scheduled_ns=change))
    found = status("M-4.2.4-closed-loop", few(evidence))
    assert (found.status is Status.MET) is met, found.reason


def test_in_flight_peak_of_a_closed_loop_is_its_concurrency() -> None:
    assert in_flight_peak(SITUATIONS["closed_loop"]().records) == CONCURRENCY
    (run,) = SITUATIONS["closed_loop"]().result.observations
    assert run.plan.load == ClosedLoop(CONCURRENCY)


def test_what_a_broken_off_request_lacks_is_no_gap() -> None:
    """No first token, no last token; counts that nobody gave, where planned lengths stand in."""
    lacking = with_columns(
        first_content_ns=some(MISSING, FAILED),
        last_content_ns=some(MISSING, FAILED),
        input_tokens=some(MISSING, FAILED),
    )
    compliance = audit(restated(gateway(lacking)))
    assert {entry.id for entry in compliance.requirements if entry.status is Status.UNMET} == {
        "S-0-consult-terminology",
        "S-1-consult-terminology-first",
    }


def test_partial_output_of_a_broken_off_request_is_counted() -> None:
    uncounted = with_columns(output_tokens=some(MISSING, FAILED))
    found = status("M-4.2.6-record-output-count", gateway(uncounted))
    assert found.status is Status.UNMET
    assert found.evidence["lacking"] == 10


def test_tokens_without_attribution_have_no_arrival_times() -> None:
    unattributed = with_columns(chunk_tokens=some(MISSING, slice(400, 404)))
    found = status("M-4.2.6-record-subsequent-tokens", gateway(unattributed))
    assert found.status is Status.UNMET
    assert found.evidence["lacking"] == 1


@pytest.mark.parametrize(("grid_ns", "expected"), [(1_000_000, Status.MET), (10_000_000, Status.UNMET)])
def test_time_stamps_on_a_coarse_grid(grid_ns: int, expected: Status) -> None:
    rounded = with_columns(
        submitted_ns=lambda at: at // grid_ns * grid_ns, first_content_ns=lambda at: at // grid_ns * grid_ns
    )
    assert status("M-4.7.4-timestamp-precision", gateway(rounded)).status is expected


def test_a_submission_after_the_first_byte_contradicts_the_submit_point() -> None:
    late = with_columns(submitted_ns=lambda at: at + 10_000_000_000)
    assert status("P-B.1.1-submit-point", gateway(late)).status is Status.UNMET


def test_content_before_the_first_event_contradicts_the_first_point() -> None:
    early = with_columns(first_content_ns=lambda at: at - 18_000)
    assert status("P-B.1.1-first-point", gateway(early)).status is Status.UNMET
    assert status("P-5.1.3.1-first-content-token", gateway(early)).status is Status.UNMET
