"""The figures of the throughput test: rates at the level that held, the load it held at, what limits it.

Where no tested load failed, the system may do more than was found: the maximum is a lower bound then, its
interval is open upwards and its method says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.methodology.by_run import ByRun, by_run
from pytest_llmbench.methodology.held import Held
from pytest_llmbench.methodology.levels import Seen, run_metrics, window_of
from pytest_llmbench.methodology.probing import (
    BURST,
    lower_bound,
    lowest_beyond,
    meets,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.search import Searched
from pytest_llmbench.metrics.server_side import NOT_MEASURABLE, batch_utilisation
from pytest_llmbench.metrics.throughput import Window, output_token_throughput
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate
from pytest_llmbench.model.facts import Facts, Origin

_OF_THE_SEARCH = ("sustainable_rate", "sustainable_concurrency")
_MAXIMA = {
    "max_output_token_throughput": "output_token_throughput",
    "max_request_throughput": "request_throughput",
    "max_input_token_throughput": "input_token_throughput",
}


def runs_of(
    limits: Mapping[str, float],
    setting: Setting,
    searched: Searched,
    reported: Held,
    constrained: Held | None,
) -> ByRun:
    """Of the levels that were held. What the one search found, and a constrained level that was held another
    number of times, has no runs."""
    runs = []
    for number, run in enumerate(reported.runs):
        under = None
        if constrained is not None and len(constrained.runs) == len(reported.runs):
            under = replace(constrained, runs=(constrained.runs[number],))
        metrics = metrics_of(limits, setting, searched, replace(reported, runs=(run,)), under)
        runs.append({name: own for name, own in metrics.items() if name not in _OF_THE_SEARCH})
    return by_run(runs)


def metrics_of(
    limits: Mapping[str, float],
    setting: Setting,
    searched: Searched,
    reported: Held,
    constrained: Held | None,
) -> dict[str, Estimate]:
    windows = [window_of(seen.observation) for seen in reported.runs]
    metrics = run_metrics(windows, seed=setting.seed)
    levels = (*searched.levels, *reported.tried, *(constrained.tried if constrained else ()))
    why = _lower_bound(reported, levels, sustainable)
    metrics |= {name: _at_least(metrics[source], why) for name, source in _MAXIMA.items()}
    name, unit = (
        ("sustainable_rate", "req/s")
        if searched.load_model == "open"
        else ("sustainable_concurrency", "count")
    )
    metrics[name] = _bracket(levels, reported, unit)
    if constrained is not None:
        metrics["constrained_output_token_throughput"] = _under(limits, setting, levels, constrained)
    metrics["output_tokens_per_gpu_second"] = _per_gpu(metrics["max_output_token_throughput"], setting.facts)
    read = [(seen.observation.engine, window) for seen, window in zip(reported.runs, windows, strict=True)]
    metrics["batch_utilisation"] = batch_utilisation(read)
    return metrics


def _under(
    limits: Mapping[str, float], setting: Setting, levels: Sequence[Seen], constrained: Held
) -> Estimate:
    """Output throughput under the objectives."""
    if not constrained.runs:
        return Estimate.undefined(unit="tok/s", method="no tested level met the objectives")
    windows = [window_of(seen.observation) for seen in constrained.runs]
    why = _lower_bound(constrained, levels, lambda seen: meets(seen, limits))
    return _at_least(output_token_throughput(windows, seed=setting.seed), why)


def _lower_bound(found: Held, levels: Sequence[Seen], holds: Callable[[Seen], bool]) -> str | None:
    """Why the system may do more than was found; None where a level above did not hold."""
    return lower_bound(found.runs[0], levels, holds) if found.runs else None


def _at_least(estimate: Estimate, why: str | None) -> Estimate:
    if why is None:
        return estimate
    return replace(estimate, upper=None, method=f"{estimate.method}; {LOWER_BOUND}: {why}")


def _bracket(levels: Sequence[Seen], reported: Held, unit: str) -> Estimate:
    """The highest load that held, up to the lowest one above it that did not."""
    tested = len({value_of(seen) for seen in levels if seen.level.role != BURST})
    if not reported.runs:
        return Estimate.undefined(unit=unit, method="no tested load held", n=tested)
    value, beyond = value_of(reported.runs[0]), lowest_beyond(reported.runs[0], levels, sustainable)
    method = f"bracket of the search: {value:g} held, "
    why = _lower_bound(reported, levels, sustainable)
    method += f"{beyond:g} did not" if why is None else f"{LOWER_BOUND}: {why}"
    return Estimate(value, value, beyond, level=0.95, n=tested, method=method, unit=unit)


def _per_gpu(throughput: Estimate, facts: Facts) -> Estimate:
    """Output tokens per second / accelerators (section 5.2.4.2)."""
    count = facts.value("sut.hardware.accelerator_count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        why = "no accelerator" if count == 0 else "the number of accelerators is not declared"
        return Estimate.undefined(unit="tok/s", method=f"{NOT_MEASURABLE}: {why}")
    ends = (throughput.point, throughput.lower, throughput.upper)
    point, lower, upper = (None if end is None else end / count for end in ends)
    method = f"{throughput.method}; divided by {count} accelerators"
    return replace(throughput, point=point, lower=lower, upper=upper, method=method)


def raw_throughput(reported: Held) -> Facts:
    """Output tokens per second over the whole duration, ramp-up included, beside the figure of the window."""
    runs = [seen.observation for seen in reported.runs]
    if not runs:
        return Facts()
    whole = [Window(run.records, run.started_ns, window_of(run).end_ns) for run in runs]
    raw = output_token_throughput(whole, seed=0).point
    return Facts.of(Origin.MEASURED, {"throughput.raw_output_tok_s": raw})


__all__ = ["metrics_of", "raw_throughput", "runs_of"]
