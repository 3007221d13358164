"""One load level of the ITL test: its gaps, their statistics and their shape (section 5.4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.ecdf import ecdf, ecdf_ranks
from pytest_llmbench.metrics.itl import (
    ItlCounts,
    Option,
    itl_distribution,
    itl_samples,
    jitter_ms,
    longest_pause_ms,
)
from pytest_llmbench.metrics.summary import PERCENTILES, distribution
from pytest_llmbench.metrics.windows import submitted_inside, window_of
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.stats.counted_order import look_up
from pytest_llmbench.stats.percentiles import percentile_ranks
from pytest_llmbench.stats.shape import Modality, modality, tail_class, tail_variation


@dataclass(frozen=True)
class LevelItl:
    """One load level and what its gaps say. Requests of the ramp-up are left out."""

    seen: Seen
    samples: ItlCounts
    metrics: Mapping[str, Estimate]
    modality: Modality
    tail: str | None
    """heavy, exponential or light; None with too few samples beyond P90."""
    cdf: tuple[tuple[float, ...], tuple[float, ...]]
    """Empirical distribution of the gaps."""

    @property
    def label(self) -> str:
        return self.seen.level.label

    def facts(self) -> dict[str, Any]:
        """What the audit reads of it."""
        planned = self.seen.records.requested_max_tokens
        return {
            "level": self.label,
            "percent_of_capacity": self.seen.level.percent_of_capacity,
            "eligible": self.samples.eligible,
            "excluded": self.samples.excluded,
            "excluded_share": self.samples.excluded_share,
            "samples": self.samples.gaps,
            "zero_gaps": self.samples.zeros,
            "fewest_requested_tokens": int(planned.min()) if len(planned) else None,
            "modality": modality_word(self.modality),
            "modes_ms": list(self.modality.modes),
            "tail_class": self.tail,
            "p99_over_p50": self.metrics["itl_tail_ratio"].point,
        }


def level_itl(seen: Seen, option: Option) -> LevelItl:
    """The gaps of the requests that were submitted in the window of the level, and their statistics."""
    samples = itl_samples(submitted_inside(window_of(seen.observation)), option)
    gaps = samples.clusters
    # Where gaps are too many to be sorted, what is going to be asked for is counted together.
    look_up(gaps.ordered, (*percentile_ranks(len(gaps), (*PERCENTILES.values(),)), *ecdf_ranks(len(gaps))))
    shape = modality(gaps)
    variation = tail_variation(gaps)
    metrics = {
        **itl_distribution(samples),
        **distribution("jitter", jitter_ms(samples)),
        **distribution("longest_pause", longest_pause_ms(samples)),
    }
    metrics["itl_tail_ratio"] = _tail_ratio(metrics)
    metrics["itl_modes"] = _observed(len(shape.modes) or None, "count", samples.counts)
    metrics["itl_tail_variation"] = _observed(variation, "ratio", samples.counts)
    with_itl = seen.with_(metrics={**seen.level.metrics, **metrics})
    tail = None if variation is None else tail_class(variation)
    return LevelItl(with_itl, samples.counts, metrics, shape, tail, ecdf(gaps.ordered))


def _tail_ratio(metrics: Mapping[str, Estimate]) -> Estimate:
    """P99 / P50. Both are taken as independent, which they are not quite: what slows all tokens moves both,
    so the interval is rather too wide than too narrow."""
    return change(metrics["itl.p50"], metrics["itl.p99"], "ratio")


def _observed(value: float | None, unit: str, samples: ItlCounts) -> Estimate:
    n = samples.gaps
    if value is None:
        return Estimate.undefined(unit=unit, method="too few samples", n=n)
    return Estimate(float(value), None, None, 0.95, n, "observed", unit)


def modality_word(shape: Modality) -> str | None:
    if not shape.modes:
        return None
    return "multimodal" if shape.multimodal else "unimodal"


__all__ = ["LevelItl", "level_itl", "modality_word"]
