"""Calibrations: ``.llmbench/MACHINE/calibration-DIGEST.json``, one file for each system, test and load.

The digest is that of what was calibrated, so a new calibration of the same takes the place of the old one,
unlike a baseline: it says how noisy a system is, not how fast it has to be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, JsonValue, ValidationError

from pytest_llmbench.errors import StoreError
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes
from pytest_llmbench.store.files import CALIBRATION, write_text
from pytest_llmbench.store.schema import Instant, Shape

CALIBRATION_VERSION: Final = "1.0"
_LARGEST_LOG, _LARGEST_SPREAD, _MOST_RUNS = 600.0, 10.0, 1_000_000
"""Far above what is measured, and far below where what is made of them has no finite number: a spread of 10
is a factor of 22,000 between runs."""


class NoiseEntry(Shape):
    """The noise of one metric between runs of the unchanged system."""

    unit: str
    better: Literal["lower", "higher"]
    runs: int = Field(ge=3, le=_MOST_RUNS)
    mean_log: float = Field(ge=-_LARGEST_LOG, le=_LARGEST_LOG)
    """Mean of the natural logarithms of the metric by run."""
    spread_log: float = Field(ge=0, le=_LARGEST_SPREAD)
    """Standard deviation of the natural logarithms of the metric by run."""
    proposed: float
    """The limit beyond which at most 1 % of the runs lie, with 95 % confidence."""
    false_alarms: float
    """Expected share of later runs beyond it."""


class Calibration(Shape):
    calibration_version: Literal["1.0"] = CALIBRATION_VERSION
    saved: Instant
    generator_version: str
    machine: str
    nodeid: str
    identity: dict[str, JsonValue]
    """The identity of what was calibrated: the fields by which baselines are matched."""
    runs: int
    noise: dict[str, NoiseEntry]


def calibration_path(storage: Path, machine: str, digest: str) -> Path:
    return storage / machine / f"{CALIBRATION}{digest[:16]}.json"


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration in one step: a reader sees the old one or the new one.

    Raises StoreError where it cannot be written.
    """
    text = json.dumps(calibration.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    write_text(path, text, remedy="name a writable folder with --llm-storage")


def read_calibration(path: Path) -> Calibration | None:
    """Read a calibration; None where there is none.

    Raises StoreError for a damaged file, and for another version.
    """
    try:
        return Calibration.model_validate(parse_json(read_bytes(path, SMALL_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise StoreError(
            f"not a complete calibration of version {CALIBRATION_VERSION}: {first}",
            where=str(path),
            remedy="calibrate again (--llm-calibrate), or remove the file",
        ) from error
