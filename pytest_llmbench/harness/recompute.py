"""``pytest-llmbench recompute report.json``: every metric once more, from the stored records alone.

The procedure that measured is driven again. Each load it asks for is answered with the records of that load,
and with what was noted beside them; bootstraps draw from the recorded seed. The figures have to be the same
to the last digit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import LLMBenchError, StoreError, SuiteError
from pytest_llmbench.harness.comparison.arms import in_turns
from pytest_llmbench.harness.comparison.replication import Replication, cut_short, runs_of
from pytest_llmbench.harness.execution.loads import amount, read_loads
from pytest_llmbench.harness.execution.stored_records import StoredRecords
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import terminal_text
from pytest_llmbench.stats.block_bootstrap import chosen
from pytest_llmbench.store.files import read_report
from pytest_llmbench.store.objects import rebuilt
from pytest_llmbench.store.schema import TestEntry
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.workloads.catalogue import workload

_SHOWN = 20


@dataclass(frozen=True)
class Recomputed:
    """The outcome for one test: how many figures are the same, and which are not."""

    nodeid: str
    identical: int = 0
    differences: tuple[str, ...] = ()
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
            yield f"{self.nodeid}: all {self.identical} figures are identical"
        else:
            count = len(self.differences)
            yield f"{self.nodeid}: {count} of {self.identical + count} figures DIFFER"
            yield from (f"  {text}" for text in self.differences[:_SHOWN])
            if count > _SHOWN:
                yield f"  … and {count - _SHOWN} more"


def recompute(path: Path) -> list[Recomputed]:
    """Recompute every result of a report. StoreError for a report that cannot be read."""
    report = read_report(path)
    stored = StoredRecords(path.parent, report)
    bootstrap = report.environment.settings.get("intervals") == "bootstrap"
    with chosen("bootstrap" if bootstrap else "analytic"):
        return [_recomputed(entry, stored) for entry in report.tests]


def _recomputed(entry: TestEntry, stored: StoredRecords) -> Recomputed:
    attempt = f" (attempt {entry.attempts})" if entry.attempts > 1 else ""
    name = entry.nodeid + attempt
    if not entry.metrics:
        return Recomputed(name, skipped="nothing was measured")
    if entry.loads_file is None:
        why = "the session kept no records (--llm-records=none), or is one of a version before, or broke off"
        return Recomputed(name, failed=f"what its loads were is not beside the report: {why}")
    try:
        result = _driven(read_loads(stored.directory / entry.loads_file), stored, entry)
    except LLMBenchError as error:
        return Recomputed(name, failed=str(error))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"its files are damaged, or were changed: {type(error).__name__}: {error}"
        return Recomputed(name, failed=shorten(why))
    same, differences = _compared(entry, result)
    return Recomputed(name, same, tuple(differences))


def _driven(kept: Mapping[str, Any], stored: StoredRecords, entry: TestEntry) -> TestResult:
    test = definition(kept["test"], where=entry.nodeid)
    parameters = _parameters(test.parameters, kept)
    setting = _setting(kept)
    answers = _Answers(kept["loads"], stored, entry)

    whole = kept["whole"]
    replication = Replication(parameters, setting.least_runs, whole, setting.most_runs)

    def procedure(_: str, number: int) -> Procedure[TestResult]:
        return test.procedure(parameters, replication.setting(setting, number))

    found = in_turns(
        procedure, [entry.test], whole, lambda _, plan: answers.answer(plan), seed=setting.seed, cut=cut_short
    )
    if answers.left:
        raise StoreError(f"the procedure ended {answers.left} loads before the measurement did")
    return runs_of(found[entry.test], whole).result


def _parameters(kind: type[TestParameters], kept: Mapping[str, Any]) -> TestParameters:
    given = {name: value for name, value in kept["parameters"].items() if name != "workload"}
    made = {name: rebuilt(value) for name, value in given.items()}
    return kind(**made, workload=_workload(kept["workloads"]["parameters"]))


def _setting(kept: Mapping[str, Any]) -> Setting:
    made = {name: rebuilt(value) for name, value in kept["setting"].items()}
    chosen = _workload(kept["workloads"]["setting"])
    return Setting(workload=workload(chosen) if isinstance(chosen, str) else chosen, **made)


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
    except (LLMBenchError, TypeError, ValueError):  # of the suite's own making, or of another version
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
            plan = _as_stored(plan, load)
        for name, value in amount(plan).items():
            if value != load.get(name, ""):
                raise StoreError(
                    f"load {index + 1}: {name} was {load[name]!r} when it was measured, the procedure now "
                    f"asks for {value!r}",
                    remedy="recompute with the version of pytest-llmbench that measured",
                )
        seen = {name: rebuilt(value) for name, value in load["seen"].items()}
        return Observation(plan=plan, records=self._stored.of_load(self._entry, index, load), **seen)


def _as_stored(plan: LoadPlan, load: Mapping[str, Any]) -> LoadPlan:
    """The plan with the requests that were really sent. In an older version all parts of a session took
    theirs from one sequence, and an open loop its arrivals."""
    names = ("seed", "first", "requests", "duration_s", "max_requests")
    return plan.with_(part="", **{name: load[name] for name in names})


def _compared(entry: TestEntry, result: TestResult) -> tuple[int, list[str]]:
    """How many figures are the same, and a line for each that is not."""
    same, differences = 0, []
    for name, before, now in _figures(entry, result):
        if before == now:
            same += 1
        else:
            differences.append(f"{name}: stored {_shown(before)}, recomputed {_shown(now)}")
    return same, differences


def _figures(entry: TestEntry, result: TestResult) -> Iterator[tuple[str, Any, Any]]:
    """(name, stored, recomputed) of every metric, its values by run, and those of the levels."""
    yield from _pairs("", entry.metrics, result.metrics)
    for name in dict.fromkeys([*entry.by_run, *result.by_run]):
        stored, now = entry.by_run.get(name), result.by_run.get(name)
        yield f"{name} by run", stored, None if now is None else list(now)
    for number in range(max(len(entry.levels), len(result.levels))):
        before = entry.levels[number] if number < len(entry.levels) else None
        after = result.levels[number] if number < len(result.levels) else None
        label = next(level.label for level in (before, after) if level is not None)
        yield from _pairs(
            f"level {label}: ",
            {} if before is None else before.metrics,
            {} if after is None else after.metrics,
        )


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
        description="Compute every figure of a report again from its stored records, and compare.",
        epilog="Exit status: 0 all figures are identical, 1 some differ or cannot be computed, 2 no report.",
    )
    parser.add_argument("report", type=Path, help="report.json, with its folder records beside it")
    given = parser.parse_args(list(arguments))
    path = given.report / "report.json" if given.report.is_dir() else given.report
    try:
        found = recompute(path)
    except LLMBenchError as error:
        print(terminal_text(str(error)), file=sys.stderr)
        return 2
    for test in found:
        for line in test.lines():
            print(terminal_text(line))
    return 0 if all(test.good for test in found) else 1
