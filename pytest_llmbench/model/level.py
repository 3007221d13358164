"""One load level, or one configuration, of a test that has several: what was offered and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_llmbench.model.estimate import Estimate

BURST, PROBE = "burst", "probe"
"""Roles of the levels of a search. A burst is a rough estimate ahead of it: no level of the test, and no rule
for levels binds it."""
CHARACTERISATION = "characterisation"
"""Role of a short run that only shows how the streams are cut into chunks."""
NOT_OFFERED = " (not offered)"
"""Ends the role of a level whose sends fell behind its schedule: it says nothing about the SUT."""
GIVEN_UP = " (given up)"
"""Ends the role of a level that was to be reported and did not hold."""


@dataclass(frozen=True, slots=True)
class Level:
    """A row of a sweep or a search, in the words of the evidence vocabulary (requirements.yaml).

    ``metrics`` holds the level's own estimates under plain names (``ttft.p99``, ``output_token_throughput``).
    The window is the part of the duration that counts: the first tenth is ramp-up (AMB-16).
    """

    label: str
    """Names the level within its test: ``80%``, ``20 req/s``, ``64 in flight``, ``cache cold``."""
    load_model: str
    """``open`` or ``closed``."""
    duration_s: float
    """The duration of the offered load, ramp-up included, drain not."""
    window_s: float
    n_submitted: int
    """The requests submitted over the whole level; so are the next two."""
    n_ok: int
    n_failed: int
    completion_ratio: float | None
    """ok / submitted, over the whole level."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    offered_rps: float | None = None
    concurrency: int | None = None
    percent_of_capacity: float | None = None
    variant: str = ""
    """SUT variant on which it ran; empty for the SUT itself."""
    class_label: str = ""
    """Request class that ran alone; empty for all."""
    in_flight_means: tuple[float, ...] = ()
    """Mean requests in flight (or the server's waiting gauge) in five equal segments of the window."""
    queue_source: str = ""
    """``requests in flight`` or ``server waiting gauge``."""
    queue_growing: bool | None = None
    throughput_slices: tuple[float, ...] = ()
    """Output tokens per second in ten equal slices of the window."""
    steady: bool | None = None
    """Queue not growing and throughput level; None where that cannot be said."""
    saturated: bool | None = None
    """Whether the level is saturated by any rule of section 5.2.3.1."""
    overloaded: bool | None = None
    """Whether the level is overloaded by the rules about work alone: the queue grows, or completions fall
    short of the arrivals. The ten-fold rule, which is about latency, is not among them."""
    saturation_reasons: tuple[str, ...] = ()
    passed: bool | None = None
    """Met the criteria of the test (service-level objectives, completion …); None where there are none."""
    fail_reasons: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    """Outcome → count, for outcomes other than ok."""
    role: str = ""
    """What the level is in its test: ``probe``, ``reported``, ``baseline``, ``mix``, ``cold``, ``warm`` …"""
    observation: int | None = None
    """Index into the result's observations; None when the observation is not kept."""
    shared_from: str | None = None
    """Node id of the test that ran it, when this test only used it."""
