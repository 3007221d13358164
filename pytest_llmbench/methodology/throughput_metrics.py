"""The figures of the throughput test: rates at the level that held, the load it held at, what limits it.

Where no tested load failed, the system may do more than was found: the maximum is a lower bound then, its
interval is open upwards and its method says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.methodology.measuring.by_run import ByRun, by_run
from pytest_llmbench.methodology.measuring.levels import Seen, run_metrics
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.methodology.search.probing import (
    known_to_bracket,
    lower_bound,
    lowest_beyond,
    meets,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.search.search import Searched
from pytest_llmbench.methodology.search.sustained import Sustained
from pytest_llmbench.metrics.server_side import NOT_MEASURABLE, batch_utilisation
from pytest_llmbench.metrics.throughput import Window, output_token_throughput
from pytest_llmbench.metrics.windows import window_of
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.result import BURST

_OF_THE_SEARCH = ("sustainable_rate", "sustainable_concurrency")
_MAXIMA = {
    "max_output_token_throughput": "output_token_throughput",
    "max_request_throughput": "request_throughput",
    "max_input_token_throughput": "input_token_throughput",
}


REPORTED, CONSTRAINED, TENFOLD = "reported", "constrained", "ten-fold"
"""Roles of the levels that were held."""


@dataclass(frozen=True)
class Found:
    """What the search and the levels held after it came to."""

    searched: Searched
    limits: Mapping[str, float]
    reported: Sustained
    """The maximum: the higher of the two below."""
    constrained: Sustained | None = None
    """The highest level that keeps up and meets the limits; None without limits."""
    tenfold: Sustained | None = None
    """The highest level that no rule of saturation names, the ten-fold rule among them; None without limits,
    since it is the maximum then."""

    @property
    def held(self) -> tuple[Sustained, ...]:
        every = (self.tenfold, self.reported, self.constrained)
        return tuple(one for one in every if one is not None)

    @property
    def levels(self) -> tuple[Seen, ...]:
        """All that were run, in that order."""
        tried = {id(seen): seen for one in self.held for seen in one.tried}
        return (*self.searched.levels, *tried.values())

    @property
    def notes(self) -> tuple[str, ...]:
        notes = [*self.searched.notes, *(note for one in self.held for note in one.notes)]
        if self.tenfold is not None and self.tenfold.value != self.reported.value:
            alone = "no load" if self.tenfold.value is None else f"{self.tenfold.value:g}"
            notes.append(
                f"the maximum is what the objectives allow, {self.reported.value:g}; by the ten-fold rule "
                f"(TTFT P99 at most ten times the P50 of the lowest level) it would be {alone}"
            )
        return tuple(dict.fromkeys(notes))

    def holds(self, seen: Seen) -> bool:
        """Whether a level counts for the maximum: by the limits, or by the ten-fold rule."""
        return sustainable(seen) or (bool(self.limits) and meets(seen, self.limits))

    def run(self, number: int) -> Found:
        """This with one run alone; without what was held another number of times."""
        count = len(self.reported.runs)
        own = [
            replace(one, runs=(one.runs[number],)) if one is not None and len(one.runs) == count else None
            for one in (self.constrained, self.tenfold)
        ]
        reported = replace(self.reported, runs=(self.reported.runs[number],))
        return replace(self, reported=reported, constrained=own[0], tenfold=own[1])


def found_of(
    searched: Searched, limits: Mapping[str, float], tenfold: Sustained, constrained: Sustained | None
) -> Found:
    if constrained is None:
        return Found(searched, limits, tenfold)
    if constrained.value is None or constrained.value <= (tenfold.value or 0.0):
        return Found(searched, limits, tenfold, constrained, tenfold)
    maximum = _in_role(constrained, CONSTRAINED, REPORTED)
    return Found(searched, limits, maximum, maximum, _in_role(tenfold, REPORTED, TENFOLD))


def _in_role(held: Sustained, old: str, new: str) -> Sustained:
    def told(seen: Seen) -> Seen:
        return seen.with_(role=seen.level.role.replace(old, new, 1))

    return replace(held, runs=tuple(map(told, held.runs)), tried=tuple(map(told, held.tried)))


def runs_of(found: Found, setting: Setting) -> ByRun:
    """The metrics of the levels that were held, by run. What the one search found has no runs."""
    every = [metrics_of(found.run(number), setting) for number in range(len(found.reported.runs))]
    return by_run([{name: own for name, own in one.items() if name not in _OF_THE_SEARCH} for one in every])


def metrics_of(found: Found, setting: Setting) -> dict[str, Estimate]:
    reported, levels = found.reported, found.levels
    windows = [window_of(seen.observation) for seen in reported.runs]
    metrics = run_metrics(windows, seed=setting.seed)
    metrics |= {
        name: _highest(metrics[source], reported, levels, found.holds) for name, source in _MAXIMA.items()
    }
    rate = found.searched.load_model == "open"
    name, unit = ("sustainable_rate", "req/s") if rate else ("sustainable_concurrency", "count")
    metrics[name] = _bracket(found, unit)
    if found.constrained is not None:
        metrics["constrained_output_token_throughput"] = _throughput_of(
            found.constrained, found, lambda seen: meets(seen, found.limits), setting
        )
    if found.tenfold is not None:
        tenfold = _throughput_of(found.tenfold, found, sustainable, setting)
        metrics["tenfold_output_token_throughput"] = tenfold
    metrics["output_tokens_per_gpu_second"] = _per_gpu(metrics["max_output_token_throughput"], setting.facts)
    read = [(seen.observation.engine, window) for seen, window in zip(reported.runs, windows, strict=True)]
    metrics["batch_utilisation"] = batch_utilisation(read)
    return metrics


def _throughput_of(
    held: Sustained, found: Found, holds: Callable[[Seen], bool], setting: Setting
) -> Estimate:
    if not held.runs:
        why = "met the objectives" if held is found.constrained else "kept the ten-fold rule"
        return Estimate.undefined(unit="tok/s", method=f"no tested level {why}")
    windows = [window_of(seen.observation) for seen in held.runs]
    return _highest(output_token_throughput(windows, seed=setting.seed), held, found.levels, holds)


def _highest(
    estimate: Estimate, held: Sustained, levels: Sequence[Seen], holds: Callable[[Seen], bool]
) -> Estimate:
    return known_to_bracket(estimate, held.runs[0], levels, holds) if held.runs else estimate


def _bracket(found: Found, unit: str) -> Estimate:
    """The highest load that held, up to the lowest one above it that did not."""
    levels, reported = found.levels, found.reported
    tested = len({value_of(seen) for seen in levels if seen.level.role != BURST})
    if not reported.runs:
        return Estimate.undefined(unit=unit, method="no tested load held", n=tested)
    value, beyond = value_of(reported.runs[0]), lowest_beyond(reported.runs[0], levels, found.holds)
    why = lower_bound(reported.runs[0], levels, found.holds)
    end = f"{beyond:g} did not" if why is None else f"{LOWER_BOUND}: {why}"
    method = f"bracket of the search: {value:g} held, {end}"
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


def raw_throughput(reported: Sustained) -> Facts:
    """Output tokens per second over the whole duration, ramp-up included, beside the figure of the window."""
    runs = [seen.observation for seen in reported.runs]
    if not runs:
        return Facts()
    whole = [Window(run.records, run.started_ns, window_of(run).end_ns) for run in runs]
    raw = output_token_throughput(whole, seed=0).point
    return Facts.of(Origin.MEASURED, {"throughput.raw_output_tok_s": raw})
