"""Sessions: whole jobs of users and agents, whose turns wait for one another.

No test of the draft, whose requests are independent. A load of sessions is sent: they start by a schedule, or
so many go on at once; a turn is due when what it waits for has ended, after its pause. Judged are the time of
the whole job, TTFT by the number of the turn, and the share of sessions that kept every limit. The sampling
unit of all that is the session. The procedure is that of the TTFT test: warm up, send one load, judge. Where
the slowdown is asked for, some of the sessions are sent before the load, one at a time and in other words.
Where the jobs per hour at the limit are asked for, levels of more and fewer sessions are sent in place of one
load, as for a capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import STEADY_WAVES
from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.job_figures import (
    Measure,
    is_decided,
    of_steady_state,
    spreads_of,
    with_first_wave,
)
from pytest_llmbench.methodology.measuring.levels import session_load, session_plan, too_long, turn_classes
from pytest_llmbench.methodology.measuring.one_load import (
    FEWEST_FAILURES,
    Before,
    Told,
    may_be_one,
    measured_runs,
    one_load_result,
    run_count,
    with_void,
)
from pytest_llmbench.methodology.measuring.over_time import bars, parts_of
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import (
    DEFAULT_CONCURRENCY,
    OF_BURSTINESS,
    TestParameters,
    arrival_law,
    arrival_mistakes,
    limit,
    parameter,
)
from pytest_llmbench.methodology.patience import with_raised_deadlines
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.search.level_search import (
    FIRST_RATE,
    HIGHEST_RATE,
    RATE_S,
    JobLevels,
    JobsFound,
    find_jobs_per_hour,
)
from pytest_llmbench.methodology.search.session_probes import (
    PROBES,
    QUICK_PROBES,
    Alone,
    no_pairs,
    not_probed,
    notes_of_probes,
    probed,
)
from pytest_llmbench.metrics.definitions import SLOWDOWNS
from pytest_llmbench.metrics.jobs import job_metrics as of_job
from pytest_llmbench.metrics.jobs import job_share
from pytest_llmbench.metrics.session_figures import (
    Jobs,
    job_metrics,
    jobs_of,
    session_goodput,
    session_scores,
    slowdown_metrics,
    turn_metrics,
)
from pytest_llmbench.metrics.throughput import rates, uncounted, unknown
from pytest_llmbench.model.estimate import Estimate, by_run
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells, duration, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Load, LoadPlan, OpenLoop, Quantity
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import TurnClass, Workload
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.catalogue import workload as find_workload

HEADING = Heading("sessions", "", "Sessions")
GATE_SESSIONS = 500
QUICK_SESSIONS = 10
_TURNS_SHOWN = 12
"""Number of turns that the table shows one by one."""
_TURNS_DRAWN = 16
"""Number of rows that fit into a plot."""
_SLOW = ("p50", "p95")
_OUTSIDE = Note.of("outside_draft", test="sessions")


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Conversations and agents, whose turns wait for one another."""

    of_the_draft = False
    repeats = True
    of_sessions = True

    workload: str | Workload = parameter(
        "workload",
        "session:chat",
        doc='``session:chat``, ``session:deep-research``, ``{"sessions": {…}}``, the name of a trace with '
        "``sessions = true`` or an object.",
    )
    max_error_share: float = parameter("share", 0.01, doc="error budget for turns and cut-off sessions.")
    job_p50_s: float | None = limit(
        "job_time.p50",
        doc="limit on the median job time: from the instant at which the first turn is due to the last end.",
    )
    job_p95_s: float | None = limit("job_time.p95", doc="limit on P95 of the job time.")
    ttft_p95_ms: float | None = limit("ttft.p95", doc="limit on TTFT P95 of all turns.")
    ttft_p99_ms: float | None = limit("ttft.p99")
    turn_ttft_p95_ms: Mapping[int | str, float] | None = limit(
        "turn_ttft[{}].p95",
        "positive_by_turn",
        doc='limit on TTFT P95 by turn number, ``{1: 500, "2+": 300}``.',
    )
    ttft_ms: float | None = parameter(
        "positive",
        doc="limit of a good session: every turn keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``, and the "
        "job keeps ``job_s``, where given.",
    )
    tpot_ms: float | None = parameter("positive")
    e2e_ms: float | None = parameter("positive")
    job_s: float | None = parameter("positive")
    min_session_goodput: float | None = limit(
        "session_goodput", "share", doc="least share of good sessions among all sessions."
    )
    max_slowdown: float | None = limit(
        "job_slowdown.p50", doc="largest median ratio of job time, under load / alone."
    )
    max_llm_slowdown: float | None = limit(
        "job_llm_slowdown.p50",
        doc="largest median ratio of LLM time (job time without pauses), under load / alone.",
    )
    probe_sessions: int | None = parameter(
        "amount",
        doc="sessions that each run sends alone before the load, one at a time, for comparison (default "
        "40 if the slowdown has a limit, else 0: not measured).",
    )
    find: Literal["jobs_per_hour"] | None = parameter(
        "choice",
        doc="``jobs_per_hour``: search for the highest rate of session starts that keeps all limits of "
        "the marker, instead of one load; ``min_jobs_per_hour`` implies the search.",
    )
    min_jobs_per_hour: float | None = parameter("positive")
    initial: int | None = parameter("count", doc="search: jobs per hour at the first level (default 200).")
    maximum: int | None = parameter("count", doc="search: upper bound in jobs per hour (default 6,400).")
    duration_s: float | None = parameter(
        "positive",
        doc="search: time in which the sessions of a level start, or five times the pauses of a session "
        "if that is longer; ``total_sessions`` is the fewest sessions of a level (10 / 100 / 500).",
        scale=RATE_S,
    )
    rate: float | None = parameter("positive", doc="open loop: session starts per second.")
    arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | None = parameter(
        "arrival", doc="``trace``: sessions start at the instants of the workload's trace, without ``rate``."
    )
    speedup: float | None = parameter(
        "positive", doc="with a trace: factor by which sessions start faster; pauses stay as they are."
    )
    burstiness: float | None = parameter("positive", doc=OF_BURSTINESS)
    sessions: int | None = parameter("count", doc="closed loop: sessions at once (default 8).")
    total_sessions: int | None = parameter(
        "count", doc="measured sessions (default 500, quick 10; with a trace all)."
    )
    steady: bool = parameter(
        "flag",
        False,
        doc="closed loop: the sessions are a sample of a steady state with this many at once; otherwise "
        "they are a job that is exact in each run.",
    )

    @property
    def limits_ms(self) -> tuple[tuple[Quantity, float], ...]:
        """The limits, in ms, that every turn of a good session keeps."""
        given: tuple[tuple[Quantity, float | None], ...] = (
            ("ttft", self.ttft_ms),
            ("tpot", self.tpot_ms),
            ("e2e", self.e2e_ms),
        )
        return tuple((quantity, limit) for quantity, limit in given if limit is not None)

    @property
    def classes(self) -> tuple[TurnClass, ...]:
        """The classes of turns that get metrics: the first, the later ones, and those with limits of their
        own."""
        return turn_classes(self.turn_ttft_p95_ms or (), self.slo)

    @property
    def searches(self) -> bool:
        return self.find is not None or self.min_jobs_per_hour is not None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives to be judged; for a search only that on its result, since each level is held to the
        limits."""
        if not self.searches:
            return self.limits
        least = self.min_jobs_per_hour
        return () if least is None else (Objective("jobs_per_hour", ">=", float(least), "count"),)

    @property
    def limits(self) -> tuple[Objective, ...]:
        """The limits on one load, or on each level of a search."""
        return (*self.own_objectives, *self.slo)

    @property
    def probes(self) -> int:
        """Number of sessions of each run that are sent alone: as asked for, else some where a limit needs
        them."""
        if self.probe_sessions is not None:
            return self.probe_sessions
        return PROBES if self._limits_slowdown else 0

    @property
    def _limits_slowdown(self) -> bool:
        return any(each.metric.partition(".")[0] in SLOWDOWNS for each in self.limits)

    @property
    def at_once(self) -> int | None:
        """Sessions at once in a closed loop; None for an open one."""
        closed = self.rate is None and self.arrival != "trace" and not self.searches
        return (self.sessions or DEFAULT_CONCURRENCY) if closed else None

    @property
    def is_job(self) -> bool:
        return self.at_once is not None and not self.steady

    @property
    def load(self) -> Load:
        if self.arrival == "trace":
            starts = tuple(round(offset / (self.speedup or 1.0)) for offset in self.offsets_ns)
            rate = 1e9 * len(starts) / max((1, *starts))
            return OpenLoop(rate, "trace", offsets_ns=starts, of_sessions=True)
        return session_load(self.rate, self.sessions, self.arrival, self.burstiness)

    def contradictions(self) -> list[str]:
        found = []
        if not self.has_sessions:
            found.append(
                "workload is of single requests: name one of sessions, for example 'session:chat', or a "
                "trace with sessions = true"
            )
        found += self._probe_mistakes()
        if self.searches:
            return found + self._search_mistakes() + arrival_mistakes(self.arrival, self.burstiness)
        found += [
            f"{name} applies to a search: add find='jobs_per_hour'"
            for name in ("initial", "maximum", "duration_s")
            if getattr(self, name) is not None
        ]
        if self.arrival == "trace":
            return found + self._trace_mistakes()
        if self.speedup is not None:
            found.append("speedup needs arrival='trace': it scales the instants of a trace")
        if self.steady and self.at_once is None:
            found.append("steady needs sessions: an open loop measures the steady state anyway")
        least, most = STEADY_WAVES * (self.at_once or 0), self.total_sessions or GATE_SESSIONS
        if self.steady and most < least:
            found.append(f"steady needs {STEADY_WAVES} sessions for each slot: {least} or more, not {most}")
        if self.rate is not None and self.sessions is not None:
            found.append("rate (open loop) and sessions (closed loop) exclude each other: give one")
        if self.rate is None:
            found += [
                f"{name} needs rate: it describes the starts of an open loop"
                for name in ("arrival", "burstiness")
                if getattr(self, name) is not None
            ]
        else:
            found += arrival_mistakes(self.arrival, self.burstiness)
        return found

    def _search_mistakes(self) -> list[str]:
        """Mistakes in the parameters of a search for the jobs per hour at the limit."""
        why = "a search for jobs_per_hour sets its own rates"
        found = [
            f"{name} is not for it: {why}"
            for name in ("rate", "sessions", "speedup")
            if getattr(self, name) is not None
        ]
        if self.arrival == "trace":
            found.append(f"arrival='trace' is not for it: {why}")
        if self.runs is not None:
            found.append("runs is not for it: a search for jobs_per_hour runs each level once")
        if self.probes:
            found.append(
                "a slowdown needs one load: leave out its limit and probe_sessions, or the search for "
                "jobs_per_hour"
            )
        if not self.limits:
            found.append(
                "a search for jobs_per_hour needs a limit that overload breaks, for example job_p95_s"
            )
        if self.first_level > self.last_level:
            found.append(f"initial must not be above maximum, got {self.first_level} and {self.last_level}")
        if self.min_jobs_per_hour is not None and self.min_jobs_per_hour > self.last_level:
            found.append(
                f"min_jobs_per_hour {trimmed(self.min_jobs_per_hour)} can never pass: maximum is "
                f"{self.last_level}"
            )
        return found

    @property
    def first_level(self) -> int:
        usual = FIRST_RATE if self.maximum is None else min(FIRST_RATE, self.maximum)
        return self.initial or usual

    @property
    def last_level(self) -> int:
        return self.maximum or HIGHEST_RATE

    def _probe_mistakes(self) -> list[str]:
        found, asked = [], self.probe_sessions
        if asked == 0 and self._limits_slowdown:
            found.append(
                "probe_sessions is 0, but a limit is on the slowdown: it is measured against sessions alone"
            )
        if asked is not None and asked > _usual_count(self) and not self.searches:
            found.append(
                f"probe_sessions is {asked}, but only {_usual_count(self)} sessions are measured, and each "
                "probe is compared with one of them"
            )
        if self.probes and self.has_sessions:
            found += not_probed(find_workload(self.workload))
        return found

    def _trace_mistakes(self) -> list[str]:
        starts = len(self.offsets_ns)
        found = []
        if self.rate is not None:
            found.append(
                "arrival='trace' takes its instants from the workload: leave out rate, and give speedup for "
                "more sessions per second"
            )
        if self.sessions is not None:
            found.append(
                "arrival='trace' (open loop) and sessions (closed loop) exclude each other: give one"
            )
        if self.burstiness is not None:
            found.append("burstiness needs arrival='gamma', not 'trace'")
        if starts < 2:
            name = getattr(self.workload, "name", self.workload)
            found.append(
                f"arrival='trace' needs a workload with start instants of at least two sessions; "
                f"{name!r} has {starts}"
            )
        elif self.total_sessions is not None and self.total_sessions > starts:
            found.append(f"total_sessions is {self.total_sessions}, but the trace has {starts} sessions")
        return found


def session_count(parameters: Parameters, setting: Setting) -> int:
    """Number of sessions in one run."""
    asked = _usual_count(parameters)
    return min(asked, QUICK_SESSIONS) if setting.scale == "quick" else asked


def _usual_count(parameters: Parameters) -> int:
    usual = len(parameters.offsets_ns) if parameters.arrival == "trace" else GATE_SESSIONS
    return parameters.total_sessions or usual


def _plan(parameters: Parameters, setting: Setting, run: int, attempt: int = 1) -> LoadPlan:
    """The plan of a run. Each run, and each attempt, has sessions of its own, so no prompt is sent twice."""
    runs, count, load = run_count(parameters, setting), session_count(parameters, setting), parameters.load
    asked = {"load": load.terms(), "sessions": count, "run": run, "attempt": attempt}
    label = "measure" if runs == 1 else f"run {run + 1} of {runs}"
    plan = session_plan(setting, "sessions", label, load, count, asked)
    most = max(FEWEST_FAILURES, int(parameters.max_error_share * plan.requests * runs + 1e-9))
    return plan.with_(most_failures=most)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans, one per run; for a search those of the first level and of the highest."""
    if parameters.searches:
        levels = _job_levels(parameters, setting)
        return tuple(map(levels.plan, dict.fromkeys((levels.initial, levels.maximum))))
    return tuple(_plan(parameters, setting, run) for run in range(run_count(parameters, setting)))


def needs(parameters: Parameters, setting: Setting) -> list[str]:
    return too_long(setting, plans(parameters, setting))


def procedure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    """The test's procedure: one load, or the search."""
    return (_search if parameters.searches else _one_load)(parameters, setting)


@with_raised_deadlines
def _one_load(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    """The procedure with one load: warm-up, probes if they are asked for, the runs, the result. A run that
    this machine spoiled is measured again with other sessions."""
    warmup = yield from warm_up(setting, concurrency=parameters.at_once)
    alone = yield from _probed(parameters, setting, plans(parameters, setting), {})

    def plan_of(run: int, attempt: int, before: Before) -> LoadPlan:  # noqa: ARG001 - the signature is shared
        return _plan(parameters, setting, run, attempt)

    def is_enough(seen: Sequence[Observation]) -> bool:
        found = result(parameters, setting, warmup, seen, alone)
        return is_decided(found.objectives, found.metrics)

    runs, one_may_do = run_count(parameters, setting), is_enough if may_be_one(parameters, setting) else None
    seen, void = yield from measured_runs(runs, 1 + setting.remeasure, plan_of, one_may_do, parameters.limits)
    ended = [run.plan for run in seen if run.interrupted is None]
    alone = yield from _probed(parameters, setting, ended, alone)
    void += [each for probes in alone.values() for each in probes.void]
    made = result(parameters, setting, warmup, seen, alone)
    return with_void(with_first_wave(made, parameters.at_once, is_job=parameters.is_job), void)


def _probed(
    parameters: Parameters, setting: Setting, loads: Sequence[LoadPlan], alone: Alone
) -> Procedure[Alone]:
    """``alone``, with the probes of those loads that have none yet: a load that was measured again has other
    sessions."""
    asked = min(parameters.probes, session_count(parameters, setting))
    probes = min(asked, QUICK_PROBES) if setting.scale == "quick" else asked
    found = dict(alone)
    for load in loads:
        if probes and load.seed not in found:
            found[load.seed] = yield from probed(setting, load, probes, session_count(parameters, setting))
    return found


def result(
    parameters: Parameters,
    setting: Setting,
    warmup: WarmupReport,
    seen: Sequence[Observation],
    alone: Alone | None = None,
) -> TestResult:
    """The result of one load. ``alone``: the probes of each run, by the seed of its load."""
    probes = alone or {}
    measure: Measure = partial(_metrics, parameters, probes, setting.seed)
    if parameters.steady and parameters.at_once is not None:
        measure = of_steady_state(measure, parameters.at_once, setting.seed)
    metrics = measure(seen)
    runs = by_run([measure([run]) for run in seen] if len(seen) > 1 else ())
    jobs = [jobs_of(run.records, parameters.limits_ms) for run in seen]
    if parameters.is_job:
        metrics = of_job(metrics, runs, spreads_of(setting, seen))
        scores = [session_scores(run, parameters.job_s) for run in jobs]
        metrics["session_goodput"] = job_share(metrics["session_goodput"], scores)
    records = Records.concatenate([run.records for run in seen])
    cut, every = sum(run.cut_off for run in jobs), sum(map(len, jobs))
    without_time = (Note.of("without_job_time", cut=cut, sessions=every),) if cut else ()
    told = Told(
        metrics,
        runs,
        tables=(_jobs_table(parameters, metrics, jobs, seen), _turns_table(records)),
        plots=(*_plots(records), *_slowest_job(seen, jobs)),
        notes=(*without_time, *notes_of_probes(seen, probes), _OUTSIDE),
    )
    planned = (*(run.plan for run in seen), *plans(parameters, setting)[len(seen) :])
    return one_load_result(HEADING, parameters, setting, warmup, seen, told, plans=planned)


def _metrics(
    parameters: Parameters, alone: Alone, seed: int, seen: Sequence[Observation]
) -> dict[str, Estimate]:
    metrics = _figures(parameters, [run.records for run in seen], seed) | rates(seen, seed=seed)
    jobs = [jobs_of(run.records) for run in seen]
    probes = [alone.get(run.plan.seed) for run in seen]
    pairs = [each.beside(own) for own, each in zip(jobs, probes, strict=True) if each is not None]
    return metrics | slowdown_metrics(pairs, no_pairs(probes))


def _figures(parameters: Parameters, runs: Sequence[Records], seed: int) -> dict[str, Estimate]:
    """The metrics of turns and of jobs."""
    jobs = [jobs_of(records, parameters.limits_ms) for records in runs]
    metrics = turn_metrics(runs, parameters.classes, seed=seed) | job_metrics(jobs)
    known = not uncounted(runs, parameters.limits_ms)
    good = session_goodput(jobs, parameters.job_s) if known else unknown("ratio")
    return metrics | {"session_goodput": good}


def _job_levels(parameters: Parameters, setting: Setting) -> JobLevels:
    return JobLevels(
        setting=setting,
        limits=parameters.limits,
        figures=lambda records: _figures(parameters, [records], setting.seed),
        law=OpenLoop(1.0, *arrival_law(parameters.arrival, parameters.burstiness), of_sessions=True),
        initial=parameters.first_level,
        maximum=parameters.last_level,
        duration_s=parameters.duration_s,
        sessions=parameters.total_sessions,
        max_error_share=parameters.max_error_share,
    )


def _measure_levels(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    found = yield from find_jobs_per_hour(_job_levels(parameters, setting))
    metrics = {"jobs_per_hour": found.estimate}
    best, runs = found.best, found.runs
    if best is not None:
        metrics |= dict(best.level.metrics)
    report = Report(
        levels=runs,
        metrics=metrics,
        tables=(_search_table(parameters, found),),
        notes=(*found.notes, _OUTSIDE),
        load={} if found.passed is None else {LoadFact.SESSION_RATE: found.passed / 3600},
        budgeted=(best,) if best is not None else runs[-1:],
    )
    return result_of(HEADING, parameters, setting, warmup, report)


_search = framed(HEADING, _measure_levels)


def _search_table(parameters: Parameters, found: JobsFound) -> Table:
    """A table of every tested rate, in the order run."""
    limited = tuple(dict.fromkeys(limit.metric for limit in parameters.limits))
    rows: list[Row] = []
    for seen in found.runs:
        level = seen.level
        jobs = jobs_of(seen.records)
        undecided = "Not decided" if level.fail_reasons else "Not offered"
        status = undecided if level.passed is None else "Pass" if level.passed else "Fail"
        told: Row = (
            level.label,
            f"{len(jobs) - jobs.cut_off} of {len(jobs)}",
            *cells(level.metrics, limited),
        )
        rows.append((*told, status, "; ".join(level.fail_reasons)))
    columns = ("Rate", "Completed", *limited, "Status", "Reason")
    return Table("session_search", "Jobs per Hour Search Results", columns, tuple(rows))


def _jobs_table(
    parameters: Parameters,
    metrics: Mapping[str, Estimate],
    jobs: Sequence[Jobs],
    seen: Sequence[Observation],
) -> Table:
    every, cut = sum(map(len, jobs)), sum(run.cut_off for run in jobs)
    hours = sum(run.duration_s for run in seen) / 3600
    rows: list[tuple[str, Cell]] = [
        ("Sessions completed", f"{every - cut} of {every}"),
        ("Turns never sent", sum(run.unsent for run in jobs)),
        ("Sessions completed per hour", Amount((every - cut) / hours if hours else None, "")),
    ]
    named = (
        *((f"Job completion time {name.upper()}", f"job_time.{name}") for name in ("p50", "p95", "p99")),
        ("Job time, mean", "job_time.mean"),
        ("… of it LLM", "job_llm_time.mean"),
        ("… of it pauses", "job_pause_time.mean"),
        ("… of it wait in the generator", "job_generator_wait.mean"),
        *((f"TTFT of all turns {name.upper()}", f"ttft.{name}") for name in ("p50", "p95", "p99")),
        *((f"TTFT P95 of turn {each}", f"turn_ttft[{each}].p95") for each in parameters.classes),
        *((f"Cached share of turn {each}", f"turn_cached_share[{each}]") for each in parameters.classes),
        ("Session goodput", "session_goodput"),
        *((f"Job time against the same job alone {name.upper()}", f"job_slowdown.{name}") for name in _SLOW),
        *((f"LLM time against the same alone {name.upper()}", f"job_llm_slowdown.{name}") for name in _SLOW),
    )
    rows += [(title, Figure(name, metrics[name])) for title, name in named]
    return metric_table("session_results", "Session Results", rows)


def _turns_table(records: Records) -> Table:
    """A table turn by turn, as observed: how the context grows, and how much of it was cached."""
    highest = int(records.turn.max(initial=0))
    rows: list[Row] = []
    for turn in range(1, min(highest, _TURNS_SHOWN) + 1):
        own = records.select(records.ok & (records.turn == turn))
        waits = (own.first_content_ns - own.submitted_ns) / 1e6
        row: list[Cell] = [turn, len(own), "", "", "", ""]
        if len(own):
            row[2:] = [
                Amount(float(np.mean(own.requested_input_tokens)), "count"),
                Amount(float(np.median(waits)), "ms"),
                _share(own, "cached_tokens", "input_tokens"),
                _share(own, "shared_prefix_tokens", "requested_input_tokens"),
            ]
        rows.append(tuple(row))
    columns = ("Turn", "Ended well", "Input tokens, mean", "TTFT P50", "Cached", "Could be cached")
    return Table("session_turns", "Turns by Number", columns, tuple(rows))


def _share(own: Records, column: str, whole: str) -> Cell:
    """A column as a share of another. Both have to be counted by one tokenizer: the server's, or
    that of the workload."""
    part, of = getattr(own, column), getattr(own, whole)
    if (part < 0).any() or (of <= 0).any():
        return "not known" if column == "shared_prefix_tokens" else "not measurable"
    return Amount(float(part.sum() / of.sum()), "ratio")


def _plots(records: Records) -> tuple[Plot, ...]:
    """A plot of TTFT by the number of the turn."""
    ok = records.select(records.ok)
    numbers = np.unique(ok.turn)
    if not len(numbers):
        return ()
    waits = (ok.first_content_ns - ok.submitted_ns) / 1e6
    by_turn = [waits[ok.turn == number] for number in numbers]
    x = tuple(map(float, numbers))
    series = {
        name: (x, tuple(float(np.percentile(each, q)) for each in by_turn))
        for name, q in (("P50", 50.0), ("P95", 95.0))
    }
    return (Plot("ttft_by_turn", "TTFT by turn", "turn of the session", "TTFT (ms)", series),)


def _slowest_job(seen: Sequence[Observation], jobs: Sequence[Jobs]) -> tuple[Plot, ...]:
    """A plot of the completed job that took longest, a row for each turn: when it was in flight, and in which
    phase. Pauses are the gaps. Nothing if no job was completed."""
    times = [np.where(run.complete, run.time_s, -np.inf) for run in jobs]
    longest = [float(each.max(initial=-np.inf)) for each in times]
    run = int(np.argmax(longest))
    if not np.isfinite(longest[run]):
        return ()
    records, session = seen[run].records, jobs[run].session[np.argmax(times[run])]
    own = np.flatnonzero(records.session == session)
    own = own[np.argsort(records.turn[own])]
    begun_ns = int(records.scheduled_ns[own].min())
    due, sent = records.scheduled_ns[own] - begun_ns, records.submitted_ns[own] - begun_ns
    parts = {"wait in the generator": (due, sent)} | parts_of(records, own, begun_ns)
    shown = {name: (begin[:_TURNS_DRAWN], end[:_TURNS_DRAWN]) for name, (begin, end) in parts.items()}
    series = {name: line for name, ends in shown.items() if (line := bars(*ends, unit_ns=1e9))[0]}
    title = f"The slowest job: {duration(longest[run])}, {len(own)} turns"
    title += (f", the first {_TURNS_DRAWN} shown" if len(own) > _TURNS_DRAWN else "") + "; gaps are pauses"
    title += f" (run {run + 1})" if len(seen) > 1 else ""
    rows = tuple(f"turn {turn}" for turn in records.turn[own][:_TURNS_DRAWN].tolist())
    return (Plot("slowest_job", title, "s from the start of the session", "turn", series, rows=rows),)


TEST = TestDefinition(*HEADING, Parameters, procedure, plans, needs)
