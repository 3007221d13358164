"""Scheduling fairness between classes: what those of requests and those of sessions have in common, and the
ones of sessions, short chats beside agents that go on for long.

The classes are the parts of a mix of session workloads. Each is measured alone, with as many sessions at once
as the mix has; then the mix. The unit of every figure is the session (metrics/session_figures.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from pytest_llmbench.methodology.measuring.frame import Report
from pytest_llmbench.methodology.measuring.levels import FAMILIES, Seen, by_session, level_of, qualified
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.metrics.fairness import (
    class_jain_index,
    mean_ttft_ms,
    session_jain_index,
    starved_sessions,
    ttft_inflation,
    turn_waits,
)
from pytest_llmbench.metrics.session_figures import job_metrics, jobs_of, latencies
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, LoadFact, Origin, ResultFact
from pytest_llmbench.model.numbers import Cell, Row, cells
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.counted import ecdf
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.workloads.mixture import SessionMix
from pytest_llmbench.workloads.sessions import turns_of

SESSIONS_PER_CLASS = ByScale(quick=5, standard=100, full=500)
ONE_CLASS = (
    "workload has one class of sessions: fairness needs at least two, for example "
    '{"chat": ("session:chat", 0.8), "agent": ({"sessions": {…}}, 0.2)}'
)
_IN_TABLES = ("p50", "p95", "p99")
_TIMED = (*(f"ttft.{q}" for q in _IN_TABLES), "tpot.p50", "job_time.p50")
_JOBS = ("job_time", "job_llm_time")


@dataclass(frozen=True)
class SessionClasses:
    """The classes of sessions to be measured, and the loads for it."""

    setting: Setting
    mix: SessionMix
    at_once: int
    """Number of sessions at once, in the mix and for each class alone."""
    per_class: int | None
    """Fewest sessions of each class that were asked for; None: the default of the scale."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.mix.parts)

    def alone(self, name: str, attempt: int = 1) -> LoadPlan:
        return self._plan(f"{name} alone", self.mix.isolated(name), (name,), attempt)

    def mixed(self, attempt: int = 1) -> LoadPlan:
        return self._plan("mix of classes", self.mix, self.names, attempt)

    @property
    def plans(self) -> tuple[LoadPlan, ...]:
        return (*(self.alone(name) for name in self.names), self.mixed())

    def _plan(self, label: str, workload: SessionMix, names: Sequence[str], attempt: int) -> LoadPlan:
        setting, fewest = self.setting, SESSIONS_PER_CLASS.count(self.setting.scale, self.per_class)
        asked = {"sessions": self.at_once, "per_class": fewest, "attempt": attempt}
        part = part_of(setting, workload, label, **asked)
        sessions = sessions_for(workload, part.seed, names, fewest) + self.at_once
        turns, load = turns_of(workload, sessions, part.seed), ClosedLoop(self.at_once, of_sessions=True)
        return part.plan(setting, label, load, turns, workload=workload)

    def measured(self, name: str | None) -> Procedure[Attempts]:
        """Measure a class alone, or with None the mix; again with other sessions if this machine spoiled
        it."""
        attempts = count(1)

        def plan() -> LoadPlan:
            return self.mixed(next(attempts)) if name is None else self.alone(name, next(attempts))

        def see(run: Observation) -> Seen:
            role, label = ("mix", "mix") if name is None else ("baseline", f"{name} alone")
            level = level_of(run, seed=self.setting.seed, label=label, role=role, class_label=name or "")
            return by_session(level)

        return (yield from attempted(plan, see, self.setting.remeasure, needed=True))


def fairness_of_sessions(load: SessionClasses) -> Procedure[Report]:
    """Measure each class alone, then the mix, and compare them."""
    attempts = {}
    for name in load.names:
        attempts[name] = yield from load.measured(name)
    mixed = yield from load.measured(None)
    alone = {name: each.level for name, each in attempts.items()}
    results = _compared_sessions(mixed.level, alone, load.setting.seed)
    every = [*attempts.values(), mixed]
    facts = {
        ResultFact.FAIRNESS_SESSION_CLASSES: [each.facts for each in results.classes],
        ResultFact.FAIRNESS_WAIT_SOURCE: results.wait_source,
    }
    notes = (
        Note.of("fairness_of_sessions", at_once=load.at_once),
        Note.of("starved_session", wait=results.wait_source),
    )
    return Report(
        levels=[run for each in every for run in each.runs],
        metrics=results.metrics,
        tables=(
            _by_class_table(results.classes),
            _indices_table(results),
            _baselines_table(results.classes),
        ),
        plots=results.plots,
        notes=[*(note for each in every for note in each.notes), *notes],
        load={LoadFact.MODEL: "closed", LoadFact.SESSIONS: load.at_once},
        facts=Facts.of(Origin.MEASURED, facts),
        budgeted=[each.level for each in every],
    )


def sessions_for(mix: SessionMix, seed: int, names: Sequence[str], fewest: int) -> int:
    """How many sessions of the mix it takes to have ``fewest`` of every class."""
    counted: Counter[str] = Counter()
    missing = set(names)
    for number, name in enumerate(mix.drawn(seed), start=1):
        counted[name] += 1
        if counted[name] >= fewest:
            missing.discard(name)
        if not missing:
            return number
    raise AssertionError("sessions are drawn without end")


@dataclass(frozen=True)
class ComparedClass:
    """One class, with its records submitted in the window of the mix."""

    name: str
    mixed: Records
    alone_level: Seen
    metrics: Mapping[str, Estimate]
    """The metrics of the class in the mix, under plain names, with ``ttft_inflation`` and
    ``starvation_rate``."""
    alone_metrics: Mapping[str, Estimate]
    facts: Mapping[str, Any]
    """The facts that the audit reads."""

    @cached_property
    def alone(self) -> Records:
        return self.alone_level.inside

    @property
    def title(self) -> str:
        return self.name[:1].upper() + self.name[1:]


@dataclass(frozen=True)
class Fairness:
    """The results of the mix and of the classes alone."""

    mixed: Seen
    classes: Sequence[ComparedClass]
    wait_source: str
    metrics: Mapping[str, Estimate]
    """The metrics of the test: indices, those of the mix, and those of every class under its qualifier."""
    plots: tuple[Plot, ...]

    @classmethod
    def of(
        cls,
        mixed: Seen,
        classes: Sequence[ComparedClass],
        wait_source: str,
        jain: Estimate,
        ttft_ms: Callable[[Records], FloatArray],
        plot: tuple[str, str, str, str],
        seed: int,
    ) -> Fairness:
        """``jain``: the index over requests or sessions. ``ttft_ms``: a TTFT for each of them, which is
        plotted. ``plot``: id, title and labels."""
        arms = {
            (each.name, arm): ttft_ms(records)
            for each in classes
            for arm, records in (("mix", each.mixed), ("alone", each.alone))
        }
        mix, alone = ({each.name: [arms[each.name, arm]] for each in classes} for arm in ("mix", "alone"))
        metrics = {**mixed.level.metrics, "jain_index": jain}
        metrics["class_jain_index"] = class_jain_index(mix, alone, seed=seed)
        for each in classes:
            metrics |= qualified(each.metrics, each.name)
            metrics |= qualified(each.alone_metrics, f"{each.name} alone")
        series = {f"{name}, {arm}": ecdf(each) for (name, arm), each in arms.items() if len(each)}
        plots = (Plot(*plot, series, step=True, x_log=True),) if series else ()
        return cls(mixed, classes, wait_source, metrics, plots)


def _session_class(name: str, mixed: Seen, alone: Seen, waits: FloatArray) -> ComparedClass:
    """``waits``: one for each turn of the class in the window of the mix."""
    inside, whole = mixed.inside.of_class(name), mixed.records.of_class(name)  # jobs are judged as a whole
    metrics = _latencies(inside) | _of_jobs(whole) | ttft_inflation(inside, alone.inside)
    metrics["starvation_rate"] = starved_sessions(inside, waits)
    facts = {
        "name": name,
        "sessions": len(jobs_of(whole)),
        "sessions_alone": len(jobs_of(alone.records)),
        "turns": len(whole),
    }
    alone_metrics = _latencies(alone.inside) | _of_jobs(alone.records)
    return ComparedClass(name, inside, alone, metrics, alone_metrics, facts)


def _latencies(records: Records) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for family in FAMILIES:
        found |= latencies([records], family, None)
    return found


def _of_jobs(records: Records) -> dict[str, Estimate]:
    found = job_metrics([jobs_of(records)])
    wanted = (*_JOBS, "session_completion_rate")
    return {name: each for name, each in found.items() if name.partition(".")[0] in wanted}


def _compared_sessions(mixed: Seen, alone: Mapping[str, Seen], seed: int) -> Fairness:
    inside = mixed.inside
    waits, labels = turn_waits(inside), np.array(inside.class_label, dtype=object)
    classes = [_session_class(name, mixed, level, waits.ms[labels == name]) for name, level in alone.items()]
    plot = (
        "session_fairness_ttft", "Mean TTFT of a session by class, in the mix and alone",
        "mean TTFT of a session (ms)", "share of sessions",
    )  # fmt: skip
    return Fairness.of(mixed, classes, waits.source, session_jain_index(inside), mean_ttft_ms, plot, seed)


def _by_class_table(classes: Sequence[ComparedClass]) -> Table:
    columns = (
        "Class", "Sessions", "Completed", "Turns", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50",
        "Job Time P50", "TTFT Inflation P50", "P95", "P99",
    )  # fmt: skip
    rows: tuple[Row, ...] = tuple(
        (
            each.title,
            each.facts["sessions"],
            *cells(each.metrics, ("session_completion_rate",)),
            len(each.mixed),
            *cells(each.metrics, (*_TIMED, *(f"ttft_inflation.{q}" for q in _IN_TABLES))),
        )
        for each in classes
    )
    return Table("session_fairness_classes", "Per-Class Results of Sessions", columns, rows)


def _indices_table(results: Fairness) -> Table:
    jain, by_class = cells(results.metrics, ("jain_index", "class_jain_index"))
    rows: list[tuple[str, Cell]] = [
        ("Jain's Fairness Index over sessions", jain),
        ("Class-Level Fairness Index", by_class),
    ]
    for each in results.classes:
        starved, inflated = cells(each.metrics, ("starvation_rate", "ttft_inflation.p50"))
        rows += [
            (f"{each.title} Sessions Starved", starved),
            (f"{each.title} TTFT Inflation P50", inflated),
        ]
    return metric_table("session_fairness_metrics", "Fairness Metrics of Sessions", rows)


def _baselines_table(classes: Sequence[ComparedClass]) -> Table:
    columns = (
        "Class Alone", "Sessions", "Turns", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "Job Time P50",
    )  # fmt: skip
    rows: tuple[Row, ...] = tuple(
        (
            each.title,
            each.facts["sessions_alone"],
            len(each.alone),
            *cells(each.alone_metrics, _TIMED),
        )
        for each in classes
    )
    return Table("session_fairness_baselines", "Isolated Baselines of Sessions", columns, rows)
