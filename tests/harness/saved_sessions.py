"""A storage folder with canned sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.store.baselines import Baseline, BaselineTest, Commit, save_baseline
from pytest_llmbench.store.files import machine_id
from pytest_llmbench.store.schema import OutputLengths

TTFT = "gates/test_chat.py::test_first_token"
BATCH = "gates/test_batch.py::test_tokens_per_second"
IDENTITY: dict[str, Any] = {
    "test": "ttft",
    "model": "tiny-7b",
    "api": "openai-chat",
    "endpoint": "https://host/v1",
    "seed": 42,
    "sut.software.engine": "vllm",
    "sut.software.version": "0.11.0",
    "host.machine": "x86_64",
    "host.cpu": "EPYC 7B13",
    "host.cpus": 16,
}
ByRun = Mapping[str, Sequence[float | None]]


def measured(by_run: ByRun, nodeid: str = TTFT, lengths: int = 64, **identity: Any) -> BaselineTest:
    """``sut__boundary="gateway"`` is the field ``sut.boundary`` of its identity."""
    points = {name: next((value for value in values if value is not None), None)
              for name, values in by_run.items()}  # fmt: skip
    return BaselineTest(
        nodeid=nodeid,
        test="ttft",
        identity={**IDENTITY, **{name.replace("__", "."): value for name, value in identity.items()}},
        runs=max(map(len, by_run.values())),
        by_run={name: list(values) for name, values in by_run.items()},
        metrics={
            name: Estimate(
                point=point, lower=None, upper=None, level=0.95, n=100, method="order statistics", unit="ms"
            )
            for name, point in points.items()
        },
        output_lengths=OutputLengths(tokens=[lengths], requests=[300]),
    )


def saved(storage: Path, name: str, *tests: BaselineTest, day: int = 1, machine: str | None = None) -> Path:
    return save_baseline(
        storage,
        Baseline(
            name=name,
            saved=f"2026-{1 + (day - 1) // 28:02d}-{1 + (day - 1) % 28:02d}T09:30:00.125Z",
            generator_version="0.1.0",
            machine=machine or machine_id(),
            commit=Commit(id=f"{day:x}".ljust(40, "a"), uncommitted=False),
            tests=list(tests),
        ),
    )


def around(level: float, spread: float = 0.01) -> list[float]:
    """Three runs with this geometric mean."""
    return [level * (1 - spread), level, level / (1 - spread)]


def nightly(storage: Path, levels: Sequence[float], metric: str = "ttft.p99") -> None:
    """A session a day, of three runs each."""
    for day, level in enumerate(levels, start=1):
        saved(storage, f"night-{day}", measured({metric: around(level)}), day=day)
