"""From the observations of a test to the entries about its stretches and levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_llmbench.model.engine_readings import EngineReadings
from pytest_llmbench.model.level import Level
from pytest_llmbench.model.observation import Observation, SelfCheck
from pytest_llmbench.model.outcome import Outcome, Phase
from pytest_llmbench.model.records import PHASES
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import without_credentials
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.plain import plain_number, plain_object
from pytest_llmbench.store.stretch_schema import (
    EngineEntry,
    GaugeEntry,
    LevelEntry,
    SelfCheckEntry,
    StretchEntry,
)

_FIRST = ("clock", "stamp_source", "event_loop", "transport", "priority")
_SUMMED = (
    "reads",
    "content_chunks",
    "coalesced_chunks",
    "unresolved_chunks",
    "connections_prewarmed",
    "connections_opened",
    "stale_retries",
    "gc_collections",
    "voluntary_switches",
    "involuntary_switches",
    "unstamped_reads",
    "distrusted_stamps",
    "moved_stamps",
    "clock_steps",
)


def measured_runs(result: TestResult) -> list[Observation]:
    return [run for run in result.observations if run.plan.phase is Phase.MEASURE]


def outcome_counts(runs: Sequence[Observation]) -> dict[str, int]:
    """``submitted`` and the number of each outcome, zero included; measured phase only."""
    total = Counter({"submitted": 0, **{str(outcome): 0 for outcome in Outcome}})
    for run in runs:
        measured = run.records.phase == PHASES.index(Phase.MEASURE)
        total.update(run.records.select(measured).counts())
    return dict(total)


def combined_selfcheck(checks: Sequence[SelfCheck]) -> SelfCheckEntry | None:
    """Several stretches as one: the worst of each lag and share, the sum of each count."""
    if not checks:
        return None
    combined: dict[str, Any] = {}
    for name in SelfCheckEntry.model_fields:
        seen = [value for check in checks if (value := getattr(check, name)) is not None]
        if not seen:
            combined[name] = None
        elif name in _FIRST:
            combined[name] = seen[0]
        else:
            combined[name] = sum(seen) if name in _SUMMED else max(seen)
    return SelfCheckEntry.model_validate(combined)


def stretch_entry(run: Observation) -> StretchEntry:
    return StretchEntry(
        label=run.plan.label,
        load=run.plan.load.describe(),
        key=run.plan.key,
        seed=run.plan.seed,
        requests=run.plan.requests,
        started=iso_utc(run.anchor.wall(run.started_ns)),
        duration_s=run.duration_s,
        counts=outcome_counts([run]),
        sequence_sha256=run.sequence_sha256,
        in_flight_at_start=run.in_flight_at_start,
        in_flight_at_end=run.in_flight_at_end,
        interrupted=run.interrupted,
        selfcheck=SelfCheckEntry.model_validate(run.selfcheck),
        variant=run.plan.variant,
        load_duration_s=run.plan.duration_s,
        shared_from=run.shared_from,
        stopped=run.stopped,
        engine=None if run.engine is None else _engine(run.engine, run),
    )


def _engine(readings: EngineReadings, run: Observation) -> EngineEntry:
    """Gauges while load was sent, without the drain; counters over all that was read."""
    end_ns = run.ended_ns if run.load_ended_ns is None else run.load_ended_ns
    counters = dict.fromkeys([*readings.totals_before, *readings.totals_after])
    return EngineEntry(
        source=without_credentials(readings.source),
        gauges={name: _gauge(readings, name, run.started_ns, end_ns) for name in readings.gauges},
        growth={name: readings.grown(name) for name in counters},
        max_num_seqs=readings.max_num_seqs,
        gap=readings.gap,
    )


def _gauge(readings: EngineReadings, name: str, start_ns: int, end_ns: int) -> GaugeEntry:
    seen = readings.gauge(name, start_ns, end_ns)
    if seen is None or not len(seen[1]):
        return GaugeEntry(mean=None, max=None, n=0)
    values = seen[1]
    with np.errstate(over="ignore"):  # of what an engine may claim, the sum may be no number
        mean = plain_number(values.mean())
    return GaugeEntry(mean=mean, max=float(values.max()), n=len(values))


def level_entries(result: TestResult) -> list[LevelEntry]:
    """The levels, each with the place of its stretch among those that the report keeps."""
    kept = [i for i, run in enumerate(result.observations) if run.plan.phase is Phase.MEASURE]
    return [_level(level, {index: place for place, index in enumerate(kept)}) for level in result.levels]


def _level(level: Level, places: Mapping[int, int]) -> LevelEntry:
    values = plain_object(level)
    observation = values.pop("observation")
    stretch = places.get(observation) if isinstance(observation, int) else None
    return LevelEntry.model_validate(values | {"stretch": stretch})


__all__ = [
    "combined_selfcheck",
    "level_entries",
    "measured_runs",
    "outcome_counts",
    "stretch_entry",
]
