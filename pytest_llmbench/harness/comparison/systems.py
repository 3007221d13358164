"""Several systems in one session: ``--llm-endpoint`` more than once, ``llmbench.compare`` (section 6), and
A/B, a candidate and its baseline (``--llm-baseline-endpoint``).

Each test runs on every system, whole and with a warm-up of its own, in rounds whose order is drawn. What is
reported is the result on the first system, with the table that sets all of them side by side, what is equal
between them, and the facts ``comparison.*`` that the rules for comparisons are checked with.

An A/B is measured in pairs of runs. What is reported is the candidate's result, with the comparisons of both
arms. The lengths of the answers are compared before anything else, since arms that answer otherwise do other
work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmbench.compare.comparability import (
    cache_apart,
    evidence,
    hardware_is_equal,
    made_otherwise,
    output_lengths,
    rules,
)
from pytest_llmbench.compare.limits import (
    SHOWN_MARGIN,
    RegressionLimit,
    comparisons,
    margin_mistakes,
    metric_mistakes,
    nothing_decides,
)
from pytest_llmbench.compare.regression import as_promised
from pytest_llmbench.compare.systems import (
    System,
    against_first,
    is_real,
    overlaid,
    side_by_side,
    significance,
)
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.harness.comparison.arms import (
    BASELINE,
    CANDIDATE,
    Compared,
    cached_share,
)
from pytest_llmbench.harness.comparison.identity import lengths_of, lengths_vector, made_by, refused_metrics
from pytest_llmbench.harness.comparison.replication import ArmRuns, paired_runs
from pytest_llmbench.harness.settings import Settings, named
from pytest_llmbench.harness.sut.declared import hourly_price
from pytest_llmbench.http_client import GRPC_SCHEMES, WEBSOCKET_SCHEMES
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import parameter
from pytest_llmbench.metrics import latency
from pytest_llmbench.model.facts import ComparisonFact, Facts, Origin, SUTFact, WarmupFact
from pytest_llmbench.model.judgement import ComparisonVerdict, Finding
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.redaction import without_credentials

_SCHEMES = tuple(f"{each}:" for each in ("http", "https", *WEBSOCKET_SCHEMES, *GRPC_SCHEMES))

SEVERAL = "--llm-endpoint NAME=URL --llm-endpoint NAME=URL"


def _metrics(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [f"must be a list of names, got {shown(value)}"]
    return [f"has {shown(metric)}: {wrong}" for metric in value for wrong in metric_mistakes(metric)]


@dataclass(frozen=True)
class Wanted:
    """Compare several systems (section 6 of the draft). Use it next to a marker that measures::

        @llmbench.ttft(rate=20)
        @llmbench.compare(metrics=["ttft.p50", "output_token_throughput"])
        def test_side_by_side(): ...

    The systems are those of ``--llm-endpoint NAME=URL``, given once for each. Without this marker such a
    session compares all the same, with these defaults. Differences are shown and fail nothing.
    """

    metrics: Sequence[str] | None = parameter(
        _metrics, doc="metrics to compare; default: middle and tail of the test's latencies, and its rates."
    )
    margin: float = parameter(
        margin_mistakes, SHOWN_MARGIN, doc="largest change, as a share, at which systems count as equivalent."
    )
    claim: bool = parameter(
        "flag", True, doc="False: the report shows the systems and does not say which one is better."
    )
    normalisation: str | None = parameter(
        "text", doc="how different hardware was normalised, if not per accelerator and per price."
    )
    production_configuration: str | None = parameter(
        "text", doc="checklist of section 6.4: how the configurations relate to production."
    )
    same_time: str | None = parameter(
        "text", doc="checklist: when the systems were measured; default: in turns, in one session."
    )
    differences: str | None = parameter(
        "text", doc="checklist: how the systems differ; default: what was declared and detected."
    )


@dataclass(frozen=True)
class Listed:
    """One of the systems that the command line lists."""

    name: str
    endpoint: str
    file: Path | None


def listed_systems(settings: Settings) -> tuple[Listed, ...]:
    """The systems of the command line; empty for fewer than two. SuiteError for a name that occurs twice, and
    for a file of a system that is not listed."""
    if len(settings.endpoints) < 2:
        return ()

    def short(url: str) -> str:
        told = without_credentials(url)
        return told.partition("://")[2] if told.startswith(_SCHEMES) else told

    given = [named(text) for text in settings.endpoints]
    names = [name or short(url) for name, url in given]
    files = dict(named(text) for text in settings.suts)
    common = files.pop("", None)
    mistakes = [f"--llm-endpoint: two systems have the name {name!r}: name them with NAME=URL"
                for name in dict.fromkeys(names) if names.count(name) > 1]  # fmt: skip
    mistakes += [f"--llm-sut {name}={file}: there is no system {name!r}; there are {', '.join(names)}"
                 for name, file in files.items() if name not in names]  # fmt: skip
    if mistakes:
        raise SuiteError.from_mistakes(mistakes)
    urls = [url for _, url in given]
    return tuple(
        Listed(name, url, Path(file) if (file := files.get(name, common)) else None)
        for name, url in zip(names, urls, strict=True)
    )


def compare_systems(
    measured: Mapping[str, ArmRuns],
    runs: int,
    wanted: Wanted,
    systems: Sequence[Listed],
    notes: Sequence[Note],
    budget: Budget,
) -> Compared:
    """The first system's result with the comparison of all of them. Each was run ``runs`` times."""
    first = measured[systems[0].name]
    names = tuple(system.name for system in systems)
    done = Note.of("systems_compared", count=len(systems), systems=names, runs=runs)
    findings = [
        Finding.of("systems_valid", system=name, run=number, why=reason)
        for name, own in measured.items()
        for number, result in enumerate(own.every, start=1)
        for reason in validity_of(result, budget).reasons
    ]
    result = _noted(first.result, (done, *notes), findings)
    counts = {name: len(own.every) for name, own in measured.items()}
    if len(measured) < len(systems) or min(counts.values()) < runs or any(f.voids for f in findings):
        return result, ()
    peers = tuple(measured[system.name].result for system in systems[1:])
    return _with_comparison(result, measured, wanted, systems), peers


def _with_comparison(
    result: TestResult, measured: Mapping[str, ArmRuns], wanted: Wanted, listed: Sequence[Listed]
) -> TestResult:
    files = {each.name: each.file for each in listed}
    systems = [_system(name, runs, files[name]) for name, runs in measured.items()]
    found = against_first(systems, wanted.metrics or (), wanted.margin)
    facts = {name: runs.result.facts for name, runs in measured.items()}
    equal = evidence(facts, {name: _schedule(runs.result) for name, runs in measured.items()})
    per = []
    if all(system.accelerators is not None for system in systems):
        per.append("output tokens per second over the number of accelerators (tokens per GPU-second)")
    if all(system.dollars_per_hour is not None for system in systems):
        per.append("output tokens per second over dollars per hour, at the declared prices")
    values = {
        **equal,
        **_claims(systems, wanted, {each.metric for each in found}),
        ComparisonFact.TESTS: significance(found, systems),
        ComparisonFact.NORMALISATION: wanted.normalisation or "; ".join(per) or None,
        ComparisonFact.CHECKLIST: _checklist(wanted, facts, hardware_is_equal(equal)),
    }
    shares = [cached_share(runs) for runs in measured.values()]
    caches = [] if result.test == "prefix_cache" else [cache_apart(shares[0], s) for s in shares[1:]]
    told = sum(is_real(each) for each in found)
    otherwise = [
        finding
        for other in systems[1:]
        for finding in refused_metrics(
            [each for each in found if each.candidate_name == other.name], systems[0].made, other.made
        )
    ]
    note = Note.of("real_differences", real=told, differences=len(found))
    return replace(
        result,
        tables=(*result.tables, side_by_side(systems, found)),
        plots=overlaid({name: own.result.plots for name, own in measured.items()}),
        comparisons=found,
        facts=result.facts | Facts.of(Origin.MEASURED, values, "several systems"),
        findings=(*result.findings, *rules(equal), *otherwise, *filter(None, caches)),
        notes=(note, *result.notes),
    )


def _system(name: str, runs: ArmRuns, file: Path | None) -> System:
    count = runs.result.facts.value(SUTFact.ACCELERATOR_COUNT)
    price = hourly_price(file)
    samples = {
        family: np.concatenate([measure(seen.records) for seen in runs.observations])
        for family, measure in latency.FAMILIES.items()
        if family in ("ttft", "tpot", "e2e")
    }
    return System(
        name,
        runs.by_run,
        samples,
        accelerators=count if isinstance(count, int) and count > 0 else None,
        dollars_per_hour=None if price is None else price.per_hour,
        price_date=None if price is None else price.date,
        made=made_by(runs.result),
    )


def _schedule(result: TestResult) -> str | None:
    """Digest of the arrivals, in nanoseconds from the start of each load; None without an open loop."""
    digest, seen_any = hashlib.sha256(), False
    for seen in result.observations:
        if seen.plan.load.request_rate is not None and seen.interrupted is None:
            at = seen.records.scheduled_ns
            digest.update((at[at != MISSING] - seen.started_ns).astype("<i8").tobytes())
            seen_any = True
    return digest.hexdigest() if seen_any else None


def _claims(systems: Sequence[System], wanted: Wanted, metrics: set[str]) -> dict[str, Any]:
    per_gpu = {s.name: _mean(s.throughput_by(s.accelerators)) for s in systems}
    per_cost = {s.name: _mean(s.throughput_by(s.dollars_per_hour)) for s in systems}
    priced = {
        s.name: {
            "value": per_cost[s.name],
            "tokens_per_dollar": (per_cost[s.name] or 0.0) * 3600,
            "dollars_per_hour": s.dollars_per_hour,
            "date": s.price_date,
        }
        for s in systems
        if per_cost[s.name] is not None and s.price_date is not None
    }
    return {
        ComparisonFact.CLAIM: wanted.claim,
        ComparisonFact.METRICS: sorted(metrics),
        ComparisonFact.RUNS: {s.name: max((len(v) for v in s.by_run.values()), default=0) for s in systems},
        ComparisonFact.TOKENS_PER_GPU_SECOND: per_gpu if None not in per_gpu.values() else None,
        ComparisonFact.TOKENS_PER_DOLLAR_HOUR: priced if len(priced) == len(systems) else None,
    }


def _mean(values: tuple[float, ...] | None) -> float | None:
    return float(np.exp(np.log(values).mean())) if values and min(values) > 0 else None


def _checklist(wanted: Wanted, facts: Mapping[str, Facts], same_hardware: bool) -> dict[str, str]:
    """The seven items of section 6.4 with their answers; empty text where only the tester can answer."""
    every = [{key: fact.value for key, fact in own.under("sut").items()} for own in facts.values()]
    keys = dict.fromkeys(key for own in every for key in own)
    differing = [key for key in keys if len({repr(own.get(key)) for own in every}) > 1]
    differing += [] if same_hardware else ["accelerators, or not known"]
    warmups = {name: own.value(WarmupFact.DESCRIPTION, "not known") for name, own in facts.items()}
    return {
        "workload": "the same specification, seeds and order of requests for all systems, see same_requests",
        "duration": "the same request counts and durations: one test, one set of parameters",
        "warmup": "; ".join(f"{name}: {text}" for name, text in warmups.items()),
        "success_criteria": "the same outcomes, error budget and rule for deadlines for all systems",
        "same_time": wanted.same_time or "one session, the systems in turns, one loaded at a time",
        "production_configuration": wanted.production_configuration or "",
        "differences": wanted.differences or (", ".join(differing) or "none declared or detected"),
    }


def against_baseline(
    measured: Mapping[str, ArmRuns], limits: Sequence[RegressionLimit], notes: Sequence[Note], budget: Budget
) -> TestResult:
    """The candidate's result with its comparisons, of which those in ``limits`` decide. ``notes`` are put
    before its own."""
    candidate, baseline = measured[CANDIDATE], measured.get(BASELINE)
    findings = candidate.invalid(budget)
    if baseline is None:
        return _noted(candidate.result, notes, findings)
    wrong = [reason for result in baseline.every for reason in validity_of(result, budget).reasons]
    if wrong:
        void = Finding.of("baseline_valid", voids=bool(limits), causes=tuple(dict.fromkeys(wrong)))
        return _noted(candidate.result, notes, [*findings, void])
    arms = baseline, candidate
    found = [output_lengths(*(lengths_vector(lengths_of(arm.observations)) for arm in arms))]
    if candidate.result.test != "prefix_cache":
        found.append(cache_apart(cached_share(baseline), cached_share(candidate)))
    result = _noted(candidate.result, notes, [*filter(None, found), *findings])
    pairs = paired_runs(baseline.by_run, candidate.by_run)
    how = made_by(baseline.result), made_by(candidate.result)
    unlike = partial(made_otherwise, baseline=how[0], candidate=how[1])
    compared = tuple(
        as_promised(each, candidate.promised[each.metric]) if each.metric in candidate.promised else each
        for each in comparisons(*pairs, limits, paired=True, level=candidate.level, unlike=unlike)
    )
    if any(each.verdict is ComparisonVerdict.REGRESSED for each in compared):
        from pytest_llmbench.compare.split import parts_by_run, with_split  # few get worse

        before, now = (parts_by_run(arm.observations) for arm in arms)
        result = with_split(result, compared, (before, now), paired=True, level=candidate.level)
    return replace(
        result,
        plots=overlaid({CANDIDATE: result.plots, BASELINE: baseline.result.plots}),
        comparisons=compared,
        findings=(*result.findings, *refused_metrics(compared, *how), *nothing_decides(limits, compared)),
    )


def _noted(result: TestResult, notes: Sequence[Note], findings: Sequence[Finding]) -> TestResult:
    return replace(result, notes=(*notes, *result.notes), findings=(*result.findings, *findings))
