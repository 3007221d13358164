"""Drawing request sequences once more, to compare their digests with those of what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pytest_llmbench.compliance.evidence_view import EvidenceView, NoEvidenceError
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.session import LIVE_ANSWERS, answers_of
from pytest_llmbench.workloads.catalogue import WORKLOADS, reference_variant
from pytest_llmbench.workloads.long_context import LongContextWorkload
from pytest_llmbench.workloads.sequence import (
    drawn,
    drawn_sha256,
    sequence_sha256,
    slices_sha256,
    stretches_sha256,
)
from pytest_llmbench.workloads.stream import part_seed

REFERENCE_DIGESTS = {
    1: "b83712a07fe996849fb07fe02483087073c903d07f5e9a010c88129458a323f0",
    10: "d933fa214ebe9fef746e440e17f966623d52a197d6dd6ae8eec0decb7aa2636a",
    100: "aa2c099e10846e167bc132907b0da01d5715807166afd31a709906b812dbb226",
}
"""Synthetic-Uniform, seed 42: number of requests → digest (METHODOLOGY §4.3)."""

Part = tuple[Workload, int, int, int]
"""A workload, the first of its requests that was sent, how many, and the seed that they are drawn with."""


def regenerated(view: EvidenceView, *, by_reference: bool = False) -> str | None:
    """What differs from drawing all that was planned afresh; None when nothing does.

    Compared are the declared digest of the whole sequence and that of each run. ``by_reference``: drawn by
    the project's own generator of the reference workload, not by the workload that the run used. Prompts with
    live answers are drawn by nobody again, whatever their digest says.
    """
    if any(answers_of(run.plan.workload) != "recorded" for run in view.runs):
        return LIVE_ANSWERS
    declared, seed, count = view.need_all("workload.sequence_sha256", "workload.seed", "workload.n_requests")
    workload = _drawing(view, _declared_workload(view), by_reference)
    parts = _parts(view, workload, count, seed)
    again = _digest(parts)
    view.note("regenerated_sha256", again)
    strange = [name for name, own in view.fact("workload.parts", []) if own != part_seed(seed, name)]
    if strange:
        return f"the seed of {strange[0]!r} does not follow from seed {seed}"
    if again != declared or sum(length for _, _, length, _ in parts) != count:
        return f"drawing {count} requests of seed {seed} again gives another sequence"
    complaints = (_unlike(view, run, seed, by_reference) for run in view.runs)
    return next((complaint for complaint in complaints if complaint is not None), None)


def _declared_workload(view: EvidenceView) -> Workload:
    """The workload of the first run that is drawn from the classes the facts name; a run may have one class
    alone."""
    classes = view.fact("workload.classes")
    workloads = [run.plan.workload for run in view.runs]
    same = (each for each in workloads if each.specification().get("classes") == classes)
    return next(same, workloads[0])


def _parts(view: EvidenceView, workload: Workload, count: int, seed: int) -> list[Part]:
    """The slices that were sent; of the long-context test each has a length of its own."""
    slices = [(first, length) for first, length in view.fact("workload.slices", [[0, count]])]
    seeds = [own for _, own in view.fact("workload.parts", [])]
    if len(seeds) != len(slices):
        seeds = [seed] * len(slices)
    targets = view.fact("workload.targets")
    if targets is None or not isinstance(workload, LongContextWorkload) or len(targets) != len(slices):
        return [(workload, *part, own) for part, own in zip(slices, seeds, strict=True)]
    return [
        (workload.at_length(target), *part, own)
        for target, part, own in zip(targets, slices, seeds, strict=True)
    ]


def _digest(parts: list[Part]) -> str:
    workloads = [part[0] for part in parts]
    if all(workload == workloads[0] for workload in workloads):
        return stretches_sha256(workloads[0], [(seed, first, length) for _, first, length, seed in parts])
    try:
        return _remembered_digest(tuple(parts))
    except TypeError:  # unhashable: nothing to remember it by
        return _drawn_digest(parts)


@lru_cache(maxsize=64)
def _remembered_digest(parts: tuple[Part, ...]) -> str:
    return _drawn_digest(parts)


def _drawn_digest(parts: Sequence[Part]) -> str:
    return sequence_sha256(request for part in parts for request in drawn(*part))


def _unlike(view: EvidenceView, run: Observation, seed: int, by_reference: bool) -> str | None:
    """What one run sent otherwise than its plan says."""
    plan = run.plan
    if plan.seed != part_seed(seed, plan.part):
        return f"the run used seed {plan.seed}, which does not follow from the declared seed {seed}"
    if not run.sequence_sha256:
        raise NoEvidenceError("sequence_sha256 of the run")
    name = view.fact("workload.name")
    if plan.workload.name != name:
        return f"{plan.label!r} sent requests of {plan.workload.name}, not of {name}"
    workload = _drawing(view, plan.workload, by_reference)
    if run.sequence_sha256 != slices_sha256(workload, _sent(run), plan.seed):
        return f"the requests that {plan.label!r} planned are not those of seed {seed}"
    if not _cut_as_planned(run, workload):
        return f"users of {plan.label!r} cut other requests than its workload says, or after another time"
    return None


def _cut_as_planned(run: Observation, workload: Workload) -> bool:
    """Whether just those requests are left out of the figures that users were to cut, at the planned time."""
    records = run.records
    planned = np.full(len(records), MISSING, dtype=np.int64)
    if "cuts" in workload.specification():
        sent = (drawn(workload, first, count, run.plan.seed) for first, count in _sent(run))
        cuts = {each.index: each.cut_after_ns for some in sent for each in some}
        after_ns = (cuts.get(index) for index in records.index.tolist())
        planned = np.array([MISSING if ns is None else ns for ns in after_ns], dtype=np.int64)
    counted_so = np.where(
        planned == MISSING, records.judged, ~records.judged | records.has_outcome(Outcome.CANCELLED)
    )
    return bool((counted_so & (records.cut_after_ns == planned)).all())


def _sent(run: Observation) -> list[tuple[int, int]]:
    """(first, count) of the stretches of the sequence that were sent: several workers may leave gaps."""
    index = np.unique(run.records.index)
    gaps = np.flatnonzero(np.diff(index) > 1) + 1
    if not len(gaps):
        return [(run.plan.first, len(run.records))]
    return [(int(stretch[0]), len(stretch)) for stretch in np.split(index, gaps)]


def _drawing(view: EvidenceView, workload: Workload, by_reference: bool) -> Workload:
    """The workload itself, or the reference workload with its specification: request classes, a fixed output
    (AMB-11) and the lengths of Long Context are part of that."""
    if not by_reference:
        return workload
    name = view.need("workload.name")
    return reference_variant(name, workload.specification()) or reference_workload(name)


def reference_workload(name: str) -> Workload:
    """The project's own generator of a reference workload."""
    if name not in WORKLOADS:
        raise NoEvidenceError(f"a reference generator for {name}")
    return WORKLOADS[name]


def reference_digest(count: int) -> str:
    """Digest of the first ``count`` requests of Synthetic-Uniform with seed 42, as generated here."""
    return drawn_sha256(reference_workload("synthetic-uniform"), 0, count, 42)
