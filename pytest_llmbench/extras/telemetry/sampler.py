"""The process that samples: each source in a thread of its own, every reading a line of a file.

It ends when its standard input does, so also if the process that measures is killed. Nothing of it runs
where load is sent or read. Instants are of the monotonic clock, which all processes of a Linux host share:
that of a reading is halfway between the question and the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from pytest_llmbench.extras.telemetry.reading import (
    MOST_BYTES,
    Reading,
    Source,
    SourceError,
    readings_of_line,
)

_NICE = 5


class Lines:
    """Writes the lines, one at a time."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._lock = out, threading.Lock()

    def write(self, **line: Any) -> None:
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()

    def readings(self, source: str, at_ns: int, found: Sequence[Reading], *, whole: bool = True) -> None:
        """``whole``: whether it is all that the source has, so that what is missing has gone."""
        self.write(source=source, at_ns=at_ns, devices=[asdict(each) for each in found], whole=whole)

    def lost(self, source: str, error: SourceError, *, last: bool = False) -> None:
        """``last``: whether the source is not asked again."""
        at_ns = time.monotonic_ns()
        self.write(source=source, at_ns=at_ns, why=error.why, detail=error.detail, last=last)


def follow(make: Callable[[], Source], name: str, interval_s: float, lines: Lines) -> None:
    """Ask a source at equal distances, for ever; one that cannot be made is told once."""
    try:
        source = make()
    except SourceError as error:
        lines.lost(name, error, last=True)
        return
    due = time.monotonic()
    while True:
        asked_ns = time.monotonic_ns()
        try:
            found = source.read()
            lines.readings(name, (asked_ns + time.monotonic_ns()) // 2, found)
        except SourceError as error:
            lines.lost(name, error)
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def follow_command(command: Sequence[str], lines: Lines) -> None:
    """Take each line that the command writes at the instant when it comes."""
    name, host = command[0], socket.gethostname()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        lines.lost(name, SourceError("no_answer", str(error)), last=True)
        return
    assert child.stdout is not None
    while line := child.stdout.readline(MOST_BYTES):
        at_ns = time.monotonic_ns()
        try:
            lines.readings(name, at_ns, readings_of_line(line, host), whole=False)
        except SourceError as error:
            lines.lost(name, error)
    lines.lost(name, SourceError("vanished", f"it ended with status {child.wait()}"), last=True)


def sources(wanted: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Source]]]:
    """The sources that are asked for, by name; each imports its library when it is made."""
    for url in wanted["urls"]:
        from pytest_llmbench.extras.telemetry.pages import MachinePage
        from pytest_llmbench.probes.control_plane import without_query

        yield without_query(url), lambda url=url: MachinePage(url)  # type: ignore[misc]
    if wanted["this_host"]:
        from pytest_llmbench.extras.telemetry.host import AmdSmi, Host, Nvml, Rapl

        yield Nvml.name, Nvml
        yield AmdSmi.name, AmdSmi
        yield Rapl.name, Rapl
        yield Host.name, lambda: Host(wanted["pid"])


def main() -> None:
    wanted = json.loads(sys.stdin.readline())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with open(wanted["out"], "a", encoding="utf-8") as out:  # noqa: PTH123 - the path is a text here
        lines = Lines(out)
        found = list(sources(wanted))
        lines.write(sources=[name for name, _ in found] + wanted["command"][:1])
        for name, make in found:
            threading.Thread(
                target=follow, args=(make, name, wanted["interval_s"], lines), daemon=True
            ).start()
        if wanted["command"]:
            threading.Thread(target=follow_command, args=(wanted["command"], lines), daemon=True).start()
        sys.stdin.read()
        if os.getpgrp() == os.getpid():  # the command is of this group, and may write nothing for long
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
        os._exit(0)


if __name__ == "__main__":
    main()
