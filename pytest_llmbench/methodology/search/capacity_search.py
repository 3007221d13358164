"""The highest concurrency that meets criteria: doubling to the first failure, then bisection (AMB-11).

The capacity test reports what it finds; the memory-pressure test starts from it, on its own workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.bracketing import doubling, searched
from pytest_llmbench.methodology.search.probing import ceilings
from pytest_llmbench.metrics.memory_pressure import out_of_memory_errors, timeouts
from pytest_llmbench.model.draft import COMPLETIONS_OF_A_SLOT, LEAST_COMPLETION
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.result import PROBE
from pytest_llmbench.model.sentences import Note

LEVEL_S = ByScale(quick=3.0, standard=20.0, full=60.0)
COMPLETIONS_PER_SLOT = ByScale(quick=2.0, standard=10.0, full=float(COMPLETIONS_OF_A_SLOT))
"""Completions per slot that a level lasts for, or its time if that is longer (section 5.5.3)."""
FIRST_LEVEL, HIGHEST_LEVEL = 8, 512
"""Requests in flight at which a search starts, and the most that it tries."""
QUICK_MAXIMUM = 64


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of a level (section 5.5.2). One with an out-of-memory error always fails."""

    ttft_p99_ms: float | None = None
    min_completion: float = LEAST_COMPLETION

    def failures(self, seen: Seen) -> tuple[str, ...]:
        """Why the level fails; empty when it passes."""
        found = [] if seen.observation.stopped is None else [f"ended early: {seen.observation.stopped}"]
        ratio = seen.level.completion_ratio
        if ratio is None or ratio < self.min_completion:
            text = "nothing was sent" if ratio is None else f"completion {ratio:.2%}"
            ours = timeouts(seen.records)
            named = f"; {ours} were given up by the load generator's own deadline" if ours else ""
            found.append(f"{text} (at least {self.min_completion:.0%}{named})")
        if self.ttft_p99_ms is not None:
            p99 = seen.point("ttft.p99")
            if p99 is None:
                found.append("TTFT P99 not known")
            elif p99 > self.ttft_p99_ms:
                found.append(f"TTFT P99 {p99:.1f} ms (at most {self.ttft_p99_ms:g} ms)")
        if memory := out_of_memory_errors(seen.records):
            found.append(f"{memory} out-of-memory errors")
        return tuple(found)

    @property
    def limits(self) -> tuple[Objective, ...]:
        """The limits on latency."""
        return () if self.ttft_p99_ms is None else ceilings({"ttft.p99": self.ttft_p99_ms})


@dataclass(frozen=True)
class Capacity:
    """The result of a search for the capacity."""

    best: Seen | None
    """The highest level that passed; None when not even one at a time did."""
    passed: int | None
    """Requests, or sessions, at once in that level."""
    lowest_failure: int | None
    """The lowest concurrency above it that failed; None when the upper bound passed."""
    levels: tuple[Seen, ...]
    """The levels that count, in the order in which they were run."""
    notes: tuple[Note, ...]
    runs: tuple[Seen, ...]
    """All levels that were run, including attempts that this machine spoiled."""

    @property
    def estimate(self) -> Estimate:
        """The capacity with its bracket: at least what passed, less than what failed. 0 when nothing
        passed."""
        passed = self.passed or 0
        method = f"bracket of the search: {passed} passed"
        found = Estimate(
            float(passed), float(passed), None, 0.95, len(self.levels), method, "count",
            kind=EstimateKind.BRACKET,
        )  # fmt: skip
        if self.lowest_failure is None:
            return found.at_least(Reason.RANGE_ENDED, "that is the most that the search tries")
        method += f", {self.lowest_failure} failed"
        return replace(found, upper=float(self.lowest_failure - 1), method=method)


def find_capacity(
    setting: Setting,
    sequence: RequestSlice,
    criteria: Criteria | None = None,
    *,
    initial: int = FIRST_LEVEL,
    maximum: int = HIGHEST_LEVEL,
    duration_s: float | None = None,
) -> Procedure[Capacity]:
    """Search for the capacity: a closed loop from ``initial`` up to ``maximum`` requests in flight, on the
    workload and the SUT variant of ``sequence``. ``duration_s``: duration of a level, as a marker asks for
    it."""
    asked = criteria or Criteria()
    ceiling = min(maximum, QUICK_MAXIMUM) if setting.scale == "quick" else maximum
    initial, levels = min(initial, ceiling), list[Seen]()
    runs, told = list[Seen](), list[Note]()

    def at(concurrency: int) -> Procedure[bool]:
        own = level_requests(setting, sequence, concurrency, duration_s, initial, ceiling)

        def plan() -> LoadPlan:
            level = level_plan(setting, own, concurrency, duration_s, _most_rps(levels))
            return level.with_(may_break=True)

        def see(run: Observation) -> Seen:
            seen = level_of(own.sent(run), seed=setting.seed, role=PROBE)
            failures = asked.failures(seen)
            return seen.with_(passed=not failures, fail_reasons=failures)

        attempts = yield from attempted(plan, see, setting.remeasure, needed=True, at_stake=asked.limits)
        levels.append(attempts.level)
        runs.extend(attempts.runs)
        told.extend(attempts.notes)
        return attempts.level.level.passed is True

    passed, failed = yield from searched(doubling(initial, ceiling), at)
    best = next((seen for seen in levels if seen.level.concurrency == passed), None)
    notes = (*bound_notes(passed, failed, ceiling, maximum), *told)
    return Capacity(best, passed, failed, tuple(levels), notes, tuple(runs))


def bound_notes(
    passed: int | None, failed: int | None, ceiling: int, maximum: int, *, sessions: bool = False
) -> tuple[Note, ...]:
    """Notes on a bracket that is open at one end. ``sessions``: they are counted, not requests."""
    if passed is None:
        return (Note.of("not_even_one", sessions=sessions),)
    if failed is None:
        quick = ceiling < maximum
        return (Note.of("bound_reached", passed=passed, sessions=sessions, quick=quick),)
    return ()


def _most_rps(levels: list[Seen]) -> float | None:
    """The highest rate that the next level can have, per second: four times the fastest so far, since it has
    at most twice the slots."""
    rates = [rate for seen in levels if (rate := seen.point("request_throughput")) is not None and rate > 0]
    return 4.0 * max(rates) if rates else None


def level_requests(
    setting: Setting,
    sequence: RequestSlice,
    concurrency: int,
    duration_s: float | None,
    initial: int,
    ceiling: int,
) -> RequestSlice:
    """The requests of a level. They are the same for every search from ``initial`` to ``ceiling``, whatever
    its criteria, so these share levels."""
    asked: dict[str, Any] = {"duration_s": LEVEL_S.at(setting.scale, duration_s), "range": [initial, ceiling]}
    return sequence.next_part(setting, "level of capacity", concurrency=concurrency, **asked)


def level_plan(
    setting: Setting,
    sequence: RequestSlice,
    concurrency: int,
    duration_s: float | None = None,
    most_rps: float | None = None,
) -> LoadPlan:
    """A level: all slots at once, each end replaced, for the time or the completions per slot, whichever is
    longer."""
    return sequence.closed_loop(
        setting,
        f"{concurrency} in flight",
        concurrency,
        duration_s=LEVEL_S.at(setting.scale, duration_s),
        at_least=concurrency * COMPLETIONS_PER_SLOT.count(setting.scale),
        most_rps=most_rps,
    )
