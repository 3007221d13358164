"""Samples of the engine's gauges in virtual time, as somebody would get them who reads its metrics page."""

from __future__ import annotations

from array import array

import numpy as np

from pytest_llmbench.model.engine_readings import EngineReadings
from pytest_llmbench.simulator.engine import Engine
from pytest_llmbench.simulator.step_result import StepResult

SAMPLE_NS = 250_000_000
"""Between two samples."""
SOURCE = "the embedded engine's model"


class GaugeSampler:
    """One sample every :data:`SAMPLE_NS` from the start of a plan. The cost is per sample, not per token."""

    def __init__(self, engine: Engine, start_ns: int) -> None:
        self._engine = engine
        self.due_ns = start_ns
        """The next sample is of this instant."""
        self._at_ns = array("q")
        self._gauges = {name: array("d") for name in ("running", "waiting", "kv_use")}

    def idle_until(self, now_ns: int) -> None:
        """Nothing was in the engine up to this instant, which is not included."""
        self._note(now_ns - 1, 0, 0, 0.0)

    def during(self, step: StepResult, until_ns: int) -> None:
        """The step ends at this instant, which belongs to the next one. Who ends with it is running."""
        engine = self._engine
        self._note(until_ns - 1, engine.running + len(step.finished), engine.waiting, engine.kv_usage)

    def _note(self, until_ns: int, running: int, waiting: int, kv_use: float) -> None:
        gauges = self._gauges
        while self.due_ns <= until_ns:
            self._at_ns.append(self.due_ns)
            gauges["running"].append(running)
            gauges["waiting"].append(waiting)
            gauges["kv_use"].append(kv_use)
            self.due_ns += SAMPLE_NS

    def readings(self, before: dict[str, float], after: dict[str, float]) -> EngineReadings:
        """The samples, with the counters around them."""
        return EngineReadings(
            at_ns=np.array(self._at_ns, dtype=np.int64),
            gauges={name: np.array(values, dtype=np.float64) for name, values in self._gauges.items()},
            totals_before=before,
            totals_after=after,
            max_num_seqs=self._engine.config.max_num_seqs,
            source=SOURCE,
        )


__all__ = ["SAMPLE_NS", "SOURCE", "GaugeSampler"]
