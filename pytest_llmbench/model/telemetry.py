"""What the machine of a system under test told during a load: power, energy, use, memory, a series a device.

Values only. Samplers fill them (``extras/telemetry/``), and so does the embedded engine's power model, in
virtual time; what is concluded of them is in the metrics of that extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["gpu", "cpu", "memory", "node", "process"]
"""An accelerator; the processors of a host; its memory as a drain of power; a host as a whole; the processes
of a launched system together."""

Quantity = Literal[
    "power_w", "energy_j", "utilisation", "memory_bytes", "temperature_c", "clock_mhz", "throttled"
]
"""``energy_j``: a counter that only grows, but for a wrap. ``utilisation``: 0 to 1. ``clock_mhz``: of the
arithmetic units. ``throttled``: the sum of the bits of :data:`THROTTLES`."""

THROTTLES: Mapping[str, int] = {
    "power cap": 1,
    "hardware slowdown": 2,
    "software thermal": 4,
    "hardware thermal": 8,
    "power brake": 16,
}
"""Reason for a lowered clock → its bit in ``throttled``. An idle device is not throttled."""

Why = Literal["no_answer", "not_readable", "vanished", "not_installed", "sampler_died", "no_figure"]
"""Why something has no figures: its source never answered, or gave what cannot be read; it was there and
went; a package is missing; the process that samples ended; the device tells nothing of it."""


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """The readings of one device, in the order of their instants.

    ``at_ns`` is on the monotonic clock of the records. ``values`` maps a quantity to one value an instant,
    NaN where a reading lacked it; a quantity that the device never tells is absent.
    """

    id: str
    """The same in all loads of a session, such as the UUID of a GPU."""
    kind: Kind
    name: str
    """The name for people: the model."""
    at_ns: npt.NDArray[np.int64]
    values: Mapping[Quantity, npt.NDArray[np.float64]]
    host: str = ""
    source: str = ""
    """The teller: ``nvml``, ``rapl``, ``psutil``, a URL without query, ``the embedded engine's model``."""
    within: str = ""
    """The id of a device whose power has this one's in it, so that nothing is added twice; empty: none."""
    energy_wraps_at_j: float | None = None
    """Where the counter starts again at 0; None: never, or not known."""
    vanished_ns: int | None = None
    """When it was first missed, after it had been read; None: it was there to the end."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A source or device of which figures are missing."""

    source: str
    why: Why
    detail: str = ""
    """The words of whatever failed."""
    at_ns: int | None = None
    """Since when; None: from the start."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """All that was told during one load, from before its first send until after its last reply."""

    devices: tuple[DeviceSeries, ...] = ()
    interval_s: float = 0.5
    """The time from one reading to the next, as asked for."""
    lost: tuple[Lost, ...] = field(default_factory=tuple)
    price_per_hour: float | None = None
    """Price of an hour of the whole system, as its operator declares it; None: it is not declared."""
    currency: str = ""
