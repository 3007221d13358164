"""Wait for what another thread or process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pytest_llmbench.generator.loop_thread import PlanRunner
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord


def wait_for(happened: Callable[[], bool], what: str = "it has not happened in time") -> None:
    """Until it has happened. ``what`` is said where it does not; how soon is no test's subject."""
    deadline = time.monotonic() + 90
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def in_thread(
    generator: PlanRunner, plan: LoadPlan, on_record: OnRecord | None = None
) -> tuple[threading.Thread, list[Observation]]:
    """Run a plan in a thread of its own. The list gets its observation."""
    seen: list[Observation] = []
    thread = threading.Thread(target=lambda: seen.append(generator.run(plan, on_record)))
    thread.start()
    return thread, seen
