"""The load generator: clock, streaming, arrival laws, isolation (sections 4.2.1 to 4.2.5); clocks, network
time and time stamps (section 4.7 and appendix B).

Capabilities come from the registry; a run that contradicts one makes the entry unmet all the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compliance.checks.registry import Checks, Predicate, capable, one_of, stated
from pytest_llmbench.compliance.evidence import (
    Answer,
    EvidenceView,
    NoEvidenceError,
    chunk_counts,
    chunk_sizes,
    has,
    in_flight_peak,
)
from pytest_llmbench.metrics.chunking import buffering
from pytest_llmbench.metrics.latency import FEWEST_FOR_GROWTH, LAG_FLOOR_NS, growth_limit_ns, lag_limit_ns
from pytest_llmbench.metrics.uncertainty import FEWEST_BEYOND, furthest
from pytest_llmbench.model.facts import ClockFact, GuardrailFact, NetworkFact, StreamingFact, TimingFact
from pytest_llmbench.model.numbers import against, percentage, quantity, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.records import IntColumn, Records
from pytest_llmbench.model.result import NOT_OFFERED

check = Checks()

COARSEST_CLOCK_NS = 1_000_000
FALSE_ALARM = 1e-6
"""Chance that a true Poisson schedule is rejected."""
FEWEST_GAPS = 50
MOST_BUFFERED = 0.05
"""Largest share of the replies that something on the way may have buffered."""
FEWEST_REPLIES = 100
"""Fewest replies of a run whose share is looked at by itself."""


def clock_resolves(coarsest_ns: int) -> Predicate:
    """A predicate that is met when the clock, as declared and as every run saw it, resolves that."""

    def predicate(view: EvidenceView) -> Answer:
        resolution_ns = view.need(TimingFact.CLOCK_RESOLUTION_NS)
        for run in view.evidence.runs:
            resolution_ns = max(resolution_ns, run.selfcheck.clock_resolution_ns or 0)
        view.note("clock_resolution_ns", resolution_ns)
        return view.answer(
            0 < resolution_ns <= coarsest_ns,
            f"the clock resolves {resolution_ns} ns",
            f"a clock resolution of {resolution_ns} ns is not within {coarsest_ns} ns",
        )

    return predicate


check("M-4.2.1-timer-resolution-1ms")(clock_resolves(COARSEST_CLOCK_NS))


@check("M-4.2.2-streaming-support")
def streaming_support(view: EvidenceView) -> Answer:
    supported = view.driver_capability("streaming")
    protocol = view.need(StreamingFact.PROTOCOL)
    return view.answer(
        protocol in supported,
        f"{protocol} is supported",
        f"the run used {protocol}; supported and proved: {', '.join(supported)}",
    )


@check("M-4.2.2-per-chunk-arrival")
def per_chunk_arrival(view: EvidenceView) -> Answer:
    """A run in which every reply arrived in one chunk, or many all at once, is no stream, and fails."""
    every = streamed = wrong = 0
    for records in view.records.blocks():
        counts = chunk_counts(records)
        several_tokens = records.ok & (records.output_tokens >= 2)
        every += int(several_tokens.sum())
        wrong += int(_unstamped(records, counts, several_tokens).sum())
        streamed += int((several_tokens & (counts >= 2)).sum())
    view.note("replies_of_several_tokens", every)
    view.note("replies_of_several_chunks", streamed)
    view.note("replies_with_wrong_chunk_instants", wrong)
    if wrong:
        return view.unmet(f"{wrong} replies have missing or inconsistent chunk instants")
    held_back = _held_back(view)
    if held_back > MOST_BUFFERED:
        return view.unmet(
            f"{percentage(held_back)} of the replies arrived all at once, {percentage(MOST_BUFFERED)} may"
        )
    return view.answer(
        streamed > 0 or not every,
        "every content chunk has its own arrival instant",
        "every reply arrived in one chunk: this is not a stream",
    )


def _held_back(view: EvidenceView) -> float:
    """The largest share of replies that arrived all at once: of all together, or of a run of a hundred.

    An output filter has to read before it lets pass: where one is on, holding back is what the system does.
    """
    streamed = []
    for run in view.runs:
        own = run.facts.value(GuardrailFact.OUTPUT_FILTER)
        if (view.fact(GuardrailFact.OUTPUT_FILTER) if own is None else own) != "enabled":
            streamed.append(run)
    every = buffering([run.records for run in streamed])
    runs = [buffering(run.records, every.pace_ns) for run in streamed]
    found = max([every.share, *(seen.share for seen in runs if seen.replies >= FEWEST_REPLIES)])
    view.note("buffered_share", found)
    return found


def _unstamped(
    records: Records, counts: npt.NDArray[np.int64], several_tokens: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Replies without chunk instants, or with instants that run backwards or miss first and last content."""
    wrong = several_tokens & (counts == 0)
    filled = np.flatnonzero(records.ok & (counts > 0))
    first = records.chunk_ns[records.chunk_offsets[filled]]
    last = records.chunk_ns[records.chunk_offsets[filled + 1] - 1]
    has_first, has_last = has(records.first_content_ns)[filled], has(records.last_content_ns)[filled]
    wrong[filled] |= has_first & (first > records.first_content_ns[filled])
    wrong[filled] |= has_last & (last != records.last_content_ns[filled])
    earlier = np.flatnonzero(records.chunk_ns[1:] < records.chunk_ns[:-1]) + 1
    owner = np.searchsorted(records.chunk_offsets, earlier, side="right") - 1
    wrong[owner[earlier > records.chunk_offsets[owner]]] = True
    return np.asarray(wrong)


check("M-4.2.3-open-loop")(
    capable("open loop available, its independence of responses proved by a test", "open_loop")
)
check("S-4.2.3-uniform-bursty")(
    capable("evenly spaced and bursty arrivals available", "arrival.uniform", "arrival.bursty")
)


@check("M-4.2.3-poisson")
def poisson(view: EvidenceView) -> Answer:
    """Proved by tests; a Poisson run whose schedule is not exponential contradicts them."""
    view.capability("arrival.poisson")
    for run in view.evidence.runs:
        distance, allowed = _distance_from_poisson(run)
        if distance > allowed:
            view.note("kolmogorov_smirnov_distance", distance)
            return view.unmet(
                f"the scheduled gaps are {trimmed(round(distance, 3))} away from exponential, chance allows "
                f"{trimmed(round(allowed, 3))}"
            )
    return view.met("Poisson arrivals available, exponential gaps and seeding proved by tests")


def _distance_from_poisson(run: Observation) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance of the scheduled gaps, and the distance that chance allows."""
    load = run.plan.load
    scheduled = run.records.scheduled_ns[has(run.records.scheduled_ns)]
    poisson = isinstance(load, OpenLoop) and load.arrival == "poisson"
    if not poisson or load.request_rate is None or len(scheduled) <= FEWEST_GAPS:
        return 0.0, 1.0
    gaps_s = np.sort(np.diff(np.sort(scheduled))) / 1e9
    law = 1.0 - np.exp(-load.request_rate * gaps_s)
    n = len(gaps_s)
    steps = np.arange(n + 1) / n
    distance = float(max(np.max(steps[1:] - law), np.max(law - steps[:-1])))
    # Dvoretzky-Kiefer-Wolfowitz: P(distance > a) <= 2 exp(-2 n a^2).
    return distance, float(np.sqrt(np.log(2 / FALSE_ALARM) / (2 * n)))


@check("M-4.2.4-closed-loop")
def closed_loop(view: EvidenceView) -> Answer:
    """Proved by a test; a closed-loop run with too many in flight, or slow replacements, contradicts it."""
    view.capability("closed_loop")
    for run in view.evidence.runs:
        if run.plan.load.request_rate is None and (complaint := _not_held_to(view, run)):
            return view.unmet(complaint)
        slots = run.plan.load.requests_in_flight
        if slots is not None:
            peak, lag_ns = in_flight_peak(run.records), _lag_ns(run.records)
            view.note("in_flight_peak", peak)
            if peak > slots:
                return view.unmet(f"{peak} requests were in flight, {slots} were requested")
            p99_ns = float(np.percentile(lag_ns, 99)) if len(lag_ns) else 0.0
            view.note("replacement_lag_p99_ns", p99_ns)
            # Of twenty requests P99 is the longest lag of all: a single late one is no way of replacing.
            if p99_ns > LAG_FLOOR_NS and int((lag_ns > LAG_FLOOR_NS).sum()) >= FEWEST_BEYOND:
                return view.unmet(
                    f"ended requests were replaced {quantity(p99_ns / 1e6, 'ms')} late at P99, not at once"
                )
    return view.met("closed loop available, its constant concurrency proved by a test")


@check("M-4.2.5-request-isolation")
def request_isolation(view: EvidenceView) -> Answer:
    view.capability("open_loop")
    for run in view.runs:
        rate = run.plan.load.request_rate
        if rate is not None:
            complaint = _not_held_to(view, run) or _late_sends(view, run, rate)
            if complaint:
                return view.unmet(complaint)
    return view.met("no slow answer pushed back a later request")


def _not_held_to(view: EvidenceView, run: Observation) -> str | None:
    """What is wrong with a run in which what this machine did was let pass: under looser limits, or since no
    limit of the test was near. None for nothing."""
    if run.host_limits.loosened:
        return f"the generator's machine was held to looser limits: {'; '.join(run.host_limits.loosened)}"
    aside = {level.observation for level in view.result.levels if level.role.endswith(NOT_OFFERED)}
    if any(run is other for index, other in enumerate(view.result.observations) if index in aside):
        return None
    found = furthest(run, "ttft")
    if found is None or found[1].most <= found[2]:
        return None
    name, leeway, limit_ms = found
    return (
        f"the generator's machine may have made TTFT {name.upper()} of {quantity(leeway.seen, 'ms')} longer "
        f"by {quantity(leeway.most, 'ms')}, {trimmed(limit_ms)} ms are allowed"
    )


def _late_sends(view: EvidenceView, run: Observation, rate: float) -> str | None:
    """What is wrong with the lag dispatched - scheduled of an open-loop run; None for nothing."""
    lag_ns = _lag_ns(run.records)
    if not len(lag_ns):
        raise NoEvidenceError("record.scheduled_ns", "record.dispatched_ns")
    p99_ns, limit_ns = float(np.percentile(lag_ns, 99)), lag_limit_ns(rate)
    tenth = max(len(lag_ns) // 10, 1)
    first_ns, last_ns = float(np.median(lag_ns[:tenth])), float(np.median(lag_ns[-tenth:]))
    view.note("send_lag_p99_ns", p99_ns)
    view.note("send_lag_first_tenth_p50_ns", first_ns)
    view.note("send_lag_last_tenth_p50_ns", last_ns)
    if p99_ns > limit_ns:
        late, limit = against(p99_ns / 1e6, limit_ns / 1e6, "ms"), f"{trimmed(limit_ns / 1e6)} ms"
        return f"send lag P99 is {late}, limit {limit} (AMB-28)"
    if len(lag_ns) >= FEWEST_FOR_GROWTH and last_ns > growth_limit_ns(first_ns, rate):
        first, last = quantity(first_ns / 1e6, "ms"), quantity(last_ns / 1e6, "ms")
        return f"median send lag grew from {first} to {last} over the run"
    return None


def _lag_ns(records: Records) -> npt.NDArray[np.int64]:
    """The lag dispatched - scheduled in nanoseconds, in the order of the schedule."""
    both = has(records.scheduled_ns) & has(records.dispatched_ns)
    lag_ns = (records.dispatched_ns - records.scheduled_ns)[both]
    return np.asarray(lag_ns[np.argsort(records.scheduled_ns[both], kind="stable")])


@check("M-4.2.5-async-or-threads")
def async_or_threads(view: EvidenceView) -> Answer:
    model = view.capability("concurrency_model")
    return view.answer(
        model in ("asyncio", "threads"),
        f"the generator is built on {model}",
        f"{model!r} is neither asynchronous nor multi-threaded",
    )


check("S-4.6.1-grpc-for-engine")(one_of(StreamingFact.PROTOCOL, "grpc"))
check("S-4.6.1-sse-for-gateway")(one_of(StreamingFact.PROTOCOL, "sse"))
check("M-4.6.2-protocol-stated")(one_of(StreamingFact.PROTOCOL, "sse", "websocket", "grpc"))
check("M-4.6.2-multi-token-handling")(stated(StreamingFact.CHUNK_HANDLING))


@check("M-4.6.2-chunk-granularity")
def chunk_granularity(view: EvidenceView) -> Answer:
    """``single`` is believed only if every content chunk of a success is known to hold one token."""
    chunking, sizes = view.need(StreamingFact.CHUNKING), chunk_sizes(view.records)
    single = 0 < sizes.single == sizes.chunks
    if chunking == "single":
        return view.answer(
            single, "every chunk is one token", "declared single, but not every chunk is one token"
        )
    if chunking != "multi":
        return view.unmet(f"streaming.chunking is {chunking!r}, neither single nor multi")
    if not sizes.known:
        return view.met("chunks may hold several tokens (unknown)")
    return view.met(
        f"chunks may hold several tokens; share of single ones {view.need(StreamingFact.SINGLE_TOKEN_SHARE)}"
    )


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
        f"{method}, accurate to {trimmed(accuracy_ms)} ms",
        f"{method} is accurate to {trimmed(accuracy_ms)} ms, 10 ms is the limit",
    )


@check("S-4.7.3-rtt-reported")
def rtt_reported(view: EvidenceView) -> Answer:
    p50, n = view.need_fields(NetworkFact.RTT_MS, "p50", "n")
    return view.answer(
        n >= FEWEST_RTT_SAMPLES,
        f"RTT P50 {trimmed(p50)} ms over {n} probes",
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
        seen = quantity(raw.point - adjusted.point, "ms")
        return view.unmet(f"adjusted by {seen}, declared are {trimmed(amount_ms)} ms")
    return view.met(f"TTFT was lowered by {trimmed(amount_ms)} ms: {method}")


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
            scheduled = records.scheduled_ns[has(records.scheduled_ns)]
            if name == "submitted_ns" and grid_ns == int(np.gcd.reduce(np.diff(scheduled), initial=0)):
                continue  # evenly spaced arrivals that were kept: the stamps move as the load does
            if grid_ns > COARSEST_STAMP_NS or grid_ns == 0:
                return view.unmet(f"{name} moves in steps of {grid_ns} ns, coarser than 1 ms")
    return view.met("integer nanoseconds inside and in the files")


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
    wrong = np.asarray(records.ok & (early | late))
    return view.no_record(
        wrong, "the last byte of the request", "have T_submit outside dispatch and first byte"
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
    return view.no_record(
        early, "the first parsed event with content", "have T_first before their first event"
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
        f"offset {trimmed(offset_ms)} ms to {server}",
        f"offset {trimmed(offset_ms)} ms to {server} is not under 10 ms",
    )
