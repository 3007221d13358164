"""Samples that come in clusters: the gaps of a request, the requests of a session.

Samples of a cluster are alike, and clusters depend on each other in time; n samples of k clusters can be
worth as little as the clusters are. Everything here is computed from one number per cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.percentile_intervals import Worth
from pytest_llmbench.stats.percentiles import ordered_percentile
from pytest_llmbench.stats.runs import FloatArray, Runs, pooled
from pytest_llmbench.stats.spectral import spread

_FEWEST_BEYOND = 20
"""As in :mod:`pytest_llmbench.stats.dependence`: of a rarer event clustering is read at one this frequent."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Consecutive stretches of a flat vector of samples, none empty, in arrival order, run after run."""

    counts: IntArray
    """Samples of each cluster."""
    run_lengths: tuple[int, ...]
    """Clusters of each run."""

    @classmethod
    def from_offsets(cls, runs: Sequence[IntArray]) -> Clusters:
        """From the ragged offsets of each run; empty clusters are dropped."""
        filled = [counts[counts > 0] for counts in (np.diff(offsets) for offsets in runs)]
        joined = np.concatenate(filled) if filled else np.empty(0, dtype=np.int64)
        return cls(joined.astype(np.int64), tuple(len(counts) for counts in filled))

    def sums(self, values: npt.NDArray[np.generic]) -> FloatArray:
        """Sum over each cluster."""
        if not len(self.counts):
            return np.empty(0)
        return np.asarray(np.add.reduceat(values, self._starts(), dtype=np.float64), dtype=np.float64)

    def largest(self, values: FloatArray) -> FloatArray:
        """Largest value of each cluster."""
        if not len(self.counts):
            return np.empty(0)
        return np.asarray(np.maximum.reduceat(values, self._starts()), dtype=np.float64)

    def by_run(self, of_clusters: FloatArray) -> Runs:
        """One number per cluster, cut into runs; runs without clusters left out."""
        parts = np.split(of_clusters, np.cumsum(self.run_lengths)[:-1])
        return tuple(part for part in parts if len(part))

    def percentile_worth(self, values: FloatArray, ordered: FloatArray, q: float) -> Worth:
        """Of how many independent samples the q-th percentile is worth; from 1 to their number n.

        p(1 - p) / Var(p), p the share of samples above the percentile as a ratio of sums over clusters, and
        its variance that of the linearised ratio Σ (above_i - p · count_i) / n, with the clusters' long-run
        dependence. ``ordered``: the samples in ascending order.
        """
        n = len(values)
        margin = min(50.0, 100.0 * _FEWEST_BEYOND / n)
        threshold = ordered_percentile(ordered, min(max(q, margin), 100.0 - margin))
        # With ties nothing may lie above the percentile; then reaching it is the event.
        above = values > threshold if ordered[-1] > threshold else values >= threshold
        share = float(np.mean(above))
        errors = self.by_run(self.sums(above) - share * self.counts)
        every = pooled(errors)
        clusters = len(every)
        of = spread(errors)
        if of is None:
            # Too few clusters for more than their plain spread.
            variance = float(np.mean(np.square(every))) / max(1, clusters - 1)
            freedom = float(max(1, clusters - 1))
        else:
            variance, freedom = of.error**2, of.freedom
        if variance == 0.0:
            return Worth(float(n), freedom)
        worth = share * (1 - share) * (n / clusters) ** 2 / variance
        return Worth(min(float(n), max(1.0, worth)), freedom)

    def _starts(self) -> IntArray:
        return np.asarray(np.cumsum(self.counts) - self.counts, dtype=np.int64)


__all__ = ["Clusters"]
