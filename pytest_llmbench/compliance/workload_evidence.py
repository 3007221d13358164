"""Evidence for a workload beyond what is declared about it.

Sequences are drawn once more and their digests compared with those of what was planned. A data set is held
against the digest that its publisher gives. And requests may ask for more than their workload says, and have
replies held to another limit (AMB-33).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_llmbench.compliance.evidence import EvidenceView, NoEvidenceError
from pytest_llmbench.metrics.server_side import (
    LEAST_READ_SHARE,
    MOST_CUT_SHORT,
    cached_input,
    cut_short,
    miscount,
    read_share,
)
from pytest_llmbench.model.facts import Facts, RequestFact, WarmupFact, WorkloadFact
from pytest_llmbench.model.numbers import percentage
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import LIVE_ANSWERS, Workload, meaning, present
from pytest_llmbench.workloads.catalogue import WORKLOADS, reference_variant
from pytest_llmbench.workloads.long_context import LongContextWorkload
from pytest_llmbench.workloads.sequence import (
    drawn,
    sequence_sha256,
    slices_sha256,
    stretches_sha256,
)
from pytest_llmbench.workloads.stream import part_seed, streamed


def further_fields(view: EvidenceView, run: Observation) -> Mapping[str, Any]:
    """The fields of every request of the run in addition to those of its workload."""
    own: Mapping[str, Any] | None = run.facts.value(RequestFact.VARIANT_BODY)
    whole: Mapping[str, Any] = view.fact(RequestFact.EXTRA_BODY, {})
    return whole if own is None else own


def against_workload(view: EvidenceView, names: Collection[str]) -> str | None:
    """A further field among ``names``, which the workload does not know of; None for none."""
    found = present(view.fact(RequestFact.EXTRA_BODY, {}), names)
    found += [name for run in view.evidence.runs for name in present(further_fields(view, run), names)]
    if not found:
        return None
    return f"request bodies had fields that the workload does not state: {', '.join(dict.fromkeys(found))}"


def bodies_differ(view: EvidenceView, one: Observation, other: Observation) -> str | None:
    """What the requests of two runs asked for differently; None for nothing."""
    first, second = (meaning(further_fields(view, run)) for run in (one, other))
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return f"other request bodies ({', '.join(names)})" if names else None


def held_to_another_limit(view: EvidenceView) -> str | None:
    """A run whose replies ended at a limit that nobody asked for; None where there is none."""
    for run in view.evidence.runs:
        ended = int(run.records.ok.sum())
        share = int(cut_short(run.records).sum()) / ended if ended else 0.0
        if share > MOST_CUT_SHORT:
            view.note("cut_short_share", share)
            of = f"{percentage(share)} of the replies of {run.plan.label!r}"
            return f"{of} ended at a limit below the requested one"
    return None


def read_in_part(view: EvidenceView) -> str | None:
    """A run of which the server counts so few input tokens that it cannot have read whole prompts."""
    for run in view.evidence.runs:
        share = read_share(run.records)
        if share is not None and share < LEAST_READ_SHARE:
            view.note("read_share", share)
            of = f"{percentage(share)} of the input tokens of {run.plan.label!r}"
            return f"the server counts {of}: prompts are cut"
    return None


def counted_wrongly(view: EvidenceView) -> str | None:
    """A run with more output tokens than were asked for, than text came, or than a vocabulary makes of it."""
    found = miscount(view.evidence.runs, view.result.facts)
    if found is None:
        return None
    view.note(found.kind, found.amount)
    return f"{found.run.plan.label!r}: {found.why}"


def unverified(view: EvidenceView) -> str | None:
    """Why the data set of this run may be another than it is called; None for the published one."""
    view.fact(WorkloadFact.DATASET)
    return doubt_about(view.result.facts, view.evidence.published_digests)


def doubt_about(facts: Facts, published: Mapping[str, frozenset[str]]) -> str | None:
    """The reason to doubt the data set of a reference workload, in words; None if there is none.

    Data that does not claim such a name cannot be mistaken for published data.
    """
    dataset = facts.value(WorkloadFact.DATASET) or {}
    name, digest = str(dataset.get("name")), dataset.get("file_sha256")
    if facts.value(WorkloadFact.STANDARD) is not True or name not in published or digest in published[name]:
        return None
    return f"{name} by name alone: its file (SHA-256 {digest}) has no published digest"


def sent_again(view: EvidenceView) -> str | None:
    """A data set of unknown identity that is too small for the run, so that its prompts were repeated."""
    entries = view.fact(WorkloadFact.INPUT_LENGTH, {}).get("params", {}).get("entries")
    sent = view.fact(WorkloadFact.N_REQUESTS)
    if unverified(view) is None or not isinstance(entries, int) or sent is None:
        return None
    return f"{entries} entries for {sent} requests: the data set is not whole" if entries < sent else None


MOST_UNSTATED_CACHED = 0.2
"""The largest share of the workload's own tokens that a prefix cache may serve beyond what is stated: chance
repeats of a data set, and templates counted by another vocabulary."""


def alike_and_repeated(view: EvidenceView) -> tuple[float, float]:
    """The share of a data set's entries that begin like another one, and the expected share of the requests
    that send an entry again, also one of the warm-up: parts draw by themselves. 0 without a data set."""
    sharing = view.fact(WorkloadFact.PREFIX_SHARING, {})
    entries = view.fact(WorkloadFact.INPUT_LENGTH, {}).get("params", {}).get("entries")
    distinct, sent = sharing.get("distinct_prompts", entries), view.fact(WorkloadFact.N_REQUESTS)
    if not isinstance(distinct, int) or distinct < 1 or sent is None or sent < 1:
        return 0.0, 0.0
    parts = [count for _, count in view.fact(WorkloadFact.SLICES, [[0, sent]])]
    unseen = [1 - min(1.0, count / distinct) for count in parts]
    before = 1 - min(1.0, (view.fact(WarmupFact.REQUESTS_OK) or 0) / distinct)
    first_sent = distinct * before * (1 - float(np.prod(unseen)))
    return sharing.get("alike_fraction", 0.0), max(0.0, 1 - first_sent / sent)


def own_input_cached(view: EvidenceView) -> float | None:
    """The share of the workload's own input tokens that came from a prefix cache, without what the server
    puts before every prompt (a chat template). Turns of sessions are to find their history. None if nothing
    tells."""
    found = cached_input(view.evidence.runs, of_turns=False)
    records = view.evidence.records
    alone = records.ok & (records.session == MISSING) & (records.requested_input_tokens > 0)
    own = int(records.requested_input_tokens[alone].sum())
    if found is None or not own:
        return None
    share = max(0.0, found.cached - max(0.0, found.asked - own)) / own
    view.note("own_input_cached", share)
    return share


WorkloadStretch = tuple[Workload, int, int, int]
"""A stretch of a workload: the workload, its first request that was sent, their number, and the seed that
they are drawn with."""


def regenerated(view: EvidenceView, *, by_reference: bool = False) -> str | None:
    """What differs from drawing all that was planned afresh; None when nothing does.

    Compared are the declared digest of the whole sequence and that of each run. ``by_reference``: drawn by
    the project's own generator of the reference workload, not by the workload that the run used. Prompts with
    live answers are drawn by nobody again, whatever their digest says.
    """
    if any(streamed(run.plan.workload).answers != "recorded" for run in view.runs):
        return LIVE_ANSWERS
    declared, seed, count = view.need_all(
        WorkloadFact.SEQUENCE_SHA256, WorkloadFact.SEED, WorkloadFact.N_REQUESTS
    )
    # That of the first run drawn from the classes the facts name: a run may have one class alone.
    classes = view.fact(WorkloadFact.CLASSES)
    workloads = [run.plan.workload for run in view.runs]
    same = (each for each in workloads if each.specification().get("classes") == classes)
    workload = _drawing(view, next(same, workloads[0]), by_reference)
    parts = _parts(view, workload, count, seed)
    again = _digest(parts)
    view.note("regenerated_sha256", again)
    strange = [name for name, own in view.fact(WorkloadFact.PARTS, []) if own != part_seed(seed, name)]
    if strange:
        return f"the seed of {strange[0]!r} does not follow from seed {seed}"
    if again != declared or sum(length for _, _, length, _ in parts) != count:
        return f"drawing {count} requests of seed {seed} again gives another sequence"
    complaints = (_unlike(view, run, seed, by_reference) for run in view.runs)
    return next((complaint for complaint in complaints if complaint is not None), None)


def _parts(view: EvidenceView, workload: Workload, count: int, seed: int) -> list[WorkloadStretch]:
    """The stretches of the sequence that were sent; in the long-context test each has a length of its own."""
    slices = [(first, length) for first, length in view.fact(WorkloadFact.SLICES, [[0, count]])]
    seeds = [own for _, own in view.fact(WorkloadFact.PARTS, [])]
    if len(seeds) != len(slices):
        seeds = [seed] * len(slices)
    targets = view.fact(WorkloadFact.TARGETS)
    if targets is None or not isinstance(workload, LongContextWorkload) or len(targets) != len(slices):
        return [(workload, *part, own) for part, own in zip(slices, seeds, strict=True)]
    return [
        (workload.at_length(target), *part, own)
        for target, part, own in zip(targets, slices, seeds, strict=True)
    ]


def _digest(parts: list[WorkloadStretch]) -> str:
    workloads = [part[0] for part in parts]
    if all(workload == workloads[0] for workload in workloads):
        return stretches_sha256(workloads[0], [(seed, first, length) for _, first, length, seed in parts])
    try:
        return _remembered_digest(tuple(parts))
    except TypeError:  # unhashable: nothing to remember it by
        return _drawn_digest(parts)


@lru_cache(maxsize=64)
def _remembered_digest(parts: tuple[WorkloadStretch, ...]) -> str:
    return _drawn_digest(parts)


def _drawn_digest(parts: Sequence[WorkloadStretch]) -> str:
    return sequence_sha256(request for part in parts for request in drawn(*part))


def _unlike(view: EvidenceView, run: Observation, seed: int, by_reference: bool) -> str | None:
    """What one run sent otherwise than its plan says."""
    plan = run.plan
    if plan.seed != part_seed(seed, plan.part):
        return f"the run used seed {plan.seed}, which does not follow from the declared seed {seed}"
    if not run.sequence_sha256:
        raise NoEvidenceError("sequence_sha256 of the run")
    name = view.fact(WorkloadFact.NAME)
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
    index = run.records.index
    if len(index) and bool((np.diff(index) == 1).all()):
        return [(run.plan.first, len(index))]
    index = np.unique(index)
    gaps = np.flatnonzero(np.diff(index) > 1) + 1
    if not len(gaps):
        return [(run.plan.first, len(run.records))]
    return [(int(stretch[0]), len(stretch)) for stretch in np.split(index, gaps)]


def _drawing(view: EvidenceView, workload: Workload, by_reference: bool) -> Workload:
    """The workload itself, or the reference workload with its specification: request classes, a fixed output
    (AMB-11) and the lengths of Long Context are part of that."""
    if not by_reference:
        return workload
    name = view.need(WorkloadFact.NAME)
    return reference_variant(name, workload.specification()) or reference_workload(name)


def reference_workload(name: str) -> Workload:
    """The project's own generator of a reference workload."""
    if name not in WORKLOADS:
        raise NoEvidenceError(f"a reference generator for {name}")
    return WORKLOADS[name]
