"""Counts of output tokens that cannot be are none: a procedure does not see them.

So whatever is per token (TPOT, token rates, goodput under a limit on TPOT, the cells of every table) is
undefined and not wrong by as much as the count is. The result has the observations as they came, which the
audit judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.metrics.server_side import miscount
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note

Test = Callable[[Any, Setting], Procedure[TestResult]]
_Hidden = dict[int, tuple[Records, Records, str]]
"""Identity of records without counts → these, those that came, and why they are not believed."""


def as_believed(procedure: Test) -> Test:
    """The procedure, shown the measured loads without the counts of output tokens that cannot be."""

    def shown(parameters: Any, setting: Setting) -> Procedure[TestResult]:
        steps, hidden = procedure(parameters, setting), _Hidden()
        try:
            plan = next(steps)
            while True:
                seen = yield plan
                plan = steps.send(_believed(seen, setting.facts, hidden))
        except StopIteration as stop:
            return _as_it_came(stop.value, hidden)
        finally:
            steps.close()

    return shown


def _believed(seen: Observation, facts: Facts, hidden: _Hidden) -> Observation:
    found = miscount([seen], facts) if seen.plan.phase is Phase.MEASURE else None
    if found is None:
        return seen
    bare = seen.records.without_output_counts()
    hidden[id(bare)] = bare, seen.records, found.why
    return replace(seen, records=bare)


def _as_it_came(result: TestResult, hidden: _Hidden) -> TestResult:
    if not hidden:
        return result
    bare = [id(run.records) for run in result.observations]
    came = tuple(
        replace(run, records=hidden[key][1]) if key in hidden else run
        for key, run in zip(bare, result.observations, strict=True)
    )
    whys = dict.fromkeys(hidden[key][2] for key in bare if key in hidden)
    notes = (Note.of("no_figure_per_token", why=why) for why in whys)
    return replace(result, observations=came, notes=(*result.notes, *notes))
