"""What the serving engine says about itself around and during a run, on its metrics page or as a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

GAUGES = ("running", "waiting", "kv_use")
"""Requests in the batch, requests that wait for a place in it, share of the KV cache in use (0 to 1)."""

TOTALS = (
    "preemptions",
    "prefix_queries_tokens",
    "prefix_hits_tokens",
    "prompt_tokens",
    "generated_tokens",
    "requests_finished",
    "queue_wait_s",
    "queue_wait_count",
    "prefill_s",
    "prefill_count",
    "critical_evictions",
    "kv_transfer_s",
    "kv_transfer_count",
)
"""Counters that only grow; their difference over a run is what happened in it."""

THINKING_ENDED = "thinking_ended"
"""A counter by a label, the reason for which thinking ended: ``thinking_ended[budget]``."""


def of_label(name: str, value: str) -> str:
    """The name of the part of a counter that has this value of its label."""
    return f"{name}[{value}]"


def is_total(name: str) -> bool:
    """Whether it is the name of a counter, or of the part of one that has a value of its label."""
    return name in TOTALS or name.startswith(f"{THINKING_ENDED}[")


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """Samples of the gauges during a run, and the counters before and after it.

    ``gauges`` maps a name of :data:`GAUGES` to one value per instant in ``at_ns`` (NaN where a page lacked
    it); names that the engine never serves are absent. ``totals_before`` and ``totals_after`` hold counters
    (:func:`is_total`).
    """

    at_ns: IntArray
    gauges: Mapping[str, FloatArray]
    totals_before: Mapping[str, float] = field(default_factory=dict)
    totals_after: Mapping[str, float] = field(default_factory=dict)
    max_num_seqs: int | None = None
    """Largest batch the engine forms, where it says so."""
    source: str = ""
    """The URL of the page, or ``the embedded engine's model``."""
    gap: str | None = None
    """Why something is missing, in words; a page that stopped answering, say."""

    def grown(self, name: str) -> float | None:
        """The amount by which a counter grew.

        None where the counter is not served, is no number, or fell (the engine was restarted).
        """
        before, after = self.totals_before.get(name), self.totals_after.get(name)
        if before is None or after is None or after < before:
            return None
        return after - before if math.isfinite(after - before) else None

    def grown_by_label(self, name: str) -> dict[str, float] | None:
        """The amount by which each part of a counter grew, by the value of its label.

        None where it is not served; a part that fell says nothing of any.
        """
        stem = f"{name}["
        parts = {each: self.grown(each) for each in self.totals_after if each.startswith(stem)}
        found = {each[len(stem) : -1]: count for each, count in parts.items() if count is not None}
        return found if found and len(found) == len(parts) else None

    def gauge(self, name: str, start_ns: int, end_ns: int) -> tuple[IntArray, FloatArray] | None:
        """Instants and values of a gauge inside [start, end]; None where it is not served."""
        values = self.gauges.get(name)
        if values is None:
            return None
        inside = (self.at_ns >= start_ns) & (self.at_ns <= end_ns) & np.isfinite(values)
        return self.at_ns[inside], values[inside]
