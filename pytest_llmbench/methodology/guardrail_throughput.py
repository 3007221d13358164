"""Maximum throughput of each guardrail configuration, and what it loses against the baseline (AMB-20).

One yardstick for all: the ten-fold rule of saturation measures every configuration by the TTFT of the
baseline's lowest level. By a yardstick of its own, a filter that delays the first token would be allowed
a longer queue than the baseline has, and look faster. A filter that breaks the rule at the lowest load says
nothing about load by it (AMB-14); then the rule is off for all of them, and queue and completions decide.

A maximum is known to within the search's bracket, so its interval reaches up to what the next tested load,
which did not hold, would have given. Beside it stand the rates at one load that was offered to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.measuring.saturation import Reference
from pytest_llmbench.methodology.search.probing import (
    carried,
    known_to_bracket,
    lower_bound,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.search.search import Searched
from pytest_llmbench.metrics.differences import change, paired_throughput_reduction
from pytest_llmbench.metrics.windows import window_of
from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate
from pytest_llmbench.model.result import PROBE

THROUGHPUT = "output_token_throughput"
MAXIMUM, REDUCTION = "max_output_token_throughput", "throughput_reduction"
AT_EQUAL_LOAD = "throughput_reduction_at_equal_load"


@dataclass(frozen=True)
class Maxima:
    """The searches of all configurations, the baseline's among them, judged by one rule."""

    searches: Mapping[str, Searched]
    baseline: str
    yardstick: Reference

    @property
    def breaking(self) -> dict[str, Seen]:
        """Configurations whose lowest level breaks the ten-fold rule by itself, with that level."""
        lowest = {
            name: min(levels, key=value_of)
            for name, found in self.searches.items()
            if (levels := [seen for seen in found.levels if seen.level.role == PROBE])
        }
        return {name: seen for name, seen in lowest.items() if carried(seen) and not sustainable(seen)}

    @property
    def holds(self) -> Callable[[Seen], bool]:
        return carried if self.breaking else sustainable

    def best(self, name: str) -> Seen | None:
        found = self.searches[name]
        return found.best_carried if self.breaking else found.best

    def metrics(self) -> dict[str, Estimate]:
        highest = {name: self._maximum(name) for name in self.searches}
        found = {f"{MAXIMUM}[{name}]": estimate for name, estimate in highest.items()}
        for name, estimate in highest.items():
            if name != self.baseline:
                found[f"{REDUCTION}[{name}]"] = change(highest[self.baseline], estimate, "reduction")
        return found

    def _maximum(self, name: str) -> Estimate:
        best = self.best(name)
        if best is None:
            return Estimate.undefined(unit="tok/s", method="no tested level held")
        at = best.level.metrics[THROUGHPUT]
        return known_to_bracket(at, best, self.searches[name].levels, self.holds)

    def notes(self) -> list[str]:
        found = [self.yardstick.note] if self.yardstick.note else []
        if self.breaking:
            why = "; ".join(f"{name}: {_tail(seen)}" for name, seen in self.breaking.items())
            found.append(
                "the ten-fold rule is off in the throughput searches of all configurations, and queue and "
                f"completions decide: a filter breaks it at its lowest load ({why})"
            )
        for name in self.searches:
            bound = self._lower_bound(name)
            found += [f"maximum throughput of {name} is {LOWER_BOUND}: {bound}"] if bound else []
        return found

    def _lower_bound(self, name: str) -> str | None:
        best = self.best(name)
        return None if best is None else lower_bound(best, self.searches[name].levels, self.holds)


def _tail(seen: Seen) -> str:
    return "; ".join(seen.level.saturation_reasons)


def at_equal_load(levels: Mapping[tuple[str, float], Seen], baseline: str) -> dict[str, Estimate]:
    """Reduction of output tokens per second, where all configurations were offered the same requests."""
    return {
        f"{AT_EQUAL_LOAD}[{name}@{percent:g}%]": paired_throughput_reduction(
            window_of(levels[baseline, percent].observation), window_of(seen.observation)
        )
        for (name, percent), seen in levels.items()
        if name != baseline and (baseline, percent) in levels and is_offered(seen.level)
    }
