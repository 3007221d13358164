"""Per-request latencies in milliseconds, one vector per metric, in order of submission.

Only requests that ended ``ok`` (AMB-37, AMB-46) and have both instants of the formula enter; a request that
lacks one is left out, never counted as 0. Which phase the records belong to is the caller's choice.

Long runs are gone through a block at a time, so that only the vector itself needs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from types import MappingProxyType

import numpy as np

from pytest_llmbench.metrics.summary import GivenUp, distribution
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import Facts, NetworkFact
from pytest_llmbench.model.numbers import quantity, trimmed
from pytest_llmbench.model.observation import HostLimits
from pytest_llmbench.model.records import BLOCK, MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats import latencies
from pytest_llmbench.stats.backlog import Backlog, backlog
from pytest_llmbench.stats.batching import slot_queue
from pytest_llmbench.stats.latencies import SPANS, Span, first_output_ns, latency_ms, streamed_tokens
from pytest_llmbench.stats.runs import FloatArray

_NS_PER_MS = 1e6

LAG_FLOOR_NS = HostLimits().send_lag_ns
"""The send lag at P99 that is always allowed, in nanoseconds. Validity and audit share this limit and those
below (AMB-28)."""
GROWTH_SHARE = 0.25
"""The share of the limit of the send lag by which the median lag may grow beyond twice what it was. Near
saturation every pass of the loop takes longer, which is not falling behind; a generator that falls behind
does so without end."""
FEWEST_FOR_GROWTH = 100
"""Fewest requests of a run whose first and last tenth are compared; fewer could be the disturbance of a
moment."""


Measure = Callable[[Records], FloatArray]


def by_blocks(measure: Measure) -> Measure:
    """``measure``, which says something of each request alone, applied a block at a time."""

    @wraps(measure)
    def of_each_block(records: Records) -> FloatArray:
        parts = [measure(block) for block in records.blocks()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return of_each_block


def _known(values: Measure) -> Measure:
    """``values``, which are NaN for requests that are no sample, of those that are, a block at a time."""

    @by_blocks
    def known(records: Records) -> FloatArray:
        every = values(records)
        return every[~np.isnan(every)]

    return known


ttft_ms = _known(SPANS["ttft"].ms)
"""TTFT = T_first - T_submit, T_first the first non-whitespace content."""
ttft_scheduled_ms = _known(SPANS["ttft_scheduled"].ms)
"""T_first - T_scheduled: the TTFT of a user who arrives on schedule, our own lag included."""
ttft_any_ms = _known(SPANS["ttft_any"].ms)
"""First output of any kind (whitespace and reasoning included) - T_submit (AMB-29)."""
ttft_first_event_ms = _known(SPANS["ttft_first_event"].ms)
"""First parsed event of any kind, role-only ones included, - T_submit. Matches tools that count those."""
ttft_reasoning_ms = _known(Span("submitted_ns", "first_reasoning_ns").ms)
"""First reasoning output - T_submit, for requests with visible reasoning only."""
e2e_ms = _known(SPANS["e2e"].ms)
"""E2E = T_last - T_submit, T_last the last content chunk, not the end-of-stream marker (AMB-45)."""
e2e_scheduled_ms = _known(SPANS["e2e_scheduled"].ms)
"""T_last - T_scheduled, the coordinated-omission view of E2E."""
request_latency_ms = _known(SPANS["latency"].ms)
"""Latency = T_end - T_submit, T_end the last byte of the reply; for replies that are not streamed."""
request_latency_scheduled_ms = _known(SPANS["latency_scheduled"].ms)
"""T_end - T_scheduled, the coordinated-omission view of that latency."""
ttfo_ms = ttft_ms
"""TTFO = first visible content - T_submit. Visible content is content in the sense of the draft, so this is
TTFT; the name has a meaning of its own only where reasoning comes first."""
TTOT = Span("thinking_end_ns", "first_content_ns")
ttot_ms = _known(TTOT.ms)
"""TTOT = first visible content - end of thinking, for the replies that have both."""
tpot_ms = _known(latencies.tpot_ms)
"""TPOT = (T_last - T_first) / (N_out - 1), requests with N_out of at least 2 (AMB-44)."""


def ttft_input_tokens(records: Records) -> IntColumn:
    """Input tokens of the requests in :data:`ttft_ms`, in the same order; ``MISSING`` where unknown."""
    return np.concatenate([block.input_tokens[_entering("ttft", block)] for block in records.blocks()])


def early_ms(span: Span, records: Records) -> FloatArray:
    """Milliseconds by which T_first of each request in a latency that it ends may be too late because it was
    read late."""
    early = [block.first_content_early_ns[~np.isnan(span.ms(block))].clip(0) for block in records.blocks()]
    return np.asarray(np.concatenate(early) / _NS_PER_MS, dtype=np.float64)


@by_blocks
def tpot_early_ms(records: Records) -> FloatArray:
    """Milliseconds by which a late read may make each figure in :data:`tpot_ms` too large."""
    held = _entering("tpot", records)
    early_ms = records.first_content_early_ns[held].clip(0) / _NS_PER_MS
    return np.asarray(early_ms / (streamed_tokens(records)[held] - 1))


def lag_limit_ns(rate: float, floor_ns: int = LAG_FLOOR_NS) -> float:
    """The largest send lag allowed at P99, in nanoseconds, at ``rate`` requests per second."""
    return max(float(floor_ns), 1e8 / rate)


def growth_limit_ns(first_ns: float, rate: float, floor_ns: int = LAG_FLOOR_NS) -> float:
    """The largest median lag allowed in the last tenth, in nanoseconds, given that of the first tenth."""
    return 2 * first_ns + GROWTH_SHARE * lag_limit_ns(rate, floor_ns)


FAMILIES: Mapping[str, Measure] = MappingProxyType(
    {
        "ttft": ttft_ms,
        "ttft_scheduled": ttft_scheduled_ms,
        "ttft_any": ttft_any_ms,
        "ttft_first_event": ttft_first_event_ms,
        "tpot": tpot_ms,
        "e2e": e2e_ms,
        "e2e_scheduled": e2e_scheduled_ms,
    }
)
"""Distribution family of the catalogue → what measures it."""
_MEASURED: Mapping[str, Measure] = MappingProxyType(
    {**FAMILIES, "latency": request_latency_ms, "latency_scheduled": request_latency_scheduled_ms}
)
"""The same, with the families of requests that generate nothing."""


def distribution_of(
    family: str,
    runs: Sequence[Records],
    *,
    among: Sequence[Records] | None = None,
    name: str | None = None,
) -> dict[str, Estimate]:
    """The distribution of a family over several runs; its intervals allow for the wait for a slot. ``among``:
    all requests of each run, by default ``runs``. ``name``: by default the family."""
    samples, waited = waiting(family, runs, among=among)
    return distribution(name or family, samples, backlog=waited, given_up=given_up(family, runs))


def distributions(
    families: Iterable[str], runs: Sequence[Records], *, among: Sequence[Records] | None = None
) -> dict[str, Estimate]:
    """:func:`distribution_of` each of these families. The wait for a slot is computed once for consecutive
    families with the same requests, as those that ended well enter all."""
    found: dict[str, Estimate] = {}
    known_ns: list[IntColumn] = []
    waited: Backlog | None = None
    for family in families:
        entering_ns = _entering_ns(family, runs) if family in SPANS else []
        same = known_ns and all(map(np.array_equal, entering_ns, known_ns))
        if entering_ns and not same:
            known_ns, waited = entering_ns, backlog_among(runs if among is None else among, entering_ns)
        gone, backlogged = given_up(family, runs), waited if entering_ns else None
        samples = [_MEASURED[family](run) for run in runs]
        found |= distribution(family, samples, backlog=backlogged, given_up=gone)
    return found


def given_up(family: str, runs: Sequence[Records]) -> GivenUp:
    """The requests that the load generator gave up on, as samples of a latency: how long each had lasted, and
    those whose first output had come. A reply that had not begun has no TPOT; of one that had it is not
    known."""
    lasted, known = [np.empty(0)], [np.empty(0)]
    for gone in (run.select(run.given_up) for run in runs):
        if family == "tpot":
            lasted.append(np.zeros(int((first_output_ns(gone) != MISSING).sum())))
            continue
        span = SPANS[family]
        start, end = getattr(gone, span.start), getattr(gone, span.end)
        start = np.where(start == MISSING, gone.dispatched_ns, start)
        seen = (end != MISSING) & span.end.startswith("first_")
        last = np.where(gone.finished_ns == MISSING, start, gone.finished_ns)
        lasted.append(((last - start) / _NS_PER_MS)[~seen].clip(0))
        known.append(((end - start) / _NS_PER_MS)[seen])
    return GivenUp(np.concatenate(lasted), np.concatenate(known))


def waiting(
    family: str, runs: Sequence[Records], *, among: Sequence[Records] | None = None
) -> tuple[list[FloatArray], Backlog | None]:
    """The samples of each run, and what their requests waited for a slot; None where that is unknown or not
    part of them."""
    samples = [_MEASURED[family](run) for run in runs]
    if family not in SPANS:
        return samples, None
    return samples, backlog_among(runs if among is None else among, _entering_ns(family, runs))


def _entering_ns(family: str, runs: Sequence[Records]) -> list[IntColumn]:
    """The submission instants of the requests that the samples come from."""
    return [run.submitted_ns[_entering(family, run)] for run in runs]


def backlog_among(runs: Sequence[Records], instants_ns: Sequence[IntColumn]) -> Backlog | None:
    """What requests sent at these instants waited for a slot among all requests of each run, in ms.

    ``None`` for a run of more than a block, which spans enough of any queue that its latencies hide.
    """
    if any(len(run) > BLOCK for run in runs):
        return None
    return backlog([slot_queue(run) for run in runs], instants_ns)


def per_request(family: str, records: Records) -> FloatArray:
    """The latency of every request, in order of submission; NaN for one that :data:`FAMILIES` leaves out."""
    return latency_ms(family, records)


def _entering(family: str, records: Records) -> BoolColumn:
    """Which requests are in the vector of a family."""
    return np.concatenate([~np.isnan(latency_ms(family, block)) for block in records.blocks()])


ROUND_TRIP_TOLERANCE_MS = 0.5
"""How far a declared network time may lie above the measured round trip, which varies."""


def adjusted_ttft(metrics: Mapping[str, Estimate], facts: Facts) -> dict[str, Estimate]:
    """``ttft_adjusted``: each TTFT less the network time that fact ``network.ttft_adjustment`` takes off
    (4.7.3), in ms. Empty where there is none, or it is declared as not applied.

    A declared amount moves point and interval alike. One that was measured has an interval of its own, from
    ``lower_ms`` to ``upper_ms``: the ends are lower - upper_ms and upper - lower_ms, with both errors at
    their worst, which is wider than two independent ones need.

    Undefined where more is declared than the round trip that was measured, or than TTFT itself: that is no
    network time.
    """
    adjustment = facts.value(NetworkFact.TTFT_ADJUSTMENT) or {}
    amount = adjustment.get("amount_ms")
    if adjustment.get("applied") is not True or amount is None:
        return {}
    measured = (facts.value(NetworkFact.RTT_MS) or {}).get("p50")
    declared = f"declared are {trimmed(amount)} ms of network time"
    if measured is not None and amount > measured + ROUND_TRIP_TOLERANCE_MS:
        why = f"{declared}, a round trip of {quantity(measured, 'ms')} was measured"
    elif any(
        one.point is not None and one.point <= amount
        for name, one in metrics.items()
        if name.startswith("ttft.")
    ):
        why = f"{declared}, and a TTFT is no longer than that"
    else:
        why = ""
    found = {}
    for name, one in metrics.items():
        if not name.startswith(("ttft.", "ttft[")):
            continue
        if why:
            moved = Estimate.undefined(unit=one.unit, method=why, n=one.n, reason=Reason.NOT_MEASURABLE)
        else:
            taken_off = (amount, adjustment.get("upper_ms", amount), adjustment.get("lower_ms", amount))
            point, lower, upper = (
                None if end is None else end - off
                for end, off in zip((one.point, one.lower, one.upper), taken_off, strict=True)
            )
            moved = replace(one, point=point, lower=lower, upper=upper)
        found[f"ttft_adjusted{name.removeprefix('ttft')}"] = moved
    return found
