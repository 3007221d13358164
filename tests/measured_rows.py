"""The records that a report's figures rest on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whole_records import whole_records


def counted_rows(out: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the measured requests of a test with one load those of its last attempt: what this machine spoiled
    before is in the records too."""
    rows = [row for row in whole_records(out / entry["records_file"]) if row["phase"] == "measure"]
    return [row for row in rows if row["label"] == rows[-1]["label"]]
