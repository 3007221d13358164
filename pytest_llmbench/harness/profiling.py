"""``--llm-profile``: the engine's profiler around a short load like the judged one.

A profiler slows an engine down, so it is never on while a test is measured. The load that it sees is sent
after the test, with prompts of its own; nothing judges, keeps or compares it. Whatever fails is a note.
"""

from __future__ import annotations

import glob
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.harness.sut.variant_servers import perform
from pytest_llmbench.methodology.measuring.load_plans import derived_seed
from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.model.numbers import Amount, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.probes.sut_schema import Call, Profile
from pytest_llmbench.wire.error_replies import beginning

LABEL = "profile"
"""Label of the load, by which progress and events tell it from those that count."""
MOST_FILES = 20
_SAID = 200
_WRITTEN_WITHIN_S = 5.0
"""How long files are waited for: SGLang writes them behind the answer of its call."""
_LOOK_S = 0.1
_CLOCK_NS = 10_000_000
"""The lag of the clock of a file system."""


@dataclass(frozen=True)
class Profiled:
    """What became of profiling a test."""

    notes: tuple[Note, ...]
    files: tuple[Path, ...] = ()
    """The files that the profiler has written, as far as they are found here."""


class _FailedError(Exception):
    """Starting, stopping or loading failed; holds what is told of it."""


def profile(opened: OpenSUT, result: TestResult, send: Callable[[LoadPlan], Observation]) -> Profiled:
    """Profile the system under a load like the last one that ``result`` rests on. ``send``: sends it."""
    aside = set_aside(result.levels)
    counted = [  # loads on the SUT itself; of a search the last is the one that ended it
        run
        for index, run in enumerate(result.observations)
        if index not in aside
        and run.plan.phase is Phase.MEASURE
        and not run.plan.variant
        and len(run.records)
    ]
    if opened.virtual:
        return _not("a replay runs in virtual time and has no process to profile")
    if not counted:
        return _not("the test has no load on the system itself")
    like, file = counted[-1], opened.access.file
    asked = Profile() if file is None else file.tables.profile
    folder = Path.cwd() if file is None else file.path.parent
    if not opened.over_http and not asked.start_command:
        return _not("the system is called within this process: give profile.start_command in the SUT file")
    notes: list[Note] = []
    profiler, began_ns = _Profiler(opened, asked, folder), time.time_ns()
    try:
        with profiler.on(notes):
            seen = send(profiled_load(like, asked.seconds))
    except (LLMBenchError, _FailedError) as error:
        return Profiled((*_not(_line(error)).notes, *notes))
    files = _written(asked.files, folder, began_ns)
    told = Note.of(
        "profiled",
        load=like.plan.title,
        requests=len(seen.records),
        duration=Amount(seen.duration_s, "s"),
        files=tuple(map(str, files[:MOST_FILES])),
        more=len(files) - MOST_FILES if len(files) > MOST_FILES else None,
        pattern=asked.files if asked.files and not files else None,
    )
    return Profiled((told, *notes), tuple(files[:MOST_FILES]))


def _not(why: str) -> Profiled:
    return Profiled((Note.of("not_profiled", why=why),))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def profiled_load(like: Observation, seconds: float) -> LoadPlan:
    """The load of ``like``, cut to so many seconds, with prompts that were not sent before. Nothing ends it
    early but its time."""
    plan, slots = like.plan, like.plan.load.in_flight or 1
    share = min(1.0, seconds / like.duration_s)
    count = min(max(math.ceil(len(like.records) * share), slots), max(plan.most_requests, 1))
    timed = plan.load.requests_in_flight is not None  # its speed under the profiler is another one
    return plan.with_(
        label=LABEL,
        phase=Phase.PROBE,
        requests=min(slots, count) if timed else count,
        duration_s=seconds if timed else None,
        max_requests=count if timed else None,
        seed=derived_seed(plan.seed, LABEL),
        part="",
        attempt=1,
        fresh_state=False,
        looks=None,
        most_failures=None,
        stop_when_failing=True,
        deadlines=replace(plan.deadlines, drain_s=min(plan.deadlines.drain_s, max(seconds, 5.0))),
    )


@dataclass(frozen=True)
class _Profiler:
    opened: OpenSUT
    asked: Profile
    folder: Path

    @contextmanager
    def on(self, notes: list[Note]) -> Iterator[None]:
        """The profiler, on. It is switched off whatever happens; a note says if that failed."""
        self._call("start", self.asked.start_command, self.asked.start)
        try:
            yield
        finally:
            try:
                self._call("stop", self.asked.stop_command, self.asked.stop)
            except (LLMBenchError, _FailedError) as error:
                notes.append(Note.of("profiler_left_on", why=_line(error)))

    def _call(self, which: str, command: Sequence[str] | None, call: Call) -> None:
        where, limit_s = f"profile.{which}", self.asked.timeout_s
        if command is not None:
            self._run(command, f"{where}_command", limit_s)
            return
        # The time of both waits together is the limit of one exchange.
        access = self.opened.access.access
        connect_s = min(access.connect_s, limit_s / 2)
        within = replace(access, connect_s=connect_s, answer_s=limit_s - connect_s)
        perform(call, self.opened.executor.base.base_url, within, where=where)

    def _run(self, command: Sequence[str], where: str, limit_s: float) -> None:
        limit = f"{trimmed(limit_s)} s"
        with tempfile.TemporaryFile() as said:  # no pipe, which a child that stays would keep open
            try:
                done = subprocess.run(
                    list(command),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise _FailedError(f"{where}: {command[0]} had not ended within {limit}") from None
            except OSError as error:
                raise _FailedError(f"{where}: {command[0]} cannot be run: {error.strerror}") from None
            said.seek(0)
            text = beginning(said.read(4 * _SAID).decode(errors="replace").strip(), _SAID)
        if done.returncode:
            ended = f"{where}: {command[0]} ended with status {done.returncode}"
            raise _FailedError(f"{ended}: {text}" if text else ended)


def _written(pattern: str | None, folder: Path, began_ns: int) -> list[Path]:
    """The files of the pattern, which may be absolute, that were written since, in the order of their
    names."""
    if pattern is None:
        return []
    until = time.monotonic() + _WRITTEN_WITHIN_S
    while True:
        found = []
        for name in glob.glob(pattern, root_dir=folder, recursive=True):  # noqa: PTH207
            path = folder / name
            with suppress(OSError):  # gone again
                if path.is_file() and path.stat().st_mtime_ns >= began_ns - _CLOCK_NS:
                    found.append(path)
        found.sort()
        if found or time.monotonic() > until:
            return found
        time.sleep(_LOOK_S)
