"""The records of each load of a report, also where another test measured the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.execution.loads import read_loads
from pytest_llmbench.model.records import Records
from pytest_llmbench.store.records_reader import read_runs
from pytest_llmbench.store.schema import Report, TestEntry


@dataclass
class StoredRecords:
    """The records beside a report, load by load."""

    directory: Path
    report: Report
    _read: dict[str, list[Records]] = field(default_factory=dict)
    """Records file → the records of its loads in order; each file is read once."""
    _loads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """File of loads → its loads."""

    def loads(self, entry: TestEntry) -> list[dict[str, Any]]:
        """The notes on each load that a test asked for, in their order.

        StoreError for a file that is missing or damaged.
        """
        name = str(entry.loads_file)
        if name not in self._loads:
            self._loads[name] = _checked(
                read_loads(self.directory / name).get("loads"), self.directory / name
            )
        return self._loads[name]

    def of_load(self, entry: TestEntry, index: int, load: Mapping[str, Any]) -> Records:
        """The records of a test's load, taken from another test's file if that one measured it.

        ``load`` is number ``index`` in the test's file of loads. StoreError for files that are missing,
        damaged or incomplete.
        """
        owner = load["seen"]["shared_from"]
        if owner is None:
            return self._of(entry)[index]
        for other in self.report.tests:
            if other.nodeid != owner or other.loads_file is None:
                continue
            for number, theirs in enumerate(self.loads(other)):
                if theirs["key"] == load["key"] and theirs["seen"]["shared_from"] is None:
                    return self._of(other)[number]
        raise StoreError(
            f"the load {load['label']!r} was measured by {owner}, and this report does not have its records"
        )

    def _of(self, entry: TestEntry) -> list[Records]:
        name = str(entry.records_file)
        if name not in self._read:
            loads = self.loads(entry)
            own = [0 if load["seen"]["shared_from"] else int(load["rows"]) for load in loads]
            self._read[name] = _split(self.directory / name, own)
        return self._read[name]


def _checked(loads: Any, path: Path) -> list[dict[str, Any]]:
    """The loads, checked to have what tells their records apart."""
    whole = isinstance(loads, list) and all(
        isinstance(load, dict)
        and isinstance(load.get("label"), str)
        and isinstance(load.get("rows"), int)
        and "key" in load
        and isinstance(load.get("seen"), dict)
        and "shared_from" in load["seen"]
        for load in loads
    )
    if not whole:
        raise StoreError("its description of the loads is damaged or was changed", where=str(path))
    found: list[dict[str, Any]] = loads
    return found


def _split(path: Path, rows: Sequence[int]) -> list[Records]:
    """The records of each load. One follows the other, and each is in the order of submission."""
    found = read_runs(path)
    parts: list[Records] = []
    runs = iter(found.runs)
    rest, taken = Records.from_rows(()), 0
    for count in rows:
        if count and taken >= len(rest):
            following = next(runs, None)
            rest, taken = (Records.from_rows(()) if following is None else following.records), 0
        if count > len(rest) - taken:
            raise StoreError(
                f"the records are not complete: a load of {count} requests has {len(rest) - taken}"
                + (f"; {found.dropped}" if found.dropped else ""),
                where=str(path),
            )
        parts.append(rest.part(taken, taken + count))
        taken += count
    if taken < len(rest) or next(runs, None) is not None:
        raise StoreError("there are more records than requests", where=str(path))
    return parts
