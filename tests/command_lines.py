"""Command lines of processes: none of one that ends while it is looked at, as many do."""

import psutil

MEASURING = "workers.process"
"""In the command line of a measuring process."""


def command_line(process: psutil.Process) -> str:
    """The words of its command, separated by spaces; empty for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def processes_below() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def measuring_processes(*, recursive: bool = False) -> list[psutil.Process]:
    """Those that this process started, in the order of their start; ``recursive``: and its children."""
    children = psutil.Process().children(recursive=recursive)
    found = [child for child in children if MEASURING in command_line(child)]
    return sorted(found, key=lambda child: child.create_time())
