"""Clocks, network time and time stamps (section 4.7 and appendix B)."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, one_of, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, has
from pytest_llmbench.model.facts import ClockFact, NetworkFact, TimingFact
from pytest_llmbench.model.records import IntColumn, Records

check = Checks()

WORST_ACCURACY_MS = 10.0
FEWEST_RTT_SAMPLES = 10
COARSEST_STAMP_NS = 1_000_000
FEWEST_STAMPS = 100
LONGEST_WITHIN_MACHINE_MS = 5.0
"""Largest median round trip within one machine: that of loopback on a busy one; on an idle one it is some
hundredths of a millisecond."""
ADJUSTMENT_TOLERANCE_MS = 1e-3
_CLIENT_QUANTITIES = ("ttft", "itl", "tpot", "e2e")

check("S-4.7.2-ptp-sub-ms")(one_of(ClockFact.METHOD, "ptp"))
check("M-4.7.2-sync-reported")(stated(ClockFact.METHOD, ClockFact.ACCURACY_MS))
check("S-4.7.4-timestamp-format")(one_of(TimingFact.TIMESTAMP_FORMAT, "iso8601_ms", "epoch_ms"))


def measured_apart(view: EvidenceView) -> bool:
    """Whether the round trip is too long for one machine, whatever its topology is declared to be."""
    rtt_ms = view.fact(NetworkFact.RTT_MS, {}).get("p50")
    return rtt_ms is not None and rtt_ms > LONGEST_WITHIN_MACHINE_MS


@check("S-4.7.1-same-machine")
def same_machine(view: EvidenceView) -> Answer:
    topology = view.need(ClockFact.TOPOLOGY)
    return view.answer(
        topology == "single_machine" and not measured_apart(view),
        "one machine",
        f"clock.topology is {topology}"
        + (", and the round trip is a network's" if measured_apart(view) else ""),
    )


@check("M-4.7.2-sync-10ms")
def synchronised(view: EvidenceView) -> Answer:
    """NTP, PTP or another method at or under 10 ms (AMB-30)."""
    topology, method, accuracy_ms = view.need_all(ClockFact.TOPOLOGY, ClockFact.METHOD, ClockFact.ACCURACY_MS)
    if method not in ("ntp", "ptp", "other"):
        return view.unmet(f"clock.method is {method!r}, none of ntp, ptp, other ({topology})")
    return view.answer(
        0 <= accuracy_ms <= WORST_ACCURACY_MS,
        f"{method}, accurate to {accuracy_ms:g} ms",
        f"{method} is accurate to {accuracy_ms:g} ms, 10 ms is the limit",
    )


@check("S-4.7.3-rtt-reported")
def rtt_reported(view: EvidenceView) -> Answer:
    p50, n = view.need_fields(NetworkFact.RTT_MS, "p50", "n")
    return view.answer(
        n >= FEWEST_RTT_SAMPLES,
        f"RTT P50 {p50:g} ms over {n} probes",
        f"RTT rests on {n} probes, not 10 or more",
    )


@check("O-4.7.3-subtract-network")
def subtract_network(view: EvidenceView) -> Answer:
    (applied,) = view.need_fields(NetworkFact.TTFT_ADJUSTMENT, "applied")
    return view.met("network time was taken off TTFT" if applied else "network time was left in TTFT")


@check("M-4.7.3-adjustment-documented")
def adjustment_documented(view: EvidenceView) -> Answer:
    """An adjustment is documented and applied: an adjusted figure stands beside the measured one, less by
    that amount."""
    amount_ms, method = view.need_fields(NetworkFact.TTFT_ADJUSTMENT, "amount_ms", "method")
    raw, adjusted = (view.result.metrics.get(f"{name}.p50") for name in ("ttft", "ttft_adjusted"))
    if adjusted is None or adjusted.point is None or raw is None or raw.point is None:
        return view.unmet("an adjustment of TTFT is declared as applied, and no figure is adjusted")
    if abs(raw.point - amount_ms - adjusted.point) > ADJUSTMENT_TOLERANCE_MS:
        return view.unmet(f"adjusted by {raw.point - adjusted.point:g} ms, declared are {amount_ms:g} ms")
    return view.met(f"TTFT was lowered by {amount_ms:g} ms: {method}")


@check("M-4.7.4-timestamp-precision")
def timestamp_precision(view: EvidenceView) -> Answer:
    """Proved by a test; stamps that fall on a grid coarser than 1 ms contradict it."""
    view.capability("timestamp_precision_ns")
    records = view.records
    for name in ("submitted_ns", "first_content_ns"):
        column: IntColumn = getattr(records, name)
        if not np.issubdtype(column.dtype, np.integer):
            return view.unmet(f"{name} is stored as {column.dtype}, not as integer nanoseconds")
        stamps = column[has(column)]
        if len(stamps) >= FEWEST_STAMPS:
            grid_ns = int(np.gcd.reduce(np.diff(stamps)))
            view.note(f"{name}.grid_ns", grid_ns)
            if name == "submitted_ns" and grid_ns == _schedule_grid_ns(records):
                continue  # evenly spaced arrivals that were kept: the stamps move as the load does
            if grid_ns > COARSEST_STAMP_NS or grid_ns == 0:
                return view.unmet(f"{name} moves in steps of {grid_ns} ns, coarser than 1 ms")
    return view.met("integer nanoseconds inside and in the files")


def _schedule_grid_ns(records: Records) -> int:
    """The step in which scheduled instants move; 0 where they do not."""
    scheduled = records.scheduled_ns[has(records.scheduled_ns)]
    return int(np.gcd.reduce(np.diff(scheduled))) if len(scheduled) > 1 else 0


@check("P-B.1.1-submit-point")
def submit_point(view: EvidenceView) -> Answer:
    """T_submit is the last byte sent: never before the request was started or after its first answer byte."""
    supported, declared = view.driver_capability("submit_points"), view.need(TimingFact.SUBMIT_POINT)
    if declared != "last_request_byte" or declared not in supported:
        return view.unmet(f"T_submit is {declared!r}, not a proved last_request_byte")
    records = view.records
    early = (
        has(records.dispatched_ns)
        & has(records.submitted_ns)
        & (records.submitted_ns < records.dispatched_ns)
    )
    late = has(records.first_byte_ns) & (records.submitted_ns > records.first_byte_ns)
    # A server may refuse a request before it has read all of it, so only successes can contradict.
    wrong = int((records.ok & (early | late)).sum())
    view.note("contradicting_records", wrong)
    return view.answer(
        wrong == 0,
        "the last byte of the request",
        f"{wrong} records have T_submit outside dispatch and first byte",
    )


@check("P-B.1.1-first-point")
def first_point(view: EvidenceView) -> Answer:
    """T_first is a parsed data event: never before the first byte or the first parsed event."""
    supported, declared = view.driver_capability("first_points"), view.need(TimingFact.FIRST_POINT)
    if declared != "parsed_data_event" or declared not in supported:
        return view.unmet(f"T_first is {declared!r}, not a proved parsed_data_event")
    records = view.records
    content = has(records.first_content_ns)
    early = content & (records.first_content_ns < np.maximum(records.first_byte_ns, records.first_event_ns))
    wrong = int(early.sum())
    view.note("contradicting_records", wrong)
    return view.answer(
        wrong == 0,
        "the first parsed event with content",
        f"{wrong} records have T_first before their first event",
    )


@check("P-B.1.2-grpc-points")
def grpc_points(view: EvidenceView) -> Answer:
    submit, first = view.need_all(TimingFact.SUBMIT_POINT, TimingFact.FIRST_POINT)
    proved = submit in view.driver_capability("submit_points") and first in view.driver_capability(
        "first_points"
    )
    return view.answer(
        proved and (submit, first) == ("message_sent", "first_token_message"),
        "request message sent, first message with a token received",
        f"T_submit is {submit!r} and T_first is {first!r}, or no test proves them",
    )


@check("P-B.1.3-server-points")
def server_points(view: EvidenceView) -> Answer:
    """Server-side values keep names of their own and never replace a client-side one."""
    names = view.need(TimingFact.SERVER_SIDE)
    mixed = [name for name in names if name in _CLIENT_QUANTITIES]
    return view.answer(
        not mixed,
        f"server-side: {', '.join(names)}",
        f"server-side values under client names: {', '.join(mixed)}",
    )


@check("P-B.3.1-ntp-verification")
def ntp_verification(view: EvidenceView) -> Answer:
    server, offset_ms = view.need_all(ClockFact.NTP_SERVER, ClockFact.OFFSET_MS)
    return view.answer(
        abs(offset_ms) < WORST_ACCURACY_MS,
        f"offset {offset_ms:g} ms to {server}",
        f"offset {offset_ms:g} ms to {server} is not under 10 ms",
    )
