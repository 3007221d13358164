"""The engine's counters in virtual time, under the model's names (``model/engine_readings.py``: TOTALS)."""

from __future__ import annotations

from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.simulator.step_result import EngineTotals


class ReplayTotals:
    """What the metrics page of the served engine counts, since the engine of the replay began.

    ``requests_finished``: whatever became of them, if they were accepted. Waits and prefills are those of the
    requests that were answered, as on the page.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._seconds = {"queue_wait": 0.0, "prefill": 0.0}
        self._counts = {"queue_wait": 0, "prefill": 0}

    def note(self, records: Records) -> None:
        """All requests of a plan have ended."""
        for block in records.blocks():
            self._requests += int((block.http_status == 200).sum())
            answered = block.ok
            self._add("queue_wait", block.queue_wait_ns[answered])
            self._add("prefill", block.prefill_ns[answered])

    def _add(self, name: str, ns: IntColumn) -> None:
        known = ns[ns != MISSING]
        self._seconds[name] += float(known.sum()) / 1e9
        self._counts[name] += len(known)

    def read(self, engine: EngineTotals) -> dict[str, float]:
        """All of them by now."""
        return {
            "preemptions": float(engine.preemptions),
            "prefix_queries_tokens": float(engine.prefix_query_tokens),
            "prefix_hits_tokens": float(engine.prefix_hit_tokens),
            "prompt_tokens": float(engine.prefill_tokens),
            "generated_tokens": float(engine.generated_tokens),
            "requests_finished": float(self._requests),
            "queue_wait_s": self._seconds["queue_wait"],
            "queue_wait_count": float(self._counts["queue_wait"]),
            "prefill_s": self._seconds["prefill"],
            "prefill_count": float(self._counts["prefill"]),
        }


__all__ = ["ReplayTotals"]
