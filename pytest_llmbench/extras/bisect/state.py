"""What a bisection knows, in a file: a killed one goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.store.files import read_object, write_text

_NAME = "bisect.json"


class State(BaseModel):
    """What was asked, and what has been found so far."""

    model_config = ConfigDict(extra="forbid")

    asked: dict[str, Any]
    """What the bisection is of: commits, build command, arguments of pytest, metric."""
    test: str = ""
    """The test whose metric is looked at; empty: nothing is measured yet."""
    metric: str = ""
    identity: dict[str, Any] = {}
    """What the first measurement was of."""
    measured: list[tuple[str, float]] = []
    """Commit and value, in the order of the measurements."""
    failed: dict[str, list[str]] = {}
    """Commit → why it could not be built or measured, each time."""

    def save(self, folder: Path) -> None:
        write_text(folder / _NAME, self.model_dump_json(indent=1) + "\n")


def state_of(folder: Path, asked: dict[str, Any]) -> State:
    """The state in a folder, or a new one. SuiteError where it is of another bisection."""
    path = folder / _NAME
    if not path.exists():
        return State(asked=asked)
    remedy = f"remove {folder}, or name another folder with --state"
    content = read_object(path, "state of a bisection", absent=remedy, damaged=remedy)
    try:
        found = State.model_validate(content)
    except ValidationError as error:
        raise StoreError(
            f"no whole state of a bisection: {error.errors()[0]['msg']}", where=str(path), remedy=remedy
        ) from error
    if found.asked != json.loads(json.dumps(asked)):
        differs = [name for name in asked if found.asked.get(name) != asked[name]]
        raise SuiteError(
            f"there is a bisection with other arguments: {', '.join(differs)}",
            where=str(path),
            remedy=remedy,
        )
    return found
