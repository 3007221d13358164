"""Uniform arrivals: constant spacing, nothing random."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def uniform_offsets_s(rate: float, count: int) -> npt.NDArray[np.float64]:
    """Arrival i comes (i + 1)/``rate`` seconds after the start. Computed by division, so nothing adds up."""
    return np.arange(1, count + 1, dtype=np.float64) / rate


__all__ = ["uniform_offsets_s"]
