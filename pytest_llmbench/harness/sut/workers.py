"""``--llm-workers``: the load generator in processes of its own, and evidence of their clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.pool import WorkerPool
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.probed import Stoppable
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.probes.endpoint import EndpointReport
from pytest_llmbench.probes.host import host_facts
from pytest_llmbench.registry import named

FACT = "clock.workers"
"""Name of the fact with the offset and error, from the generator, of the clock of each machine that has
workers."""


class ClockedExecutor:
    """A load generator that adds the clocks of its workers to what is known of the SUT's clock."""

    def __init__(self, inner: Stoppable, known: Facts) -> None:
        """``known``: where the SUT is, seen from this machine, and how both clocks are kept."""
        self._inner = inner
        self._known = known

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        seen = self._inner.run(plan, on_record)
        return replace(seen, facts=seen.facts | clock_facts(seen.facts.value(FACT, ()), self._known))

    def stop(self, reason: str) -> None:
        self._inner.stop(reason)

    def close(self) -> None:
        self._inner.close()


def clock_facts(machines: Sequence[Mapping[str, Any]], known: Facts) -> Facts:
    """The facts about the clocks of the workers; none, where all workers read this machine's clock.

    Else the clocks are distributed. If the SUT reads this machine's clock, the round trips to the workers are
    all the evidence that is needed; if not, their error comes on top of that between this machine and it.
    """
    errors_ms = [machine["error_ms"] for machine in machines if machine["method"] != "one clock"]
    if not errors_ms:
        return Facts()
    values: dict[str, Any] = {"clock.topology": "distributed"}
    accuracy_ms = known.value("clock.accuracy_ms")
    if known.value("clock.topology") == "single_machine":
        values |= {"clock.method": "other", "clock.accuracy_ms": max(errors_ms)}
    elif isinstance(accuracy_ms, int | float):
        values["clock.accuracy_ms"] = accuracy_ms + max(errors_ms)
    return Facts.of(Origin.MEASURED, values, "round trips to the workers")


def _refuse_what_stays_here(sut_access: SUTAccess, seen: EndpointReport) -> None:
    """Raise SuiteError for settings that other machines do not have, and are not to have."""
    what = ""
    if sut_access.target(seen.base_url).unix_path:
        what = "a Unix socket is of this machine alone, and the load is to come from others"
    elif sut_access.access.client is not None:
        what = "a client certificate does not go to other machines, since its key would"
    if what:
        raise SuiteError(what, where="--llm-workers=ray", remedy="measure from this machine: leave it out")


def distributed(sut_access: SUTAccess, seen: EndpointReport, pool: WorkerPool | None) -> Stoppable:
    """A generator with as many workers as ``sut_access`` says, for the endpoint that was examined.

    ``pool``: those that are coming up on this machine, which it takes over.
    """
    access, asking = sut_access.access, sut_access.asking
    headers = dict(sut_access.credentials.headers)
    through = sut_access.proxy_to(seen.base_url)
    address = Address(
        seen.base_url, headers, access.ca_file, access.insecure, access.client, sut_access.http2, through
    )
    options: dict[str, Any] = {
        "model": seen.model,
        "prompt_form": asking.prompt_form,
        "extra_body": asking.extra_body,
        "on_progress": sut_access.on_progress,
        "count_text": True if sut_access.tokenizer is None else sut_access.tokenizer.file,
        "counts_early": not seen.counts_tokens,
        "declared": sut_access.declared,
        "session_header": sut_access.session_header,
    }
    if sut_access.ray is not None:
        _refuse_what_stays_here(sut_access, seen)
        made = named("executors", "ray")
        if made is None:
            raise SuiteError(
                "workers on a Ray cluster are an extra that this installation lacks",
                where="--llm-workers=ray",
                remedy="give a number of worker processes on this machine, or install the package with its "
                "extras",
            )
        actors = made(address, seen.api, cluster=sut_access.ray, **options)
        host = sut_access.target(seen.base_url).host
        return ClockedExecutor(actors, sut_access.told(host_facts(host), {}))
    workers, cpus = sut_access.workers, sut_access.cpus
    generator = DistributedLoadGenerator(address, seen.api, workers=workers, cpus=cpus, **options)
    if pool is not None:
        generator.take_over(pool)
    return generator
