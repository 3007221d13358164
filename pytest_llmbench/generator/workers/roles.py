"""What a plan needs of workers and of who keeps them, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_llmbench.generator.workers.protocol import Line, Setup


class Worker(Protocol):
    """One worker: files of its own, and our end of the line to it."""

    @property
    def setup(self) -> Setup: ...

    @property
    def line(self) -> Line: ...

    def ending(self) -> str:
        """How it ended, in words. To be asked once the line is dead."""

    def kill_unresponsive(self) -> None:
        """Ask for a worker that does not answer to be killed. Its line dies of that."""

    def kill(self) -> None:
        """Kill the worker at once and close the line."""


class WorkerPool(Protocol):
    """Workers that are kept from plan to plan. One that has died is replaced when it is needed."""

    def call(self, count: int) -> None:
        """Start those of the first ``count`` that are missing, where that can go on beside other things."""

    def members(self, count: int) -> Sequence[Worker]:
        """The first ``count`` workers, up and greeted. Raises GeneratorError or SuiteError."""

    def kill(self) -> None:
        """End all of them at once; the next plan starts new ones."""

    def close(self) -> None:
        """Let all of them end by themselves, kill the others, remove their files. Safe to call twice."""
