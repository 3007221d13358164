"""The observation of a load: its records, the generator's self-check, and what the serving engine reported
around and during the run, on its metrics page or as a model."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import shown
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import Records

if TYPE_CHECKING:
    from pytest_llmbench.model.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """One instant read on both clocks, so that monotonic stamps can be exported as wall-clock time."""

    monotonic_ns: int
    wall_ns: int
    """Nanoseconds since the Unix epoch."""

    def wall(self, monotonic_ns: int) -> int:
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)


IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

GAUGES = ("running", "waiting", "kv_use", "acceptance_length")
"""Names of the gauges: requests in the batch, requests waiting for a place in it, share of the KV cache in
use (0 to 1), tokens a step and sequence with speculative decoding, where the engine has no counters of it."""

TOTALS = (
    "preemptions",
    "prefix_queries_tokens",
    "prefix_hits_tokens",
    "prompt_tokens",
    "generated_tokens",
    "requests_finished",
    "queue_wait_s",
    "queue_wait_count",
    "prefill_s",
    "prefill_count",
    "decode_s",
    "decode_count",
    "critical_evictions",
    "kv_transfer_s",
    "kv_transfer_count",
    "drafts",
    "draft_tokens",
    "accepted_draft_tokens",
)
"""Names of the counters, which only grow; their difference over a run is what happened in it."""

THINKING_ENDED = "thinking_ended"
"""A counter with a label, the reason for which thinking ended: ``thinking_ended[budget]``."""
ACCEPTED_AT = "accepted_draft_tokens_at"
"""A counter with a label, the place of an accepted token in its draft, from 0:
``accepted_draft_tokens_at[0]``."""


def of_label(name: str, value: str) -> str:
    """The name of a labelled counter with this value of its label."""
    return f"{name}[{value}]"


def is_total(name: str) -> bool:
    """Whether it is the name of a counter, with or without the value of a label."""
    return name in TOTALS or name.startswith((f"{THINKING_ENDED}[", f"{ACCEPTED_AT}["))


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """Samples of the gauges during a run, and the counters before and after it.

    ``gauges`` maps a name of :data:`GAUGES` to one value per instant in ``at_ns`` (NaN where a page lacked
    it); names that the engine never serves are absent. ``totals_before`` and ``totals_after`` hold counters
    (:func:`is_total`).
    """

    at_ns: IntArray
    gauges: Mapping[str, FloatArray]
    totals_before: Mapping[str, float] = field(default_factory=dict)
    totals_after: Mapping[str, float] = field(default_factory=dict)
    max_num_seqs: int | None = None
    """The largest batch that the engine forms; None where it does not say."""
    source: str = ""
    """The URL of the page, or ``the embedded engine's model``."""
    gap: str | None = None
    """Why something is missing, in words, such as a page that stopped answering; None if nothing is."""

    def grown(self, name: str) -> float | None:
        """The increase of a counter during the run.

        None where the counter is not served, is no number, or fell (the engine was restarted).
        """
        before, after = self.totals_before.get(name), self.totals_after.get(name)
        if before is None or after is None or after < before:
            return None
        return after - before if math.isfinite(after - before) else None

    def grown_by_label(self, name: str) -> dict[str, float] | None:
        """Label value → by how much that part of a counter grew.

        None where it is not served; a part that fell says nothing of any.
        """
        stem = f"{name}["
        parts = {each: self.grown(each) for each in self.totals_after if each.startswith(stem)}
        found = {each[len(stem) : -1]: count for each, count in parts.items() if count is not None}
        return found if found and len(found) == len(parts) else None

    def gauge(self, name: str, start_ns: int, end_ns: int) -> tuple[IntArray, FloatArray] | None:
        """Instants and values of a gauge inside [start, end]; None where it is not served."""
        values = self.gauges.get(name)
        if values is None:
            return None
        inside = (self.at_ns >= start_ns) & (self.at_ns <= end_ns) & np.isfinite(values)
        return self.at_ns[inside], values[inside]


INTERRUPTED_BY_CTRL_C = "interrupted (Ctrl-C or SIGTERM)"
"""Value of ``Observation.interrupted`` for a run that the user ended: the session has to end with it."""
TIME_IS_UP = "the time that the load may take is up"
"""Value of ``Observation.interrupted`` where ``LoadPlan.most_s`` ended the load."""
BUDGET_SPENT = "the error budget cannot be kept any more"
"""Beginning of ``Observation.interrupted`` where more requests failed than the test allows."""
BEHIND_SCHEDULE = "behind its schedule"
"""Part of ``Observation.interrupted`` where the generator gave up a schedule that it could not keep."""
READ_STAMPS = "user space, at the read"
"""Value of ``SelfCheck.stamp_source`` where the kernel gives no instants."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What the load generator reports about itself. ``None``: not measured.

    Lag of a send is dispatched - scheduled: how late we were against our own schedule.
    """

    send_lag_p50_ns: int | None = None
    send_lag_p99_ns: int | None = None
    send_lag_max_ns: int | None = None
    send_lag_first_tenth_p50_ns: int | None = None
    """Median lag of the first tenth of the sends, and below of the last: a growing lag means that we fell
    behind."""
    send_lag_last_tenth_p50_ns: int | None = None
    loop_lag_p99_ns: int | None = None
    loop_lag_max_ns: int | None = None
    cpu_share: float | None = None
    """CPU time of the measuring process / wall time; 1.0 is one core."""
    reads: int = 0
    content_chunks: int = 0
    coalesced_chunks: int = 0
    """Number of content chunks that shared a read with an earlier one of the same reply."""
    connections_prewarmed: int = 0
    connections_opened: int = 0
    """Number of connections opened while load was running."""
    stale_retries: int = 0
    gc_collections: int = 0
    peak_in_flight: int = 0
    clock: str = "CLOCK_MONOTONIC"
    clock_resolution_ns: int | None = None
    stamp_source: str = READ_STAMPS
    event_loop: str = ""
    transport: str = ""
    voluntary_switches: int | None = None
    """How often the measuring process gave up its core (to wait) while load was running."""
    involuntary_switches: int | None = None
    """How often it was taken off its core, since something else wanted it."""
    unstamped_reads: int = 0
    """Number of reads that were stamped at the read, since the kernel was asked for a stamp and gave none."""
    distrusted_stamps: int = 0
    """Number of reads that were stamped at the read, since the kernel's stamp could not be true."""
    moved_stamps: int = 0
    """Number of stamps earlier than the instant that must precede them; they were given that instant."""
    clock_steps: int = 0
    """Number of steps of the wall clock, by which the kernel stamps."""
    waited_for_core_share: float | None = None
    """Share of the time in which the measuring thread was ready to run while something else had the core."""
    stolen_share: float | None = None
    """Share of this machine's CPU time that its hypervisor gave to others."""
    unresolved_chunks: int = 0
    """Number of coalesced chunks that arrived together only because they were read late."""
    replacement_lag_p50_ns: int | None = None
    """How long a slot of a closed loop stood empty between the end of a request and the next, in nanoseconds;
    the median."""
    replacement_lag_p99_ns: int | None = None
    replacement_lag_max_ns: int | None = None
    empty_slot_share: float | None = None
    """Share of the time of all slots of a closed loop in which they stood empty."""
    priority: str = ""
    """The priority of the measuring process: ``nice -10``, or why it could not be raised."""

    @classmethod
    def together(cls, checks: Sequence[SelfCheck]) -> SelfCheck:
        """Those of several processes or stretches as one, so that a bad one is not lost among good ones: the
        worst of each time, share and peak, the sum of each count, and all words that differ."""
        found: dict[str, Any] = {}
        for name in (each.name for each in fields(cls)):
            known = [value for check in checks if (value := getattr(check, name)) is not None]
            if not known:
                found[name] = None
            elif isinstance(known[0], str):
                found[name] = "; ".join(dict.fromkeys(filter(None, known)))
            else:
                worst = name.endswith(("_ns", "_share")) or name == "peak_in_flight"
                found[name] = max(known) if worst else sum(known)
        return cls(**found)

    @property
    def stamped_by_reading(self) -> bool:
        """Whether instants are those of our own reads, and late by their delay."""
        return READ_STAMPS in self.stamp_source


def named_values(text: str, known: Sequence[str], what: str) -> dict[str, str]:
    """The values of an option ``NAME=VALUE,NAME=VALUE`` as they are written, by name.

    :raises ValueError: every name that is none of ``known``, or that comes twice.
    """
    found: dict[str, str] = {}
    mistakes = []
    for name, _, value in (part.strip().partition("=") for part in text.split(",")):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"give some of {', '.join(known)} as NAME=VALUE"
            mistakes.append(f"{shown(name)} is not a {what}; {hint}")
        elif name in found:
            mistakes.append(f"{name} is given twice")
        found[name] = value.strip()
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return found


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How far the generator's own host may fall short before a load says nothing about the system."""

    send_lag_ns: int = 10_000_000
    """P99 of the send lag may reach max(this, 0.1 / rate), in nanoseconds. A load with later sends is no open
    loop (AMB-28)."""
    rate_share: float = 0.95
    """The least share of the scheduled rate at which requests have to leave."""
    latency_ms: float = 2.0
    """A latency may be uncertain by max(this many ms, a tenth of it)."""
    empty_slot_share: float = 0.05
    """Largest share of the time of a closed loop's slots in which they may stand empty because of us. As much
    as an open loop may lack of its rate."""
    buffered_share: float = 0.5
    """Largest share of the replies that may arrive all at once: chunks that are read late come together
    too."""

    @classmethod
    def parse(cls, text: str) -> HostLimits:
        """Limits from ``NAME=VALUE,NAME=VALUE``, by the names and in the units of the fields.

        :raises ValueError: names that are none, or values that are no number from 0 on.
        """
        usual = cls()
        kinds = {each.name: type(getattr(usual, each.name)) for each in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in named_values(text, tuple(kinds), "limit").items():
            try:
                given[name] = kinds[name](float(value))
            except (ValueError, OverflowError):
                given[name] = -1
        if wrong := [f"{name} takes a number from 0 on" for name, value in given.items() if not value >= 0]:
            raise ValueError("; ".join(wrong))
        return cls(**given)

    @property
    def loosened(self) -> tuple[str, ...]:
        """The limits that are looser than usual, in words; empty if none is."""
        usual, found = HostLimits(), []
        for name in (each.name for each in fields(self)):
            own, limit = getattr(self, name), getattr(usual, name)
            held = own >= limit if name == "rate_share" else own <= limit  # False for a limit that is NaN
            found += [] if held else [f"{name} {trimmed(own)}, usually {trimmed(limit)}"]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class AdapterCall:
    """A call that loads or unloads an adapter while load is running."""

    kind: Literal["load", "unload"]
    adapter: str
    at_ns: int
    """When it was sent, on the clock of the records."""
    took_ns: int
    """How long it took until its answer ended."""
    problem: str = ""
    """Why it failed, in words; empty if it did not."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to a LoadPlan."""

    plan: LoadPlan
    records: Records
    started_ns: int
    """Start of the schedule, on the monotonic clock."""
    ended_ns: int
    """End of the last response, after the drain."""
    anchor: ClockAnchor
    selfcheck: SelfCheck = field(default_factory=SelfCheck)
    in_flight_at_end: int = 0
    interrupted: str | None = None
    """Why the plan was cut short (Ctrl-C, a system that stopped answering), which makes it void; None if it
    was not."""
    sequence_sha256: str = ""
    """Digest of the planned requests, in appendix A.1.4's format."""
    facts: Facts = field(default_factory=Facts)
    """Facts seen on the wire: protocol, prompt form, dialect; and those of the SUT variant, if any."""
    in_flight_at_start: int = 0
    engine: EngineReadings | None = None
    """The serving engine's own metrics during the run; None without a metrics page."""
    telemetry: Telemetry | None = None
    """What the machine of the system told during the run; None where nobody asked it."""
    load_ended_ns: int | None = None
    """End of a load with a duration: the end of that, or the last submission if later; then the load drains.
    None without a duration."""
    shared_from: str | None = None
    """Node id of the test that ran this load, when the present test only uses it."""
    stopped: str | None = None
    """Why the load was ended early by its own rule (``stop_when_failing``, ``may_break``, ``looks``): it
    counts. None if it was not."""
    host_limits: HostLimits = field(default_factory=HostLimits)
    """The limits that the generator's host was held to."""
    at_stake: tuple[Objective, ...] = ()
    """The limits that what the test makes of this load depends on; empty where it is more than limits, or not
    known. Tests that share the load have limits of their own."""
    declined: str | None = None
    """Why the load was not sent, as a further run was not wanted: it is no run of the test. None if it
    was."""
    adapter_calls: tuple[AdapterCall, ...] = ()
    """The calls of ``plan.beside``, in the order in which they were sent."""

    @property
    def duration_s(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e9
