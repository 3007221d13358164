"""``--llm-workers``: the load generator of several processes, as the harness makes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.harness.approach import Approach
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.probes.endpoint import EndpointReport


def distributed(
    approach: Approach,
    seen: EndpointReport,
    *,
    on_record: Callable[[RequestRecord], None],
    on_progress: Callable[[Any], None],
) -> DistributedLoadGenerator:
    """As many workers as ``approach`` says, for the endpoint that was examined. None is started yet."""
    access, asking = approach.access, approach.asking
    return DistributedLoadGenerator(
        Address(seen.base_url, dict(approach.credentials.headers), access.ca_file, access.insecure),
        seen.api,
        workers=approach.workers,
        model=seen.model,
        prompt_form=asking.prompt_form,
        extra_body=asking.extra_body,
        on_record=on_record,
        on_progress=on_progress,
        count_text=True,
    )


def worker_notes(workers: int, *, replay: bool = False, cores: int | None = None) -> tuple[str, ...]:
    """What has to be said with every result of a session with ``workers``."""
    if workers == 1:
        return ()
    if replay:
        return (f"--llm-workers {workers} has no effect on a replay: in virtual time nothing is sent",)
    there = _usable_cores() if cores is None else cores
    if workers <= there:
        return ()
    return (
        f"{workers} worker processes share {there} core{'' if there == 1 else 's'}: they delay one another "
        "and what else runs on this host, see send lag and loop lag in the self-check",
    )


def _usable_cores() -> int:
    """The cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


__all__ = ["distributed", "worker_notes"]
