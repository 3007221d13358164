"""Baselines: ``.llmbench/MACHINE/0001_NAME.json``, one file per saved session, never written twice.

The habits are those of pytest-benchmark: a folder per kind of machine, a number that counts up, a name. A
baseline never moves by itself: saving makes a new file, and which one is compared with is said by name.

Calibrations: ``.llmbench/MACHINE/calibration-DIGEST.json``, one file for each system, test and load.

The digest is that of what was calibrated, so a new calibration of the same takes the place of the old one,
unlike a baseline: it says how noisy a system is, not how fast it has to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, JsonValue, ValidationError

from pytest_llmbench.errors import StoreError, shown
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import ComparisonVerdict, GateVerdict
from pytest_llmbench.store.files import (
    CALIBRATION,
    UNFINISHED,
    machine_folders,
    machine_id,
    machine_of,
    read_shape,
    write_text,
)
from pytest_llmbench.store.schema import Instant, OutputLengths, Shape

BASELINE_VERSION: Final = "1.3"
"""1.0 lacks the commit, 1.1 the verdict on the limits, 1.2 the standing."""
_FILE = re.compile(r"(?P<number>\d{4,})_(?P<name>.+)\.json")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILES = (".json", ".jsonl")
"""Endings of the path of a file; the name of a baseline has none of them."""
_LONGEST_NAME = 100
_MOST_TRIES = 1000
_ENOUGH: Final = 30
"""The sessions of one name that are read together: the latest until so many of them count for each test."""
_MOST_READ: Final = 100
_MOST_TOLD = 20


class Standing(StrEnum):
    """Whether the result of a test in a session is part of what later sessions are compared with. What was
    not measured validly is not kept at all."""

    COUNTS = "counts"
    BEHIND = "behind"
    """A comparison that decides found it worse than allowed, or worse and could not tell by how much."""
    FAILED = "failed"
    """It broke a limit, or the test failed otherwise."""
    WAIVED = "waived"
    """The test was expected to fail, or skipped itself after it had measured."""


class BaselineTest(Shape):
    """Run statistics of one test."""

    nodeid: str
    test: str
    identity: dict[str, JsonValue]
    runs: int
    by_run: dict[str, list[float | None]]
    """Metric → its value in each run; for a single run that one value."""
    metrics: dict[str, Estimate]
    """The metrics over all runs together."""
    output_lengths: OutputLengths | None = None
    latency_parts_ms: dict[str, list[float | None]] | None = None
    """The parts of the latency, as a report has them; ``null``: saved by a version that kept none."""
    gate: GateVerdict | None = None
    """The verdict on the limits; ``null``: not known."""
    standing: Standing | None = None
    """``null``: not known, then all count but those that broke a limit."""
    verdicts: dict[str, ComparisonVerdict] = Field(default={})
    """Metric → the verdict of each comparison that decided."""
    accepted: str | None = None
    """The maintainer's reason why this is the new level; sessions before it are no part of that."""

    @property
    def counts(self) -> bool:
        """Whether later sessions are compared with it."""
        if self.standing is None:
            return self.gate is not GateVerdict.FAIL
        return self.standing is Standing.COUNTS


class Commit(Shape):
    """The state of the Git repository that a session ran in."""

    id: str
    """Hash of the commit in hexadecimal, 40 or 64 digits."""
    uncommitted: bool
    """Whether files under version control had been changed since."""


class Baseline(Shape):
    """One saved session: the content of a baseline file."""

    baseline_version: Literal["1.3"] = BASELINE_VERSION
    name: str
    saved: Instant
    generator_version: str
    machine: str
    commit: Commit | None = None
    """The commit of the code; ``null``: the session did not run in a repository."""
    tests: list[BaselineTest] = Field(default=[])
    void: list[str] = Field(default=[])
    """Node ids of the tests that were not measured validly."""


def check_name(name: str) -> None:
    """Raise StoreError for a name that cannot be part of a file name."""
    if not _NAME.fullmatch(name) or name.endswith(_FILES) or len(name) > _LONGEST_NAME:
        raise StoreError(
            f"{shown(name)} is not a name for a baseline: use at most {_LONGEST_NAME} letters, digits, '.', "
            "'_' and '-'",
            where="--llm-save",
            remedy="give a name such as main or v1.4",
        )


def save_baseline(storage: Path, baseline: Baseline) -> Path:
    """Write a baseline under the next number in this machine's folder; an existing file is never
    overwritten."""
    check_name(baseline.name)
    folder = storage / baseline.machine
    text = json.dumps(baseline.plain(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = folder / f".{baseline.name}.{os.getpid()}{UNFINISHED}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Half of a surrogate pair, which a server may have sent, becomes what JSON writes for it: \ud800.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return _placed(folder, temporary, baseline.name)
    except OSError as error:
        raise StoreError(
            f"cannot write the baseline: {error.strerror or error}",
            where=str(folder),
            remedy="name a writable folder with --llm-storage",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _placed(folder: Path, temporary: Path, name: str) -> Path:
    """The path at which the temporary file was placed. A link fails where the name is taken, so two sessions
    that save at once get two numbers."""
    for number in range(_next_number(folder), _next_number(folder) + _MOST_TRIES):
        path = folder / f"{number:04d}_{name}.json"
        try:
            os.link(temporary, path)
        except FileExistsError:
            continue
        return path
    raise StoreError("no free number for the baseline", where=str(folder), remedy="remove old ones")


def _next_number(folder: Path) -> int:
    folders = machine_folders(folder.parent) if folder.name == machine_id() else [folder]
    return max((number for each in folders for number, _, _ in _listed(each)), default=0) + 1


def _listed(folder: Path) -> list[tuple[int, str, Path]]:
    """(number, name, path) of every baseline in a folder, oldest first."""
    matches = ((_FILE.fullmatch(path.name), path) for path in folder.glob("*.json"))
    return sorted((int(match["number"]), match["name"], path) for match, path in matches if match)


def _here(storage: Path) -> list[Path]:
    """The files of this kind of machine, oldest first."""
    return [path for folder in machine_folders(storage) for _, _, path in _listed(folder)]


def find_baseline(storage: Path, given: str) -> Path:
    """The file at that path, else this machine's latest baseline of that name, or that of that number.

    StoreError that lists the baselines there are.
    """
    direct = Path(given)
    if direct.suffix in _FILES or direct.parent != Path():
        return _file(storage, direct, where=f"--llm-compare {shown(given)}")
    wanted = _exact(_here(storage), given)
    if len(wanted) > 1:
        raise _ambiguous(given, wanted, where="--llm-compare")
    if wanted:
        return wanted[0]
    raise StoreError(
        f"there is no baseline {shown(given)} in {storage / machine_id()}",
        where="--llm-compare",
        remedy=_remedy(storage),
    )


def _file(storage: Path, path: Path, where: str) -> Path:
    with contextlib.suppress(OSError, ValueError):  # of names that no file can have
        if path.is_file():
            return path
    raise StoreError("there is no such file", where=where, remedy=_remedy(storage))


def saved_baselines(storage: Path) -> list[Path]:
    """The files of all machines, by folder, in each by number."""
    return [path for folder in sorted(storage.glob("*")) for _, _, path in _listed(folder)]


def recent_baselines(storage: Path, most: int) -> list[Path]:
    """The latest files of this kind of machine, the oldest first."""
    return _here(storage)[-most:]


def choose_baseline(storage: Path, given: str) -> Path:
    """The file that people mean by a path, a name (the latest), a number, or a prefix that only one file has.

    This machine's files come first, then those of all. ``MACHINE/NUMBER_NAME`` begins with its folder; a
    prefix may be one of the number or of the name. StoreError, listing what there is, if nothing fits, and
    for a prefix of several.
    """
    if given.endswith(".json"):
        return _file(storage, Path(given), where=shown(given))
    every = saved_baselines(storage)
    for candidates in (_here(storage), every):
        found = _exact(candidates, given) or [
            path
            for path in candidates
            for names in [(path.stem, _split(path)[1], f"{path.parent.name}/{path.stem}")]
            if any(name.startswith(given) for name in names)
        ]
        if len(found) > 1:
            raise _ambiguous(given, found)
        if found:
            return found[0]
    raise StoreError(f"there is no baseline {shown(given)} in {storage}", remedy=_remedy(storage))


def _split(path: Path) -> tuple[int, str]:
    number, _, name = path.stem.partition("_")
    return int(number), name


def _exact(paths: Sequence[Path], given: str) -> list[Path]:
    """The latest file of that name of each kind of machine; else those of that number, or of number and name.

    Sessions that saved at once, or on two branches, have one number and different names.
    """
    latest = {machine_of(path.parent.name): path for path in paths if _split(path)[1] == given}
    if latest:
        return list(latest.values())
    return [path for path in paths if given in (f"{_split(path)[0]:04d}", path.stem)]


def _ambiguous(given: str, found: Sequence[Path], where: str | None = None) -> StoreError:
    names = _some([f"{path.parent.name}/{path.stem}" for path in found])
    return StoreError(
        f"{shown(given)} matches {len(found)} baselines",
        where=where,
        remedy=f"give a longer name: {names}",
    )


def _some(names: list[str]) -> str:
    rest = [f"… and {len(names) - _MOST_TOLD} more"] if len(names) > _MOST_TOLD else []
    return ", ".join([*names[:_MOST_TOLD], *rest])


def _remedy(storage: Path) -> str:
    own = _here(storage)
    here = [path.stem for path in own]
    others = [str(path) for path in saved_baselines(storage) if path not in own]
    if here or others:
        return f"there are: {_some([*here, *others])}"
    return "save one first, with --llm-save NAME"


def read_baseline(path: Path) -> Baseline:
    """Read a baseline. StoreError for a damaged file, and for another version."""
    return read_shape(
        path,
        Baseline,
        "baseline",
        ("baseline_version", BASELINE_VERSION),
        absent="name a file that --llm-save wrote",
        again="save it again with --llm-save",
        older="save the baseline again with this version of pytest-llmbench",
        wrong="not a complete baseline",
    )


def read_earlier(path: Path, given: str) -> tuple[dict[Path, Baseline], list[str]]:
    """The latest sessions that were saved before this one under its name, the oldest first, and messages on
    those that cannot be read. None where ``given`` is not that name, as one session was asked for.

    A regression that is waived for months does not push the sessions before it out of view."""
    if _FILE.fullmatch(path.name) is None or _split(path)[1] != given:
        return {}, []
    number, found, problems = _split(path)[0], {}, []
    before = [other for count, own, other in _listed(path.parent) if own == given and count < number]
    counted: Counter[str] = Counter()
    for other in reversed(before[-_MOST_READ:]):
        try:
            found[other] = read_baseline(other)
        except StoreError as error:
            problems.append(f"left out: {' '.join(str(error).split())}")
            continue
        counted.update({test.nodeid: int(test.counts) for test in found[other].tests})
        if min(counted.values(), default=0) >= _ENOUGH:
            break
    return dict(reversed(found.items())), problems


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
    text = json.dumps(calibration.plain(), indent=1, ensure_ascii=False) + "\n"
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
