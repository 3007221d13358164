"""``pytest-llmbench recompute report.json``: every test once more, from the stored records alone.

The procedure that measured is driven again. Each load it asks for is answered with the records of that load,
and with what was noted beside them; bootstraps draw from the recorded seed. Its result is judged and audited
as it was then, in view of the other tests, and made into an entry of a report, all of which has to be what is
stored: figures to the last digit, verdicts, statuses, limits, counts, facts and cells of tables. So have the
texts beside the report that are made of it.

What only the session knew is taken from the report: notes and findings beside those of the result, what was
compared with other systems or baselines, and how pytest ended the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.errors import LLMBenchError, StoreError, SuiteError
from pytest_llmbench.harness.comparison.arms import in_turns, whole_procedure
from pytest_llmbench.harness.comparison.replication import Replication, cut_short, runs_of
from pytest_llmbench.harness.execution import StoredRecords, amount, read_loads
from pytest_llmbench.harness.judging import Judge, MeasuredTest
from pytest_llmbench.harness.report_files import RENDERED, text_of
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.workloads.files import EXPORT_SEQUENCE, EXPORTED_BEFORE
from pytest_llmbench.input_files import read_bytes
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Scale, Setting
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note, as_told, plain_parameters, read_note
from pytest_llmbench.redaction import terminal_text
from pytest_llmbench.stats.spectral import intervals_chosen
from pytest_llmbench.store.files import document_of, read_report
from pytest_llmbench.store.objects import rebuilt
from pytest_llmbench.store.schema import NoteEntry, Report, TestEntry
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.workloads.catalogue import workload

_SHOWN, _LONGEST = 20, 200
_OF_FILES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What values of other kinds than were written lead to."""


@dataclass(frozen=True)
class Recomputed:
    """The outcome for one test, or for a text beside the report: how many figures are the same, and what is
    not."""

    nodeid: str
    identical: int = 0
    differences: tuple[str, ...] = ()
    values: int = 0
    """How many other values were compared."""
    skipped: str | None = None
    """Why there was nothing to compute; None if there was."""
    failed: str | None = None
    """Why the figures could not be recomputed; None if they could."""

    @property
    def good(self) -> bool:
        return not self.differences and self.failed is None

    def lines(self) -> Iterator[str]:
        if self.skipped is not None:
            yield f"{self.nodeid}: {self.skipped}"
        elif self.failed is not None:
            yield f"{self.nodeid}: NOT RECOMPUTED"
            yield from (f"  {line}" for line in self.failed.splitlines())
        elif not self.differences:
            beside = f", and {self.values} other values" if self.values else ", judged by an earlier version"
            told = f"all {self.identical} figures are identical{beside}"
            yield f"{self.nodeid}: {told if self.identical else 'identical'}"
        else:
            count = len(self.differences)
            of = f"{count} of {max(self.identical + self.values, count)} figures and values "
            yield f"{self.nodeid}: {of if self.identical else ''}DIFFER"
            yield from (f"  {text}" for text in self.differences[:_SHOWN])
            if count > _SHOWN:
                yield f"  … and {count - _SHOWN} more"


def recompute(path: Path) -> list[Recomputed]:
    """Recompute every result of a report. StoreError for a report that cannot be read."""
    report = read_report(path)
    stored = StoredRecords(path.parent, report)
    bootstrap = report.environment.settings.get("intervals") == "bootstrap"
    with intervals_chosen("bootstrap" if bootstrap else "analytic"):
        found = [_driven_or_why(entry, stored) for entry in report.tests]
    try:
        judged = _judged(report, found)
    except _OF_FILES as error:  # figures are one by one, verdicts in view of all tests
        why = _damaged(error)
        return [
            each if isinstance(each, Recomputed) else Recomputed(_name(entry), failed=f"not judged: {why}")
            for entry, each in zip(report.tests, found, strict=True)
        ]
    return [
        each if isinstance(each, Recomputed) else _compared(entry, judged.get(index), each)
        for index, (entry, each) in enumerate(zip(report.tests, found, strict=True))
    ]


class _Driven(NamedTuple):
    result: TestResult
    parameters: TestParameters
    scale: Scale
    judged_alike: bool
    """Whether it was measured by a version that judged as this one does."""
    texts_kept: bool
    """Whether its requests can be drawn again, and their digest with them: what users said is not stored."""


def _driven_or_why(entry: TestEntry, stored: StoredRecords) -> _Driven | Recomputed:
    name = _name(entry)
    if not entry.metrics:
        return Recomputed(name, skipped="nothing was measured")
    if entry.loads_file is None:
        why = "the session kept no records (--llm-records=none), comes from an earlier version, or was killed"
        return Recomputed(name, failed=f"the description of its loads is not next to the report: {why}")
    try:
        return _driven(read_loads(stored.directory / entry.loads_file), stored, entry)
    except LLMBenchError as error:
        return Recomputed(name, failed=str(error))
    except _OF_FILES as error:
        return Recomputed(name, failed=_damaged(error))


def _damaged(error: Exception) -> str:
    return shorten(f"its files are damaged, or were changed: {type(error).__name__}: {error}")


def _name(entry: TestEntry) -> str:
    return entry.nodeid + (f" (attempt {entry.attempts})" if entry.attempts > 1 else "")


def _judged(report: Report, found: Sequence[_Driven | Recomputed]) -> dict[int, dict[str, Any]]:
    """Index of a test → its entry, made anew of its recomputed result, which is judged as in the session."""
    scale: Scale = next((each.scale for each in found if isinstance(each, _Driven)), "standard")
    judge, made = Judge(Settings(scale=scale)), {}
    for index, (entry, each) in enumerate(zip(report.tests, found, strict=True)):
        if isinstance(each, Recomputed) or not each.judged_alike:
            continue
        result = _as_told(entry, each.result, Budget(each.parameters.max_error_share))
        measured = judge.keep(
            MeasuredTest(
                entry.nodeid,
                judge.judged(result, each.parameters),
                each.parameters,
                inconclusive_fails=True,
                records_file=entry.records_file,
                duration_s=float(index),  # tells the attempts of one test apart
                more={"profile_files": entry.profile_files},
            )
        )
        made[index] = measured.entry(entry.outcome, entry.error)
    for again in judge.reaudit():
        made[int(again["duration_s"])]["compliance"] = again["compliance"]
    return made


def _as_told(entry: TestEntry, result: TestResult, budget: Budget) -> TestResult:
    """The result with what only its session knew."""
    own = {finding.check for finding in validity_of(result, budget).findings}
    told = tuple(
        Finding(f.check, f.ok, f.voids, _noted(f.note, f.message), f.value, f.limit, f.unit)
        for f in entry.validity.findings
        if f.check not in own
    )
    data = dict(enumerate(entry.note_data))
    noted = [_noted(data.get(index), text) for index, text in enumerate(entry.notes)]
    known = [plain_parameters({"": note}) for note in noted]
    missing = tuple(
        note
        for note in result.notes
        if (plain_parameters({"": note}) not in known if data else str(note) not in entry.notes)
    )
    published = {
        name: fact.value
        for name, fact in entry.facts.items()
        if fact.source in (EXPORT_SEQUENCE, EXPORTED_BEFORE)
    }
    return replace(
        result,
        facts=result.facts | Facts.of(Origin.GENERATOR, published, EXPORT_SEQUENCE),
        findings=(*result.findings, *told),
        notes=(*noted, *missing),
        comparisons=tuple(entry.comparisons),
    )


def _noted(data: NoteEntry | None, text: str) -> Note:
    return as_told(text) if data is None else read_note(data.id, data.parameters, text)


def _driven(kept: Mapping[str, Any], stored: StoredRecords, entry: TestEntry) -> _Driven:
    test = definition(kept["test"], where=entry.nodeid)
    given = {name: value for name, value in kept["parameters"].items() if name != "workload"}
    parameters = test.parameters(
        **{name: rebuilt(value) for name, value in given.items()},
        workload=_workload(kept["workloads"]["parameters"]),
    )
    chosen = _workload(kept["workloads"]["setting"])
    setting = Setting(
        workload=workload(chosen) if isinstance(chosen, str) else chosen,
        **{name: rebuilt(value) for name, value in kept["setting"].items()},
    )
    answers = _Answers(kept["loads"], stored, entry)
    alike = all("part" in load for load in kept["loads"])

    whole = kept["whole"]
    replication = Replication(parameters, setting.least_runs, whole, setting.most_runs)

    def procedure(_: str, number: int) -> Procedure[TestResult]:
        return whole_procedure(test, parameters, replication.setting(setting, number))

    found = in_turns(
        procedure, [entry.test], whole, lambda _, plan: answers.answer(plan), seed=setting.seed, cut=cut_short
    )
    if answers.left:
        raise StoreError(f"the procedure ended {answers.left} loads earlier than the measurement")
    return _Driven(
        runs_of(found[entry.test], whole).result,
        parameters,
        setting.scale,
        alike,
        not isinstance(setting.workload, _StoredWorkload)
        and not getattr(setting.workload, "messages_sha256", ""),
    )


@dataclass(frozen=True)
class _StoredWorkload:
    """A stand-in for a workload that cannot be made again; its requests have been sent already."""

    name: str
    standard: bool
    stated: Mapping[str, Any] = field(default_factory=dict)

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:  # noqa: ARG002 - the protocol's
        raise SuiteError(f"the requests of workload {self.name!r} are not part of a report")

    def specification(self) -> Mapping[str, Any]:
        return self.stated


def _workload(kept: Any) -> Any:
    if isinstance(kept, str):
        return kept
    try:
        return rebuilt(kept["object"])
    except LLMBenchError:  # of the suite's own making, or of another version
        return _StoredWorkload(kept["name"], kept["standard"], kept["specification"])


class _Answers:
    """An executor that answers each load of the procedure with what was measured then."""

    def __init__(self, loads: Sequence[Mapping[str, Any]], stored: StoredRecords, entry: TestEntry) -> None:
        self._loads = loads
        self._stored = stored
        self._entry = entry
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._loads) - self._next

    def answer(self, plan: LoadPlan) -> Observation:
        if not self.left:
            raise StoreError(f"the procedure asks for a load that was not measured: {plan.label}")
        index, load = self._next, self._loads[self._next]
        self._next += 1
        if "part" not in load:
            # Of an older version: all parts of a session took requests and arrivals from one sequence.
            names = ("seed", "first", "requests", "duration_s", "max_requests")
            plan = plan.with_(part="", **{name: load[name] for name in names})
        for name, value in amount(plan).items():
            if value != load.get(name, ""):
                raise StoreError(
                    f"load {index + 1}: {name} was {load[name]!r} when it was measured, the procedure now "
                    f"asks for {value!r}",
                    remedy="use the version of pytest-llmbench that measured",
                )
        seen = {name: rebuilt(value) for name, value in load["seen"].items()}
        return Observation(plan=plan, records=self._stored.of_load(self._entry, index, load), **seen)


_JUDGED = (
    "test", "section", "title", "validity", "compliance", "gate", "load", "workload", "warmup", "selfcheck",
    "counts", "tables", "plots", "configuration", "facts", "notes", "stretches", "levels", "void_loads",
    "overload", "shared",
)  # fmt: skip
"""The parts of an entry that its result decides, beside its figures."""
_SEVERAL_SYSTEMS = ("compliance", "plots")
_TABLES_OF_SEVERAL = ("tables.change_split", "tables.systems_comparison")
"""The parts and tables that show other systems too, or are judged in view of them; their records are not
here."""


def _compared(entry: TestEntry, judged: Mapping[str, Any] | None, driven: _Driven) -> Recomputed:
    """How many figures and other values are the same, and a line for each that is not. ``judged``: None where
    an earlier version judged, whose figures alone are compared."""
    same, differences = 0, []
    for name, before, now in _figures(entry, driven.result):
        if before == now:
            same += 1
        else:
            differences.append(f"{name}: stored {_shown(before)}, recomputed {_shown(now)}")
    if judged is None:
        return Recomputed(_name(entry), same, tuple(differences))
    stored, values = entry.plain(), 0
    findings = enumerate(stored["validity"]["findings"])
    told = {f"validity.findings[{number}].message" for number, found in findings if found.get("note")}
    for part in _JUDGED:
        if part in _SEVERAL_SYSTEMS and entry.comparisons:
            continue
        # What findings and notes say is data; their sentences are this version's words for it.
        part = "note_data" if part == "notes" and entry.note_data else part
        for name, before, now in _leaves(part, stored.get(part), judged.get(part)):
            if "sequence_sha256" in name and not driven.texts_kept:
                continue
            if name in told:
                continue
            if entry.comparisons and name.startswith(_TABLES_OF_SEVERAL):
                continue
            values += 1
            if before != now:
                differences.append(f"{name}: stored {_clipped(before)}, recomputed {_clipped(now)}")
    gated, passed = stored["gate"]["verdict"], stored["outcome"] == "passed"
    if passed and (gated == "fail" or stored["validity"]["verdict"] == "invalid"):
        differences.append(
            f"outcome: stored 'passed', where the run is {stored['validity']['verdict']}, {gated}"
        )
    return Recomputed(_name(entry), same, tuple(differences), values=values)


def _leaves(name: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """(path, stored, recomputed) of every value within two of the same shape; of the whole where the shapes
    differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _leaves(f"{name}.{key}", before.get(key), now.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _leaves(f"{name}[{number}]", one, other)
    else:
        yield name, before, now


def _clipped(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def rendered(path: Path) -> Iterator[Recomputed]:
    """The texts beside a report, each rendered anew; those that are not there are left out."""
    report, directory = read_report(path), path.parent
    if report.generator.version != version("pytest-llmbench"):
        return
    for name in RENDERED:
        text = directory / name
        if text.is_file():
            same = read_bytes(text).decode("utf-8", "replace") == text_of(name, document_of(report))
            told = () if same else ("it differs from what report.json gives",)
            yield Recomputed(name, differences=told, values=1)


def _figures(entry: TestEntry, result: TestResult) -> Iterator[tuple[str, Any, Any]]:
    """(name, stored, recomputed) of every metric, its values by run, and those of the levels."""
    yield from _pairs("", entry.metrics, result.metrics)
    for name in dict.fromkeys([*entry.by_run, *result.by_run]):
        stored, now = entry.by_run.get(name), result.by_run.get(name)
        yield f"{name} by run", stored, None if now is None else list(now)
    for before, after in zip_longest(entry.levels, result.levels):
        label = (before or after).label
        yield from _pairs(f"level {label}: ", getattr(before, "metrics", {}), getattr(after, "metrics", {}))


def _pairs(
    prefix: str, stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, ...] | None, tuple[Any, ...] | None]]:
    for name in dict.fromkeys([*stored, *now]):
        yield prefix + name, _values(stored.get(name)), _values(now.get(name))


_PARTS = ("point", "lower", "upper", "level", "n", "method", "unit", "n_required")


def _values(metric: Any) -> tuple[Any, ...] | None:
    return None if metric is None else tuple(getattr(metric, part) for part in _PARTS)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        point, lower, upper, _, n, method, unit, _ = value
        return f"{point!r} {unit} [{lower!r}, {upper!r}], n={n}, {method}"
    return str(value)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench recompute",
        description="Compute every test of a report again from its stored records, judge it, and compare.",
        epilog="Exit status: 0 all figures are identical, 1 some differ or cannot be computed, 2 no report.",
    )
    parser.add_argument("report", type=Path, help="report.json; its folder records must be next to it")
    given = parser.parse_args(list(arguments))
    path = given.report / "report.json" if given.report.is_dir() else given.report
    found = [*recompute(path), *rendered(path)]
    for test in found:
        for line in test.lines():
            print(terminal_text(line))
    return 0 if all(test.good for test in found) else 1
