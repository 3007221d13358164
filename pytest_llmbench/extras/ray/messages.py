"""The messages between the session's process and its bridge into the cluster.

The lines of the workers run beside this one, each on a socket pair of its own that the bridge is handed, and
carry what they carry for a local worker (``workers/protocol.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.generator.workers.protocol import Setup


@dataclass(frozen=True, slots=True)
class Join:
    """First of all. Answered by ``Joined`` or ``Refused``."""

    spec: RaySpec
    directory: Path
    """The directory for the files of a cluster that the bridge starts itself."""
    mirrors: Path
    """The directory in which the workers' files are kept up to date. Both go with a session that is
    killed."""
    session: int
    """The id of the session's process."""


@dataclass(frozen=True, slots=True)
class Joined:
    workers: int
    """The number of workers, as asked for, or one on each node."""


@dataclass(frozen=True, repr=False, slots=True)
class StartWorkers:
    """Workers to start, each with its number, its files' place here and its line: the ends of the lines come
    after this message. Answered by ``WorkersStarted`` or ``Refused``."""

    setups: tuple[Setup, ...]


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """Says that all enlisted workers are up."""


@dataclass(frozen=True, slots=True)
class Refused:
    error: LLMBenchError


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End this worker at once: it does not answer. Not answered; its line will be closed."""

    number: int


@dataclass(frozen=True, slots=True)
class AskClocks:
    """How were the clocks during the last plan? Answered by ``Clocks``."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the machines that have workers: the entries for the report, and the worst mistake.

    The mistake, if there is one, must void the plan.
    """

    told: tuple[Mapping[str, Any], ...]
    mistake: str | None


def ending_file(setup: Setup) -> Path:
    """How a worker ended, in words; there is none while its line is open."""
    return setup.directory / f"worker-{setup.number}.ending"
