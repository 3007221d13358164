"""``--llm-workers``: the load generator in processes of its own, and evidence of their clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.pool import WorkerPool
from pytest_llmbench.harness.execution import Around, Stoppable, with_facts
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.model.facts import ClockFact, Facts, Origin
from pytest_llmbench.probes.endpoint import EndpointReport
from pytest_llmbench.probes.host import host_facts
from pytest_llmbench.registry import named


def clocked(inner: Stoppable, known: Facts) -> Around:
    """A load generator that adds the clocks of its workers to what is known of the SUT's clock: where the SUT
    is, seen from this machine, and how both clocks are kept."""
    return with_facts(inner, lambda _, seen: clock_facts(seen.facts.value(ClockFact.WORKERS, ()), known))


def clock_facts(machines: Sequence[Mapping[str, Any]], known: Facts) -> Facts:
    """The facts about the clocks of the workers; none, where all workers read this machine's clock.

    Else the clocks are distributed. If the SUT reads this machine's clock, the round trips to the workers are
    all the evidence that is needed; if not, their error comes on top of that between this machine and it.
    """
    errors_ms = [machine["error_ms"] for machine in machines if machine["method"] != "one clock"]
    if not errors_ms:
        return Facts()
    values: dict[str, Any] = {ClockFact.TOPOLOGY: "distributed"}
    accuracy_ms = known.value(ClockFact.ACCURACY_MS)
    if known.value(ClockFact.TOPOLOGY) == "single_machine":
        values |= {ClockFact.METHOD: "other", ClockFact.ACCURACY_MS: max(errors_ms)}
    elif isinstance(accuracy_ms, int | float):
        values[ClockFact.ACCURACY_MS] = accuracy_ms + max(errors_ms)
    return Facts.of(Origin.MEASURED, values, "round trips to the workers")


def distributed(sut_access: SUTAccess, seen: EndpointReport, pool: WorkerPool | None) -> Stoppable:
    """A generator with as many workers as ``sut_access`` says, for the endpoint that was examined.

    ``pool``: those that are coming up on this machine, which it takes over.
    """
    address = sut_access.address(seen.base_url)
    options: dict[str, Any] = {
        **sut_access.of_requests,
        "model": seen.model,
        "count_text": True if sut_access.tokenizer is None else sut_access.tokenizer.file,
        "counts_early": not seen.counts_tokens,
    }
    if (cluster := sut_access.ray) is not None:
        where, what = "--llm-workers=ray", ""
        if address.target().unix_path:
            what = "other machines cannot reach a Unix socket of this one"
        elif sut_access.access.client is not None:
            what = "a client certificate is not sent to other machines, since its key would go with it"
        if what:
            raise SuiteError(what, where=where, remedy="measure from this machine: leave it out")
        made = named("executors", "ray")
        if made is None:
            raise SuiteError(
                "workers on a Ray cluster need an extra that is not installed",
                where=where,
                remedy="give a number of worker processes on this machine, or install the package with its "
                "extras",
            )
        actors = made(address, seen.api, cluster=cluster, **options)
        host = address.target().host
        return clocked(actors, sut_access.told(host_facts(host), {}))
    workers, cpus = sut_access.workers, sut_access.settings.cpus
    generator = DistributedLoadGenerator(address, seen.api, workers=workers, cpus=cpus, **options)
    if pool is not None:
        generator.take_over(pool)
    return generator
