"""Turns by their number in the session: TTFT, TPOT, and what a prefix cache had of their prompts.

Turns of one session are alike, and depend on each other. So the sampling unit of every interval is the whole
session, in the order in which they began, whatever the number of turns it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_llmbench.metrics.itl import ClusterEstimates
from pytest_llmbench.metrics.latency import per_request
from pytest_llmbench.metrics.ratios import ratio_of_sums
from pytest_llmbench.metrics.summary import PERCENTILES, STATISTICS, distribution
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.outcome import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.runs import FloatArray

_NS_PER_MS = 1e6
_BY_SERVER = [TOKEN_SOURCES.index(each) for each in (TokenSource.SERVER_USAGE, TokenSource.CHUNK_USAGE)]


@dataclass(frozen=True, slots=True, order=True)
class TurnClass:
    """Turn ``first`` of sessions; with ``onwards`` all turns from there on."""

    first: int
    onwards: bool = False

    @classmethod
    def parse(cls, text: int | str) -> TurnClass:
        """``1``, ``"3"`` or ``"2+"``. Raises ValueError for anything else."""
        told = str(text)
        number = int(told.removesuffix("+"))
        if isinstance(text, bool) or number < 1 or str(number) != told.removesuffix("+"):
            raise ValueError(f"{text!r} is no number of a turn")
        return cls(number, told.endswith("+"))

    def __str__(self) -> str:
        return f"{self.first}{'+' if self.onwards else ''}"

    def holds(self, turn: IntColumn) -> BoolColumn:
        return np.asarray((turn >= self.first) if self.onwards else (turn == self.first))


USUAL = (TurnClass(1), TurnClass(2, onwards=True))
"""The classes that are always reported: the first turn finds no history in the cache, the others may."""


def turn_metrics(
    runs: Sequence[Records], classes: Iterable[TurnClass], *, seed: int, level: float = 0.95
) -> dict[str, Estimate]:
    """``turn_ttft[c]``, ``turn_tpot[c]`` (ms) with their statistics, ``turn_cached_share[c]``,
    ``turn_cacheable_share[c]`` and ``turn_cache_hit_rate[c]`` (ratios), for each class of turns c; ``ttft``
    and ``tpot`` of all turns."""
    every = tuple(classes)
    return turn_latencies(runs, every, level=level) | turn_shares(runs, every, seed=seed, level=level)


def turn_latencies(
    runs: Sequence[Records], classes: Iterable[TurnClass], *, level: float = 0.95
) -> dict[str, Estimate]:
    """``turn_ttft[c]``, ``turn_tpot[c]``, and ``ttft`` and ``tpot`` of all turns."""
    found: dict[str, Estimate] = {}
    for each in (None, *classes):
        found |= latencies(runs, "ttft", each, level=level) | latencies(runs, "tpot", each, level=level)
    return found


def turn_shares(
    runs: Sequence[Records], classes: Iterable[TurnClass], *, seed: int, level: float = 0.95
) -> dict[str, Estimate]:
    """``turn_cached_share[c]``, ``turn_cacheable_share[c]``, ``turn_cache_hit_rate[c]``."""
    found: dict[str, Estimate] = {}
    for each in classes:
        own = [run.select(run.ok & each.holds(run.turn)) for run in runs]
        found[f"turn_cached_share[{each}]"] = cached_share(own, seed=seed, level=level)
        found[f"turn_cacheable_share[{each}]"] = _share(own, "shared_prefix_tokens", seed=seed, level=level)
        found[f"turn_cache_hit_rate[{each}]"] = hit_rate(own, seed=seed, level=level)
    return found


class Growth(NamedTuple):
    """What later turns add to the prompts of those before them, over all sessions, in tokens."""

    counted: int
    """As the server counts."""
    asked: int
    """As the workload does."""
    turns: int


def growth(run: Records) -> Growth:
    """Of each turn that is longer than the one before it, where the server counted both prompts."""
    held = run.ok & (run.session != MISSING) & (run.input_tokens != MISSING)
    own = run.select(held & np.isin(run.token_source, _BY_SERVER))
    order = np.lexsort((own.turn, own.session))
    session, turn = own.session[order], own.turn[order]
    counted, asked = np.diff(own.input_tokens[order]), np.diff(own.requested_input_tokens[order])
    follows = (session[1:] == session[:-1]) & (turn[1:] == turn[:-1] + 1) & (asked > 0)
    return Growth(int(counted[follows].sum()), int(asked[follows].sum()), int(follows.sum()))


def latencies(
    runs: Sequence[Records], quantity: str, of: TurnClass | None, *, level: float = 0.95
) -> dict[str, Estimate]:
    """TTFT or TPOT of the turns of a class, or of all, that ended well: percentiles, mean, least and most."""
    family = quantity if of is None else f"turn_{quantity}[{of}]"
    samples = [_by_session(run, quantity, of) for run in runs]
    if all(bool((counts == 1).all()) for _, counts in samples):
        return distribution(family, [each for each, _ in samples], level=level)
    clusters = Clusters.joined([_clusters(each, counts) for each, counts in samples])
    pool = ClusterEstimates(clusters, level, "sessions")
    named = dict(zip(PERCENTILES, pool.percentiles(tuple(PERCENTILES.values())), strict=True))
    named["mean"] = pool.mean()
    every = np.concatenate([each for each, _ in samples])
    for name, value in (("min", float(every.min())), ("max", float(every.max()))):
        named[name] = Estimate(value, None, None, level, len(every), "observed", "ms")
    return {f"{family}.{statistic}": named[statistic] for statistic in STATISTICS}


def _by_session(run: Records, quantity: str, of: TurnClass | None) -> tuple[FloatArray, IntColumn]:
    """The values of each session in a row, sessions in the order in which they began, and how many each
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
    """The place of each request's session in the order in which they began."""
    session, inverse = np.unique(run.session, return_inverse=True)
    begun_ns = np.full(len(session), np.iinfo(np.int64).max)
    np.minimum.at(begun_ns, inverse, run.scheduled_ns)
    ranks = np.empty(len(session), dtype=np.int64)
    ranks[np.lexsort((session, begun_ns))] = np.arange(len(session))
    return ranks[inverse]


def _clusters(ms: FloatArray, counts: IntColumn) -> Clusters:
    ns = np.rint(ms * _NS_PER_MS).astype(np.int64)
    return Clusters(counts, (len(counts),), lambda: [(ns, counts)], _NS_PER_MS)


def cached_share(runs: Sequence[Records], *, seed: int, level: float = 0.95) -> Estimate:
    """Σ cached tokens / Σ input tokens of turns that ended well."""
    return _share(runs, "cached_tokens", seed=seed, level=level)


def hit_rate(runs: Sequence[Records], *, seed: int, level: float = 0.95) -> Estimate:
    """Σ min(cached, cacheable) / Σ cacheable, over turns that ended well and have something to find: of what
    a cache that forgets nothing would have had, the share that this one had."""
    sharing = [run.select(run.shared_prefix_tokens > 0) for run in runs]
    n = sum(map(len, sharing))
    lacking = sum(int((run.cached_tokens == MISSING).sum()) for run in sharing)
    if not n or lacking:
        why = (
            f"{lacking} of {n} turns have no count of cached_tokens" if n else "no turns that share a prefix"
        )
        return Estimate.undefined(unit="ratio", method=f"not measurable: {why}", level=level, n=n)
    hits = [np.minimum(run.cached_tokens, run.shared_prefix_tokens) for run in sharing]
    asked = [run.shared_prefix_tokens for run in sharing]
    return _over_sessions(sharing, hits, asked, seed=seed, level=level)


def _share(runs: Sequence[Records], column: str, *, seed: int, level: float) -> Estimate:
    """Σ of a column / Σ input tokens. Undefined where a request has no count."""
    n = sum(map(len, runs))
    lacking = sum(int(((getattr(run, column) == MISSING) | (run.input_tokens <= 0)).sum()) for run in runs)
    if not n or lacking:
        why = f"{lacking} of {n} turns have no count of {column} or of input tokens" if n else "no such turns"
        return Estimate.undefined(unit="ratio", method=f"not measurable: {why}", level=level, n=n)
    counted, asked = [getattr(run, column) for run in runs], [run.input_tokens for run in runs]
    return _over_sessions(runs, counted, asked, seed=seed, level=level)


def _over_sessions(
    runs: Sequence[Records],
    counted: Sequence[IntColumn],
    asked: Sequence[IntColumn],
    *,
    seed: int,
    level: float,
) -> Estimate:
    """Σ counted / Σ asked of requests. The sampling unit is the session."""
    tops, bottoms = [], []
    for run, above, below in zip(runs, counted, asked, strict=True):
        rank = ranks(run)
        whole, part = np.bincount(rank, weights=below), np.bincount(rank, weights=above)
        tops.append(np.asarray(part[whole > 0], dtype=np.float64))
        bottoms.append(np.asarray(whole[whole > 0], dtype=np.float64))
    return ratio_of_sums(tops, bottoms, unit="ratio", seed=seed, level=level)
