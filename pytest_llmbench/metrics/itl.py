"""Inter-token latency: the gaps between the tokens of a stream, in milliseconds (section 5.4.3, AMB-12/13).

Four ways to see tokens in chunks (section 4.6.3). Whichever is taken, the first token has no gap: TTFT is
never in ITL.

- ``direct``: the gap between chunks of one token; what chunks have several tokens are handled as by B.
- ``A``: the gap between chunks, whatever they hold. It is called Time Between Chunks, not ITL.
- ``B``: all tokens of a chunk at its arrival: one gap to the chunk before, then zeros.
- ``C``: the server's own instant of every token, on its clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_weights, single_token_share, tokens_per_chunk
from pytest_llmbench.metrics.summary import BOOTSTRAP_FLOOR, PERCENTILES
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.order_statistics import percentile_interval, samples_required
from pytest_llmbench.stats.percentiles import ordered_percentile
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval
from pytest_llmbench.stats.spectral import legs, spread, upper_end

Option = Literal["direct", "A", "B", "C"]
ITL, TBC = "ITL", "Time Between Chunks"
FEWEST_TOKENS = 50
"""Output tokens of an eligible request (section 5.4.2)."""
SINGLE_TOKEN_SHARE = 0.9
"""Above it chunks are timed directly (section B.2.1)."""
_NS_PER_MS = 1e6


@dataclass(frozen=True, eq=False)
class ItlSamples:
    """The gaps of the eligible requests of one run, in order of submission.

    Request i owns ``values[offsets[i]:offsets[i + 1]]``; one whose gaps cannot be known owns none.
    """

    option: Option
    values: FloatArray
    offsets: IntColumn
    excluded: int
    """Successful requests with fewer output tokens than asked for."""

    @property
    def eligible(self) -> int:
        return len(self.offsets) - 1

    @property
    def excluded_share(self) -> float | None:
        """Of the successful requests."""
        every = self.eligible + self.excluded
        return self.excluded / every if every else None

    @property
    def zeros(self) -> int:
        """Gaps of no length: further tokens of a chunk, or chunks that shared a read."""
        return len(self.values) - int(np.count_nonzero(self.values))

    @property
    def label(self) -> str:
        """What the figures are to be called."""
        return TBC if self.option == "A" else ITL


def choose_option(records: Records) -> Literal["direct", "A", "C"]:
    """AMB-13: C if the server gives token instants and a chunk may hold several tokens; else direct if more
    than 90 % of the chunks hold one; else A. Chunks of unknown size may hold several. Judged over the
    successful requests.
    """
    share, sizes = single_token_share(records), tokens_per_chunk(records)
    several = sizes is None or sizes.max > 1 or _unattributed(records)
    if several and _has_server_instants(records):
        return "C"
    return "direct" if share is not None and share > SINGLE_TOKEN_SHARE else "A"


def itl_samples(records: Records, option: Option, *, min_output_tokens: int = FEWEST_TOKENS) -> ItlSamples:
    """Gaps of the successful requests with at least ``min_output_tokens`` output tokens.

    A missing token count is read from the chunks. ``direct`` takes a chunk of unknown size for one token; B
    has no gaps for a request with such chunks, C none for a request without server instants.
    """
    values: list[FloatArray] = []
    counts: list[IntColumn] = []
    excluded = 0
    for block in records.blocks():  # of a long run nothing but the gaps themselves is needed at once
        eligible = block.ok & (_output_tokens(block) >= min_output_tokens)
        own_values, own_counts = _gaps(block.select(eligible), option)
        values.append(own_values)
        counts.append(own_counts)
        excluded += int(block.ok.sum()) - int(eligible.sum())
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    return ItlSamples(option, np.concatenate(values), offsets, excluded)


def jitter_ms(samples: ItlSamples) -> FloatArray:
    """Sample standard deviation (n - 1) of the gaps of each request that has two or more."""
    clusters = _clusters([samples])
    if not len(samples.values):
        return np.empty(0)
    several = clusters.counts >= 2
    around = samples.values - np.repeat(clusters.sums(samples.values) / clusters.counts, clusters.counts)
    squares = clusters.sums(np.square(around))
    return np.asarray(np.sqrt(squares[several] / (clusters.counts[several] - 1)), dtype=np.float64)


def longest_pause_ms(samples: ItlSamples) -> FloatArray:
    """The largest gap of each request that has one."""
    return _clusters([samples]).largest(samples.values)


def itl_distribution(
    samples: ItlSamples | Sequence[ItlSamples],
    *,
    family: str = "itl",
    seed: int,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """``{family}.p50`` … ``{family}.p99_9``, ``.mean``, ``.std`` of all gaps, one or several runs.

    The gaps of a request belong together, and requests depend on each other; the sampling unit of all
    intervals is therefore the whole request, in arrival order. Mean and standard deviation: Student's t on
    the long-run variance of their sums over requests. Percentiles: order statistics at the effective number
    of gaps (Woodruff 1952), the number of independent ones whose share above the percentile would vary as
    much as it does over requests. A bootstrap of requests comes to the same, but takes minutes for millions.
    """
    runs = [samples] if isinstance(samples, ItlSamples) else list(samples)
    clusters = _clusters(runs)
    values = np.concatenate([run.values for run in runs]) if runs else np.empty(0)
    names = (*PERCENTILES, "mean", "std")
    if not len(values):
        undefined = Estimate.undefined(unit="ms", method="no samples", level=level)
        return {f"{family}.{name}": undefined for name in names}
    pool = _Pool(values, np.sort(values), clusters, level, seed)
    estimates = [*(pool.percentile(q) for q in PERCENTILES.values()), pool.mean(), pool.std()]
    return {f"{family}.{name}": estimate for name, estimate in zip(names, estimates, strict=True)}


@dataclass(frozen=True, eq=False)
class _Pool:
    values: FloatArray
    ordered: FloatArray
    clusters: Clusters
    level: float
    seed: int

    def percentile(self, q: float) -> Estimate:
        point = ordered_percentile(self.ordered, q)
        worth = self.clusters.percentile_worth(self.values, self.ordered, q)
        usable = worth.discounted(self.level)
        interval = percentile_interval(self.ordered, q, level=self.level, effective_n=usable)
        required = worth.required(samples_required(q, self.level), len(self.ordered), self.level)
        method = f"order statistics at effective n={math.floor(worth.samples)}, whole requests"
        return self._estimate(point, interval, method, required)

    def mean(self) -> Estimate:
        point = float(np.mean(self.values))
        return self._of_influence(point, self.clusters.sums(self.values - point))

    def std(self) -> Estimate:
        """Sample standard deviation (n - 1) of all gaps; its influence is ((x - mean)² - s²) / 2 s."""
        n = len(self.values)
        if n < 2:
            return Estimate.undefined(unit="ms", method="fewer than two samples", level=self.level, n=n)
        squared = np.square(self.values - np.mean(self.values))
        variance = float(np.mean(squared))
        point = math.sqrt(variance * n / (n - 1))
        influence = self.clusters.sums(squared) - variance * self.clusters.counts
        return self._of_influence(point, influence / (2 * point) if point > 0 else 0.0 * influence)

    def _of_influence(self, point: float, sums: FloatArray) -> Estimate:
        """``sums``: over each request, how much its gaps move the statistic, times the number of gaps."""
        per_request = len(self.values) / len(sums)
        of = spread(self.clusters.by_run(sums / per_request))
        if of is None or of.worth < BOOTSTRAP_FLOOR:
            worth = len(sums) if of is None else of.worth
            required = math.ceil(BOOTSTRAP_FLOOR * len(self.values) / worth)
            return self._estimate(
                point, OPEN, f"no interval at {math.floor(worth)} requests' worth", required
            )
        down, up = legs(of, self.level)
        farthest = upper_end(point, up)
        effective = f"effective n={math.floor(of.worth)}"
        method = f"whole requests at {effective}, t with {of.freedom:.0f} degrees of freedom"
        return self._estimate(point, Interval(max(0.0, point - down), farthest), method)

    def _estimate(self, point: float, interval: Interval, method: str, required: int = 0) -> Estimate:
        lower, upper = interval
        return Estimate(
            point=point,
            lower=None if lower is None else min(lower, point),
            upper=None if upper is None else max(upper, point),
            level=self.level,
            n=len(self.values),
            method=method,
            unit="ms",
            n_required=max(required, len(self.values) + 1) if lower is None or upper is None else None,
        )


def _clusters(runs: Sequence[ItlSamples]) -> Clusters:
    return Clusters.from_offsets([run.offsets for run in runs])


def _output_tokens(records: Records) -> IntColumn:
    owner = np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
    seen = np.bincount(owner, weights=chunk_weights(records), minlength=len(records)).astype(np.int64)
    return np.where(records.output_tokens != MISSING, records.output_tokens, seen)


def _gaps(records: Records, option: Option) -> tuple[FloatArray, IntColumn]:
    """The gaps of all requests and how many each of them has."""
    if option == "C":
        return _differences(records.server_token_ns, np.diff(records.server_token_offsets))
    counts = np.diff(records.chunk_offsets)
    if option == "A":
        return _differences(records.chunk_ns, counts)
    tokens = chunk_weights(records).astype(np.int64)
    owner = np.repeat(np.arange(len(records)), counts)
    held = tokens > 0  # a chunk without a token (half a character, say) is no arrival of one
    if option == "B":
        held &= ~_has_unknown_chunk(records)[owner]
    return _token_gaps(records.chunk_ns[held], tokens[held], owner[held], len(records))


def _differences(instants: IntColumn, counts: IntColumn) -> tuple[FloatArray, IntColumn]:
    gaps = np.diff(instants, prepend=0) / _NS_PER_MS
    inner = np.ones(len(gaps), dtype=bool)
    inner[(np.cumsum(counts) - counts)[counts > 0]] = False
    return gaps[inner], np.maximum(counts - 1, 0)


def _token_gaps(
    at_ns: IntColumn, tokens: IntColumn, owner: IntColumn, requests: int
) -> tuple[FloatArray, IntColumn]:
    """All tokens of a chunk at its arrival: its gap goes to its first token, the others have zero."""
    places = np.cumsum(tokens) - tokens
    gaps = np.zeros(int(tokens.sum()))
    gaps[places] = np.diff(at_ns, prepend=0) / _NS_PER_MS
    first_chunk = np.flatnonzero(np.diff(owner, prepend=-1))
    inner = np.ones(len(gaps), dtype=bool)
    inner[places[first_chunk]] = False
    per_request = np.bincount(owner, weights=tokens, minlength=requests).astype(np.int64)
    return gaps[inner], np.maximum(per_request - 1, 0)


def _has_unknown_chunk(records: Records) -> BoolColumn:
    owner = np.repeat(np.arange(len(records)), np.diff(records.chunk_offsets))
    unknown = np.bincount(owner[records.chunk_tokens == MISSING], minlength=len(records))
    return np.asarray(unknown > 0)


def _unattributed(records: Records) -> bool:
    return any(bool((_has_unknown_chunk(block) & block.ok).any()) for block in records.blocks())


def _has_server_instants(records: Records) -> bool:
    counts = np.diff(records.server_token_offsets)[records.ok]
    return len(counts) > 0 and bool((counts > 0).all())


__all__ = [
    "FEWEST_TOKENS",
    "ITL",
    "SINGLE_TOKEN_SHARE",
    "TBC",
    "ItlSamples",
    "Option",
    "choose_option",
    "itl_distribution",
    "itl_samples",
    "jitter_ms",
    "longest_pause_ms",
]
