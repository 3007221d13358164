"""The figures of one level: what the generator saw, compared with what the known-delay server did.

All instants are of one clock, CLOCK_MONOTONIC of this machine. Request by request and chunk by chunk:

- TTFT error: (stamp of the first content - submitted) - (first write - arrival of the last request byte);
- ITL error: \\|gap of two stamps - gap of the two writes\\|;
- stamp error: stamp of a chunk - instant before its write.

Each holds what lies between two processes of this host besides the generator: the kernel, and whatever else
runs here. They bound the generator's error from above.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.methodology.measuring.offered import shortfalls
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.known_delay import Script, Truth

TTFT_ERROR_LIMIT_US = 1000.0
"""The largest TTFT error at P99, in microseconds, of a level that holds. Its sends also have to keep their
schedule."""

Values = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of n values, in microseconds; None where there are no values."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    n: int = 0

    @classmethod
    def of(cls, values_ns: Values) -> Spread:
        if not len(values_ns):
            return cls()
        p50, p99, most = np.percentile(values_ns, [50, 99, 100]) / 1000.0
        return cls(round(float(p50), 1), round(float(p99), 1), round(float(most), 1), len(values_ns))


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """The figures of one load on the known-delay server."""

    label: str
    rate_rps: float | None
    """The rate of the schedule, in requests per second; None in a closed loop."""
    streams: int
    """The most requests in flight at once."""
    requests: int
    chunks_per_s: float | None
    """Content chunks per second, over the time from the start to the last record."""
    ttft_error: Spread
    itl_error: Spread
    stamp_error: Spread
    send_lag: Spread
    server_late: Spread
    """The lateness of the server's writes against the script: its own fault, which no error above
    contains."""
    cpu_share: float | None
    cpu_us_per_request: float | None
    coalesced_share: float | None
    """The share of the content chunks that shared a read with an earlier one."""
    reasons: tuple[str, ...]
    """Why the level does not hold; empty if it does."""

    @property
    def holds(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of all requests that can be compared, in nanoseconds."""

    ttft: Values
    itl: Values
    stamp: Values
    late: Values
    unmatched: int
    """Requests that failed, or whose chunks are not the server's writes."""


def differences(seen: Observation, truth: Mapping[str, Truth], script: Script) -> Differences:
    """Compare the generator's records with the server's notes, matched by request id."""
    records, offsets = seen.records, np.asarray(script.offsets_ns, dtype=np.int64)
    ttft: list[int] = []
    gaps, stamps, late = [], [], []
    unmatched = 0
    for place, request_id in enumerate(records.request_id):
        known, first_ns = truth.get(request_id), int(records.first_content_ns[place])
        if known is None or not records.ok[place] or first_ns == MISSING or not known.written_ns:
            unmatched += 1
            continue
        written = np.asarray(known.written_ns, dtype=np.int64)
        own_ns = first_ns - int(records.submitted_ns[place])
        ttft.append(own_ns - (known.written_ns[0] - known.received_ns))
        late.append(written - known.received_ns - offsets[: len(written)])
        chunks = records.chunk_ns[records.chunk_offsets[place] : records.chunk_offsets[place + 1]]
        if script.itl_us == 0:
            continue  # one write of all chunks: there are no gaps to compare
        if len(chunks) != len(written):
            unmatched += 1
            continue
        stamps.append(chunks - written)
        gaps.append(np.abs(np.diff(chunks) - np.diff(written)))
    first = np.asarray(ttft, dtype=np.int64)
    return Differences(first, _joined(gaps), _joined(stamps), _joined(late), unmatched)


def figures(
    seen: Observation, truth: Mapping[str, Truth], script: Script, last_record_ns: int | None = None
) -> LevelFigures:
    """The figures of a load. ``last_record_ns``: when the last reply had been decoded, which may be after the
    load's end."""
    found = differences(seen, truth, script)
    check, load = seen.selfcheck, seen.plan.load
    until_ns = max(seen.ended_ns, last_record_ns or 0)
    wall_s = (until_ns - seen.started_ns) / 1e9
    requests, share = len(seen.records), check.cpu_share
    missing = max(seen.plan.requests - requests, 0) + found.unmatched
    unsound = f"{missing} of {seen.plan.requests} requests did not end as the server answered them"
    ttft, late, lag, records = Spread.of(found.ttft), Spread.of(found.late), Spread(), seen.records
    if load.request_rate is not None:
        known = (records.scheduled_ns != MISSING) & (records.dispatched_ns != MISSING)
        lag = Spread.of(records.dispatched_ns[known] - records.scheduled_ns[known])
    return LevelFigures(
        label=seen.plan.label,
        rate_rps=load.request_rate,
        streams=check.peak_in_flight,
        requests=requests,
        chunks_per_s=check.content_chunks / wall_s if wall_s > 0 else None,
        ttft_error=ttft,
        itl_error=Spread.of(found.itl),
        stamp_error=Spread.of(found.stamp),
        send_lag=lag,
        server_late=late,
        cpu_share=share,
        cpu_us_per_request=None
        if share is None or not requests
        else share * seen.duration_s / requests * 1e6,
        coalesced_share=check.coalesced_chunks / check.content_chunks if check.content_chunks else None,
        reasons=(*((unsound,) if missing else ()), *_reasons(seen, ttft, late, script)),
    )


def _reasons(seen: Observation, ttft: Spread, late: Spread, script: Script) -> Iterator[str]:
    yield from shortfalls(seen)
    # Other loads are not judged: in a flood a reply waits for the ones before it, on both sides.
    on_schedule = seen.plan.load.request_rate is not None
    if on_schedule and (ttft.p99 is None or ttft.p99 > TTFT_ERROR_LIMIT_US):
        limit = quantity(TTFT_ERROR_LIMIT_US, "µs")
        yield f"TTFT error {quantity(ttft.p99, 'µs')} at P99 (limit {limit})"
    # A server that falls behind by a whole gap does not offer the chunks that the level is about.
    if script.itl_us and late.p99 is not None and late.p99 > script.itl_us:
        by = quantity(late.p99, "µs")
        yield f"the known-delay server itself was late by {by} at P99: nothing finer can be tested here"


def _joined(parts: Sequence[Values]) -> Values:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
