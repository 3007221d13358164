"""Concurrent Request Capacity, section 5.5 of the draft.

Objective: the largest number of simultaneous requests that still meets the latency objectives; the limits of
memory and scheduler. Procedure: warm up; per level submit that many requests at once and replace each end
immediately; check the criteria; double up to the first failure, then bisect; report the highest that passes.

Of a workload of sessions the slots hold sessions: the capacity is that in sessions at once. The draft knows
requests alone, so clauses about these are not met then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Seen, with_band
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.search.level_search import (
    LEVEL_S,
    SESSIONS_PER_SLOT,
    Criteria,
    LevelsAtOnce,
    RequestLevels,
    SessionLevels,
    Tried,
    capacity_estimate,
    find_capacity,
)
from pytest_llmbench.methodology.search.probing import doubling, values_tried
from pytest_llmbench.metrics.balance import tokens_in_flight
from pytest_llmbench.metrics.kv_cache import OUT_OF_MEMORY_RULE, out_of_memory_errors
from pytest_llmbench.metrics.session_figures import jobs_of
from pytest_llmbench.metrics.throughput import level_window
from pytest_llmbench.model.draft import LEAST_COMPLETION
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import Amount, Cell, Row, cells
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import USUAL, TurnClass
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.stream import streamed

HEADING = Heading("capacity", "5.5", "Concurrent Request Capacity")


OUTPUT_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Double, then bisect, the requests in flight: the most that meet the criteria. With a workload of
    sessions, the sessions at once."""

    for_sessions = ("turn_ttft_p95_ms", "sessions_per_slot", "min_sessions")
    for_requests: ClassVar[Mapping[str, str]] = {
        "min_concurrency": "give min_sessions for a workload of sessions",
        "duration_s": "a level of sessions lasts for sessions_per_slot, with pauses",
        "output_tokens": "later turns of a session read answers of the recorded length",
    }

    ttft_p99_ms: float | None = parameter(
        "positive",
        doc="criterion: a level passes only if TTFT P99 is at most this. The draft requires a choice.",
    )
    min_completion: float = parameter(
        "share", LEAST_COMPLETION, doc="criterion: least share of requests that complete."
    )
    initial: int = parameter("count", 8, doc="requests in flight at the first level.")
    maximum: int = parameter("count", 512, doc="upper bound of the search; a quick run stops at 64.")
    output_tokens: int = parameter(
        "count",
        OUTPUT_TOKENS,
        doc="output limit of every request, instead of the workload's own (AMB-11).",
    )
    duration_s: float | None = parameter("positive", doc="shortest duration of a level.", scale=LEVEL_S)
    min_concurrency: int | None = limit("max_concurrency", "count")
    min_output_tok_s: float | None = limit("output_token_throughput")
    turn_ttft_p95_ms: Mapping[int | str, float] | None = parameter(
        "positive_by_turn",
        doc='with sessions: criterion on TTFT P95 by turn number, ``{1: 500, "2+": 300}``.',
    )
    sessions_per_slot: int | None = parameter(
        "count",
        doc="with sessions: sessions that a level sends per session in flight.",
        scale=SESSIONS_PER_SLOT,
    )
    min_sessions: int | None = limit(
        "max_sessions",
        "count",
        doc="with sessions: least capacity in sessions, as ``min_concurrency`` is in requests.",
    )

    def contradictions(self) -> list[str]:
        found = [
            f"{name} {least} can never pass: maximum is {self.maximum}"
            for name in ("min_concurrency", "min_sessions")
            if (least := getattr(self, name)) is not None and least > self.maximum
        ]
        if self.initial > self.maximum:
            found.insert(0, f"initial must not be above maximum, got {self.initial} and {self.maximum}")
        return found

    @property
    def criteria(self) -> Criteria:
        by_turn = (self.turn_ttft_p95_ms or {}).items()
        turns = {TurnClass.parse(key): limit for key, limit in by_turn}
        return Criteria(self.ttft_p99_ms, self.min_completion, turns)


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    levels = _levels(parameters, setting)
    found, sessions = (yield from find_capacity(levels)), levels.of_sessions
    report = Report(
        levels=found.runs,
        metrics=_metrics("max_sessions" if sessions else "max_concurrency", found),
        tables=(_sessions_table(parameters, found.levels) if sessions else search_table(found.levels),),
        plots=capacity_plots(
            found, parameters.ttft_p99_ms, "sessions at once" if sessions else "requests in flight"
        ),
        notes=_notes(parameters, found, sessions=sessions),
        load=_load_facts(parameters, setting, found, sessions=sessions),
        budgeted=found.levels[-1:] if found.best is None else (found.best,),
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _levels(parameters: Parameters, setting: Setting) -> LevelsAtOnce:
    usual: dict[str, Any] = {
        "setting": setting,
        "criteria": parameters.criteria,
        "initial": parameters.initial,
        "maximum": parameters.maximum,
    }
    if _has_sessions(setting):
        return SessionLevels(**usual, per_slot=parameters.sessions_per_slot)
    sequence = RequestSlice(setting.workload)
    return RequestLevels(**usual, sequence=sequence, duration_s=parameters.duration_s)


def _has_sessions(setting: Setting) -> bool:
    return streamed(setting.workload).unit == "session"


def _metrics(name: str, found: Tried) -> dict[str, Estimate]:
    """The metrics of the highest level that passed, under plain names. ``name``: the metric of the capacity
    itself."""
    metrics = {name: capacity_estimate(found)}
    if found.best is not None:
        window = level_window(found.best.observation)
        metrics |= dict(found.best.level.metrics)
        metrics["tokens_in_flight"] = tokens_in_flight(window)
    return metrics


def _notes(parameters: Parameters, found: Tried, *, sessions: bool) -> tuple[Note, ...]:
    of_sessions = (Note.of("most_sessions", most=found.passed), Note.of("capacity_of_sessions"))
    notes = [*(of_sessions if sessions else (Note.of("most_requests", most=found.passed),)), *found.notes]
    if not (parameters.ttft_p99_ms or parameters.turn_ttft_p95_ms):
        notes.append(Note.of("no_threshold"))
    if sessions:
        return tuple(notes)
    # Equal work per request is what the fixed limit is for (section 5.5.2).
    counts = [seen.records.output_tokens[seen.records.ok] for seen in found.levels]
    known = np.concatenate([column[column != MISSING] for column in counts])
    if len(known):
        low, high = (float(length) for length in np.percentile(known, (5, 95)))
        notes.append(Note.of("realised_lengths", low=low, high=high, asked=parameters.output_tokens))
    return tuple(notes)


def _load_facts(parameters: Parameters, setting: Setting, found: Tried, *, sessions: bool) -> dict[str, Any]:
    slo: dict[str, Any] = {"min_completion": parameters.min_completion}
    if parameters.ttft_p99_ms is not None:
        slo["ttft_p99_ms"] = parameters.ttft_p99_ms
    if parameters.turn_ttft_p95_ms is not None:
        slo["turn_ttft_p95_ms"] = {str(key): limit for key, limit in parameters.turn_ttft_p95_ms.items()}
    facts: dict[str, Any] = {
        LoadFact.MODEL: "closed",
        LoadFact.SLO: slo,
        LoadFact.OUT_OF_MEMORY_RULE: OUT_OF_MEMORY_RULE,
        LoadFact.OUT_OF_MEMORY_ERRORS: [out_of_memory_errors(seen.records) for seen in found.levels],
    }
    tested = [parameters.initial, parameters.maximum, 1]
    if sessions:
        return {**facts, LoadFact.SESSIONS_RANGE: tested}
    return {
        **facts,
        LoadFact.CONCURRENCY_RANGE: tested,
        LoadFact.DURATION_S: LEVEL_S.at(setting.scale, parameters.duration_s),
        LoadFact.OUTPUT_TOKENS: parameters.output_tokens,
    }


def _fixed(parameters: Parameters, setting: Setting) -> Setting:
    """The setting in which requests of warm-up and levels have the same output limit."""
    if _has_sessions(setting):
        return setting
    return replace(setting, workload=WithFixedOutput(setting.workload, parameters.output_tokens))


_measured = framed(HEADING, measure)


def procedure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    return _measured(parameters, _fixed(parameters, setting))


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans of the worst case: doubling to the maximum, which fails, and a bisection that fails only at
    its end. Of sessions those at both ends."""
    levels = _levels(parameters, _fixed(parameters, setting))
    first, ceiling = levels.first, levels.ceiling
    if levels.of_sessions:
        return tuple(map(levels.plan, dict.fromkeys((first, ceiling))))
    return tuple(
        map(levels.plan, values_tried(doubling(first, ceiling), ceiling - 1 if first < ceiling else ceiling))
    )


def search_table(levels: Sequence[Seen]) -> Table:
    """Table 7: every tested concurrency, in the order run."""
    columns = ("Concurrency", "Completion", "TTFT P99", "TPOT P99", "Errors", "Status", "Reason")
    rows: tuple[Row, ...] = tuple(
        (
            seen.level.concurrency or 0,
            Amount(seen.level.completion_ratio, "ratio"),
            *cells(seen.level.metrics, ("ttft.p99", "tpot.p99")),
            *_judged(seen),
        )
        for seen in levels
    )
    return Table("capacity_search", "Capacity Search Results", columns, rows)


def _judged(seen: Seen) -> tuple[Cell, ...]:
    level = seen.level
    return level.n_failed, "Pass" if level.passed else "Fail", "; ".join(level.fail_reasons)


def _sessions_table(parameters: Parameters, levels: Sequence[Seen]) -> Table:
    """A table of every tested number of sessions, in the order run."""
    classes = tuple(dict.fromkeys((*USUAL, *parameters.criteria.turn_ttft_p95_ms)))
    shown = ("ttft.p99", *(f"turn_ttft[{each}].p95" for each in classes))
    rows: list[Row] = []
    for seen in levels:
        jobs = jobs_of(seen.records)
        ended = f"{len(jobs) - jobs.cut_off} of {len(jobs)}"
        rows.append((slots_of(seen), ended, *cells(seen.level.metrics, shown), *_judged(seen)))
    by_turn = (f"TTFT P95, turn {each}" for each in classes)
    columns = ("Sessions", "Completed", "TTFT P99", *by_turn, "Errors", "Status", "Reason")
    return Table("session_capacity_search", "Capacity Search Results in Sessions", columns, tuple(rows))


def slots_of(seen: Seen) -> int:
    """The sessions at once for a level of sessions; else the requests in flight."""
    return seen.observation.plan.load.in_flight or 0


def capacity_plots(found: Tried, threshold_ms: float | None, x_label: str) -> tuple[Plot, ...]:
    """Plots of TTFT P99 and completion over the concurrency."""
    marks = {} if found.passed is None else {"maximum": float(found.passed)}
    ascending, drawn = sorted(found.levels, key=slots_of), []
    for metric, plot_id, title, y_label, threshold in (
        ("ttft.p99", "capacity_ttft", "TTFT P99 over Concurrency", "TTFT P99 (ms)", threshold_ms),
        ("completion_rate", "capacity_completion", "Completion over Concurrency",
         "share of requests completed", None),
    ):  # fmt: skip
        by_slots = [(float(slots_of(seen)), seen.level.metrics[metric]) for seen in ascending]
        name = y_label.partition(" (")[0]
        series, bands = with_band(name, by_slots)
        if not series:
            continue
        if threshold is not None:
            x, _ = series[name]
            series["threshold"] = ((x[0], x[-1]), (threshold, threshold))
        drawn.append(Plot(plot_id, title, x_label, y_label, series, bands=bands, marks=marks, x_log=True))
    return tuple(drawn)


TEST = TestDefinition(*HEADING, Parameters, procedure, plans)
