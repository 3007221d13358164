"""``--llm-save`` and ``--llm-compare``: the statistics of runs are saved, and later runs are compared with
them.

Saving makes a new file, and each of its results says whether it counts (``Standing``): what failed, was
waived or fell behind is never compared with. From three stored sessions on the session is the unit of
replication, since runs of one session know nothing of other days. Below that runs are compared, and days are
taken to be alike, which is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pytest_llmbench.compare.comparability import (
    Waiver,
    made_otherwise,
    matched,
    output_lengths,
    waivers_of_option,
)
from pytest_llmbench.compare.limits import (
    ByRun,
    Confirmation,
    RegressionLimit,
    comparisons,
    limits_of_option,
    nothing_decides,
)
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.identity import (
    LENGTHS,
    SHARED,
    lengths_of,
    lengths_vector,
    made_by,
    refuse_few_runs,
    refuse_mismatch,
    refused_metrics,
    waived,
)
from pytest_llmbench.harness.comparison.replication import HOW_TO_COMPARE, MeasurementRequest, paired_runs
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import COUNTED_BY
from pytest_llmbench.model.judgement import (
    FEWEST_SESSIONS,
    MOST_SESSIONS,
    THIS_SESSION,
    Comparison,
    ComparisonVerdict,
)
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note, as_told
from pytest_llmbench.probes.host import checked_out
from pytest_llmbench.registry import every
from pytest_llmbench.store.baselines import (
    Baseline,
    BaselineTest,
    Commit,
    Standing,
    check_name,
    find_baseline,
    read_baseline,
    read_earlier,
    save_baseline,
)
from pytest_llmbench.store.files import machine_id
from pytest_llmbench.store.schema import iso_utc

_COMMIT_DIGITS = 12
_WORSE = (ComparisonVerdict.REGRESSED, ComparisonVerdict.UNCONFIRMED)
_STANDINGS = {
    Standing.BEHIND: "did not pass the comparison",
    Standing.FAILED: "failed",
    Standing.WAIVED: "waived",
    None: "failed",
}


@dataclass(frozen=True)
class Reference:
    """The saved results of one test that another is compared with."""

    named: BaselineTest
    """The latest result that counts; where none does, that of the session that was named."""
    identity: Mapping[str, Any]
    """The identity of what is compared with it."""
    alike: tuple[BaselineTest, ...]
    """The sessions that count, the oldest first."""
    since: tuple[BaselineTest, ...] = ()
    """All sessions of the same thing since a new level was accepted, whether they count or not."""
    waivers: tuple[Waiver, ...] = ()

    @classmethod
    def of(
        cls, saved: Sequence[BaselineTest], identity: Mapping[str, Any], waivers: Sequence[Waiver] = ()
    ) -> Reference:
        """The reference out of the results that were saved under a name, the oldest first; the last is that
        of the session that was named. Those count that are of the same thing, passed, and come after the last
        that was accepted as a new level, which is the first."""
        accepted = [at for at, test in enumerate(saved) if test.accepted is not None and test.counts]
        saved = saved[accepted[-1] :] if accepted else saved
        since = [test for test in saved if not matched(test.identity, identity, waivers).mismatches]
        named = next((test for test in reversed(saved) if test.counts), saved[-1])
        alike = tuple(test for test in since if test.counts)
        return cls(named, identity, alike, tuple(since), tuple(waivers))

    @property
    def sessions(self) -> tuple[BaselineTest, ...]:
        """The sessions by whose spread is judged; empty where they are too few, and runs are compared."""
        return self.alike if len(self.alike) >= FEWEST_SESSIONS else ()

    def compared(
        self, by_run: ByRun, limits: Sequence[RegressionLimit], names: tuple[str, str]
    ) -> tuple[Comparison, ...]:
        """The comparisons of a session with these values."""

        def unlike(saved: BaselineTest, metric: str) -> str | None:
            return made_otherwise(metric, saved.identity, self.identity, self.waivers)

        before: ByRun = self.named.by_run
        paired = self._same_runs
        if paired and not self.sessions:
            before, by_run = paired_runs(before, by_run)
        return comparisons(
            before,
            by_run,
            limits,
            names=names,
            paired=paired,
            sessions=[  # each with the metrics that it made as they are made now
                {name: own for name, own in test.by_run.items() if unlike(test, name) is None}
                for test in self.sessions
            ],
            unlike=partial(unlike, self.named),
        )

    def confirmed(self, found: Sequence[Comparison], asked: Confirmation | None) -> tuple[Comparison, ...]:
        """The comparisons; a regression that shows in fewer sessions than was asked for is not confirmed."""
        if asked is None:
            return tuple(found)
        # What an accepted session found was against the level before.
        known = [test for test in self.since if test.accepted is None]
        before = known[len(known) - asked.of + 1 :] if len(known) >= asked.of else known
        judged = []
        for each in found:
            count = 1 + sum(test.verdicts.get(each.metric) in _WORSE for test in before)
            if each.gated and each.verdict is ComparisonVerdict.REGRESSED and count < asked.shown:
                reason = (
                    f"it shows in {count} of the last {1 + len(before)} sessions; {asked.shown} are needed"
                )
                judged.append(replace(each, verdict=ComparisonVerdict.UNCONFIRMED, reason=reason))
            else:
                judged.append(each)
        return tuple(judged)

    def notes(self, name: str, found: Sequence[Comparison] = ()) -> list[Note]:
        """What the comparison takes for granted. ``name``: of the baseline; ``found``: the comparisons."""
        count, said = len(self.alike), []
        if left := Counter(_STANDINGS[test.standing] for test in self.since if not test.counts):
            why = tuple(f"{number} {reason}" for reason, number in left.items())
            said.append(Note.of("sessions_left_out", count=left.total(), baseline=repr(name), why=why))
        if self.alike and (reason := self.alike[0].accepted) is not None:
            said.append(Note.of("level_accepted", reason=reason))
        if self.sessions:
            latest = min(count, MOST_SESSIONS)
            said.append(Note.of("compared_with_sessions", count=latest, baseline=repr(name)))
            fewer = [each for each in found if each.gated and len(each.baseline) < latest]
            by_session = [each for each in fewer if each.unit_of_replication == "session"]
            return [
                *said,
                *(Note.of("fewer_sessions", metric=e.metric, count=len(e.baseline)) for e in by_session),
            ]
        if COUNTED_BY in self.identity and COUNTED_BY not in self.named.identity:
            said.append(Note.of("made_unknown"))
        if self.identity.get(LENGTHS) != self.named.identity.get(LENGTHS):
            said.append(Note.of("other_lengths"))
        if "host.machine" in self.identity:  # not in virtual time, whose days are alike
            more = FEWEST_SESSIONS - count
            said.append(Note.of("days_assumed_alike", more=more, baseline=repr(name)))
        return said

    def split(self, result: TestResult, found: Sequence[Comparison]) -> TestResult:
        """The result with what its change is made of, where something got worse."""
        if all(each.verdict is not ComparisonVerdict.REGRESSED for each in found):
            return result
        from pytest_llmbench.compare.split import parts_by_run, saved_parts, with_split  # few get worse

        saved = self.sessions or (self.named,)
        sides = saved_parts([test.latency_parts_ms for test in saved]), parts_by_run(result.observations)
        paired = self._same_runs and not self.sessions
        return with_split(result, found, sides, paired=paired, level=found[0].change.level)

    @property
    def _same_runs(self) -> bool:
        """Whether run i of all sessions has requests of the same lengths, which are not those of run k."""
        saved = self.sessions or (self.named,)
        lists = {str(known.get(LENGTHS)) for known in (self.identity, *(test.identity for test in saved))}
        return len(lists) == 1 and lists.pop().startswith(SHARED)


class Compares(Protocol):
    """What results are compared with: a baseline of ours, or the content of another file."""

    @property
    def path(self) -> Path: ...

    def refuse_early(self, request: MeasurementRequest, of_options: Sequence[RegressionLimit], /) -> None:
        """Raise SuiteError if something already known keeps the comparison from being made. ``of_options``:
        the limits of the session."""

    def compared(
        self, request: MeasurementRequest, limits: Sequence[RegressionLimit], result: TestResult
    ) -> TestResult:
        """The result with its comparisons, the waivers that were needed, and what else differs; as it is,
        with a note, where there is nothing to compare it with."""
        ...


@dataclass(frozen=True)
class Comparing:
    """The baseline that a session compares with, and the waivers for mismatches."""

    path: Path
    baseline: Baseline
    waivers: tuple[Waiver, ...] = ()
    earlier: tuple[Baseline, ...] = ()
    """The sessions that were saved before under its name, if that is what was given; the oldest first."""
    problems: tuple[str, ...] = ()
    """Messages on those of them that cannot be read."""
    confirmation: Confirmation | None = None

    def reference(self, nodeid: str, identity: Mapping[str, Any]) -> Reference | None:
        """What the test is compared with; None where the baseline has no results of it."""
        tests = [test for session in (*self.earlier, self.baseline) for test in session.tests]
        if all(test.nodeid != nodeid for test in self.baseline.tests):
            return None
        return Reference.of([test for test in tests if test.nodeid == nodeid], identity, self.waivers)

    def refuse_early(self, request: MeasurementRequest, of_options: Sequence[RegressionLimit]) -> None:
        where = f"--llm-compare {self.path}"
        found = self.reference(request.nodeid, request.identity)
        if found is None:
            if request.limits:
                there = ", ".join(test.nodeid for test in self.baseline.tests) or "none"
                raise SuiteError(
                    f"the baseline has no results of {request.nodeid}; it has {there}",
                    where=where,
                    remedy="save a baseline that includes this test",
                )
            return
        refuse_mismatch(matched(found.named.identity, request.identity, self.waivers), where)
        if not found.named.counts and (request.limits or of_options):
            raise SuiteError(
                f"no saved result of {request.nodeid} may be compared with: the latest of "
                f"{len(found.since)} is one that {_STANDINGS[found.named.standing]}",
                where=where,
                remedy="save a session that passes; one that fell behind may be accepted as the new level: "
                f"--llm-save={self.baseline.name} --llm-accept=REASON",
            )
        if not found.sessions:
            how = f"give --llm-runs={FEWEST_RUNS} or more, when saving and when comparing"
            refuse_few_runs(found.named.runs, request.replication.runs, where, how)

    def compared(
        self, request: MeasurementRequest, limits: Sequence[RegressionLimit], result: TestResult
    ) -> TestResult:
        identity = {**request.identity, **made_by(result)}
        reference = self.reference(request.nodeid, identity)
        if reference is None:
            why = Note.of("has_no_results", file=self.path.name)
            return replace(
                result,
                findings=(*result.findings, *nothing_decides(limits, why=why)),
                notes=(*result.notes, Note.of("no_results_of_test", file=self.path.name)),
            )
        found = reference.named
        match = matched(found.identity, identity, self.waivers)
        lengths = output_lengths(
            lengths_vector(found.output_lengths), lengths_vector(lengths_of(result.observations))
        )
        of = next(each for each in (self.baseline, *self.earlier) if any(t is found for t in each.tests))
        own = self.path.name.removesuffix(".json") if of is self.baseline else of.name
        name = f"{own} of {of.saved}"
        by_run: ByRun = result.by_run or {name: (metric.point,) for name, metric in result.metrics.items()}
        absent = [limit for limit in limits if not limit.everywhere and limit.metric not in by_run]
        names = self.baseline.name, THIS_SESSION
        compared = reference.confirmed(reference.compared(by_run, limits, names), self.confirmation)
        result = reference.split(result, compared)
        told = (
            *([lengths] if lengths else []),
            *waived(match),
            *refused_metrics(compared, found.identity, identity, self.waivers),
            *nothing_decides(limits, compared),
        )
        return replace(
            result,
            comparisons=compared,
            findings=(*result.findings, *told),
            notes=(
                *result.notes,
                Note.of("compared_with_baseline", baseline=name, runs=found.runs),
                *reference.notes(self.baseline.name, compared),
                *map(as_told, self.problems),
                *(Note.of("no_such_metric", limit=limit.origin, metric=limit.metric) for limit in absent),
                *(Note.of("beside_baseline", difference=text) for text in match.shown),
            ),
        )


def comparing_by(settings: Settings, today: date) -> Compares | None:
    """What the options name to compare with; None where they name nothing.

    Raises for every mistake in the options about baselines.
    """
    if settings.save is not None:
        check_name(settings.save)
    limits = limits_of_option(settings.compare_fail)
    waivers = waivers_of_option(settings.waive, today)
    confirmation = _confirmation(settings)
    if settings.compare is None:
        if limits and settings.baseline_endpoint is None and not settings.calibrate:
            raise SuiteError("--llm-compare-fail has nothing to compare with", remedy=HOW_TO_COMPARE)
        if waivers:
            raise SuiteError("--llm-waive has no baseline: name one with --llm-compare")
        return None
    if settings.baseline_endpoint is not None:
        raise SuiteError("--llm-compare and --llm-baseline-endpoint exclude each other: give one baseline")
    path = find_baseline(settings.folder, settings.compare)
    for reader in every("comparisons").values():
        found: Compares | None = reader(path, waivers)
        if found is not None:
            return found
    earlier, problems = read_earlier(path, settings.compare)
    named = read_baseline(path)
    return Comparing(path, named, waivers, tuple(earlier.values()), tuple(problems), confirmation)


def _confirmation(settings: Settings) -> Confirmation | None:
    """What ``--llm-compare-confirm`` asks for. SuiteError where no session would ever confirm another, so
    that nothing could fail."""
    if settings.accept is not None and not settings.saves:
        raise SuiteError(
            "--llm-accept has nothing to accept: this session is not saved", remedy="give --llm-save=NAME"
        )
    if settings.compare_confirm is None:
        return None
    if settings.compare is None or settings.save != settings.compare:
        raise SuiteError(
            "--llm-compare-confirm counts the earlier sessions with the name of this one",
            remedy="give --llm-save=NAME and --llm-compare=NAME, with the same name",
        )
    return Confirmation.of_option(settings.compare_confirm)


def save(
    settings: Settings, entries: Sequence[Mapping[str, Any]], now_ns: int
) -> tuple[Path | None, list[str]]:
    """Write the baseline of a session; returns its path and messages about it. Void runs are left out, and
    what failed or was waived is written as what does not count. StoreError if it cannot be written."""
    last = {entry["nodeid"]: entry for entry in entries}  # of several attempts the last
    kept = [entry for entry in last.values() if entry["identity"] and entry["validity"]["verdict"] == "valid"]
    if not kept:
        return None, [f"baseline {settings.save or 'autosave'!r} not saved: no test has a valid measurement"]
    tests = [_test(entry, settings.accept) for entry in kept]
    found, saved = checked_out(Path()), iso_utc(now_ns)
    commit = None if found is None else Commit(id=found.commit, uncommitted=found.uncommitted)
    baseline = Baseline(
        name=settings.save or automatic_name(commit, saved),
        saved=saved,
        generator_version=version("pytest-llmbench"),
        machine=machine_id(),
        commit=commit,
        tests=tests,
        void=[nodeid for nodeid, entry in last.items() if entry not in kept],
    )
    path = save_baseline(settings.folder, baseline)
    said = [f"baseline saved: {path} ({len(tests)} {'test' if len(tests) == 1 else 'tests'})"]
    if left_out := len(last) - len(kept):
        said.append(f"  left out, without a valid measurement: {left_out}")
    said += [
        f"  saved, but later sessions are not compared with it: {test.nodeid} ({_STANDINGS[test.standing]})"
        for test in tests
        if not test.counts
    ]
    if any(test.standing is Standing.BEHIND for test in tests):
        said.append("  to accept a new level, save it with --llm-accept=REASON")
    if few := [test for test in tests if test.runs < FEWEST_RUNS]:
        said.append(
            f"  {len(few)} of them with fewer than {FEWEST_RUNS} runs, too few to compare with: save with"
            f" --llm-runs={FEWEST_RUNS} or more"
        )
    return path, said


def standing(entry: Mapping[str, Any]) -> Standing:
    """What a valid result is to later sessions. A test may pass and yet have fallen behind: not confirmed, or
    undecided where that passes.

    Undecided and perhaps no change at all counts, whatever became of the test: were it left out, only the
    quicker ones of equal sessions would be kept, and the reference would move to them."""
    if entry["outcome"] in ("xfailed", "xpassed", "skipped"):
        return Standing.WAIVED

    def may_be_none(comparison: Mapping[str, Any]) -> bool:
        """Whether the worsening may be none at all, by its whole interval."""
        lower, upper = comparison["change"]["lower"], comparison["change"]["upper"]
        least, sign = (lower, 1) if comparison["better"] == "lower" else (upper, -1)
        return least is not None and sign * least <= 0

    gated = [each for each in entry["comparisons"] if each["gated"]]
    undecided = [each for each in gated if each["verdict"] == ComparisonVerdict.INCONCLUSIVE]
    worse = [each for each in gated if each["verdict"] in _WORSE]
    limits = {each["verdict"] for each in entry["gate"]["objectives"]}
    # A test that failed otherwise than by its judgement has an error.
    by_comparison = bool(worse or undecided) and limits <= {"pass"} and entry["error"] is None
    if (entry["outcome"] != "passed" and not by_comparison) or "fail" in limits:
        return Standing.FAILED
    return Standing.BEHIND if worse or not all(map(may_be_none, undecided)) else Standing.COUNTS


def automatic_name(commit: Commit | None, saved: str) -> str:
    """The name of a baseline that was given none: ``3f2a1c9b04de`` or ``3f2a1c9b04de-uncommitted``, the
    commit; outside of a repository the time, ``20260120T093000Z``."""
    if commit is None:
        return re.sub(r"[-:]|\.\d+", "", saved)
    return commit.id[:_COMMIT_DIGITS] + ("-uncommitted" if commit.uncommitted else "")


def _test(entry: Mapping[str, Any], accept: str | None) -> BaselineTest:
    counts = standing(entry)
    if accept is not None and counts is Standing.BEHIND:
        counts = Standing.COUNTS
    by_run = entry["by_run"] or {name: [metric["point"]] for name, metric in entry["metrics"].items()}
    return BaselineTest(
        nodeid=entry["nodeid"],
        test=entry["test"],
        identity=entry["identity"],
        runs=max(map(len, by_run.values())),
        by_run=by_run,
        metrics=entry["metrics"],
        output_lengths=entry["output_lengths"],
        latency_parts_ms=entry["latency_parts_ms"],
        gate=entry["gate"]["verdict"],
        standing=counts,
        verdicts={each["metric"]: each["verdict"] for each in entry["comparisons"] if each["gated"]},
        accepted=accept,
    )
