"""The executor of a LoadPlan: the load generator against a server, or the embedded engine in virtual time."""

from __future__ import annotations

from typing import Protocol

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord


class Executor(Protocol):
    """Plans in, observations out; one at a time."""

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation: ...

    def close(self) -> None: ...
