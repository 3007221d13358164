"""The serving engine's own metrics, read around and during every measured load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from pytest_llmbench.endpoint_urls import is_grpc
from pytest_llmbench.harness.execution.drive import Executor
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.engine_metrics import EngineMetricsProbe, page_urls

FACT = "engine.metrics"
"""Name of the fact with the URL of the metrics page, or the reason why there is nothing to read."""


class Probe(Protocol):
    """The probe of one metrics page."""

    def before(self) -> str | None: ...

    def start(self) -> None: ...

    def stop(self) -> EngineReadings | None: ...

    def close(self) -> None: ...


class Stoppable(Executor, Protocol):
    """A load generator that can be stopped."""

    def stop(self, reason: str) -> None: ...


class ProbedExecutor:
    """An executor whose Observations of measured load carry the engine's own metrics."""

    def __init__(self, inner: Stoppable, probe: Callable[[], Probe], absent: str | None = None) -> None:
        """``probe`` makes the probe at the first measured load. If there is no page, it is not asked
        again. ``absent``: why there is none, where that is known."""
        self._inner = inner
        self._make = probe
        self._probe: Probe | None = None
        self._absent = absent

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        if plan.phase is not Phase.MEASURE:
            return self._inner.run(plan, on_record)
        readings: EngineReadings | None = None
        probe = self._ready()
        if probe is None:
            seen = self._inner.run(plan, on_record)
        else:
            probe.start()
            try:
                seen = self._inner.run(plan, on_record)
            finally:
                readings = probe.stop()
        said = readings.source if readings is not None else f"not measurable: {self._absent}"
        facts = Facts.of(Origin.DETECTED, {FACT: said}, "metrics page of the engine")
        return replace(seen, engine=readings, facts=seen.facts | facts)

    def stop(self, reason: str) -> None:
        """End the running load early, from any thread."""
        self._inner.stop(reason)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            if self._probe is not None:
                self._probe.close()
                self._probe = None

    def _ready(self) -> Probe | None:
        """The probe, after it has read the counters before the load; None where there is no page."""
        if self._absent is not None:
            return None
        if self._probe is None:
            self._probe = self._make()
        self._absent = self._probe.before()
        return self._probe if self._absent is None else None


def with_engine_metrics(
    executor: Stoppable, base_url: str, access: Access, declared: Mapping[str, str] | None = None
) -> ProbedExecutor:
    """``executor``, with ``Observation.engine`` filled from the server's metrics page, where it has one.

    ``declared``: series of the page that the SUT file names, by our names.
    """
    absent = "a gRPC server has no metrics page" if is_grpc(base_url) else None
    return ProbedExecutor(
        executor, lambda: EngineMetricsProbe(page_urls(base_url), access, declared=declared), absent
    )
