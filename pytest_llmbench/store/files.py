"""Files written completely or not at all, and read back with their damage reported: texts, JSON objects,
reports with their version.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pytest_llmbench.errors import StoreError, shown
from pytest_llmbench.input_files import parse_json, read_unpacked
from pytest_llmbench.model.judgement import ComplianceVerdict, Status, class_of
from pytest_llmbench.redaction import outward, outward_value
from pytest_llmbench.store.schema import SCHEMA_VERSION, Report, Shape

STORAGE = ".llmbench"
"""Folder of what later sessions read: baselines and calibrations, by kind of machine."""
CALIBRATION = "calibration-"
"""Beginning of the name of a calibration file."""
UNFINISHED = ".llmbench.tmp"
"""End of the names of files that are being written; files of others may end in ``.tmp`` too."""
_LEVEL = 6
_SPACE = "check that its directory exists, is writable and has space left"


def write_text(path: Path, text: str, *, remedy: str = _SPACE) -> None:
    """Write ``path`` atomically: a reader sees the old file or the whole new one. Makes parent
    directories.

    A name that ends in ``.gz`` is that of a packed file; the same text gives the same bytes.

    Raises StoreError with the path and the cause; the old file, if there is one, is left as it was.
    """
    # Names of files that the encoding of the file system does not know keep their bytes.
    raw = text.encode(errors="surrogateescape")
    with whole_file(path, remedy=remedy) as temporary:
        temporary.write_bytes(gzip.compress(raw, _LEVEL, mtime=0) if path.suffix == ".gz" else raw)


@contextlib.contextmanager
def whole_file(path: Path, *, remedy: str = _SPACE) -> Iterator[Path]:
    """Give a path to write to, whose file replaces ``path`` once the block has ended and it is on disk.

    Where it does not end well nothing of it is left. An OSError in the block becomes a StoreError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot write the file: {error.strerror or error}", where=str(path), remedy=remedy
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def remove_unfinished(directory: Path) -> None:
    """Remove what a killed :func:`whole_file` has left. Nobody else may be writing there."""
    for path in directory.glob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            path.unlink()


def read_object(path: Path, what: str, *, absent: str, damaged: str) -> dict[str, Any]:
    """Read the JSON object in ``path``. ``what`` it should be (``report``); gzipped if its name ends in
    ``.gz``.

    Raises StoreError for a file that cannot be read or holds another thing, with the remedy ``absent``, and
    for one that is no whole JSON, with ``damaged``.
    """
    try:
        content = parse_json(read_unpacked(path))
    except OSError as error:
        raise StoreError(
            f"cannot read the {what}: {error.strerror or error}", where=str(path), remedy=absent
        ) from error
    except ValueError as error:  # not UTF-8, not JSON, or nested too deep
        raise StoreError(
            f"not a complete JSON file, perhaps truncated: {error}", where=str(path), remedy=damaged
        ) from error
    if isinstance(content, dict):
        return content
    raise StoreError(
        f"not a {what}: expected a JSON object, got a {type(content).__name__}",
        where=str(path),
        remedy=absent,
    )


REPORT_NAME = "report.json"
_SHOWN_MISTAKES = 5
_NAME_ONE = "name a report.json written with --llm-report"
AnyShape = TypeVar("AnyShape", bound=Shape)


def check_writable(directory: Path, option: str) -> None:
    """Make ``directory``, which ``option`` names, and prove that a file can be written in it. Called before
    the run, not after.

    Raises StoreError with the path and the cause.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory, prefix=".llmbench-probe-") as probe:
            probe.write(b"probe")
            probe.flush()
    except OSError as error:
        raise StoreError(
            f"the folder cannot be written: {error.strerror or error}",
            where=str(directory),
            remedy=f"name a writable folder with {option}",
        ) from error


def machine_id() -> str:
    """Name of this kind of machine, ``Linux-64bit``; results of other kinds are in other folders. The version
    of Python is not part of it: with a new one every baseline would be lost. It is told beside them."""
    return f"{platform.system()}-{platform.architecture()[0]}"


def machine_of(folder: str) -> str:
    """The kind of machine whose results a folder of this name holds. Earlier versions named Python's too:
    ``Linux-CPython-3.12-64bit``."""
    return re.sub(r"^(\w+)-\w+-\d+\.\d+-(\w+)$", r"\1-\2", folder)


def machine_folders(storage: Path) -> list[Path]:
    """The folders of this kind of machine, its own last; before it those of earlier versions, the oldest
    Python first."""
    own = storage / machine_id()
    earlier = [path for path in storage.glob("*") if machine_of(path.name) == machine_id() and path != own]
    return [*sorted(earlier, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)]), own]


def there_are_calibrations(storage: Path) -> bool:
    """Whether there is a calibration from this kind of machine."""
    return any(any(folder.glob(f"{CALIBRATION}*.json")) for folder in machine_folders(storage))


def there_are_saved(storage: Path) -> bool:
    """Whether a calibration or a baseline from this kind of machine is there."""
    return any(any(folder.glob("*.json")) for folder in machine_folders(storage))


def document_of(report: Report) -> dict[str, Any]:
    """The report in plain JSON types and without secrets; every rendering is made from it."""
    document: dict[str, Any] = outward_value(report.plain())
    return document


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``report.json`` with a line for each part of the report, and of a test. With a line for each
    number the file would be a third larger."""
    tests = [_lines({name: _told(value) for name, value in test.items()}) for test in document["tests"]]
    parts = {name: _told(value) for name, value in document.items()} | {"tests": f"[{', '.join(tests)}]"}
    write_text(path, _lines(parts) + "\n")


def _lines(parts: Mapping[str, str]) -> str:
    """A JSON object with these values, a line for each."""
    listed = ",\n ".join(f"{_told(name)}: {told}" for name, told in parts.items())
    return f"{{\n {listed}\n}}"


def _told(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_report(path: Path) -> Report:
    """Read a report of this major version that is no newer than this one; missing keys get their defaults.

    The report read is of this version, so that it can be written again. Raises StoreError for any other
    version, for a damaged file, and for a test whose class its own requirements contradict.
    """
    report = read_shape(
        path,
        Report,
        "report",
        ("schema_version", SCHEMA_VERSION),
        absent=_NAME_ONE,
        again="write the report again",
        older="write the report again with this version",
        wrong="the report does not match its schema",
    )
    _check_classes(report, path)
    return report


def _check_classes(report: Report, path: Path) -> None:
    """Raise StoreError for a test with a better class than its own requirements allow."""
    order = list(ComplianceVerdict)
    for test in report.tests:
        requirements = test.compliance.requirements
        deserved = class_of(each.effect for each in requirements if each.status is Status.UNMET)
        # A test that nobody audited has no requirements, and no class.
        if requirements and order.index(test.compliance.verdict) < order.index(deserved):
            raise StoreError(
                f"{test.nodeid} has the verdict {test.compliance.verdict}, but its requirements give "
                f"{deserved}: the file was changed",
                where=str(path),
                remedy="write the report again",
            )


def read_shape(
    path: Path,
    shape: type[AnyShape],
    what: str,
    version: tuple[str, str],
    *,
    absent: str,
    again: str,
    older: str,
    wrong: str,
) -> AnyShape:
    """Read a ``what`` (``report``) in ``path``; keys that it lacks get their defaults.

    ``version``: the field that tells the version, and ours, which the object read has. StoreError for a file
    that is none (with the remedy ``absent``), that is damaged or does not match, ``wrong`` (``again``), and
    for one of another major version, or a newer one (``older``: the remedy for an older one).
    """
    content = read_object(path, what, absent=absent, damaged=again)
    field, ours = version
    told = content.get(field)
    if not isinstance(told, str) or not re.fullmatch(r"\d+\.\d+", told):
        raise StoreError(
            f"not a {what} of pytest-llmbench: {field} is {shown(told)}", where=str(path), remedy=absent
        )
    numbers, own = (tuple(map(int, text.split("."))) for text in (told, ours))
    newer = numbers > own
    if newer or numbers[0] != own[0]:
        raise StoreError(
            f"{field.replace('_', ' ')} {told} is {'newer' if newer else 'older'} than {ours}, which this "
            "version reads",
            where=str(path),
            remedy="upgrade pytest-llmbench" if newer else older,
        )
    try:
        return shape.model_validate(content | {field: ours})
    except ValidationError as error:
        found = error.errors(include_url=False)
        listed = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in found[:_SHOWN_MISTAKES]]
        rest = [f"… and {len(found) - len(listed)} more"] if len(found) > len(listed) else []
        raise StoreError(f"{wrong}: {'; '.join(listed + rest)}", where=str(path), remedy=again) from error


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that a spreadsheet takes for a formula, which a server's text must not become."""

Cell = str | float | int | bool | None


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a CSV file with a header and a line for each row, as they come; None is an empty cell.

    Texts leave as :func:`~pytest_llmbench.redaction.outward` gives them, with an apostrophe before one that a
    spreadsheet would take for a formula. StoreError where the file
    cannot be written; the old one, if there is one, is left as it was.
    """
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_harmless(cell) for cell in row] for row in rows)


def _harmless(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    text = outward(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text
