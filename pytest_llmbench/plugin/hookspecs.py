"""Extension points for suites and other plugins.

Each hook shows an example for a ``conftest.py``; the examples are run by our own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.arrivals import ArrivalProcess
    from pytest_llmbench.model.request import Workload
    from pytest_llmbench.model.result import TestResult
    from pytest_llmbench.store.elsewhere import BaselineStore


def pytest_llmbench_workloads(config: pytest.Config) -> Mapping[str, Workload]:  # type: ignore[empty-body]
    """Workloads that markers of this suite may name, ``@llmbench.ttft(workload="short-chat")``.

    Example::

        from pytest_llmbench import SyntheticWorkload, Uniform

        def pytest_llmbench_workloads(config):
            return {"short-chat": SyntheticWorkload("short-chat", Uniform(16, 64), Uniform(8, 16))}
    """


def pytest_llmbench_arrivals(config: pytest.Config) -> Mapping[str, ArrivalProcess]:  # type: ignore[empty-body]
    """Arrival processes that markers of this suite may name, ``@llmbench.ttft(rate=20, arrival="bursts")``.

    The plugin calls each with the rate, the number of requests and the seed. It returns the instants in
    seconds from the start of the load: a sequence, or an iterator, which may be endless.

    Example::

        import random

        class Bursts:
            def __init__(self, size):
                self.size = size

            def __call__(self, rate, count, seed):
                gap_s = random.Random(seed).expovariate
                at_s = 0.0
                while True:
                    at_s += gap_s(rate / self.size)
                    yield from [at_s] * self.size

        def pytest_llmbench_arrivals(config):
            return {"bursts": Bursts(size=5)}
    """


def pytest_llmbench_stores(  # type: ignore[empty-body]
    config: pytest.Config,
) -> Mapping[str, Callable[[str], BaselineStore]]:
    """Stores of baselines that ``--llm-storage=NAME:WHERE`` may name. The plugin calls each with WHERE. It
    returns an object that lists, reads and adds sessions; ``example_suites/stores/`` keeps them in
    OpenSearch.

    Example::

        from pathlib import Path

        class Shared:
            def __init__(self, where):
                self.root = Path(where)

            def names(self):
                return [path.relative_to(self.root).as_posix() for path in self.root.glob("*/*.json")]

            def read(self, name):
                return (self.root / name).read_text("utf-8")

            def add(self, name, text):
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    with path.open("x", encoding="utf-8") as file:
                        file.write(text)
                except FileExistsError:
                    return False
                return True

        def pytest_llmbench_stores(config):
            return {"shared": Shared}
    """


def pytest_llmbench_disclosure(  # type: ignore[empty-body]
    config: pytest.Config, endpoint: str
) -> Mapping[str, Any]:
    """Facts about the SUT, in addition to those of ``--llm-sut``, by their dotted names.

    Example::

        import os

        def pytest_llmbench_disclosure(config, endpoint):
            return {"sut.software.version": os.environ.get("ENGINE_COMMIT", "unknown")}
    """


def pytest_llmbench_variants(  # type: ignore[empty-body]
    config: pytest.Config, endpoint: str
) -> Mapping[str, Mapping[str, Any]]:
    """SUT variants, in addition to those of ``--llm-sut``, by name; each is a table like ``[variants.NAME]``
    there.

    Example::

        def pytest_llmbench_variants(config, endpoint):
            return {
                "low_priority": {"request": {"extra_body": {"priority": 10}}},
            }
    """


def pytest_llmbench_result(item: pytest.Item, result: TestResult) -> None:
    """Called with every judged result, before the body of the test runs.

    Example::

        def pytest_llmbench_result(item, result):
            print(item.name, result.ttft.p99.point)
    """


def pytest_llmbench_events(config: pytest.Config, events: Sequence[Mapping[str, Any]]) -> None:
    """Called after each load with its events in the order of time, as ``--llm-records=events`` writes them;
    for a long load several times, each time with a part of the events.

    Example::

        def pytest_llmbench_events(config, events):
            ended = [each["outcome"] for each in events if each["event"] == "request_completed"]
            print(sum(outcome != "ok" for outcome in ended), "requests failed")
    """
