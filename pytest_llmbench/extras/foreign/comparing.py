"""``--llm-compare FILE`` with a result of another load generator: shown beside ours, and what it takes to
decide.

Such a file is no baseline. It knows no test, so it stands beside every test of one load that has the same
load. It is mostly a single run, which says nothing of the noise between runs, and its metrics are defined
otherwise. So nothing is decided by it, unless it holds runs enough and somebody answers for the rest
(``--llm-waive``).

A result file is recognised by its content and not by its name. Several may lie in one file one after another,
as SGLang appends them and as ``cat`` puts them together: each is a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from pytest_llmbench.compare.comparability import DEFINITIONS, Match, Waiver, matched
from pytest_llmbench.compare.limits import ByRun, RegressionLimit, comparisons, nothing_decides
from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError
from pytest_llmbench.extras.foreign.foreign_run import ForeignRun, ResultFormat
from pytest_llmbench.harness.comparison.identity import refuse_few_runs, refuse_mismatch, waived
from pytest_llmbench.harness.comparison.replication import MeasurementRequest
from pytest_llmbench.input_files import parse_json_values, read_bytes
from pytest_llmbench.methodology.parameters import LoadParameters, TestParameters
from pytest_llmbench.model.judgement import THIS_SESSION, Comparison, ComparisonVerdict
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.registry import every

_UNTOLD = "workload, seed, hosts, engine and its version"
"""Properties that no result file of another tool states in a comparable way."""


@dataclass(frozen=True, slots=True)
class ForeignComparing:
    """A result file of another tool, with the waivers for its differences."""

    path: Path
    format: ResultFormat
    runs: Sequence[ForeignRun]
    """The runs in the file, which may be several put one after another."""
    waivers: tuple[Waiver, ...] = ()

    @classmethod
    def read(cls, path: Path, waivers: tuple[Waiver, ...]) -> ForeignComparing | None:
        """The results in a file of another tool; None for a baseline. StoreError as :func:`read_foreign`."""
        found = read_foreign(path)
        return None if found is None else cls(path, *found, waivers)

    def runs_like(self, parameters: TestParameters) -> tuple[ForeignRun, ...]:
        """The runs in the file that have the load of a test; none for a test that searches its loads.
        SuiteError if they are runs of different things."""
        if not isinstance(parameters, LoadParameters):
            return ()
        runs = tuple(run for run in self.runs if run.load.is_like(parameters.load))
        differ = [
            f"{name}: {', '.join(values)}"
            for name in dict.fromkeys(name for run in runs for name in ("model", *run.setup))
            if len(values := list(dict.fromkeys(_told(run, name) for run in runs))) > 1
        ]
        if differ:
            raise SuiteError.from_mistakes(
                [f"its {len(runs)} runs at this load differ in {each}" for each in differ],
                where=f"--llm-compare {self.path}",
                remedy="give a file with runs of one thing",
            )
        return runs

    def refuse_early(self, request: MeasurementRequest, of_options: Sequence[RegressionLimit]) -> None:
        """Raise SuiteError if something keeps the comparison from being made.

        Without limits only another model does: what is shown beside each other decides nothing.
        """
        where, limits = f"--llm-compare {self.path}", (*request.limits, *of_options)
        found = self.runs_like(request.parameters)
        if not found:
            if any(limit.everywhere for limit in limits):
                raise SuiteError(
                    self._unlike(request.parameters),
                    where=where,
                    remedy="guard a test with one of these loads, or save a baseline with --llm-save",
                )
            return
        lacking = [limit.metric for limit in limits if limit.everywhere and not _has(found, limit.metric)]
        if lacking:
            there = ", ".join(_by_run(found))
            raise SuiteError(
                f"{self.format.tool} has no {', '.join(lacking)}; taken over are {there}",
                where=where,
                remedy="guard one of these, or save a baseline with --llm-save",
            )
        gated = any(limit.everywhere or _has(found, limit.metric) for limit in limits)
        refuse_mismatch(self._match(found, request.identity, gated=gated), where)
        if gated:
            how = "give the results of as many runs in one file"
            refuse_few_runs(len(found), request.replication.runs, where, how)

    def compared(
        self, request: MeasurementRequest, limits: Sequence[RegressionLimit], result: TestResult
    ) -> TestResult:
        """The result with the figures of the file beside its own."""
        found = self.runs_like(request.parameters)
        if not found:
            said = Note.of("nothing_like_it", file=self.path.name, why=self._unlike(request.parameters))
            warned = nothing_decides(limits, why=said)
            return replace(result, findings=(*result.findings, *warned), notes=(*result.notes, said))
        theirs = _by_run(found)
        ours: ByRun = result.by_run or {name: (metric.point,) for name, metric in result.metrics.items()}
        rows = comparisons(theirs, ours, limits, names=(self.format.tool, THIS_SESSION), paired=False)
        gated = any(row.gated for row in rows)
        return replace(
            result,
            comparisons=tuple(map(self._judged, rows)),
            findings=(
                *result.findings,
                *waived(self._match(found, request.identity, gated=gated)),
                *nothing_decides(limits, rows),
            ),
            notes=(*result.notes, *self._notes(found, result, rows)),
        )

    def _match(self, found: Sequence[ForeignRun], identity: Mapping[str, Any], *, gated: bool) -> Match:
        """The match of the file with the test. ``gated``: figures that decide need the same workload and the
        same definition. No file of another tool shows either, so both must be waived."""
        known = {"model": found[0].model, DEFINITIONS: f"that of {self.format.tool}"}
        required = ["model"] if gated or known["model"] else []
        required += ["workload"] if gated else []
        required += [DEFINITIONS] if gated or self._answered else []
        own = {**identity, DEFINITIONS: "that of the draft"}
        return matched(known, own, self.waivers, required=required, told=())

    @property
    def _answered(self) -> bool:
        """Whether the difference in definitions is waived."""
        return any(waiver.field == DEFINITIONS for waiver in self.waivers)

    def _judged(self, row: Comparison) -> Comparison:
        """The row without a verdict if its metric is defined otherwise, unless that is waived."""
        difference = self.format.difference(row.metric)
        if difference is None:
            return row
        said = f"{row.reason}; defined differently: {difference}"
        if self._answered:
            return replace(row, reason=said)
        if row.verdict is not ComparisonVerdict.INCONCLUSIVE:
            said = f"no verdict, since its definition differs: {difference}"
        return replace(row, verdict=ComparisonVerdict.INCONCLUSIVE, reason=said)

    def _notes(
        self, found: Sequence[ForeignRun], result: TestResult, rows: Sequence[Comparison]
    ) -> list[Note]:
        file, load = self.path.name, found[0].load.describe()
        versions = dict.fromkeys(run.version for run in self.runs if run.version is not None)
        tool = f"{self.format.tool} {', '.join(versions)}".strip()
        untold = _UNTOLD if found[0].model else f"model, {_UNTOLD}"
        out = tuple(f"{name} ({reason})" for name, reason in self.format.left_out.items())
        one = len(found) == 1
        return [
            Note.of("beside_file", file=file, tool=tool, one=one, runs=len(found), load=load),
            Note.of("file_does_not_tell", untold=untold),
            *_lengths(found, result),
            Note.of("left_out_of_file", metrics=out),
            # For reports whose tables have no room for reasons, one per family.
            *(
                Note.of("metric_defined_otherwise", metric=name, tool=self.format.tool, difference=different)
                for name in dict.fromkeys(row.metric.partition(".")[0] for row in rows)
                if (different := self.format.difference(name)) is not None
            ),
        ]

    def _unlike(self, parameters: TestParameters) -> str:
        """Why no run of the file can stand beside a test. The best of some loads that somebody chose is not
        what a search for the highest load finds, even if both have the same name."""
        loads = "; ".join(dict.fromkeys(run.load.describe() for run in self.runs))
        if isinstance(parameters, LoadParameters):
            return f"{self.format.tool} has no run with the load of this test; it has {loads}"
        return f"this test finds its loads itself, and {self.format.tool} was given its own: it has {loads}"


def _told(run: ForeignRun, name: str) -> str:
    value = run.model if name == "model" else run.setup.get(name)
    return "not told" if value is None else value


def _has(runs: Sequence[ForeignRun], metric: str) -> bool:
    return any(metric in run.values for run in runs)


def _by_run(runs: Sequence[ForeignRun]) -> ByRun:
    """Every metric of the file in each of its runs; None where a run has none."""
    names = dict.fromkeys(name for run in runs for name in run.values)
    return {name: tuple(run.values.get(name) for run in runs) for name in names}


def _lengths(found: Sequence[ForeignRun], result: TestResult) -> list[Note]:
    """A note with the mean lengths on both sides; empty if they are unknown. Other lengths mean other
    latencies, not another speed."""
    said = []
    runs = [run.records for run in result.observations if run.plan.phase is Phase.MEASURE]
    for what, theirs, ours in (
        ("input", [run.mean_input_tokens for run in found], attrgetter("input_tokens")),
        ("output", [run.mean_output_tokens for run in found], attrgetter("output_tokens")),
    ):
        known = [value for value in theirs if value is not None]
        kept = [ours(run)[run.ok & (ours(run) >= 0)] for run in runs]
        own = np.concatenate(kept) if kept else np.empty(0)
        if known and len(own):
            there, here = float(np.mean(known)), float(own.mean())
            said.append(Note.of("lengths_there_and_here", what=what, there=there, here=here))
    return [Note.of("mean_lengths", lengths=tuple(said))] if said else []


OWN: Final = "baseline_version"
"""Key by which a baseline of ours is recognised."""
_MOST_OBJECTS = 10_000
_REMEDY = "give the file as the tool wrote it"


def read_foreign(path: Path) -> tuple[ResultFormat, list[ForeignRun]] | None:
    """The format of a file of another tool, and the runs in it; None for a baseline of ours, and for a file
    that is no JSON object.

    Raises StoreError for a file that cannot be read, that no tool known here has written, or whose content
    is not what the tool writes: it says what was found.
    """
    contents = _contents(path)
    if not contents or any(OWN in content for content in contents):
        return None
    formats: Sequence[ResultFormat] = tuple(every("result_formats").values())
    found = []
    for content in contents:
        format_of = next((each for each in formats if each.recognised(content)), None)
        if format_of is None:
            tools, fields = ", ".join(each.tool for each in formats), Fields(content).named()
            raise StoreError(
                f"neither a baseline of pytest-llmbench nor a result of {tools}; its fields: {fields}",
                where=str(path),
                remedy="name a file that --llm-save or one of these tools wrote",
            )
        found.append(format_of)
    if len({each.tool for each in found}) > 1:
        tools = ", ".join(dict.fromkeys(each.tool for each in found))
        raise StoreError(
            f"results of several tools in one file: {tools}", where=str(path), remedy="give one a file"
        )
    made = found[0]
    try:
        runs = [run for content in contents for run in made.runs(content)]
        if not all(run.values for run in runs):
            raise WrongShapeError("no figure in it that can be compared")
    except WrongShapeError as error:
        raise StoreError(f"a result of {made.tool}: {error}", where=str(path), remedy=_REMEDY) from error
    return made, runs


def _contents(path: Path) -> Sequence[dict[str, Any]]:
    """The JSON objects in a file; empty if it holds something else, which the reader of baselines reports."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except (OSError, ValueError):
        return ()
    found: list[dict[str, Any]] = []
    try:
        for value in parse_json_values(text):
            if not isinstance(value, dict):
                return ()
            found.append(value)
            if len(found) > _MOST_OBJECTS:
                raise StoreError(f"more than {_MOST_OBJECTS:,} objects: no file of results", where=str(path))
    except ValueError as error:
        if not found:
            return ()
        raise StoreError(
            f"not a complete JSON file, perhaps truncated: object {len(found) + 1} of it: {error}",
            where=str(path),
            remedy=_REMEDY,
        ) from error
    return found
