"""The Ray cluster as the bridge knows it, and the messages between the session's process and this bridge.

The one module that speaks to Ray, in the bridge's process only. The lines of the workers run beside this one,
each on a socket pair of its own that the bridge is handed, and carry what they carry for a local worker
(``workers/protocol.py``).
"""

from __future__ import annotations

import importlib
import math
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import GeneratorError, LLMBenchError, SuiteError
from pytest_llmbench.generator.workers.placement import RaySpec
from pytest_llmbench.generator.workers.protocol import Setup
from pytest_llmbench.model.numbers import PLAIN, quantity
from pytest_llmbench.wire.error_replies import beginning

WHERE = "--llm-workers ray"
_QUIET = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
_STORE_BYTES = 512 * 2**20
_FREE_S = 5.0
_CALL_S = 30.0
_LONGEST = 400
AUTHENTICATES = (2, 52)
"""The first version of Ray with tokens; the extra ``[ray]`` asks for it."""


class Lost(Exception):  # noqa: N818 - what has happened, not whose error it is
    """An actor, its node, or the way to them is gone. Says how."""


class Actor:
    """One worker actor."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    def start(self, method: str, *arguments: object) -> Any:
        """Begin a call. Returns what :meth:`Cluster.wait` waits for and :meth:`got` reads."""
        try:
            return getattr(self._handle, method).remote(*arguments)
        except Exception as error:
            raise Lost(_words(error)) from error

    def call(self, method: str, *arguments: object, limit_s: float = _CALL_S) -> Any:
        return self.got(self.start(method, *arguments), limit_s)

    def got(self, promised: Any, limit_s: float = _CALL_S) -> Any:
        """The result of a call. Raises Lost, or the LLMBenchError that the call ended with."""
        try:
            result = self._ray.get(promised, timeout=limit_s)
        except Exception as error:
            raise Lost(_words(error)) from error
        if isinstance(result, LLMBenchError):
            raise result
        return result

    def kill(self) -> None:
        try:
            self._ray.kill(self._handle)
        except Exception:  # noqa: BLE001 - it is gone, or all of Ray is
            return


class Cluster:
    """Joined, or started here; left, or ended, by :meth:`close`."""

    def __init__(self, ray: Any, spec: RaySpec) -> None:
        self._ray = ray
        self._spec = spec

    @classmethod
    def join(cls, spec: RaySpec, directory: Path) -> Cluster:
        """Join the cluster that ``spec`` names, or start one.

        Raises SuiteError or GeneratorError. May take as long as Ray takes, so the caller sets a limit.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if spec.address is None:
            # Read when Ray is imported, and handed on to all its processes. A token of the session: Ray would
            # leave one of its own, readable by all, in the user's home. And loopback in place of every
            # interface: 127.0.0.1 is no address of a node to Ray, unless clusters are switched off.
            os.environ |= {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_urlsafe(32),
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            }
            os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise absent(str(error)) from error
        _refuse_unauthenticated(ray)
        options: dict[str, Any] = {"namespace": f"pytest-llmbench-{secrets.token_hex(4)}", **_QUIET}
        if spec.address is None:
            wanted = math.ceil((spec.workers or 1) * spec.cpus)
            options |= {
                "address": "local",
                "num_cpus": max(os.cpu_count() or 1, wanted),
                "object_store_memory": _STORE_BYTES,
                "include_dashboard": False,
                # Ray opens what it is given to everybody (0777); the folder around it stays ours alone.
                "_temp_dir": str(directory / "ray"),
            }
        else:
            options["address"] = spec.address
        try:
            ray.init(**options)
        except Exception as error:
            raise _refusal(error, spec) from error
        return cls(ray, spec)

    @property
    def workers(self) -> int:
        """The number of workers: as many as were asked for, else one on each node that has CPUs for one."""
        if self._spec.workers is not None:
            return self._spec.workers
        fitting = [
            node
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0.0) >= self._spec.cpus
        ]
        return max(1, len(fitting))

    def hire(self, count: int) -> list[Actor]:
        """Hire worker actors, spread over the nodes. They come up by themselves; their first call tells."""
        self._refuse_too_many(count)
        actor = importlib.import_module(f"{__package__}.actor")
        made = self._ray.remote(num_cpus=self._spec.cpus, max_restarts=0, concurrency_groups=actor.THREADS)
        worker_actor = made(actor.RayWorkerActor).options(scheduling_strategy="SPREAD")
        return [Actor(self._ray, worker_actor.remote()) for _ in range(count)]

    def wait(self, promised: Sequence[Any], limit_s: float) -> list[Any]:
        """Wait for calls, and return those that have ended, well or not; none after ``limit_s``.

        Raises Lost.
        """
        try:
            # One that is ready is enough to return; further ones that are come along.
            ready, rest = self._ray.wait(list(promised), num_returns=1, timeout=limit_s)
            if ready and rest:
                more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
                ready = [*ready, *more]
        except Exception as error:
            raise Lost(_words(error)) from error
        return list(ready)

    def close(self) -> None:
        """A cluster that was there before goes on; one that was started here ends."""
        self._ray.shutdown()

    def _refuse_too_many(self, count: int) -> None:
        wanted = count * self._spec.cpus
        deadline_s = time.monotonic() + _FREE_S
        # CPUs of workers that have just ended take a moment to be told as free.
        while (free := self._ray.available_resources().get("CPU", 0.0)) < wanted:
            total = self._ray.cluster_resources().get("CPU", 0.0)
            if wanted > total or time.monotonic() > deadline_s:
                raise SuiteError(
                    f"{count} workers of {quantity(self._spec.cpus, PLAIN)} CPUs each need "
                    f"{quantity(wanted, PLAIN)}; of the cluster's {quantity(total, PLAIN)} CPUs "
                    f"{quantity(free, PLAIN)} are free",
                    where=WHERE,
                    remedy="ask for fewer (?workers=N) or for less of each (&cpus=0.5), or add nodes before "
                    "the run: nothing is measured while a cluster grows",
                )
            time.sleep(0.1)


def _refuse_unauthenticated(ray: Any) -> None:
    found = re.match(r"(\d+)\.(\d+)", str(ray.__version__))
    if found is None or (int(found[1]), int(found[2])) < AUTHENTICATES:
        raise SuiteError(
            f"Ray {ray.__version__} cannot authenticate: whoever reaches a port of it runs code there",
            where=WHERE,
            remedy='pip install "pytest-llmbench[ray]"',
        )


def absent(why: str = "there is no module ray") -> SuiteError:
    return SuiteError(
        f"Ray is not installed here: {why}",
        where=WHERE,
        remedy='pip install "pytest-llmbench[ray]", or give a number of worker processes on this machine',
    )


def _words(error: Exception) -> str:
    """Ray's account in one line, without what names only Ray's own parts."""
    parts = [line.strip() for line in str(error).splitlines()]
    known = ("class_name:", "actor_id:", "namespace:", "pid:", "name:")
    text = " ".join(part for part in parts if part and not part.startswith(known))
    if "No module named" in text:  # at the end of a long traceback
        text = text[text.index("No module named") :]
    return f"{type(error).__name__}: {beginning(text, _LONGEST)}"


def _refusal(error: Exception, spec: RaySpec) -> LLMBenchError:
    text = " ".join(str(error).split())
    where = f"{WHERE} ({spec})"
    if isinstance(error, ImportError):  # the client for ray:// addresses is an extra of Ray's own
        return absent(str(error))
    if "ersion mismatch" in text or ("different" in text and "version" in text):
        return SuiteError(
            f"the cluster has another Ray or Python: {beginning(text, _LONGEST)}",
            where=where,
            remedy="use the same Python and Ray here as in the cluster's image",
        )
    if spec.address is None:
        return GeneratorError(f"Ray does not start on this machine: {beginning(text, _LONGEST)}", where=where)
    outside = not spec.address.startswith("ray://") and "raylet" in text.lower()
    return SuiteError(
        f"cannot join the cluster: {beginning(text, _LONGEST)}",
        where=where,
        remedy="this machine is no node of it: give ray://HEAD:10001, the head's client server"
        if outside
        else "see `ray status` on the head; for a cluster with tokens set RAY_AUTH_MODE=token and "
        "RAY_AUTH_TOKEN",
    )


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
