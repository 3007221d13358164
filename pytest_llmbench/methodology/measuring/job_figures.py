"""What a closed load of a given number of requests is: a finite job, whose figures are exact in each run.

"1,000 requests, 64 in flight: what P50, what throughput?" asks about *these* requests, first wave and drain
included. Only where the author asks for the steady state (``steady=True``), or lets looks end the load
(``requests="auto"``), is the load a sample of what the system does at this concurrency. Its first wave, which
finds an empty system, is then no part of it: with it P99 depends on how many requests follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pytest_llmbench.arrivals import starts_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.given import MEASURED_IF_LIMITED
from pytest_llmbench.methodology.measuring.adaptive import AdaptiveParameters
from pytest_llmbench.methodology.measuring.replies import how_made
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.definitions import MetricDefinition, of_every_load
from pytest_llmbench.metrics.itl import choose_option, itl_distribution, itl_samples
from pytest_llmbench.metrics.jobs import job_goodput, job_metrics
from pytest_llmbench.metrics.latency import distribution_of
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import ByRun, Estimate, SavedSpread, by_run
from pytest_llmbench.model.facts import Facts, LoadFact, Origin
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import judged_name
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.percentiles import PERCENTILES

_NEAR = 0.02
"""Distance of shares below which a percentile is near the end of the first wave."""
_NEVER = np.iinfo(np.int64).max
Metrics = dict[str, Estimate]
Measure = Callable[[Sequence[Observation]], Metrics]
"""Runs → their metrics."""


def figures(
    parameters: AdaptiveParameters,
    setting: Setting,
    seen: Sequence[Observation],
    measure: Measure,
) -> tuple[Metrics, ByRun]:
    """The metrics of all runs together, and those of each run: as a job where the load is one.

    ``measure``: the metrics of some runs, as those of a sample of the system at this load.
    """
    concurrency = parameters.load.in_flight
    measure = _with_extras(_with_limited(measure, (*parameters.objectives, *parameters.advisory)))
    if concurrency is not None and not parameters.is_job:
        measure = of_steady_state(measure, concurrency, setting.seed)
    together = measure(seen)
    runs = by_run([measure([run]) for run in seen] if len(seen) > 1 else ())
    if not parameters.is_job:
        return together, runs
    found = job_metrics(together, runs, spreads_of(setting, seen), open_loop=concurrency is None)
    if parameters.limits_ms and "goodput_share" in found:
        found = job_goodput(found, [run.records for run in seen], parameters.limits_ms)
    return found, runs


def _with_limited(measure: Measure, limits: Sequence[Objective]) -> Measure:
    """``measure`` with the families that a limit names and only some tests show."""
    limited = {each.metric.partition(".")[0] for each in limits} & MEASURED_IF_LIMITED

    def more(runs: Sequence[Observation]) -> Metrics:
        found = measure(runs)
        records = [run.records for run in runs]
        for family in (each for each in limited if f"{each}.mean" not in found):
            if family == "itl":
                found |= itl_distribution([itl_samples(run, choose_option(run)) for run in records])
            else:
                found |= distribution_of(family, records)
        return found

    return more if limited else measure


def _with_extras(measure: Measure) -> Measure:
    """``measure`` with the metrics of extras."""
    rows = of_every_load()

    def more(runs: Sequence[Observation]) -> Metrics:
        found = measure(runs)
        for row in rows:
            samples = [_values(row, run.records) for run in runs]
            made = distribution(row.name, samples, unit=row.unit)
            found |= made if row.is_family else {row.name: made[f"{row.name}.mean"]}
        return found

    return more if rows else measure


def _values(row: MetricDefinition, records: Records) -> npt.NDArray[np.float64]:
    assert row.values is not None
    values = np.asarray(row.values(records), dtype=np.float64)
    if values.ndim != 1 or len(values) > len(records) or not np.isfinite(values).all():
        raise SuiteError(
            f"the metric {row.name} must give a vector of finite numbers, at most one per request",
            where="metrics of extras",
            remedy="correct its extra: leave out requests without a value",
        )
    return values


def of_steady_state(measure: Measure, slots: int, seed: int) -> Measure:
    """``measure`` for the steady state: of the requests (sessions) that began in it, and rates over its
    time."""

    def of_middle(runs: Sequence[Observation]) -> Metrics:
        middles = [steady_middle(run, slots) for run in runs]
        begun = []
        for run in middles:
            begun_ns, _ = _begun(run)
            inside = (begun_ns != MISSING) & (begun_ns > run.started_ns) & (begun_ns <= run.ended_ns)
            begun.append(replace(run, records=run.records.select(inside)))
        found = measure(begun)
        return found | {name: each for name, each in rates(middles, seed=seed).items() if name in found}

    return of_middle


def steady_middle(run: Observation, slots: int) -> Observation:
    """The run from the begin of request (session) C + 1, the first to take over a slot, to the last begin:
    without the first wave and the drain. With no more of them than slots it is the whole run."""
    begun_ns, which = _begun(run)
    _, each = np.unique(which, return_index=True)
    begun = np.sort(begun_ns[each][begun_ns[each] != MISSING])
    if len(begun) <= slots + 1:
        return run
    return replace(run, started_ns=int(begun[slots]) - 1, ended_ns=int(begun[-1]))


def _begun(run: Observation) -> tuple[IntColumn, IntColumn]:
    """For each record the instant at which its request, in a load of sessions its session, began; and the
    number of that request or session."""
    sent_ns, session = run.records.submitted_ns, run.records.session
    if not run.plan.load.of_sessions or run.plan.load.in_flight is None:
        return sent_ns, run.records.index
    numbers, which = np.unique(session, return_inverse=True)
    begun_ns = np.full(len(numbers), _NEVER)
    np.minimum.at(begun_ns, which, np.where(sent_ns == MISSING, _NEVER, sent_ns))
    return np.where(begun_ns == _NEVER, MISSING, begun_ns)[which], session


def spreads_of(setting: Setting, seen: Sequence[Observation]) -> Mapping[str, SavedSpread]:
    """The saved spreads of the figures that are made as they were then. What is not known is taken to be
    alike."""
    if not setting.spreads:
        return {}
    now = how_made(seen, setting.facts)
    return {
        name: each
        for name, each in setting.spreads.items()
        if all(now.get(field, then) == then for field, then in each.made)
    }


def with_first_wave(made: TestResult, slots: int | None, *, is_job: bool) -> TestResult:
    """The result of a closed loop with the fact what its figures are of: a job, with its first wave; the
    steady state, without it; a load that is nothing else. ``slots``: how much was in flight; None for an open
    loop, which has no first wave."""
    if slots is None or not made.observations:
        return made
    short = any(steady_middle(run, slots) is run for run in made.observations)
    kind = "included" if is_job else "nothing else" if short else "left out"
    return replace(made, facts=made.facts | Facts.of(Origin.MEASURED, {LoadFact.FIRST_WAVE: kind}))


def is_decided(objectives: Sequence[Objective], metrics: Mapping[str, Estimate]) -> bool:
    """Whether every limit is kept or broken by the whole interval of its metric."""
    known = [metrics.get(judged_name(each.metric), metrics.get(each.metric)) for each in objectives]
    return all(
        found is not None and each.decided(found.lower, found.upper) is not None
        for each, found in zip(objectives, known, strict=True)
    )


def equal_lengths(parameters: AdaptiveParameters, seen: Sequence[Observation]) -> tuple[Finding, ...]:
    """A warning where a steady state is asked of replies of one length: they start and end in waves, for
    thousands of requests, and what is taken for the steady state is a part of a wave."""
    lengths = [run.records.output_tokens[run.records.ok] for run in seen]
    known = np.concatenate(lengths) if lengths else np.empty(0)
    stationary = parameters.load.in_flight is not None and not parameters.is_job
    if not stationary or not len(known) or np.ptp(known) > 0:
        return ()
    return (Finding.of("equal_lengths", tokens=int(known[0])),)


def first_wave(parameters: AdaptiveParameters) -> tuple[Finding, ...]:
    """A warning where the first wave of a job ends near a percentile with a limit: C of N requests find an
    empty system, so at C / N the figure jumps between two levels, with the lengths that happen to be
    drawn."""
    slots, count = parameters.load.in_flight, parameters.count
    if not parameters.is_job or slots is None or not count or slots >= count:
        return ()
    share = slots / count
    near = [
        each.metric
        for each in parameters.objectives
        if (q := PERCENTILES.get(each.metric.rpartition(".")[2])) is not None
        and each.metric.partition(".")[0].partition("[")[0].startswith("ttft")
        and abs(q / 100 - share) < _NEAR
    ]
    if not near:
        return ()
    found = Finding.of("first_wave", value=share, near=tuple(near), slots=slots, requests=count)
    return (found,)


def held_back(seen: Sequence[Observation]) -> Iterator[Note]:
    """What a cap on the requests in flight did: it is in no latency, which runs from the send."""
    caps = {run.plan.load.most_in_flight for run in seen}
    (cap,) = caps if len(caps) == 1 else (None,)
    if cap is None:
        return
    waits_ns: list[IntColumn] = []  # from each arrival until there was a place for the request
    for run in seen:
        due_ns, first = run.records.scheduled_ns, run.plan.first
        arrivals_ns = np.fromiter(starts_ns(run.plan, 0), dtype=np.int64, count=run.plan.requests)
        sent = due_ns != MISSING
        waits_ns.append(due_ns[sent] - run.started_ns - arrivals_ns[run.records.index[sent] - first])
    every_ns = np.concatenate(waits_ns)
    longest = Amount(int(every_ns.max(initial=0)) / 1e9, "s")
    yield Note.of("held_back", cap=cap, held=int((every_ns > 0).sum()), sent=len(every_ns), longest=longest)
