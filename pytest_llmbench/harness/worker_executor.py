"""``--llm-workers``: the load generator in processes of its own, as the harness makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_llmbench.generator.ray.generator import RayLoadGenerator
from pytest_llmbench.generator.ray.spec import RaySpec
from pytest_llmbench.generator.workers.affinity import allowed_cpus
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.harness.approach import Approach
from pytest_llmbench.harness.probed import Stoppable
from pytest_llmbench.harness.worker_clocks import ClockedExecutor
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.probes.endpoint import EndpointReport
from pytest_llmbench.probes.host import host_facts


def distributed(
    approach: Approach,
    seen: EndpointReport,
    *,
    on_record: Callable[[RequestRecord], None],
    on_progress: Callable[[Any], None],
) -> Stoppable:
    """As many workers as ``approach`` says, for the endpoint that was examined. None is started yet."""
    access, asking = approach.access, approach.asking
    address = Address(seen.base_url, dict(approach.credentials.headers), access.ca_file, access.insecure)
    options: dict[str, Any] = {
        "model": seen.model,
        "prompt_form": asking.prompt_form,
        "extra_body": asking.extra_body,
        "on_record": on_record,
        "on_progress": on_progress,
        "count_text": True,
        "counts_early": not seen.counts_tokens,
    }
    if approach.ray is not None:
        generator = RayLoadGenerator(address, seen.api, cluster=approach.ray, **options)
        host = approach.target(seen.base_url).host
        return ClockedExecutor(generator, approach.told(host_facts(host), {}))
    return DistributedLoadGenerator(
        address, seen.api, workers=approach.workers, cpus=approach.cpus, **options
    )


def worker_notes(
    workers: int | RaySpec, *, replay: bool = False, cores: int | None = None
) -> tuple[str, ...]:
    """What has to be said with every result of a session with ``workers``."""
    if workers == 1 or (replay and workers == 0):
        return ()
    if replay:
        return (f"--llm-workers {workers} has no effect on a replay: in virtual time nothing is sent",)
    if workers == 0:
        return (
            "the load was measured within pytest's own process (--llm-workers 0): its plugins, coverage, the "
            "suite's threads and garbage share a core with the measuring loop",
        )
    if isinstance(workers, RaySpec):
        return ()
    there = len(allowed_cpus()) if cores is None else cores
    if workers <= there:
        return ()
    return (
        f"{workers} worker processes share {there} core{'' if there == 1 else 's'}: they delay one another "
        "and what else runs on this host, see send lag and loop lag in the self-check",
    )


__all__ = ["distributed", "worker_notes"]
