"""The requests of a records file, each with all its fields, whatever its lines leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_llmbench.store.record_line import encoded_line, row_reader, whole_line
from pytest_llmbench.store.records_file import records_lines


def whole_records(path: Path) -> list[dict[str, Any]]:
    """As far as the file, which may still be written to, has whole lines."""
    with records_lines(path) as lines:
        whole = [line for line in lines if line.endswith(b"}\n")]
    if not whole:
        return []
    row_of = row_reader(json.loads(whole[0]))
    return [json.loads(encoded_line(whole_line(*row_of(line)))) for line in whole[1:]]
