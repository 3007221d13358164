"""Inter-token latency: the gaps between the tokens of a stream, in milliseconds (section 5.4.3, AMB-12/13).

A run may have more gaps than memory has
room for. Those of a short one are kept; those of a longer one are computed from its records each time they
are gone through, and no figure depends on which of the two it was.

There are four ways to see tokens in chunks (section 4.6.3). Whichever is taken, the first token has no gap:
TTFT is never in ITL.

- ``direct``: the gap between chunks of one token; what chunks have several tokens are handled as by B.
- ``A``: the gap between chunks, whatever they hold. It is called Time Between Chunks, not ITL.
- ``B``: all tokens of a chunk at its arrival: one gap to the chunk before, then zeros.
- ``C``: the server's own instant of every token, on its clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.chunking import (
    chunk_owners,
    chunk_weights,
    differences,
    single_token_share,
    tokens_per_chunk,
)
from pytest_llmbench.metrics.summary import GivenUp, estimate, of_quantiles, with_given_up
from pytest_llmbench.model.draft import FEWEST_TOKENS, SINGLE_TOKEN_SHARE
from pytest_llmbench.model.estimate import LEVEL, Estimate, EstimateKind
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.clusters import Blocks, Clusters, GroupWorth
from pytest_llmbench.stats.counted import look_up
from pytest_llmbench.stats.crude import CRUDELY, FEWEST, level_factor
from pytest_llmbench.stats.percentiles import (
    PERCENTILES,
    Worth,
    in_order,
    ordered_percentile,
    percentile_ranks,
    ranks,
    samples_required,
)
from pytest_llmbench.stats.ratios import exact_share_interval
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, legs, spread, upper_end

ITL, TBC = "ITL", "Time Between Chunks"
KEPT = 1 << 22
"""The most gaps of a run that are kept in memory: 32 MiB."""
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class ItlCounts:
    """The number of gaps of a run, and of the requests that they come from."""

    option: Option
    gaps: int
    zeros: int
    """Number of gaps of zero length: further tokens of a chunk, or chunks that shared a read."""
    eligible: int
    excluded: int
    """Number of successful requests left out because they have fewer output tokens than required."""

    @property
    def excluded_share(self) -> float | None:
        """The share of successful requests that were excluded; None where there are none."""
        every = self.eligible + self.excluded
        return self.excluded / every if every else None

    @property
    def label(self) -> str:
        """The name of the figures: ITL, or Time Between Chunks."""
        return TBC if self.option == "A" else ITL


@dataclass(frozen=True, eq=False)
class ItlSamples:
    """The gaps of the eligible requests of one run, in order of submission."""

    counts: ItlCounts
    per_request: IntColumn
    """Number of gaps of each eligible request; 0 for one whose gaps cannot be known."""
    blocks: Blocks
    starts_ns: IntColumn | None = None
    """The instant of the first token of each eligible request; None where it is not known."""
    given_up: int = 0
    """Number of replies that had begun when they were given up on; none of their gaps is here."""

    @classmethod
    def of(cls, option: Option, gaps_ms: FloatArray, offsets: IntColumn, excluded: int = 0) -> ItlSamples:
        """Samples in which request i has ``gaps_ms[offsets[i]:offsets[i + 1]]``; rounded to nanoseconds, as
        clocks are."""
        ns = np.rint(gaps_ms * _NS_PER_MS).astype(np.int64)
        unknown = np.zeros(len(offsets) - 1, dtype=np.int64)
        found = _samples(option, iter([Gaps(ns, np.diff(offsets), excluded, unknown)]), None)
        return replace(found, starts_ns=None)

    @cached_property
    def clusters(self) -> Clusters:
        """The gaps in ms, grouped by request; requests without gaps are left out."""
        held = self.per_request > 0
        filled = self.per_request if bool(held.all()) else self.per_request[held]
        starts_ns = None if self.starts_ns is None else self.starts_ns[held]
        return Clusters(filled, (len(filled),), self.blocks, _NS_PER_MS, starts_ns)

    @property
    def values(self) -> FloatArray:
        """All gaps in ms in one vector, which has to fit into memory."""
        every = list(self.clusters.blocks())
        return np.concatenate(every) if every else np.empty(0)

    @property
    def offsets(self) -> IntColumn:
        """Request i owns ``values[offsets[i]:offsets[i + 1]]``."""
        return np.concatenate(([0], np.cumsum(self.per_request))).astype(np.int64)


CLOCK_SLACK, CLOCK_SLACK_NS = 0.1, 10_000_000
"""How much shorter than its arrival a reply may have been by the server's instants, as a share and at least:
what a network adds to a last chunk and not to a first one."""
MOST_MISFITS = 0.01
"""Largest share of replies whose server instants do not fit, for the others to be believed."""


ASKED = "marker"
"""What ``streaming.itl_option_from`` says of an option that the author chose; else the label of a level."""


def choose_option(records: Records) -> Literal["direct", "A", "C"]:
    """The option by AMB-13: C if the server gives token instants that can be, and a chunk may hold several
    tokens; else direct if more than 90 % of the chunks hold one; else A. Chunks of unknown size may hold
    several. Judged over the successful requests."""
    share, sizes = single_token_share(records), tokens_per_chunk(records)
    several = sizes is None or sizes.max > 1
    several = several or any((has_unknown_chunk(block) & block.ok).any() for block in records.blocks())
    instants = np.diff(records.server_token_offsets)[records.ok]
    if several and len(instants) > 0 and bool((instants > 0).all()) and server_clock_holds(records):
        return "C"
    return "direct" if share is not None and share > SINGLE_TOKEN_SHARE else "A"


def itl_samples(
    records: Records,
    option: Option,
    *,
    min_output_tokens: int = FEWEST_TOKENS,
    part: Callable[[Records], Records] = lambda whole: whole,
) -> ItlSamples:
    """Gaps of the successful requests with at least ``min_output_tokens`` output tokens.

    ``part`` takes out of some requests the chunks whose gaps are wanted; by default all. A missing token
    count is read from the chunks. ``direct`` takes a chunk of unknown size for one token; B has no gaps for a
    request with such chunks, C none for a request without server instants.
    """

    def gaps() -> Iterator[Gaps]:
        for block in records.blocks():
            yield from gaps_of(part(block), option, min_output_tokens)

    def again() -> Iterator[tuple[IntColumn, IntColumn]]:
        for block in gaps():
            yield block.ns, block.counts[block.counts > 0]

    gone = records.select(records.given_up)
    begun = int((gone.first_nonempty_ns != MISSING).sum())
    return replace(_samples(option, gaps(), again), given_up=begun)


def _samples(option: Option, blocks: Iterator[Gaps], again: Blocks | None) -> ItlSamples:
    """The samples of these blocks. ``again``: makes the blocks once more where they are too many to keep;
    None: keep them."""
    counts: list[IntColumn] = []
    starts_ns: list[IntColumn] = []
    kept: list[tuple[IntColumn, IntColumn]] = []
    gaps = zeros = excluded = 0
    for block in blocks:
        counts.append(block.counts)
        starts_ns.append(block.starts_ns)
        gaps += len(block.ns)
        zeros += len(block.ns) - int(np.count_nonzero(block.ns))
        excluded += block.excluded
        if again is None or gaps <= KEPT:
            kept.append((block.ns, block.counts[block.counts > 0]))
        else:
            kept.clear()
    per_request = np.concatenate(counts)
    found = ItlCounts(option, gaps, zeros, len(per_request), excluded)
    again = again if again is not None and gaps > KEPT else lambda: kept
    return ItlSamples(found, per_request, again, np.concatenate(starts_ns))


def jitter_ms(samples: ItlSamples) -> FloatArray:
    """Sample standard deviation (n - 1) of the gaps of each request that has two or more."""
    clusters = samples.clusters
    several = clusters.counts >= 2
    squares = clusters.moments.squares[several]
    return np.asarray(np.sqrt(squares / (clusters.counts[several] - 1)), dtype=np.float64)


def longest_pause_ms(samples: ItlSamples) -> FloatArray:
    """The largest gap of each request that has one."""
    return samples.clusters.moments.largest


def itl_distribution(
    samples: ItlSamples | Sequence[ItlSamples], *, family: str = "itl"
) -> dict[str, Estimate]:
    """``{family}.p50`` … ``{family}.p99_9``, ``.mean``, ``.std`` of all gaps, one or several runs.

    The gaps of a request belong together, and requests depend on each other; the sampling unit of all
    intervals is therefore the whole request, in arrival order. Mean and standard deviation: Student's t on
    the long-run variance of their sums over requests. Percentiles: order statistics at the effective number
    of gaps (Woodruff 1952), the number of independent ones whose share above the percentile would vary as
    much as it does over requests. A bootstrap of requests comes to the same, but takes minutes for millions.
    """
    runs = [samples] if isinstance(samples, ItlSamples) else list(samples)
    clusters = Clusters.joined([run.clusters for run in runs])
    names = (*PERCENTILES, "mean", "std")
    if not len(clusters):
        undefined = Estimate.undefined(unit="ms", method="no samples")
        return {f"{family}.{name}": undefined for name in names}
    pool = ClusterEstimates(clusters)
    every = [*pool.percentiles(tuple(PERCENTILES.values())), pool.mean(), pool.std()]
    gone, n = GivenUp.of_unknown(sum(run.given_up for run in runs)), len(clusters.counts)
    estimates = with_given_up(dict(zip(names, every, strict=True)), gone, np.empty(0), n, pool.percentiles)
    return {f"{family}.{name}": estimate for name, estimate in estimates.items()}


@dataclass(frozen=True, eq=False)
class ClusterEstimates:
    """Percentiles, mean and standard deviation, in ms, of samples in clusters, with intervals whose sampling
    unit is the whole cluster."""

    clusters: Clusters
    unit: str = "requests"
    """The name of a cluster in the text of the method."""

    def percentiles(self, qs: Sequence[float]) -> list[Estimate]:
        n, ordered = len(self.clusters), self.clusters.ordered
        look_up(ordered, percentile_ranks(n, qs))
        worths = self.clusters.percentile_worths(qs)
        found = [self._ranks(q, each) for q, each in zip(qs, worths, strict=True)]
        of_requests = [self._of_requests(q) for q in qs]
        wanted = [rank for pair, _ in found for rank in pair] + of_requests
        look_up(ordered, [rank - 1 for rank in wanted if rank is not None])
        factor, ends, crudes = self._level, [], []
        for (pair, crude), far in zip(found, of_requests, strict=True):
            lower, upper = (None if rank is None else float(ordered[rank - 1]) for rank in pair)
            if factor is not None and upper is not None and far is not None:
                bound = factor * float(ordered[far - 1])
                upper, crude = min(upper, bound), crude or bound < upper
            ends.append(Interval(lower, upper))
            crudes.append(crude)
        return [
            self._percentile(q, each.worth, interval, crude)
            for q, each, interval, crude in zip(qs, worths, in_order(ends), crudes, strict=True)
        ]

    @cached_property
    def _level(self) -> float | None:
        """e^ℓ of the mean over slices of time; None for few requests, and where no instants are known."""
        if self.clusters.slices is None or len(self.clusters.counts) < FEWEST:
            return None
        of, mean = spread(self.clusters.influence_of_mean()), self.clusters.moments.mean
        if of is None:
            return None
        (sums,) = self.clusters.group_sums([lambda numbers: numbers])
        return level_factor(mean, of, LEVEL) * self.clusters.in_the_middle(sums)

    def _of_requests(self, q: float) -> int | None:
        """The rank of the upper end of a percentile up to the median if gaps were worth as many as there are
        requests: of gaps of a few lengths it tells more than the share of each does, which the load moves."""
        if q > 50:
            return None
        return ranks(len(self.clusters), q, level=LEVEL, effective_n=len(self.clusters.counts))[1]

    def _ranks(self, q: float, of: GroupWorth) -> tuple[tuple[int | None, int | None], bool]:
        """The ranks of the ends, and whether they are crude: of Clopper and Pearson's limits of the share
        beyond the percentile, which always exist. Above, more may lie beyond it in the middle of the time."""
        n, worth = len(self.clusters), of.worth
        usable = worth.usable_above(n, LEVEL)
        lower, _ = ranks(n, q, level=LEVEL, effective_n=worth.discounted(LEVEL))
        upper = None if usable is None else ranks(n, q, level=LEVEL, effective_n=usable)[1]
        crude = (lower is None or upper is None) and len(self.clusters.counts) >= FEWEST
        if crude:
            beyond, tail = round(n * (1 - q / 100)), (1 - LEVEL) / 2
            least, most = exact_share_interval(beyond, n, tail=tail, effective_n=worth.discounted(LEVEL))
            lower = max(1, math.floor(n * (1 - most))) if lower is None else lower
            upper = math.ceil(n * (1 - least)) if upper is None else upper
        if upper is not None:
            upper = n - math.floor((n - upper) / of.middle)
        return (lower, upper), crude

    def _percentile(self, q: float, worth: Worth, interval: Interval, crude: bool) -> Estimate:
        point = ordered_percentile(self.clusters.ordered, q)
        required = worth.required(samples_required(q, LEVEL), len(self.clusters), LEVEL)
        method = f"order statistics at effective n={math.floor(worth.samples)}, {self.groups}"
        return self._estimate(point, interval, method, required, crude)

    @property
    def groups(self) -> str:
        return f"whole {self.unit}" if self.clusters.slices is None else "slices of time"

    def mean(self) -> Estimate:
        of = self.clusters.moments
        (sums,) = self.clusters.group_sums([lambda numbers: numbers])
        longer = self.clusters.in_the_middle(sums)
        return self._of_influence(of.mean, self.clusters.influence_of_mean(), self.groups, longer)

    def std(self) -> Estimate:
        """Sample standard deviation (n - 1) of all gaps. Its influence function is ((x - mean)² - s²) / 2
        s."""
        n = len(self.clusters)
        if n < 2:
            return Estimate.undefined(unit="ms", method="fewer than two samples", n=n)
        of, counts = self.clusters.moments, self.clusters.counts
        squared = of.squares + counts * np.square(of.means - of.mean)
        variance, point = float(np.sum(squared)) / n, self.clusters.deviation
        influence = squared - variance * counts
        influence = (influence / (2 * point) if point > 0 else 0.0 * influence) * (len(counts) / n)
        return self._of_influence(point, self.clusters.by_run(influence), f"whole {self.unit}")

    def _of_influence(self, point: float, influence: Runs, groups: str, middle: float = 1.0) -> Estimate:
        """An estimate from the influence of each group. ``middle``: how many times as large the figure is in
        the middle of the time."""
        of, n = spread(influence), sum(map(len, influence))
        worth = n if of is None else of.worth
        effective = f"effective n={math.floor(worth)}"
        if of is not None and worth >= FEWEST_EFFECTIVE:
            down, _ = legs(of, LEVEL)
            upper = upper_end(point, of, LEVEL)
            if upper is not None:
                method = f"{groups} at {effective}, {of_quantiles(of)}"
                lower = 0.0 if down is None else max(0.0, point - down)
                return self._estimate(point, Interval(lower, max(upper, point * middle)), method)
        required = math.ceil(FEWEST_EFFECTIVE * len(self.clusters) / worth)
        if of is None or len(self.clusters.counts) < FEWEST:
            return self._estimate(point, OPEN, f"no interval at {effective}, {groups}", required)
        factor = level_factor(point, of, LEVEL) * middle
        interval = Interval(point / factor, point * factor)
        return self._estimate(point, interval, f"{groups} at {effective}", required, crude=True)

    def _estimate(
        self, point: float, interval: Interval, method: str, required: int = 0, crude: bool = False
    ) -> Estimate:
        n = len(self.clusters)
        kind = EstimateKind.CRUDE if crude else EstimateKind.SAMPLE
        method += CRUDELY if crude else ""
        return estimate(point, interval, n, method, "ms", required=max(required, n + 1), kind=kind)


def server_clock_misfit(records: Records) -> float | None:
    """Share of the successful replies whose server instants cannot be, by when their chunks came.

    From its first token to its last a reply took no less time than from its first chunk to its last, and no
    more than from its sending to its last chunk. None: no reply has two instants.
    """
    misfits = replies = 0
    for block in records.blocks():
        tokens, chunks = np.diff(block.server_token_offsets), np.diff(block.chunk_offsets)
        held = block.ok & (tokens > 1) & (chunks > 0) & (block.submitted_ns != MISSING)
        first, last = block.server_token_offsets[:-1][held], block.server_token_offsets[1:][held] - 1
        told_ns = block.server_token_ns[last] - block.server_token_ns[first]
        last_ns = block.chunk_ns[block.chunk_offsets[1:][held] - 1]
        seen_ns = last_ns - block.chunk_ns[block.chunk_offsets[:-1][held]]
        slack_ns = np.maximum(CLOCK_SLACK_NS, CLOCK_SLACK * seen_ns)
        too_long = told_ns > last_ns - block.submitted_ns[held] + slack_ns
        misfits += int(((told_ns < seen_ns - slack_ns) | too_long).sum())
        replies += int(held.sum())
    return misfits / replies if replies else None


def server_clock_holds(records: Records) -> bool:
    """Whether the server's instants of tokens agree with when chunks came, in all replies but a few."""
    return (server_clock_misfit(records) or 0.0) <= MOST_MISFITS


Option = Literal["direct", "A", "B", "C"]


class Gaps(NamedTuple):
    """The gaps of some consecutive requests."""

    ns: IntColumn
    """The gaps in nanoseconds, request after request."""
    counts: IntColumn
    """Number of gaps of each eligible request; 0 where they cannot be known."""
    excluded: int
    """Number of successful requests left out because they have fewer output tokens than required."""
    starts_ns: IntColumn
    """The instant of the first token of each eligible request; 0 where it has none."""


def gaps_of(records: Records, option: Option, min_output_tokens: int) -> Iterator[Gaps]:
    """The gaps of the successful requests with at least ``min_output_tokens``, some requests at a time, in
    their order."""
    for block in records.blocks():
        tokens = block.output_tokens
        if (tokens == MISSING).any():  # such a count is derived from the chunks
            owner = chunk_owners(block)
            seen = np.bincount(owner, weights=chunk_weights(block), minlength=len(block))
            tokens = np.where(tokens == MISSING, seen.astype(np.int64), tokens)
        eligible = block.ok & (tokens >= min_output_tokens)
        chosen = block.select(eligible)
        by_server = option == "C"
        at_ns = chosen.server_token_ns if by_server else chosen.chunk_ns
        offsets = chosen.server_token_offsets if by_server else chosen.chunk_offsets
        held = np.diff(offsets) > 0
        first_ns = np.zeros(len(chosen), dtype=np.int64)
        first_ns[held] = at_ns[offsets[:-1][held]]
        yield Gaps(*_gaps(chosen, option), int(block.ok.sum()) - int(eligible.sum()), first_ns)


def has_unknown_chunk(records: Records) -> BoolColumn:
    """For each request, whether it has a chunk with an unknown number of tokens."""
    unknown = records.chunk_tokens == MISSING
    if not unknown.any():
        return np.zeros(len(records), dtype=bool)
    return np.asarray(np.bincount(chunk_owners(records)[unknown], minlength=len(records)) > 0)


def _gaps(records: Records, option: Option) -> tuple[IntColumn, IntColumn]:
    """The gaps of all requests, and how many each of them has."""
    if option == "C":
        return differences(records.server_token_ns, np.diff(records.server_token_offsets))
    counts = np.diff(records.chunk_offsets)
    if option == "A" or bool((records.chunk_tokens == 1).all()):
        return differences(records.chunk_ns, counts)
    tokens = chunk_weights(records).astype(np.int64)
    owner = chunk_owners(records)
    held = tokens > 0  # a chunk without a token (half a character, say) is no arrival of one
    if option == "B":
        held &= ~has_unknown_chunk(records)[owner]
    # All tokens of a chunk arrive together: the first has the gap to the chunk before, the others zero.
    tokens, owner = tokens[held], owner[held]
    places = np.cumsum(tokens) - tokens
    gaps = np.zeros(int(tokens.sum()), dtype=np.int64)
    gaps[places] = np.diff(records.chunk_ns[held], prepend=0)
    inner = np.ones(len(gaps), dtype=bool)
    inner[places[np.flatnonzero(np.diff(owner, prepend=-1))]] = False
    per_request = np.bincount(owner, weights=tokens, minlength=len(records)).astype(np.int64)
    return gaps[inner], np.maximum(per_request - 1, 0)
