"""The reported level of a search: the load found in short levels, held for the long duration.

A load that holds for a minute need not hold for five. Where it does not, the level steps down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.methodology.search.probing import Holds, downwards, plan_of_level, rate_of, value_of
from pytest_llmbench.methodology.search.probing import searched as searching
from pytest_llmbench.methodology.search.search import Searched
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import GIVEN_UP, PROBE
from pytest_llmbench.model.sentences import Note

REPORTED_PROBES = 2
"""Fewest requests of a level that is held, in those of a probe."""


@dataclass(frozen=True)
class Sustained:
    runs: tuple[Seen, ...] = ()
    """The reported level and its repetitions; empty when nothing held."""
    tried: tuple[Seen, ...] = ()
    """All levels that were run."""
    notes: tuple[Note, ...] = ()

    @property
    def value(self) -> float | None:
        return value_of(self.runs[0]) if self.runs else None


@dataclass(frozen=True, kw_only=True)
class Sustaining:
    """How a level is held: the loads of a search, for the long duration."""

    setting: Setting
    searched: Searched
    start: Seen
    """The level at which it starts."""
    role: str
    law: OpenLoop
    """The arrivals of an open loop."""
    duration_s: float
    at_stake: Sequence[Objective] = ()
    """See :class:`Observation`."""

    def held(self, holds: Holds, runs: int) -> Procedure[Sustained]:
        """Step down from the start until a level ``holds``, and run that level ``runs`` times. The levels are
        those of :func:`downwards`, in the step of the search."""
        held: dict[float, Seen] = {}
        tried: list[Seen] = []
        told: list[Note] = []
        full, bounds = self.setting.scale == "full", self.searched.range
        # A trend is found by chance in one of twenty levels, and a growing queue in some more, so at full
        # scale a level is looked at twice before it is given up.
        looks = ("", ", once more") if full else ("",)

        def at(value: float) -> Procedure[bool]:
            for look in looks:
                run = yield from self._run(value, f"{self.role}{look}: ")
                told.extend(run.notes)
                # Below full scale levels are too short to ask for steadiness.
                steady = not full or run.level.level.steady is not False
                if run.offered and holds(run.level) and steady:
                    held[value] = run.level
                    tried.extend(run.runs[:-1])
                    return True
                given_up = f"{self.role}{GIVEN_UP}"
                tried.extend(one.with_(role=given_up) if is_offered(one.level) else one for one in run.runs)
            return False

        chooser = downwards(value_of(self.start), bounds.step, bounds.minimum, self._rounded)
        value, _ = yield from searching(chooser, at)
        if value is None:
            told.append(Note.of("none_held", duration=Amount(self.duration_s, "s"), runs=len(tried)))
            return Sustained(tried=tuple(tried), notes=tuple(told))
        seen = held.pop(value)
        tried += [lower.with_(role=PROBE) for lower in held.values()]
        notes = (*_stepped_down(tried, self.duration_s), *told)
        lasted_s = seen.observation.plan.duration_s or seen.level.duration_s
        again = yield from replace(self, duration_s=lasted_s)._repeated(value_of(seen), holds, runs)
        return Sustained((seen, *again.runs), (*tried, seen, *again.tried), (*notes, *again.notes))

    def _repeated(self, value: float, holds: Holds, runs: int) -> Procedure[Sustained]:
        """Runs 2 to ``runs`` of the level that held."""
        repeats: list[Seen] = []
        tried: list[Seen] = []
        notes: tuple[Note, ...] = ()
        for number in range(2, runs + 1):
            attempts = yield from self._run(value, f"{self.role}, run {number} of {runs}: ")
            tried += attempts.runs
            notes = (*notes, *attempts.notes)
            if not attempts.offered:
                continue
            repeats.append(attempts.level)
            if not holds(attempts.level):
                notes = (*notes, Note.of("did_not_hold_again", run=number, runs=runs, at=value))
        return Sustained(tuple(repeats), tuple(tried), notes)

    def _rounded(self, value: float) -> float:
        """A value that can be asked for: a whole number of requests in flight, a rate of four digits."""
        return float(int(value)) if self.searched.load_model == "closed" else float(f"{value:.4g}")

    def _run(self, value: float, label: str) -> Procedure[Attempts]:
        sequence, setting = self.searched.sequence, self.setting
        assert sequence is not None

        def see(run: Observation) -> Seen:
            reference = self.searched.reference
            return level_of(sequence.sent(run), reference=reference, seed=setting.seed, role=self.role)

        def plan() -> LoadPlan:
            law = self.law if self.searched.load_model == "open" else None
            own = value, self.duration_s, rate_of(self.start)
            return plan_of_level(setting, sequence, law, *own, label=label, probes=REPORTED_PROBES)

        return (yield from attempted(plan, see, setting.remeasure, at_stake=self.at_stake))


def _stepped_down(tried: list[Seen], duration_s: float) -> tuple[Note, ...]:
    given_up = [seen.level for seen in tried if seen.level.role.endswith(GIVEN_UP)]
    return tuple(
        Note.of(
            "did_not_hold",
            level=level.label,
            duration=Amount(duration_s, "s"),
            reasons=level.saturation_reasons or None,
            unsteady=not level.saturation_reasons and level.steady is False,
            missed=not level.saturation_reasons and level.steady is not False,
        )
        for level in given_up
    )
