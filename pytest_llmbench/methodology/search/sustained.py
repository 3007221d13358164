"""The reported level of a search: the load found in short levels, held for the long duration.

A load that holds for a minute need not hold for five. Where it does not, the level steps down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.procedure import PROBE_REQUESTS, Procedure, Setting
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.methodology.search.probing import Holds, downwards, rate_of, value_of
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


def sustained(
    setting: Setting,
    searched: Searched,
    start: Seen | None,
    holds: Holds,
    *,
    role: str,
    law: OpenLoop,
    duration_s: float,
    runs: int,
    at_stake: Sequence[Objective] = (),
) -> Procedure[Sustained]:
    """Step down from ``start`` until a level ``holds`` for ``duration_s``, and run that level ``runs`` times.

    The levels are those of :func:`downwards`, in the step of the search. ``law``: the arrivals of an open
    loop. ``at_stake``: see :class:`Observation`.
    """
    if start is None:
        return Sustained()
    held: dict[float, Seen] = {}
    tried: list[Seen] = []
    told: list[Note] = []

    def at(value: float) -> Procedure[bool]:
        for look in _looks(setting):
            run = yield from _run(
                setting, searched, value, start, f"{role}{look}: ", role, law, duration_s, at_stake
            )
            told.extend(run.notes)
            if run.offered and holds(run.level) and _steady_enough(run.level, setting):
                held[value] = run.level
                tried.extend(run.runs[:-1])
                return True
            tried.extend(
                one.with_(role=f"{role}{GIVEN_UP}") if is_offered(one.level) else one for one in run.runs
            )
        return False

    chooser = downwards(value_of(start), searched.range.step, searched.range.minimum, _rounded(searched))
    value, _ = yield from searching(chooser, at)
    if value is None:
        told.append(Note.of("none_held", duration=Amount(duration_s, "s"), runs=len(tried)))
        return Sustained(tried=tuple(tried), notes=tuple(told))
    seen = held.pop(value)
    tried += [lower.with_(role=PROBE) for lower in held.values()]
    notes = (*_stepped_down(tried, duration_s), *told)
    again = yield from _repeated(
        setting, searched, seen, holds, role=role, law=law, runs=runs, at_stake=at_stake
    )
    return Sustained((seen, *again.runs), (*tried, seen, *again.tried), (*notes, *again.notes))


def _looks(setting: Setting) -> tuple[str, ...]:
    """The name of each look at a level. A trend is found by chance in one of twenty levels, and a growing
    queue in some more, so at full scale a level is looked at twice before it is given up."""
    return ("", ", once more") if setting.scale == "full" else ("",)


def _steady_enough(seen: Seen, setting: Setting) -> bool:
    """Whether the level is steady; always true below full scale, where levels are too short to ask for
    that."""
    return seen.level.steady is not False or setting.scale != "full"


def _repeated(
    setting: Setting,
    searched: Searched,
    first: Seen,
    holds: Holds,
    *,
    role: str,
    law: OpenLoop,
    runs: int,
    at_stake: Sequence[Objective],
) -> Procedure[Sustained]:
    """Runs 2 to ``runs`` of the level that held."""
    value, duration_s = value_of(first), first.observation.plan.duration_s or first.level.duration_s
    repeats: list[Seen] = []
    tried: list[Seen] = []
    notes: tuple[Note, ...] = ()
    for number in range(2, runs + 1):
        label = f"{role}, run {number} of {runs}: "
        attempts = yield from _run(setting, searched, value, first, label, role, law, duration_s, at_stake)
        tried += attempts.runs
        notes = (*notes, *attempts.notes)
        if not attempts.offered:
            continue
        repeats.append(attempts.level)
        if not holds(attempts.level):
            notes = (*notes, Note.of("did_not_hold_again", run=number, runs=runs, at=value))
    return Sustained(tuple(repeats), tuple(tried), notes)


def _rounded(searched: Searched) -> Callable[[float], float]:
    """Values that can be asked for: whole numbers of requests in flight, rates of four digits."""
    closed = searched.load_model == "closed"
    return lambda value: float(int(value)) if closed else float(f"{value:.4g}")


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


def _run(
    setting: Setting,
    searched: Searched,
    value: float,
    start: Seen,
    label: str,
    role: str,
    law: OpenLoop,
    duration_s: float,
    at_stake: Sequence[Objective],
) -> Procedure[Attempts]:
    sequence = searched.sequence
    assert sequence is not None

    def see(run: Observation) -> Seen:
        return level_of(sequence.sent(run), reference=searched.reference, seed=setting.seed, role=role)

    def plan() -> LoadPlan:
        return _plan(setting, searched, value, start, label, law, duration_s)

    return (yield from attempted(plan, see, setting.remeasure, at_stake=at_stake))


def _plan(
    setting: Setting,
    searched: Searched,
    value: float,
    start: Seen,
    label: str,
    law: OpenLoop,
    duration_s: float,
) -> LoadPlan:
    assert searched.sequence is not None
    if searched.load_model == "open":
        load = replace(law, rate=value)
        least = REPORTED_PROBES * PROBE_REQUESTS.count(setting.scale)
        return searched.sequence.open_loop(
            setting, f"{label}{value:g} req/s", load, duration_s, at_least=least
        )
    rate = rate_of(start)
    return searched.sequence.closed_loop(
        setting,
        f"{label}{value:g} in flight",
        int(value),
        duration_s=duration_s,
        at_least=int(value),
        most_rps=None if rate is None else 2.0 * rate,
    )
