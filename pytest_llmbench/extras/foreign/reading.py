"""Reads a result file of another load generator, recognised by its content and not by its name.

Several may lie in one file one after another, as SGLang appends them and as ``cat`` puts them together: each
is a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import StoreError
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError
from pytest_llmbench.extras.foreign.foreign_run import ForeignResults, ResultFormat
from pytest_llmbench.input_files import parse_json_values, read_bytes
from pytest_llmbench.registry import every

OWN: Final = "baseline_version"
"""Key by which a baseline of ours is recognised."""
_MOST_OBJECTS = 10_000
_REMEDY = "give the file as the tool wrote it"


def read_foreign(path: Path) -> ForeignResults | None:
    """The results in a file of another tool; None for a baseline of ours, and for a file that is no JSON
    object.

    Raises StoreError for a file that cannot be read, that no tool known here has written, or whose content
    is not what the tool writes: it says what was found.
    """
    contents = _contents(path)
    if not contents or any(OWN in content for content in contents):
        return None
    found = [_format_of(content, path) for content in contents]
    if len({each.tool for each in found}) > 1:
        tools = ", ".join(dict.fromkeys(each.tool for each in found))
        raise StoreError(
            f"results of several tools in one file: {tools}", where=str(path), remedy="give one a file"
        )
    made = found[0]
    try:
        runs = [run for content in contents for run in made.runs(content)]
        if not all(run.values for run in runs):
            raise WrongShapeError("no figure in it that can be compared")
    except WrongShapeError as error:
        raise StoreError(f"a result of {made.tool}: {error}", where=str(path), remedy=_REMEDY) from error
    return ForeignResults(made.tool, tuple(runs), made.differences, made.left_out)


def _format_of(content: dict[str, Any], path: Path) -> ResultFormat:
    formats: Sequence[ResultFormat] = tuple(every("result_formats").values())
    for made in formats:
        if made.recognised(content):
            return made
    raise StoreError(
        f"neither a baseline of pytest-llmbench nor a result of {', '.join(made.tool for made in formats)}; "
        f"its fields: {Fields(content).named()}",
        where=str(path),
        remedy="name a file that --llm-save or one of these tools wrote",
    )


def _contents(path: Path) -> Sequence[dict[str, Any]]:
    """The JSON objects in a file; empty if it holds something else, which the reader of baselines reports."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except (OSError, ValueError):
        return ()
    found: list[dict[str, Any]] = []
    try:
        for value in parse_json_values(text):
            if not isinstance(value, dict):
                return ()
            found.append(value)
            if len(found) > _MOST_OBJECTS:
                raise StoreError(f"more than {_MOST_OBJECTS:,} objects: no file of results", where=str(path))
    except ValueError as error:
        if not found:
            return ()
        raise StoreError(
            f"not a whole JSON file, perhaps truncated: object {len(found) + 1} of it: {error}",
            where=str(path),
            remedy=_REMEDY,
        ) from error
    return found
