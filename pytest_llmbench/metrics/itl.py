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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_llmbench.metrics.chunking import chunk_weights, single_token_share, tokens_per_chunk
from pytest_llmbench.metrics.summary import BOOTSTRAP_FLOOR, PERCENTILES, bootstrap_method
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats import bootstrap
from pytest_llmbench.stats.clusters import Clusters
from pytest_llmbench.stats.dependence import block_length, effective_size
from pytest_llmbench.stats.order_statistics import percentile_interval, samples_required
from pytest_llmbench.stats.percentiles import percentiles
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval

Resample = Callable[[FloatArray], FloatArray]
"""From one sum per request to its total over each resample, per resampled gap."""
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
    eligible = records.ok & (_output_tokens(records) >= min_output_tokens)
    chosen = records.select(eligible)
    values, counts = _gaps(chosen, option)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return ItlSamples(option, values, offsets, excluded=int(records.ok.sum()) - int(eligible.sum()))


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
    intervals is therefore the whole request, in arrival order. Mean and standard deviation: circular block
    bootstrap of requests. Percentiles: order statistics at the effective number of gaps (Woodruff 1952), the
    number of independent ones whose share above the percentile would vary as much as it does over requests.
    A bootstrap of requests comes to the same, but takes minutes for millions of gaps.
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
        point = float(percentiles(self.ordered, (q,))[0])
        worth = self.clusters.percentile_effective_size(self.values, self.ordered, q)
        interval = percentile_interval(self.ordered, q, level=self.level, effective_n=worth)
        required = math.ceil(samples_required(q, self.level) * len(self.ordered) / worth)
        method = f"order statistics at effective n={math.floor(worth)}, whole requests"
        return self._estimate(point, interval, method, required)

    def mean(self) -> Estimate:
        point = float(np.mean(self.values))
        sums = self.clusters.sums(self.values - point)
        return self._bootstrapped(point, sums, lambda drawn: point + drawn(sums))

    def std(self) -> Estimate:
        """Sample standard deviation (n - 1) of all gaps."""
        n = len(self.values)
        if n < 2:
            return Estimate.undefined(unit="ms", method="fewer than two samples", level=self.level, n=n)
        around = self.values - np.mean(self.values)
        squared = np.square(around)
        sums, squares = self.clusters.sums(around), self.clusters.sums(squared)
        variance, stretch = float(np.mean(squared)), n / (n - 1)
        return self._bootstrapped(
            math.sqrt(variance * stretch),
            squares - variance * self.clusters.counts,
            lambda drawn: np.sqrt(np.maximum(drawn(squares) - drawn(sums) ** 2, 0.0) * stretch),
        )

    def _bootstrapped(
        self, point: float, influence: FloatArray, statistic: Callable[[Resample], FloatArray]
    ) -> Estimate:
        """``statistic`` of every resample of requests, from sums over requests per resampled gap."""
        errors = self.clusters.by_run(influence)
        worth = effective_size(errors)
        if worth < BOOTSTRAP_FLOOR:
            required = math.ceil(BOOTSTRAP_FLOOR * len(self.values) / worth)
            return self._estimate(
                point, OPEN, f"no interval at {math.floor(worth)} requests' worth", required
            )
        block = block_length(errors)

        def mean_of(per_request: FloatArray) -> FloatArray:
            runs = self.clusters.by_run(per_request)
            return bootstrap.resampled_means(runs, seed=self.seed, block=block)

        gaps = mean_of(self.clusters.counts.astype(np.float64))
        values = statistic(lambda per_request: mean_of(per_request) / gaps)
        interval = bootstrap.interval_between(values, len(influence) / block, level=self.level)
        return self._estimate(point, interval, bootstrap_method(block, of=" of whole requests"))

    def _estimate(
        self, point: float, interval: Interval, method: str, required: int | None = None
    ) -> Estimate:
        lower, upper = interval
        return Estimate(
            point=point,
            lower=None if lower is None else min(lower, point),
            upper=None if upper is None else max(upper, point),
            level=self.level,
            n=len(self.values),
            method=method,
            unit="ms",
            n_required=required if lower is None or upper is None else None,
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
    return bool((_has_unknown_chunk(records) & records.ok).any())


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
