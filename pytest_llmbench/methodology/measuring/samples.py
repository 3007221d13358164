"""The per-request vectors of the measured runs, and the shares that describe their streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics import chunking, latency
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunSamples:
    """One vector per run (ms, successful requests in order of submission)."""

    runs: tuple[Records, ...]
    ttft_count: int
    noncontent_share: float
    reasoning_share: float
    duration_s: float

    @property
    def ttft(self) -> list[Floats]:
        return [latency.ttft_ms(run) for run in self.runs]

    @property
    def ttft_input_tokens(self) -> list[npt.NDArray[np.int64]]:
        return [latency.ttft_input_tokens(run) for run in self.runs]


def samples_of(seen: Sequence[Observation]) -> RunSamples:
    runs = tuple(run.records for run in seen)
    return RunSamples(
        runs=runs,
        ttft_count=sum(len(latency.ttft_ms(run)) for run in runs),
        noncontent_share=chunking.noncontent_first_share(runs) or 0.0,
        reasoning_share=chunking.reasoning_share(runs) or 0.0,
        duration_s=sum(run.duration_s for run in seen),
    )
