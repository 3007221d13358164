"""The five reference workloads as the draft defines them (section 4.3.2 and appendix A)."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks
from pytest_llmbench.compliance.dataset_identity import sent_again
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.regeneration import (
    REFERENCE_DIGESTS,
    reference_digest,
    regenerated,
)
from pytest_llmbench.compliance.request_bodies import against_workload
from pytest_llmbench.compliance.stored import has
from pytest_llmbench.model.records import IntColumn
from pytest_llmbench.model.request_fields import SAMPLING_FIELDS

check = Checks()

SHARE_TOLERANCE = 0.02
"""Realised shares lie within two points of the named ones."""
_UNIFORM_BOUNDS = ((128, 512), (64, 256))
_SKEWED_BOUNDS = ((32, 4096), (16, 2048))
_SHAREGPT = {"name": "ShareGPT", "subset": "vicuna_cleaned", "version": "2023-04-12"}
_REFERENCE_PERCENTILES = {"input": (156, 892, 2134), "output": (234, 789, 1567)}
_ZIPF_EXPONENT = 1.5
_CONTEXTS = 10
_LONG_OUTPUT_TOKENS = 256


@check("P-A.1-synthetic-uniform-params")
def synthetic_uniform(view: EvidenceView) -> Answer:
    complaint = _outside(view, *_UNIFORM_BOUNDS) or _not_plain(view)
    complaint = complaint or regenerated(view, by_reference=True)
    return view.answer(complaint is None, "lengths, ids and settings are those of the draft", complaint or "")


@check("P-A.1.4-generation-order")
def generation_order(view: EvidenceView) -> Answer:
    """Proved by a test, and checked here on the first hundred requests of seed 42."""
    view.capability("generation_order")
    wrong = [count for count, digest in REFERENCE_DIGESTS.items() if reference_digest(count) != digest]
    return view.answer(
        not wrong, "the generator reproduces the pinned digests", f"digest of {wrong} requests differs"
    )


@check("P-A.2-synthetic-skewed-params")
def synthetic_skewed(view: EvidenceView) -> Answer:
    complaint = _outside(view, *_SKEWED_BOUNDS) or _not_plain(view)
    complaint = complaint or regenerated(view, by_reference=True)
    return view.answer(complaint is None, "lengths, ids and settings are those of the draft", complaint or "")


def _planned(view: EvidenceView) -> tuple[IntColumn, IntColumn]:
    """Planned input and output lengths of every measured request."""
    records = view.records
    columns = {
        "record.requested_input_tokens": records.requested_input_tokens,
        "record.requested_max_tokens": records.requested_max_tokens,
    }
    missing = [name for name, column in columns.items() if not has(column).all()]
    if missing:
        raise NoEvidenceError(*missing)
    return records.requested_input_tokens, records.requested_max_tokens


def _outside(view: EvidenceView, input_bounds: tuple[int, int], output_bounds: tuple[int, int]) -> str | None:
    for side, lengths, (low, high) in zip(
        ("input", "output"), _planned(view), (input_bounds, output_bounds), strict=True
    ):
        view.note(f"planned_{side}_tokens", [int(lengths.min()), int(lengths.max())])
        if lengths.min() < low or lengths.max() > high:
            return (
                f"planned {side} lengths {lengths.min()} to {lengths.max()}, the draft says {low} to {high}"
            )
    return None


def _not_plain(view: EvidenceView) -> str | None:
    """Temperature 0, no stop sequences, no shared prefix, no system prompt."""
    temperature, stop = view.need_all("workload.temperature", "workload.stop")
    (fraction,) = view.need_fields("workload.prefix_sharing", "fraction")
    (system_prompt,) = view.need_fields("workload.content", "system_prompt.present")
    complaints = {
        f"temperature is {temperature!r}, not 0": temperature != 0,
        f"stop sequences {stop!r}": stop != [],
        f"prefix sharing {fraction!r}, not 0": fraction != 0,
        "there is a system prompt": system_prompt is not False,
    }
    found = next((complaint for complaint, holds in complaints.items() if holds), None)
    return found or against_workload(view, SAMPLING_FIELDS)


@check("P-A.3-conversation-params")
def conversation(view: EvidenceView) -> Answer:
    dataset = dict(zip(_SHAREGPT, view.need_fields("workload.dataset", *_SHAREGPT), strict=True))
    fraction, realised = view.need_fields("workload.prefix_sharing", "fraction", "realised_fraction")
    (tokens,) = view.need_fields("workload.content", "system_prompt.typical_tokens")
    _note_percentiles(view)
    complaints = {
        f"dataset {dataset}, the draft says {_SHAREGPT}": dataset != _SHAREGPT,
        f"{fraction!r} of the requests share the system prompt, not 0.5": fraction != 0.5,
        f"the realised share is {realised:.3f}": abs(realised - 0.5) > SHARE_TOLERANCE,
        f"the system prompt has {tokens} tokens, not 200": tokens != 200,
    }
    complaint = next((text for text, holds in complaints.items() if holds), None)
    complaint = complaint or sent_again(view) or against_workload(view, SAMPLING_FIELDS)
    return view.answer(
        complaint is None, "dataset, sharing and system prompt are those of the draft", complaint or ""
    )


def _note_percentiles(view: EvidenceView) -> None:
    """Realised P50, P95, P99 beside the draft's informative ones."""
    records = view.records
    for side, column in (("input", records.input_tokens), ("output", records.output_tokens)):
        known = column[has(column)]
        if len(known):
            view.note(f"{side}_tokens_p50_p95_p99", [float(p) for p in np.percentile(known, (50, 95, 99))])
            view.note(f"{side}_tokens_reference", list(_REFERENCE_PERCENTILES[side]))


@check("P-A.4-code-completion-params")
def code_completion(view: EvidenceView) -> Answer:
    contexts, realised, by_rank = view.need_fields(
        "workload.prefix_sharing", "contexts", "realised_fraction", "realised_by_rank"
    )
    law, parameters = view.need_fields("workload.output_length", "type", "params")
    complaints = {
        f"{len(contexts)} repository contexts, not {_CONTEXTS}": len(contexts) != _CONTEXTS,
        "a repository context is not 512 to 1024 tokens long": not all(512 <= n <= 1024 for n in contexts),
        f"the realised share is {realised:.3f}, not 0.8": abs(realised - 0.8) > SHARE_TOLERANCE,
        f"context frequencies {by_rank} do not follow the draft's Zipf law": not _is_zipf(by_rank),
        f"output {law} {parameters}": law != "lognormal"
        or (parameters.get("mu"), parameters.get("sigma")) != (4.0, 1.5),
    }
    complaint = next((text for text, holds in complaints.items() if holds), None)
    complaint = complaint or sent_again(view) or against_workload(view, SAMPLING_FIELDS)
    return view.answer(
        complaint is None, "contexts, sharing and output law are those of the draft", complaint or ""
    )


def _is_zipf(by_rank: list[int]) -> bool:
    """Frequencies against 1/k^1.5 normalised: none farther off than five standard deviations of its count."""
    if len(by_rank) != _CONTEXTS or sum(by_rank) == 0:
        return False
    total = sum(by_rank)
    weights = np.arange(1, _CONTEXTS + 1, dtype=np.float64) ** -_ZIPF_EXPONENT
    share = weights / weights.sum()
    spread = np.sqrt(total * share * (1 - share))
    return bool(np.all(np.abs(np.asarray(by_rank) - total * share) <= 5 * spread))


@check("P-A.5-long-context-params")
def long_context(view: EvidenceView) -> Answer:
    target, limit = _planned(view)
    (question_tokens,) = view.need_fields("workload.content", "question_tokens")
    (fraction,) = view.need_fields("workload.prefix_sharing", "fraction")
    counted = view.records.ok & has(view.records.input_tokens)
    off = np.abs(view.records.input_tokens - target) > np.maximum(16, target // 100)
    complaints = {
        f"{int((off & counted).sum())} prompts miss their target length": bool((off & counted).any()),
        f"the question has {question_tokens} tokens, not about 100": not 90 <= question_tokens <= 110,
        f"output limits other than {_LONG_OUTPUT_TOKENS}": bool((limit != _LONG_OUTPUT_TOKENS).any()),
        "documents share a prefix": fraction != 0,
    }
    complaint = next((text for text, holds in complaints.items() if holds), None)
    complaint = complaint or against_workload(view, SAMPLING_FIELDS)
    return view.answer(
        complaint is None, "document, question and output are those of the draft", complaint or ""
    )
