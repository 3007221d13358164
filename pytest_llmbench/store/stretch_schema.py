"""The part of ``report.json`` about single stretches of load and the levels of a test."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_llmbench.store.shape import Instant, Metric, Shape


class SelfCheckEntry(Shape):
    """The load generator as a witness against itself. Over several stretches: worst lag, summed counts."""

    send_lag_p50_ns: int | None
    send_lag_p99_ns: int | None
    send_lag_max_ns: int | None
    send_lag_first_tenth_p50_ns: int | None
    send_lag_last_tenth_p50_ns: int | None
    loop_lag_p99_ns: int | None
    loop_lag_max_ns: int | None
    cpu_share: float | None
    reads: int
    content_chunks: int
    coalesced_chunks: int
    connections_prewarmed: int
    connections_opened: int
    stale_retries: int
    gc_collections: int
    peak_in_flight: int
    clock: str
    clock_resolution_ns: int | None
    stamp_source: str
    event_loop: str
    transport: str
    voluntary_switches: int | None = None
    """Context switches of the measuring process: it waited. ``null``: not counted."""
    involuntary_switches: int | None = None
    """It was taken off its core."""
    unstamped_reads: int = 0
    """Reads that the kernel should have stamped and did not."""
    distrusted_stamps: int = 0
    """Reads whose kernel stamp could not be true."""
    moved_stamps: int = 0
    """Stamps moved to what came before them."""
    clock_steps: int = 0
    """Steps of the wall clock."""
    waited_for_core_share: float | None = None
    """Share of the time in which the measuring thread was ready and something else had the core."""
    stolen_share: float | None = None
    """Share of the machine's CPU time that its hypervisor gave to others."""
    unresolved_chunks: int = 0
    """Coalesced chunks that ran together because they were read late."""
    replacement_lag_p50_ns: int | None = None
    """Of a closed loop: how long a slot stood empty between the end of a request and the next."""
    replacement_lag_p99_ns: int | None = None
    replacement_lag_max_ns: int | None = None
    empty_slot_share: float | None = None
    """Of the time of all slots of a closed loop."""
    priority: str = ""
    """Of the measuring process: ``nice -10``, or why it could not be raised."""


class GaugeEntry(Shape):
    """A gauge of the serving engine while load was sent. ``null``: no sample fell into that time."""

    mean: float | None
    max: float | None
    n: int
    """Samples."""


class EngineEntry(Shape):
    """What the serving engine said about itself during a stretch."""

    source: str
    """The page, without credentials, or ``the embedded engine's model``."""
    gauges: dict[str, GaugeEntry] = Field(default={})
    """``running``, ``waiting`` (requests), ``kv_use`` (0 to 1); those that the engine serves."""
    growth: dict[str, float | None] = Field(default={})
    """By how much each counter grew; ``null`` where it fell or was read on one side only."""
    max_num_seqs: int | None = None
    """Largest batch that the engine forms, where it says so."""
    gap: str | None = None
    """Why something is missing."""


class StretchEntry(Shape):
    """One measured stretch of load."""

    label: str
    load: str
    """In words."""
    key: str
    """SHA-256 of everything that decides what is sent and when."""
    seed: int
    requests: int
    """Planned; of a closed loop with a duration the least. ``counts.submitted`` were sent."""
    started: Instant
    duration_s: float
    counts: dict[str, int]
    sequence_sha256: str
    in_flight_at_start: int
    in_flight_at_end: int
    interrupted: str | None
    selfcheck: SelfCheckEntry
    variant: str = ""
    """SUT variant on which it ran; empty for the SUT itself."""
    load_duration_s: float | None = None
    """Nominal length of the load, where the plan gives one; the drain comes on top."""
    shared_from: str | None = None
    """Node id of the test that ran it, when this test only used it."""
    stopped: str | None = None
    """Why its own rule ended the load early; what was measured counts."""
    engine: EngineEntry | None = None


class LevelEntry(Shape):
    """One load level or one configuration of a test that has several, in the order in which they ran."""

    label: str
    load_model: Literal["open", "closed"]
    duration_s: float
    """Of the offered load, ramp-up included, drain not."""
    window_s: float
    """The part of it that counts."""
    n_submitted: int
    n_ok: int
    n_failed: int
    completion_ratio: float | None
    metrics: dict[str, Metric]
    """The level's own, under plain names."""
    offered_rps: float | None = None
    concurrency: int | None = None
    percent_of_capacity: float | None = None
    variant: str = ""
    class_label: str = ""
    """Request class that ran alone; empty for all."""
    in_flight_means: list[float | None] = Field(default=[])
    """Mean requests in flight, or the server's waiting gauge, in five equal segments of the window."""
    queue_source: str = ""
    queue_growing: bool | None = None
    throughput_slices: list[float | None] = Field(default=[])
    """Output tokens per second in ten equal slices of the window."""
    steady: bool | None = None
    saturated: bool | None = None
    """By any rule of section 5.2.3.1."""
    overloaded: bool | None = None
    """By the rules about work alone: the queue grows, or completions fall short of the arrivals."""
    saturation_reasons: list[str] = Field(default=[])
    passed: bool | None = None
    """Met the criteria of the test; ``null`` where there are none."""
    fail_reasons: list[str] = Field(default=[])
    errors: dict[str, int] = Field(default={})
    role: str = ""
    """``probe``, ``reported``, ``baseline``, ``mix``, ``cold``, ``warm`` …"""
    stretch: int | None = None
    """Index into ``stretches`` of the test; ``null`` when that stretch is not kept."""
    shared_from: str | None = None
    """Node id of the test that ran it, when this test only used it."""


__all__ = ["EngineEntry", "GaugeEntry", "LevelEntry", "SelfCheckEntry", "StretchEntry"]
