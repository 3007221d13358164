"""Report files: written whole or not at all, read back with their version checked."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_llmbench.errors import StoreError
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.store.json_file import read_object, write_text
from pytest_llmbench.store.schema import SCHEMA_VERSION, Report

REPORT_NAME = "report.json"
_SHOWN_MISTAKES = 5
_NAME_ONE = "name a report.json written with --llm-report"


def check_writable(directory: Path) -> None:
    """Makes ``directory`` and proves that a file can be written in it. Called before the run, not after.

    Raises StoreError with the path and the cause.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory, prefix=".llmbench-probe-") as probe:
            probe.write(b"probe")
            probe.flush()
    except OSError as error:
        raise StoreError(
            f"the report directory cannot be written: {error.strerror or error}",
            where=str(directory),
            remedy="name a directory that can be created and written with --llm-report",
        ) from error


def document_of(report: Report) -> dict[str, Any]:
    """The report in plain JSON types, as it may leave: what every rendering is made from."""
    document: dict[str, Any] = outward_value(report.plain())
    return document


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``report.json``."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_report(path: Path) -> Report:
    """Reads a report of this major version, no newer than this one; keys it lacks take their defaults.

    The report read is of this version, so that it can be written again. Raises StoreError for any other
    version, and for a damaged file.
    """
    content = read_object(path, "report", absent=_NAME_ONE, damaged="write the report again")
    _check_version(content.get("schema_version"), path)
    try:
        return Report.model_validate(content | {"schema_version": SCHEMA_VERSION})
    except ValidationError as error:
        raise StoreError(_mistakes(error), where=str(path), remedy="write the report again") from error


def _check_version(version: object, path: Path) -> None:
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+", version):
        raise StoreError(
            f"not a report of pytest-llmbench: schema_version is {version!r}",
            where=str(path),
            remedy=_NAME_ONE,
        )
    numbers, ours = (tuple(map(int, text.split("."))) for text in (version, SCHEMA_VERSION))
    newer = numbers > ours
    if not newer and numbers[0] == ours[0]:
        return
    relation = "newer" if newer else "older"
    raise StoreError(
        f"schema version {version} is {relation} than {SCHEMA_VERSION}, the one that is read here",
        where=str(path),
        remedy="upgrade pytest-llmbench" if newer else "write the report again with this version",
    )


def _mistakes(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    listed = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in found[:_SHOWN_MISTAKES]]
    rest = [f"… and {len(found) - len(listed)} more"] if len(found) > len(listed) else []
    return "the report does not have the shape of its schema: " + "; ".join(listed + rest)
