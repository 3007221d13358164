"""Drawing a request sequence once more, to compare its digest with that of the requests that were planned."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import cast

from pytest_llmbench.compliance.look import Look, NoEvidenceError
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.catalogue import WORKLOADS
from pytest_llmbench.workloads.sequence import sequence_sha256

REFERENCE_DIGESTS = {
    1: "b83712a07fe996849fb07fe02483087073c903d07f5e9a010c88129458a323f0",
    10: "d933fa214ebe9fef746e440e17f966623d52a197d6dd6ae8eec0decb7aa2636a",
    100: "aa2c099e10846e167bc132907b0da01d5715807166afd31a709906b812dbb226",
}
"""Synthetic-Uniform, seed 42: number of requests → digest (METHODOLOGY §4.3)."""


def regenerated(look: Look, workload: Workload) -> str | None:
    """What differs from drawing the run's sequence afresh from ``workload``; None when nothing does.

    Compared are the declared digest of the whole sequence and that of each run's part of it.
    """
    declared, seed, count = look.need_all("workload.sequence_sha256", "workload.seed", "workload.n_requests")
    again = _digest(workload, seed, 0, count)
    look.note("regenerated_sha256", again)
    if again != declared:
        return f"drawing {count} requests of seed {seed} again gives another sequence"
    for run in look.runs:
        plan = run.plan
        if plan.seed != seed:
            return f"the run used seed {plan.seed}, the declared seed is {seed}"
        if not run.sequence_sha256:
            raise NoEvidenceError("sequence_sha256 of the run")
        if run.sequence_sha256 != _digest(workload, seed, plan.first, plan.requests):
            return f"the requests that {plan.label!r} planned are not those of seed {seed}"
    return None


def reference_workload(name: str) -> Workload:
    """The project's own generator of a reference workload."""
    if name not in WORKLOADS:
        raise NoEvidenceError(f"a reference generator for {name}")
    return WORKLOADS[name]


def reference_digest(count: int) -> str:
    """Digest of the first ``count`` requests of Synthetic-Uniform with seed 42, as generated here."""
    return _digest(reference_workload("synthetic-uniform"), 42, 0, count)


def _digest(workload: Workload, seed: int, first: int, count: int) -> str:
    try:
        hash(workload)
    except TypeError:
        return _drawn(workload, seed, first, count)
    return _remembered(cast(Hashable, workload), seed, first, count)


@lru_cache(maxsize=64)
def _remembered(workload: Workload, seed: int, first: int, count: int) -> str:
    # 10,000 synthetic requests take a third of a second, and several entries and tests ask for the same.
    return _drawn(workload, seed, first, count)


def _drawn(workload: Workload, seed: int, first: int, count: int) -> str:
    # A sequence is a prefix of every longer one, so a part of it can be drawn without the rest that follows.
    return sequence_sha256(workload.requests(first + count, seed)[first:])


__all__ = ["REFERENCE_DIGESTS", "reference_digest", "reference_workload", "regenerated"]
