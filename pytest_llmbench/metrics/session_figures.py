"""Metrics of sessions: whole jobs, and turns by their number.

Turns of one session are alike, and depend on each other. So the sampling unit of every interval is the whole
session, in the order in which they began, whatever the number of turns it gives.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.metrics.itl import ClusterEstimates
from pytest_llmbench.metrics.latency import given_up, per_request
from pytest_llmbench.metrics.ratios import ratio_of_sums
from pytest_llmbench.metrics.server_side import BY_SERVER
from pytest_llmbench.metrics.summary import STATISTICS, distribution, with_given_up
from pytest_llmbench.metrics.throughput import Limits, share_within
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.request import TurnClass
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.look_samples import scores
from pytest_llmbench.stats.percentiles import PERCENTILES
from pytest_llmbench.stats.runs import FloatArray

_NS_PER_MS = 1e6


def turn_metrics(runs: Sequence[Records], classes: Iterable[TurnClass], *, seed: int) -> dict[str, Estimate]:
    """``turn_ttft[c]``, ``turn_tpot[c]`` (ms) with their statistics, ``turn_cached_share[c]``,
    ``turn_cacheable_share[c]`` and ``turn_cache_hit_rate[c]`` (ratios), for each class of turns c; ``ttft``
    and ``tpot`` of all turns."""
    every = tuple(classes)
    return turn_latencies(runs, every) | turn_shares(runs, every, seed=seed)


def turn_latencies(runs: Sequence[Records], classes: Iterable[TurnClass]) -> dict[str, Estimate]:
    """``turn_ttft[c]``, ``turn_tpot[c]``, and ``ttft`` and ``tpot`` of all turns."""
    found: dict[str, Estimate] = {}
    for each in (None, *classes):
        found |= latencies(runs, "ttft", each) | latencies(runs, "tpot", each)
    return found


def turn_shares(runs: Sequence[Records], classes: Iterable[TurnClass], *, seed: int) -> dict[str, Estimate]:
    """``turn_cached_share[c]``, ``turn_cacheable_share[c]``, ``turn_cache_hit_rate[c]``."""
    found: dict[str, Estimate] = {}
    for each in classes:
        own = [run.select(run.ok & each.holds(run.turn)) for run in runs]
        found[f"turn_cached_share[{each}]"] = cached_share(own, seed=seed)
        found[f"turn_cacheable_share[{each}]"] = _share(own, "shared_prefix_tokens", seed=seed)
        found[f"turn_cache_hit_rate[{each}]"] = hit_rate(own, seed=seed)
    return found


class Growth(NamedTuple):
    """How much longer than the turn before it the prompts of later turns are, in tokens, summed over all
    sessions."""

    counted: int
    """Growth of the prompts in tokens, as the server counts it."""
    asked: int
    """Growth of the prompts in tokens, as the workload states it."""
    turns: int


def growth(run: Records) -> Growth:
    """The growth over all turns with a longer prompt than the turn before, where the server counted both
    prompts."""
    held = run.ok & (run.session != MISSING) & (run.input_tokens != MISSING)
    own = run.select(held & np.isin(run.token_source, BY_SERVER))
    order = np.lexsort((own.turn, own.session))
    session, turn = own.session[order], own.turn[order]
    counted, asked = np.diff(own.input_tokens[order]), np.diff(own.requested_input_tokens[order])
    follows = (session[1:] == session[:-1]) & (turn[1:] == turn[:-1] + 1) & (asked > 0)
    return Growth(int(counted[follows].sum()), int(asked[follows].sum()), int(follows.sum()))


def latencies(runs: Sequence[Records], quantity: str, of: TurnClass | None) -> dict[str, Estimate]:
    """TTFT or TPOT of the turns of a class, or of all, that ended well: percentiles, mean, minimum and
    maximum."""
    family = quantity if of is None else f"turn_{quantity}[{of}]"
    samples = [_by_session(run, quantity, of) for run in runs]
    turns = [run.select(run.session != MISSING) for run in runs]
    gone = given_up(quantity, turns if of is None else [run.select(of.holds(run.turn)) for run in turns])
    if all(bool((counts == 1).all()) for _, counts in samples):
        return distribution(family, [each for each, _ in samples], given_up=gone)
    clusters = Clusters.joined([_clusters(each, counts) for each, counts in samples])
    pool = ClusterEstimates(clusters, "sessions")
    named = dict(zip(PERCENTILES, pool.percentiles(tuple(PERCENTILES.values())), strict=True))
    named["mean"] = pool.mean()
    every = np.concatenate([each for each, _ in samples])
    named = with_given_up(named, gone, np.sort(every), len(every), pool.percentiles)
    for name, value in (("min", float(every.min())), ("max", float(every.max()))):
        named[name] = Estimate.observed(value, len(every), "observed", "ms")
    return {f"{family}.{statistic}": named[statistic] for statistic in STATISTICS}


def _by_session(run: Records, quantity: str, of: TurnClass | None) -> tuple[FloatArray, IntColumn]:
    """The values grouped by session, sessions in the order in which they began, and how many values each
    has."""
    ms = per_request(quantity, run)
    held = (run.session != MISSING) & ~np.isnan(ms)
    if of is not None:
        held &= of.holds(run.turn)
    rank = ranks(run)
    rows = np.flatnonzero(held)
    rows = rows[np.lexsort((run.turn[rows], rank[rows]))]
    counts = np.bincount(rank[rows]) if len(rows) else np.empty(0, dtype=np.int64)
    return ms[rows], counts[counts > 0].astype(np.int64)


def ranks(run: Records) -> IntColumn:
    """For each request, the rank of its session in the order in which they began; the lower number first
    where several began at once."""
    begun_ns, which = begun(run)
    ranks = np.empty(len(begun_ns), dtype=np.int64)
    ranks[np.argsort(begun_ns, kind="stable")] = np.arange(len(begun_ns))
    return ranks[which]


def begun(run: Records) -> tuple[IntColumn, IntColumn]:
    """The instant at which each session began, in the order of session numbers; and for each request the
    place of its session among them."""
    session, which = np.unique(run.session, return_inverse=True)
    begun_ns = np.full(len(session), np.iinfo(np.int64).max)
    np.minimum.at(begun_ns, which, run.scheduled_ns)
    return begun_ns, which


def _clusters(ms: FloatArray, counts: IntColumn) -> Clusters:
    ns = np.rint(ms * _NS_PER_MS).astype(np.int64)
    return Clusters(counts, (len(counts),), lambda: [(ns, counts)], _NS_PER_MS)


def cached_share(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Σ cached tokens / Σ input tokens of turns that ended well."""
    return _share(runs, "cached_tokens", seed=seed)


def hit_rate(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Σ min(cached, cacheable) / Σ cacheable, over turns that ended well and have cacheable tokens: the share
    that the cache had of what one that forgets nothing would have had."""
    sharing = [run.select(run.shared_prefix_tokens > 0) for run in runs]
    n = sum(map(len, sharing))
    lacking = sum(int((run.cached_tokens == MISSING).sum()) for run in sharing)
    if not n or lacking:
        why = (
            f"{lacking} of {n} turns have no count of cached_tokens" if n else "no turns that share a prefix"
        )
        return Estimate.undefined(unit="ratio", method=why, n=n, reason=Reason.NOT_MEASURABLE)
    hits = [np.minimum(run.cached_tokens, run.shared_prefix_tokens) for run in sharing]
    asked = [run.shared_prefix_tokens for run in sharing]
    return _over_sessions(sharing, hits, asked, seed=seed)


def _share(runs: Sequence[Records], column: str, *, seed: int) -> Estimate:
    """Σ of a column / Σ input tokens. Undefined where a request has no count."""
    n = sum(map(len, runs))
    lacking = sum(int(((getattr(run, column) == MISSING) | (run.input_tokens <= 0)).sum()) for run in runs)
    if not n or lacking:
        why = f"{lacking} of {n} turns have no count of {column} or of input tokens" if n else "no such turns"
        return Estimate.undefined(unit="ratio", method=why, n=n, reason=Reason.NOT_MEASURABLE)
    counted, asked = [getattr(run, column) for run in runs], [run.input_tokens for run in runs]
    return _over_sessions(runs, counted, asked, seed=seed)


def _over_sessions(
    runs: Sequence[Records],
    counted: Sequence[IntColumn],
    asked: Sequence[IntColumn],
    *,
    seed: int,
) -> Estimate:
    """Σ counted / Σ asked over requests, with the session as the sampling unit."""
    tops, bottoms = [], []
    for run, above, below in zip(runs, counted, asked, strict=True):
        rank = ranks(run)
        whole, part = np.bincount(rank, weights=below), np.bincount(rank, weights=above)
        tops.append(np.asarray(part[whole > 0], dtype=np.float64))
        bottoms.append(np.asarray(whole[whole > 0], dtype=np.float64))
    return ratio_of_sums(tops, bottoms, unit="ratio", seed=seed)


_NS_PER_S = 1e9


@dataclass(frozen=True, eq=False)
class Jobs:
    """The sessions of a run, as columns, in the order in which they began."""

    session: IntColumn
    turns: IntColumn
    """Planned number of turns of each session."""
    sent: IntColumn
    """Number of turns of each session that have a record."""
    complete: BoolColumn
    """Whether all turns of a session are there, and ended well or were to be cut by their user."""
    time_s: FloatArray
    llm_s: FloatArray
    wait_s: FloatArray
    """Wait in the generator of each session, in seconds."""
    pause_s: FloatArray
    worst: FloatArray
    """The largest share of its limits that any turn of a session used; infinite if a turn failed or was never
    sent."""

    def __len__(self) -> int:
        return len(self.session)

    @property
    def cut_off(self) -> int:
        """Number of sessions that were not completed."""
        return len(self) - int(self.complete.sum())

    @property
    def unsent(self) -> int:
        """Number of turns that were never sent, since their session had been cut off."""
        return int((self.turns - self.sent).sum())


def jobs_of(records: Records, limits_ms: Limits = ()) -> Jobs:
    """The sessions of one run; requests of no session are left out. ``limits_ms``: the limits of each
    turn."""
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
    """The instant at which each request was submitted; for one that never reached the wire, that at which it
    was due."""
    return np.where(records.submitted_ns != MISSING, records.submitted_ns, records.scheduled_ns)


def _parts(
    records: Records, order: IntColumn, firsts: IntColumn, due_ns: IntColumn
) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Wait, pause and LLM time of each session in nanoseconds. ``order``: the requests by session, then by
    submission."""
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
    """Number of turns that were never sent, since an earlier turn of their session did not end well."""
    found = jobs_of(records)
    failed = np.unique(records.session[records.failed])
    return int((found.turns - found.sent)[np.isin(found.session, failed)].sum())


def job_metrics(runs: Sequence[Jobs]) -> dict[str, Estimate]:
    """``job_time``, ``job_llm_time``, ``job_pause_time``, ``job_generator_wait`` of the sessions that were
    completed (s), with their statistics, and ``session_completion_rate``.

    The sampling unit is the session, in the order in which they began: sessions of a busy system depend on
    each other, which the intervals allow for.
    """
    found: dict[str, Estimate] = {}
    for name, part in _FAMILIES.items():
        samples = [np.asarray(getattr(run, part)[run.complete]) for run in runs]
        found |= distribution(name, samples, unit="s")
    ends = [np.where(run.complete, 0.0, np.inf) for run in runs if len(run)]
    return found | {"session_completion_rate": share_within(ends, "no sessions")}


_FAMILIES = {
    "job_time": "time_s",
    "job_llm_time": "llm_s",
    "job_pause_time": "pause_s",
    "job_generator_wait": "wait_s",
}


def session_scores(run: Jobs, job_s: float | None) -> FloatArray:
    """The largest share of its limits that each session used; infinite for one that was cut off."""
    return run.worst if job_s is None else np.maximum(run.worst, run.time_s / job_s)


def session_goodput(runs: Sequence[Jobs], job_s: float | None) -> Estimate:
    """Good sessions / all sessions. A session is good when it was completed, each of its turns kept the
    limits that its :class:`Jobs` were made with, and it took at most ``job_s``."""
    every = [scores for run in runs if len(scores := session_scores(run, job_s))]
    found = share_within(every, "no sessions")
    return replace(found, method=f"{found.method}, whole sessions") if found.n else found


@dataclass(frozen=True, eq=False)
class Slowdowns:
    """The slowdowns of a run (ratios), for the pairs in the order in which their jobs began under load."""

    job: FloatArray
    llm: FloatArray


def slowdowns(loaded: Jobs, alone: Jobs, numbers: Sequence[int]) -> Slowdowns:
    """The slowdowns of pairs: session i of ``alone`` is the probe of session ``numbers[i]`` of ``loaded``.
    Pairs in which one was not completed, or took no time alone, are left out."""
    probe = np.full(max((*numbers, *loaded.session.tolist()), default=-1) + 1, -1, dtype=np.int64)
    for place, session in enumerate(alone.session.tolist()):
        if alone.complete[place] and alone.llm_s[place] > 0:
            probe[numbers[session]] = place
    of = probe[loaded.session] if len(loaded) else np.empty(0, dtype=np.int64)
    paired = loaded.complete & (of >= 0)
    of = of[paired]
    return Slowdowns(loaded.time_s[paired] / alone.time_s[of], loaded.llm_s[paired] / alone.llm_s[of])


def slowdown_metrics(
    runs: Sequence[Slowdowns], why: str = "no session was probed alone"
) -> dict[str, Estimate]:
    """``job_slowdown`` and ``job_llm_slowdown`` (ratios) with their statistics. Undefined, and never 1,
    without pairs; ``why``: the reason if there are none."""
    found = distribution("job_slowdown", [run.job for run in runs], unit="ratio")
    found |= distribution("job_llm_slowdown", [run.llm for run in runs], unit="ratio")
    return {name: each if each.defined else replace(each, method=why) for name, each in found.items()}
