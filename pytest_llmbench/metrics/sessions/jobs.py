"""Jobs: sessions as wholes. How long each took, what of that was the model, and which were cut off.

The time of a job runs from the instant its first turn was due to the end of its last reply. It has three
parts that add up to it: **LLM**, while at least one of its turns is in flight; **wait in the generator**,
with none in flight, from the instant at which the next was due until it had been sent; **pause**, all the
rest, in which the user thinks or a tool works.

**Slowdown** is how many times as long a job takes under load as alone. Jobs differ in size by far more
than a load changes them, so means of two samples of jobs would say little. A job under load is therefore
paired with a **probe**: a session of the same turns, lengths and pauses in other words, sent while nothing
else was. Of each pair

    job slowdown = job time under load / job time alone,
    LLM slowdown = LLM time under load / LLM time alone.

The first says how much longer a job takes. Its pauses are the same in both times and no server's doing, so a
job that mostly waits for its user is hardly slowed down whatever the server does. The second leaves pauses
out. The unit is the pair. Percentiles over pairs have the intervals of order statistics, which hold for few
pairs and for any law; half of the jobs are slowed down by at most the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmbench.metrics.goodput import Limits, share_within
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.interim.samples import Ends, scores
from pytest_llmbench.stats.runs import FloatArray

_NS_PER_S = 1e9


@dataclass(frozen=True, eq=False)
class Jobs:
    """The sessions of a run in the order in which they began."""

    session: IntColumn
    turns: IntColumn
    """The turns that were to be."""
    sent: IntColumn
    """The turns that have a record."""
    complete: BoolColumn
    """All turns are there, and ended well or were to be cut by their user."""
    time_s: FloatArray
    llm_s: FloatArray
    wait_s: FloatArray
    """The wait in the generator."""
    pause_s: FloatArray
    worst: FloatArray
    """The largest share of its limits that a turn used up; infinity where a turn failed or was never sent."""

    def __len__(self) -> int:
        return len(self.session)

    @property
    def cut_off(self) -> int:
        """Sessions that were not completed."""
        return len(self) - int(self.complete.sum())

    @property
    def unsent(self) -> int:
        """Turns that were never sent, since their session had been cut off."""
        return int((self.turns - self.sent).sum())


def jobs_of(records: Records, limits_ms: Limits = ()) -> Jobs:
    """The sessions of one run; requests of no session are left out. ``limits_ms``: of each turn."""
    own = np.flatnonzero(records.session != MISSING)
    begun_ns = _submitted_ns(records)[own]
    order = own[np.lexsort((records.turn[own], begun_ns, records.session[own]))]
    session, firsts = np.unique(records.session[order], return_index=True)
    if not len(session):
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return Jobs(none, none, none, none.astype(bool), empty, empty, empty, empty, empty)
    turns = records.session_turns[order][firsts]
    sent = np.diff(np.append(firsts, len(order)))
    well = np.add.reduceat((~records.failed)[order].astype(np.int64), firsts)
    due_ns = np.minimum.reduceat(records.scheduled_ns[order], firsts)
    wait_ns, pause_ns, llm_ns = _parts(records, order, firsts, due_ns)
    # Of a turn that its user was to cut no limit asks anything.
    each = np.nan_to_num(scores(limits_ms, Ends.of_records(records)), nan=0.0, posinf=np.inf)
    used = np.maximum.reduceat(each[order], firsts)
    complete = well == turns
    begun = np.lexsort((session, due_ns))
    return Jobs(
        session[begun],
        turns[begun],
        sent[begun],
        complete[begun],
        time_s=(llm_ns + wait_ns + pause_ns)[begun] / _NS_PER_S,
        llm_s=llm_ns[begun] / _NS_PER_S,
        wait_s=wait_ns[begun] / _NS_PER_S,
        pause_s=pause_ns[begun] / _NS_PER_S,
        worst=np.where(complete, used, np.inf)[begun],
    )


def _submitted_ns(records: Records) -> IntColumn:
    """Of a request that never reached the wire the instant at which it was to be sent."""
    return np.where(records.submitted_ns != MISSING, records.submitted_ns, records.scheduled_ns)


def _parts(
    records: Records, order: IntColumn, firsts: IntColumn, due_ns: IntColumn
) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Wait, pause and LLM time of each session, of requests in ``order``: by session, then by submission."""
    sent_ns, ended_ns = _submitted_ns(records)[order], records.finished_ns[order]
    scheduled_ns = records.scheduled_ns[order]
    ended_ns = np.maximum(ended_ns, sent_ns)
    # Sessions one after the other on one axis, so that one running maximum serves all of them.
    which = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(order))))
    lasted_ns = ended_ns - due_ns[which]
    apart_ns = which * (int(lasted_ns.max()) + 1)
    busy_until = np.maximum.accumulate(apart_ns + lasted_ns) - apart_ns + due_ns[which]
    before_ns = np.concatenate((due_ns[:1], busy_until[:-1]))
    before_ns[firsts] = due_ns
    gaps_ns = np.maximum(sent_ns - before_ns, 0)
    waits_ns = np.minimum(np.maximum(sent_ns - scheduled_ns, 0), gaps_ns)
    wait_ns, gap_ns = (np.add.reduceat(values, firsts) for values in (waits_ns, gaps_ns))
    whole_ns = np.maximum.reduceat(ended_ns, firsts) - due_ns
    return wait_ns, gap_ns - wait_ns, whole_ns - gap_ns


def unsent_turns(records: Records) -> int:
    """Turns that were never sent, since their session had been cut off by one that did not end well."""
    found = jobs_of(records)
    failed = np.unique(records.session[records.failed])
    return int((found.turns - found.sent)[np.isin(found.session, failed)].sum())


def job_metrics(runs: Sequence[Jobs], *, level: float = 0.95) -> dict[str, Estimate]:
    """``job_time``, ``job_llm_time``, ``job_pause_time``, ``job_generator_wait`` of the sessions that were
    completed (s), with their statistics, and ``session_completion_rate``.

    The sampling unit is the session, in the order in which they began: sessions of a busy system depend on
    each other, which the intervals allow for.
    """
    found: dict[str, Estimate] = {}
    for name, part in _FAMILIES.items():
        samples = [np.asarray(getattr(run, part)[run.complete]) for run in runs]
        found |= distribution(name, samples, unit="s", level=level)
    ends = [np.where(run.complete, 0.0, np.inf) for run in runs if len(run)]
    return found | {"session_completion_rate": share_within(ends, "no sessions", level=level)}


_FAMILIES = {
    "job_time": "time_s",
    "job_llm_time": "llm_s",
    "job_pause_time": "pause_s",
    "job_generator_wait": "wait_s",
}


def session_goodput(runs: Sequence[Jobs], job_s: float | None, *, level: float = 0.95) -> Estimate:
    """Good sessions / all sessions. A session is good when it was completed, each of its turns kept the
    limits that its :class:`Jobs` were made with, and it took at most ``job_s``."""
    every = [run.worst if job_s is None else np.maximum(run.worst, run.time_s / job_s) for run in runs]
    found = share_within([each for each in every if len(each)], "no sessions", level=level)
    return replace(found, method=f"{found.method}, whole sessions") if found.n else found


SLOWDOWNS = ("job_slowdown", "job_llm_slowdown")


@dataclass(frozen=True, eq=False)
class Slowdowns:
    """The slowdowns of a run (ratios), of pairs in the order in which their jobs began under load."""

    job: FloatArray
    llm: FloatArray


def slowdowns(loaded: Jobs, alone: Jobs, numbers: Sequence[int]) -> Slowdowns:
    """Session i of ``alone`` is the probe of session ``numbers[i]`` of ``loaded``. Pairs of which one was not
    completed, or took no time alone, are left out."""
    probe = np.full(max((*numbers, *loaded.session.tolist()), default=-1) + 1, -1, dtype=np.int64)
    for place, session in enumerate(alone.session.tolist()):
        if alone.complete[place] and alone.llm_s[place] > 0:
            probe[numbers[session]] = place
    of = probe[loaded.session] if len(loaded) else np.empty(0, dtype=np.int64)
    paired = loaded.complete & (of >= 0)
    of = of[paired]
    return Slowdowns(loaded.time_s[paired] / alone.time_s[of], loaded.llm_s[paired] / alone.llm_s[of])


def slowdown_metrics(
    runs: Sequence[Slowdowns], why: str = "no session was probed alone", *, level: float = 0.95
) -> dict[str, Estimate]:
    """``job_slowdown`` and ``job_llm_slowdown`` (ratios) with their statistics. Undefined without pairs, and
    never 1; ``why``: there are none."""
    found = distribution("job_slowdown", [run.job for run in runs], unit="ratio", level=level)
    found |= distribution("job_llm_slowdown", [run.llm for run in runs], unit="ratio", level=level)
    return {
        name: each if each.defined else replace(each, method=f"not measured: {why}")
        for name, each in found.items()
    }
