"""Measuring processes that are started before it is known what they measure."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.sut import SUT

if TYPE_CHECKING:
    from pytest_llmbench.generator.workers.pool import WorkerPool

_CHANGING = "PYTEST_CURRENT_TEST"


class EarlyWorkers:
    """The processes of ``--llm-workers``, started while a session does what comes before its first load.

    Whoever opens the first system takes them; until then they hear of nothing. A session that measures in no
    such process has none.
    """

    def __init__(self, settings: Settings) -> None:
        self._pool: WorkerPool | None = None
        self._workers = settings.workers if isinstance(settings.workers, int) else 0
        sut = SUT(settings.endpoint or "replay")
        if sut.is_replay or sut.is_in_process or not self._workers:
            return
        # Imported here: a replay loads nothing that sends.
        from pytest_llmbench.generator.workers.pool import WorkerPool

        self._cpus = settings.cpus
        self._surroundings = _surroundings()
        self._pool = WorkerPool(cpus=self._cpus)
        with suppress(GeneratorError):  # told where they are needed
            self._pool.call(self._workers)

    def take(self, workers: int, cpus: tuple[int, ...]) -> WorkerPool | None:
        """The processes, once; None where there are none, or others are wanted: such as have another
        environment or working directory, by which they find certificates."""
        if self._pool is None or (workers, cpus) != (self._workers, self._cpus):
            return None
        if _surroundings() != self._surroundings:
            self.close()
        pool, self._pool = self._pool, None
        return pool

    def close(self) -> None:
        """End those that nobody has taken. Safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.kill()
            pool.close()


def _surroundings() -> tuple[dict[str, str], Path]:
    return {name: value for name, value in os.environ.items() if name != _CHANGING}, Path.cwd()
