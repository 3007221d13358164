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

    ttft: list[Floats]
    ttft_input_tokens: list[npt.NDArray[np.int64]]
    ttft_scheduled: list[Floats]
    ttft_any: list[Floats]
    ttft_first_event: list[Floats]
    tpot: list[Floats]
    e2e: list[Floats]
    e2e_scheduled: list[Floats]
    noncontent_share: float
    reasoning_share: float
    duration_s: float

    @property
    def ttft_count(self) -> int:
        return sum(len(run) for run in self.ttft)

    def families(self) -> dict[str, list[Floats]]:
        """Metric family → its vectors."""
        names = ("ttft", "ttft_scheduled", "ttft_any", "ttft_first_event", "tpot", "e2e", "e2e_scheduled")
        return {name: getattr(self, name) for name in names}


def samples_of(seen: Sequence[Observation]) -> RunSamples:
    runs = [run.records for run in seen]
    every = Records.concatenate(runs)
    return RunSamples(
        ttft=[latency.ttft_ms(run) for run in runs],
        ttft_input_tokens=[latency.ttft_input_tokens(run) for run in runs],
        ttft_scheduled=[latency.ttft_scheduled_ms(run) for run in runs],
        ttft_any=[latency.ttft_any_ms(run) for run in runs],
        ttft_first_event=[latency.ttft_first_event_ms(run) for run in runs],
        tpot=[latency.tpot_ms(run) for run in runs],
        e2e=[latency.e2e_ms(run) for run in runs],
        e2e_scheduled=[latency.e2e_scheduled_ms(run) for run in runs],
        noncontent_share=chunking.noncontent_first_share(every) or 0.0,
        reasoning_share=chunking.reasoning_share(every) or 0.0,
        duration_s=sum(run.duration_s for run in seen),
    )


__all__ = ["Floats", "RunSamples", "samples_of"]
