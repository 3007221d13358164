"""The load generator on a Ray cluster: the same public surface as the one of a single process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_llmbench.generator.ray.pool import RayWorkerPool
from pytest_llmbench.generator.ray.spec import RaySpec
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.generator.workers.roles import WorkerPool
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord


class RayLoadGenerator(DistributedLoadGenerator):
    """A :class:`DistributedLoadGenerator` with its workers on the nodes of a Ray cluster.

    The cluster is joined, or started, with the first plan. All instants are on this machine's clock; where a
    worker's machine has another, its offset is measured before and after each plan, and stands with its error
    in the fact ``clock.workers``. More than 10 ms of error, or a clock that jumped, voids the run. A lost
    actor or node voids it too; what the others measured is in the records, and what the lost one had sent
    here, to about a second before.
    """

    margin_ns = 500_000_000

    def __init__(self, address: Address, dialect: str, *, cluster: RaySpec, **options: Any) -> None:
        """``options`` are those of DistributedLoadGenerator, except ``workers`` and ``cpus``.

        Raises SuiteError.
        """
        super().__init__(address, dialect, workers=cluster.workers or 1, **options)
        self.cluster = cluster
        self._ray_pool = RayWorkerPool(self._setup, cluster)
        self._pool = self._ray_pool

    def _new_pool(self) -> WorkerPool:
        self._ray_pool = RayWorkerPool(self._setup, self.cluster)
        return self._ray_pool

    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        if not plan.mistakes():
            self._pool = self._pool or self._new_pool()
            self.workers = self._ray_pool.workers
        return self._witnessed(super()._run(plan, on_record))

    def _refuse_too_much(self, plan: LoadPlan, mean_tokens: float) -> None:
        """Ports and descriptors are those of the workers' machines: each worker sees to its own."""

    def _witnessed(self, seen: Observation) -> Observation:
        clocks = self._ray_pool.clocks()
        if clocks is None:
            return seen
        facts = Facts.of(Origin.MEASURED, {"clock.workers": list(clocks.told)}, "round trips to the workers")
        return replace(seen, facts=seen.facts | facts, interrupted=seen.interrupted or clocks.mistake)
