"""Command lines of processes: none of one that ends while it is looked at, as many do."""

from collections.abc import Iterator
from contextlib import suppress

import psutil
from forked_processes import COMMANDS, forks

MEASURING = "workers.process"
"""In the command line of a measuring process."""


def command_line(process: psutil.Process) -> str:
    """The words of its command, separated by spaces; empty for one that has ended. Of a fork, those that were
    asked for; of a fork of another process only the name, whose end is that of the program's."""
    try:
        return " ".join(COMMANDS.get(process.pid) or [process.name(), *process.cmdline()])
    except psutil.Error:
        return ""


def processes_below() -> set[int]:
    """All below this one, but for that which forks some of them."""
    return {child.pid for child in psutil.Process().children(recursive=True)} - {forks()}


def measuring_processes(*, recursive: bool = False) -> list[psutil.Process]:
    """Those that this process started, itself or as forks, in the order of their start; ``recursive``: and
    its children."""
    children = [*_forks(), *psutil.Process().children(recursive=recursive)]
    found = [child for child in dict.fromkeys(children) if MEASURING in command_line(child)]
    return sorted(found, key=lambda child: child.create_time())


def _forks() -> Iterator[psutil.Process]:
    for pid in list(COMMANDS):
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)
