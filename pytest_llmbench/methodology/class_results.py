"""What the fairness test found of each request class: in the mix, alone, and the one over the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_llmbench.methodology.levels import Seen, qualified
from pytest_llmbench.metrics import fairness, latency
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import completion_rate
from pytest_llmbench.metrics.windows import submitted_inside, window_of
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.workloads.classes import ClassMix, RequestClass

FAMILIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class ClassResult:
    """One class. ``mixed`` and ``alone`` hold its requests that were submitted in the window of the level."""

    requested: RequestClass
    mixed: Records
    alone_records: Records
    alone: Seen
    metrics: Mapping[str, Estimate]
    """Plain names, of the class in the mix; ``ttft_inflation`` and ``starvation_rate`` among them."""
    median_wait_ms: float | None
    """Five times of it is what nobody should wait longer than."""
    alone_metrics: Mapping[str, Estimate]

    @property
    def name(self) -> str:
        return self.requested.name

    @property
    def title(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    def facts(self) -> dict[str, Any]:
        """What the audit reads of it."""
        points = {name: estimate.point for name, estimate in self.metrics.items()}
        return {
            "name": self.name,
            "input": list(self.requested.input),
            "output": list(self.requested.output),
            "share": self.requested.share,
            "requests": len(self.mixed),
            "requests_ok": int(self.mixed.ok.sum()),
            "requests_alone": len(self.alone_records),
            "rate_alone_rps": self.alone.level.offered_rps,
            "ttft": {q: points[f"ttft.{q}"] for q in ("p50", "p95", "p99")},
            "tpot": {q: points[f"tpot.{q}"] for q in ("p50", "p99")},
            "inflation": {q: points[f"ttft_inflation.{q}"] for q in fairness.TAILS},
            "starvation_rate": points["starvation_rate"],
            "median_wait_ms": self.median_wait_ms,
        }


@dataclass(frozen=True)
class FairnessResults:
    mixed: Seen
    classes: tuple[ClassResult, ...]
    metrics: Mapping[str, Estimate]
    """Of the whole test: indices, the level's own, and every class under its qualifier."""
    wait_source: str
    realised_shares: Mapping[str, float]
    """Of each class among all requests of the mix."""


def fairness_results(mix: ClassMix, mixed: Seen, alone: Mapping[str, Seen], *, seed: int) -> FairnessResults:
    """Everything that section 5.6.4 asks for, from the mix and the baselines."""
    inside = submitted_inside(window_of(mixed.observation))
    waits = fairness.waits([inside])
    classes = tuple(
        _class_result(each, inside, alone[each.name], waits.by_class.get(each.name, []))
        for each in mix.classes
    )
    metrics = dict(mixed.level.metrics)
    metrics["jain_index"] = fairness.jain_index([inside])
    metrics["class_jain_index"] = fairness.class_jain_index(
        {each.name: latency.ttft_ms(each.mixed) for each in classes},
        {each.name: latency.ttft_ms(each.alone_records) for each in classes},
        seed=seed,
    )
    for each in classes:
        metrics |= qualified(each.metrics, each.name)
        metrics |= qualified(each.alone_metrics, f"{each.name} alone")
    labels = np.array(mixed.records.class_label, dtype=object)
    shares = {each.name: float(np.mean(labels == each.name)) if len(labels) else 0.0 for each in mix.classes}
    return FairnessResults(mixed, classes, metrics, waits.source, shares)


def _class_result(
    requested: RequestClass, inside: Records, alone: Seen, waits: list[FloatArray]
) -> ClassResult:
    own = inside.select(np.array(inside.class_label, dtype=object) == requested.name)
    baseline = submitted_inside(window_of(alone.observation))
    metrics = _latencies(own)
    metrics["starvation_rate"] = fairness.starvation_rate(waits)
    metrics |= fairness.inflation(latency.ttft_ms(own), latency.ttft_ms(baseline))
    every = np.concatenate(waits) if waits else np.empty(0)
    return ClassResult(
        requested,
        own,
        baseline,
        alone,
        metrics,
        median_wait_ms=float(np.median(every)) if len(every) else None,
        alone_metrics=_latencies(baseline),
    )


def _latencies(records: Records) -> dict[str, Estimate]:
    metrics: dict[str, Estimate] = {}
    for family in FAMILIES:
        metrics |= distribution(family, latency.FAMILIES[family](records))
    return metrics | {"completion_rate": completion_rate([records])}


__all__ = ["ClassResult", "FairnessResults", "fairness_results"]
