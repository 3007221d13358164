"""``--llm-calibrate``: A/A on one system, and what later sessions say about their limits in view of it.

The spread of a load on a system is that between its runs, or that between saved sessions. By it one run of a
job decides nearer limits than by an assumed spread.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmbench.compare.comparability import IF_KNOWN, REQUIRED, fields_of, made_otherwise, matched
from pytest_llmbench.compare.limits import (
    RUNS_SHOWN,
    Noise,
    is_shown,
    noise_of,
    tight_limits,
    tight_margins,
)
from pytest_llmbench.compare.regression import better_of
from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.harness.comparison.identity import made_by
from pytest_llmbench.harness.comparison.replication import MeasurementRequest
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.metrics.definitions import is_metric, metric_unit
from pytest_llmbench.model.estimate import COUNTED_BY, ITL_METHOD, ByRun, SavedSpread
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import NOT_KNOWN, Amount, Cell, interval, percentage, quantity
from pytest_llmbench.model.result import Table, TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.store.baselines import (
    Calibration,
    NoiseEntry,
    calibration_path,
    read_baseline,
    read_calibration,
    recent_baselines,
    write_calibration,
)
from pytest_llmbench.store.files import machine_folders, machine_id
from pytest_llmbench.store.limit_files import write_limits
from pytest_llmbench.store.schema import iso_utc


@dataclass(frozen=True)
class Calibrations:
    """Keeps and applies the calibrations of a session."""

    settings: Settings

    def calibrated(self, request: MeasurementRequest, result: TestResult, by_run: ByRun) -> TestResult:
        """The result with the noise found between its runs, which is kept for later sessions."""
        shown = [*filter(is_shown, by_run), *(objective.metric for objective in result.objectives)]
        of_job = request.parameters.is_job
        noise = {
            metric: own
            for metric in dict.fromkeys((*shown, *(filter(is_metric, by_run) if of_job else ())))
            if (better := better_of(metric)) is not None
            and (own := noise_of(metric, metric_unit(metric), better, by_run.get(metric, ()), of_job=of_job))
            is not None
        }
        told = [own for metric, own in noise.items() if metric in shown]
        runs = max((len(values) for values in by_run.values()), default=0)
        identity = request.of_what() | made_by(result)
        kept = noise and not any(run.interrupted for run in result.observations)
        notes = [Note.of("calibration_not_saved")]
        if kept:
            notes = [self._saved(request.nodeid, identity, runs, noise)]
        if kept and request.parameters.limits_file is not None:
            path, test = Path(str(request.parameters.limits_file)), request.nodeid.partition("::")[2]
            place = self.settings.place.partition(",")[0].strip()
            try:
                written, left = write_limits(path, test, {own.metric: own.proposed for own in told}, place)
            except (SuiteError, StoreError) as error:
                notes.append(Note.of("limits_not_written", path=str(path), error=str(error)))
            else:
                names = {"metrics": tuple(written), "left": tuple(left)}
                notes.append(Note.of("limits_written", path=str(path), **names))
        if result.objectives:
            notes.append(Note.of("limits_not_judged"))
            if not request.parameters.is_job:
                notes.append(Note.of("proposed_of_samples"))
        return replace(
            result,
            tables=(*result.tables, *([table(told)] if told else [])),
            findings=(*result.findings, *tight_limits(result.objectives, noise)),
            objectives=(),
            notes=(*notes, *result.notes),
        )

    def _saved(self, nodeid: str, identity: Mapping[str, Any], runs: int, noise: Mapping[str, Noise]) -> Note:
        path = self._path(identity)
        kept = ("unit", "better", "runs", "mean_log", "spread_log", "proposed")
        calibration = Calibration(
            saved=iso_utc(time.time_ns()),
            generator_version=version("pytest-llmbench"),
            machine=machine_id(),
            nodeid=nodeid,
            identity=dict(identity),
            runs=runs,
            noise={
                name: NoiseEntry(
                    **{each: getattr(own, each) for each in kept}, false_alarms=own.false_alarms(own.proposed)
                )
                for name, own in noise.items()
            },
        )
        try:
            write_calibration(path, calibration)
        except StoreError as error:
            return Note.of("calibration_not_saved", runs=runs, error=str(error))
        return Note.of("calibration_saved", runs=runs, path=str(path))

    def spreads(self, identity: Mapping[str, Any]) -> dict[str, SavedSpread]:
        """What the calibration of this load says of the spread between its runs; empty without one."""
        try:
            known = read_calibration(self._known(identity))
        except StoreError:  # :meth:`flagged` says so
            return {}
        if known is None or matched(known.identity, identity, required=IF_KNOWN).mismatches:
            return {}  # :meth:`flagged` says so
        return {
            name: SavedSpread(entry.spread_log, entry.runs, made=made_of(name, known.identity))
            for name, entry in known.noise.items()
            if made_otherwise(name, known.identity, identity) is None
        }

    def flagged(self, request: MeasurementRequest, result: TestResult) -> TestResult:
        """The result with a warning for each limit that is tighter than the noise, if that is known."""
        guarded = [each for each in result.comparisons if each.gated]
        if not (result.objectives or guarded):
            return result
        identity = request.of_what() | made_by(result)
        path = self._known(identity)
        try:
            known = read_calibration(path)
        except StoreError as error:
            damaged = Finding.of("calibration", error=str(error))
            return replace(result, findings=(*result.findings, damaged))
        if known is None:
            return result
        unlike = matched(known.identity, identity, required=IF_KNOWN).mismatches
        if unlike:
            about = {"saved": known.saved, "path": str(path)}
            note = Note.of("calibration_of_another", differences=tuple(unlike), **about)
            return replace(result, notes=(*result.notes, note))
        of_job, otherwise = request.parameters.is_job, partial(made_otherwise, baseline=known.identity)
        noise = {
            name: Noise(name, entry.unit, entry.better, entry.runs, entry.mean_log, entry.spread_log, of_job)
            for name, entry in known.noise.items()
            if otherwise(name, candidate=identity) is None
        }
        found = tight_limits(result.objectives, noise)
        for each in guarded:
            if each.unit_of_replication == "session":
                continue  # the noise that is known is that of runs
            runs = min(len(each.baseline), len(each.candidate))
            found += tight_margins({each.metric: each.margin}, runs, noise, paired=each.paired)
        return replace(
            result,
            findings=(*result.findings, *found),
            notes=(*result.notes, Note.of("calibrated", saved=known.saved, runs=known.runs, path=str(path))),
        )

    def _known(self, identity: Mapping[str, Any]) -> Path:
        """The latest calibration of this kind of machine; where there is none, the path of the next."""
        own = self._path(identity)
        there = [folder / own.name for folder in machine_folders(self.settings.folder)]
        return next((path for path in reversed(there) if path.exists()), own)

    def _path(self, identity: Mapping[str, Any]) -> Path:
        content = {name: identity.get(name) for name in REQUIRED}
        text = json.dumps(content, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return calibration_path(self.settings.folder, machine_id(), digest)


Made = tuple[tuple[str, str], ...]


def made_of(metric: str, identity: Mapping[str, Any]) -> Made:
    """How a saved metric was made, by what is known only after a load."""
    fields = (name for name in fields_of(metric) if name in (ITL_METHOD, COUNTED_BY))
    return tuple((name, str(identity[name])) for name in fields if name in identity)


def table(noise: Sequence[Noise]) -> Table:
    """A table of the noise between runs of one unchanged system, a row for each metric."""
    columns = (
        "Metric",
        "Typical",
        "Noise between runs",
        *(f"Found with {runs} runs" for runs in RUNS_SHOWN),
        "Proposed limit",
        "Runs beyond it",
    )

    def row(own: Noise) -> tuple[Cell, ...]:
        found = (own.detectable(runs) for runs in RUNS_SHOWN)
        return (
            own.metric,
            Amount(own.typical, own.unit),
            f"{percentage(own.cv)} {interval(*own.interval, 'ratio')}",
            *(NOT_KNOWN if share is None else Amount(share, "ratio") for share in found),
            f"{'≤' if own.better == 'lower' else '≥'} {quantity(own.proposed, own.unit)}",
            Amount(own.false_alarms(own.proposed), "ratio"),
        )

    return Table("calibration", "Calibration (A/A)", columns, tuple(map(row, noise)))


FEWEST_SESSIONS, MOST_SESSIONS = 5, 20
"""Fewest saved sessions whose spread is taken, in place of that between the runs of one; and how many of the
latest are looked at."""


def with_spreads(request: MeasurementRequest, settings: Settings) -> MeasurementRequest:
    """The request whose setting has what is known of the spread of its figures: of a job, and of a test with
    a budget of time, which says by it what it will find."""
    if not request.parameters.is_job and request.budget_s is None:
        return request
    own = request.setting
    identity = request.of_what()
    found = Calibrations(settings).spreads(identity) | _between_sessions(request.nodeid, identity, settings)
    return replace(request, setting=replace(own, spreads=found)) if found else request


def _between_sessions(nodeid: str, identity: Mapping[str, Any], settings: Settings) -> dict[str, SavedSpread]:
    """The spread of each figure between the saved sessions of this test, of the first run of each, that made
    it as the latest did."""
    logs: dict[str, list[tuple[Made, float]]] = defaultdict(list)
    for path in recent_baselines(settings.folder, MOST_SESSIONS):
        try:
            saved = read_baseline(path)
        except StoreError:  # said where somebody compares with it
            continue
        for test in saved.tests:
            if test.nodeid != nodeid or not test.counts:
                continue
            if matched(test.identity, identity, ()).mismatches:
                continue
            for metric, values in test.by_run.items():
                alike = made_otherwise(metric, test.identity, identity) is None
                if alike and values and values[0] is not None and values[0] > 0:
                    logs[metric].append((made_of(metric, test.identity), math.log(values[0])))
    found = {}
    for metric, every in logs.items():
        latest = every[-1][0]
        own = [value for made, value in every if made == latest]
        if len(own) >= FEWEST_SESSIONS:
            found[metric] = SavedSpread(float(np.std(own, ddof=1)), len(own), of_sessions=True, made=latest)
    return found
