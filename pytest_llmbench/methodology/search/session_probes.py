"""Sessions of a load, sent one at a time, which shows how long they take alone.

Each probe has the turns, lengths and pauses of a session of the load and words of its own, so that neither
finds the other's prompts in a cache. Probes are spread evenly over the load's sessions: those that begin
while it is still filling up are among them in the share that they have of the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.methodology.measuring.levels import session_plan
from pytest_llmbench.methodology.measuring.one_load import Before, measured_runs
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import disturbed
from pytest_llmbench.metrics.session_figures import Jobs, Slowdowns, jobs_of, slowdowns
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import VoidLoad
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.sessions import ProbeSessions
from pytest_llmbench.workloads.stream import streamed

PROBES = 40
"""Default number of probes of a run with a limit on the slowdown. With 40 independent pairs the interval of
the median closes nine times in ten, with 20 every other time. Probes take their time one after the other,
pauses included, so more of them are for the author to ask for."""
QUICK_PROBES = 6


@dataclass(frozen=True)
class Probed:
    """The probes of one run."""

    numbers: tuple[int, ...]
    """For each probe the number of the run's session that it is paired with."""
    seen: Observation
    void: tuple[VoidLoad, ...]
    """Earlier attempts that this machine spoiled."""

    @property
    def usable(self) -> bool:
        return self.seen.interrupted is None and not disturbed(self.seen)

    def beside(self, loaded: Jobs) -> Slowdowns:
        """The slowdowns of the run; empty where this machine spoiled the probes."""
        alone = jobs_of(self.seen.records if self.usable else Records.concatenate([]))
        return slowdowns(loaded, alone, self.numbers)


Alone = Mapping[int, Probed]
"""Seed of a run's load → its probes."""


def not_probed(workload: Workload) -> list[str]:
    """Why sessions of a workload cannot be probed alone; empty where they can."""
    if streamed(workload).answers != "recorded":
        return [
            "a slowdown compares each job with itself, but live answers change its prompts each time: leave "
            "out its limit and probe_sessions, or use recorded answers"
        ]
    if not streamed(workload).rewords_sessions:
        return [
            "the slowdown needs a workload with a method reworded, which gives its sessions other words; "
            f"{workload.name!r} has none"
        ]
    return []


def probe_numbers(probes: int, sessions: int) -> tuple[int, ...]:
    """The numbers of the sessions to be probed, spread evenly over the load."""
    count = min(probes, sessions)
    return tuple((2 * place + 1) * sessions // (2 * count) for place in range(count))


def probed(setting: Setting, load: LoadPlan, probes: int, sessions: int) -> Procedure[Probed]:
    """Send the probes of ``load``, whose workload rewords sessions, again while this machine spoils them."""
    numbers, one = probe_numbers(probes, sessions), ClosedLoop(1, of_sessions=True)
    workload = ProbeSessions(streamed(load.workload), load.seed, numbers)

    def plan_of(run: int, attempt: int, before: Before) -> LoadPlan:  # noqa: ARG001 - the signature is shared
        told = replace(setting, workload=workload)
        label, asked = f"{len(numbers)} sessions alone", {"attempt": attempt}
        return session_plan(told, "session probes", label, one, len(numbers), asked, phase=Phase.PROBE)

    (seen,), void = yield from measured_runs(1, 1 + setting.remeasure, plan_of)
    return Probed(numbers, seen, tuple(void))


def no_pairs(probes: Sequence[Probed | None]) -> str:
    """Why there is no slowdown, in words."""
    if not any(probes):
        return "no session was probed alone"
    if not any(each.usable for each in probes if each is not None):
        return "this machine spoiled the probes"
    return "no session was completed both under load and alone"


def notes_of_probes(seen: Sequence[Observation], alone: Alone) -> tuple[Note, ...]:
    own = [probes for run in seen if (probes := alone.get(run.plan.seed)) is not None]
    spoiled = sum(not probes.usable for probes in own)
    jobs = [jobs_of(probes.seen.records) for probes in own if probes.usable]
    every, cut = sum(map(len, jobs)), sum(each.cut_off for each in jobs)
    notes = []
    if spoiled:
        notes.append(Note.of("spoiled_probes", spoiled=spoiled, runs=len(own)))
    if cut:
        notes.append(Note.of("probes_cut_off", cut=cut, probes=every))
    return tuple(notes)
