"""TTFT by input length: the draft's six half-open buckets (section 5.1.4.2, AMB-04)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.latency import given_up
from pytest_llmbench.metrics.summary import GivenUp, distribution
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.runs import FloatArray, Samples

EDGES = (0, 256, 512, 1024, 2048, 4096)
"""Lower edges of the buckets in input tokens. Each ends before the next edge; the last has no end."""
LABELS: tuple[str, ...] = (*(f"{low}-{high}" for low, high in pairwise(EDGES)), f"{EDGES[-1]}+")

Tokens = npt.NDArray[np.int64] | Sequence[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Bucket:
    label: str
    count: int
    """Number of samples in the bucket."""
    metrics: Mapping[str, Estimate]
    """``ttft[0-256].p50`` … ``ttft[0-256].max``."""


def by_input_length(
    samples_ms: Samples,
    input_tokens: Tokens,
    *,
    family: str = "ttft",
    unit: str = "ms",
    level: float = 0.95,
    given_up: Mapping[str, GivenUp] | None = None,
) -> list[Bucket]:
    """The non-empty buckets from short to long, each with the distribution of its samples.

    ``input_tokens`` is aligned with ``samples_ms``, run by run. A sample of unknown input length belongs to
    no bucket, so the counts may add up to less than the samples. ``given_up``: those of each label, where
    there are any. ValueError when the lengths differ.
    """
    runs = _each_run(samples_ms)
    tokens = _each_run(input_tokens)
    if [len(run) for run in runs] != [len(lengths) for lengths in tokens]:
        raise ValueError("every sample needs its input length")
    # 0 for the unknown (negative), 1 for the first bucket, and so on.
    places = [np.searchsorted(EDGES, lengths, side="right") for lengths in tokens]
    buckets = []
    for place, label in enumerate(LABELS, start=1):
        chosen: list[FloatArray] = [run[where == place] for run, where in zip(runs, places, strict=True)]
        count = sum(len(run) for run in chosen)
        if count:
            gone = (given_up or {}).get(label)
            metrics = distribution(f"{family}[{label}]", chosen, unit=unit, level=level, given_up=gone)
            buckets.append(Bucket(label, count, metrics))
    return buckets


def given_up_by_length(runs: Sequence[Records]) -> dict[str, GivenUp]:
    """The requests of each bucket that were given up on, as samples of TTFT. They lie where their lengths as
    asked for do: few were counted."""
    gone = [run.select(run.given_up) for run in runs]
    places = [np.searchsorted(EDGES, run.requested_input_tokens, side="right") for run in gone]
    return {
        label: given_up("ttft", [run.select(where == place) for run, where in zip(gone, places, strict=True)])
        for place, label in enumerate(LABELS, start=1)
        if any((where == place).any() for where in places)
    }


def _each_run(vectors: npt.NDArray[Any] | Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    return [vectors] if isinstance(vectors, np.ndarray) else [np.asarray(vector) for vector in vectors]
