"""The embedded engine as a child process."""

from __future__ import annotations

from typing import Any

import httpx

from pytest_llmbench.model.facts import Facts
from pytest_llmbench.simulator.child import ChildServer
from pytest_llmbench.simulator.engine.power import EnergyCurve
from pytest_llmbench.simulator.scenario import disclosure, parse_scenario
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth, parse_energy, parse_ground_truth


class EmbeddedEngine(ChildServer):
    """A running engine, on a free loopback port. Made by :meth:`start`; a context manager that stops it."""

    def __init__(self, preset: str, *, grpc: bool, deadline_s: float) -> None:
        self.scenario = parse_scenario(preset)
        self.config = self.scenario.engine
        """The engine's configuration."""
        arguments = ["--preset", preset, "--port", "0", *(["--grpc-port", "0"] if grpc else [])]
        super().__init__(
            "embedded engine",
            "pytest_llmbench.simulator",
            arguments,
            where=f"sim:{preset}",
            deadline_s=deadline_s,
        )
        self.url: str = self.ready["url"]
        """Base URL of the engine, ending in ``/v1``."""
        self.model: str = self.ready["model"]
        self.grpc_target: str | None = self.ready.get("grpc_target")
        """``host:port`` of the gRPC server; ``None`` if it was not asked for."""

    @classmethod
    def start(cls, preset: str = "fast", *, grpc: bool = False, deadline_s: float = 30.0) -> EmbeddedEngine:
        """Start an engine and wait until it serves.

        ``preset`` is a whole scenario: ``fast``, ``h100-8b?max_num_seqs=64&fault=reset&fault_rate=0.1``.

        ``grpc``: serve gRPC, too, at :attr:`grpc_target`; needs the extra ``pytest-llmbench[grpc]``.

        :raises SuiteError: the preset or one of its options is wrong.
        :raises SUTError: the process ends, or is not ready within ``deadline_s``.
        """
        return cls(preset, grpc=grpc, deadline_s=deadline_s)

    def disclosure(self) -> Facts:
        """The facts that the engine states about itself."""
        return disclosure(self.config, self.scenario.deployment)

    def ground_truth(self) -> list[GroundTruth]:
        """The ground truth of the requests that have ended, oldest first. :raises SUTError: the engine does
        not answer."""
        return parse_ground_truth(self._get("/sim/ground_truth").text)

    def energy(self) -> list[EnergyCurve]:
        """The true energy of each engine over time, of a scenario with ``idle_w``. :raises SUTError: the
        engine does not answer, or knows nothing of its power."""
        return parse_energy(self._get("/sim/energy").text)

    def status(self) -> dict[str, Any]:
        """The engine's status page: load and pacing. :raises SUTError: the engine does not answer."""
        value: dict[str, Any] = self._get("/sim/status").json()
        return value

    def _get(self, path: str) -> httpx.Response:
        url = self.url.removesuffix("/v1") + path
        try:
            # trust_env: a proxy of the environment has no business with this loopback address.
            # verify: there is no TLS here, and to read the authorities takes longer than the answer.
            return httpx.get(url, timeout=30.0, trust_env=False, verify=False).raise_for_status()
        except httpx.HTTPError as error:
            raise self.does_not_answer(error, url) from error
