"""One context length of the scaling test: its figures, and whether the server really processed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pytest_llmbench.methodology.levels import FAMILIES, Seen
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.scaling import length_group, ms_per_1k_tokens
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.outcome import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.workloads.sequence import drawn, sequence_sha256

CUT_SHARE = 0.9
"""Fewer of the tokens asked for, by the server's own count: it cut the prompt. The words of the documents are
one token each in the common vocabularies, and the template only adds to them."""
GROWTH_SHARE = 0.5
"""From one length to the next the server's count grows by at least this share of what was asked for."""
_REFUSALS = (400, 413, 422)


@dataclass(frozen=True)
class Measured:
    """One length. Its level's metrics are of all its requests: a closed loop of one has no ramp-up."""

    length: int
    seen: Seen
    ms_per_1k: Estimate

    @property
    def records(self) -> Records:
        return self.seen.records

    @property
    def metrics(self) -> Mapping[str, Estimate]:
        return self.seen.level.metrics

    @property
    def mean_input_tokens(self) -> float | None:
        lengths = length_group(self.records).lengths
        return float(np.mean(lengths)) if len(lengths) else None

    def facts(self) -> dict[str, Any]:
        """What the audit reads of it."""
        points = {name: self.metrics[name].point for name in ("ttft.mean", "ttft.p50", "ttft.p95")}
        return {
            "length": self.length,
            "concurrency": self.seen.level.concurrency,
            "requests_ok": int(self.records.ok.sum()),
            "mean_input_tokens": self.mean_input_tokens,
            "ttft_mean_ms": points["ttft.mean"],
            "ttft_p50_ms": points["ttft.p50"],
            "ttft_p95_ms": points["ttft.p95"],
            "ms_per_1k_tokens": self.ms_per_1k.point,
            "output_tok_s": self.metrics["output_token_throughput"].point,
            "input_tok_s": self.metrics["input_token_throughput"].point,
        }


def measured_at(length: int, seen: Seen, *, seed: int) -> Measured:
    records = seen.records
    metrics: dict[str, Estimate] = {}
    for family in FAMILIES:
        metrics |= distribution(family, latency.FAMILIES[family](records))
    metrics |= rates([seen.observation], seed=seed)
    return Measured(length, seen.with_(metrics=metrics), ms_per_1k_tokens(records, seed=seed))


def is_refused(records: Records) -> bool:
    """Not one success, and the server turned every request down as too long or malformed."""
    return len(records) > 0 and not records.ok.any() and bool(np.isin(records.http_status, _REFUSALS).all())


def truncated_lengths(levels: Sequence[Measured]) -> frozenset[int]:
    """Lengths of which the server counts clearly fewer input tokens than were sent, or hardly more than of
    the length before. Only where the server counts: our own count says nothing about what it processed."""
    counted = [(m.length, tokens) for m in levels if (tokens := _server_count(m.records)) is not None]
    cut = {length for length, tokens in counted if tokens < CUT_SHARE * length}
    for (length, tokens), (longer, more) in pairwise(counted):
        if more - tokens < GROWTH_SHARE * (longer - length):
            cut.add(longer)
    return frozenset(cut)


def _server_count(records: Records) -> float | None:
    """Mean input tokens by the server's own usage."""
    own = [TOKEN_SOURCES.index(TokenSource.SERVER_USAGE)]
    told = records.ok & np.isin(records.token_source, own) & (records.input_tokens != MISSING)
    return float(np.mean(records.input_tokens[told])) if told.any() else None


def truncation_finding(truncated: Sequence[Measured]) -> Finding:
    """Not ok where prompts were cut: the run did not measure the lengths that it names."""
    if not truncated:
        return Finding(
            "context_truncated", ok=True, voids=True, message="the server processed every length whole"
        )
    named = ", ".join(f"{m.length} (counted {_server_count(m.records):.0f})" for m in truncated)
    return Finding(
        "context_truncated",
        ok=False,
        voids=True,
        message=f"the server cut prompts of {named} tokens short: raise its limit, or leave them out",
    )


def sequence_facts(levels: Sequence[Measured]) -> dict[str, Any]:
    """``workload.*`` of the whole test: its sequence is that of the lengths, one after another.

    ``workload.targets[i]`` is the length of the requests in ``workload.slices[i]``; the digest is of all of
    them together.
    """
    plans = [m.seen.observation.plan for m in levels]
    parts = [(plan, len(m.records)) for plan, m in zip(plans, levels, strict=True)]
    requests = (
        request for plan, count in parts for request in drawn(plan.workload, plan.first, count, plan.seed)
    )
    return {
        "workload.n_requests": sum(count for _, count in parts),
        "workload.targets": [m.length for m in levels],
        "workload.slices": [[plan.first, count] for plan, count in parts],
        "workload.parts": [[plan.part, plan.seed] for plan, _ in parts],
        "workload.sequence_sha256": sequence_sha256(requests),
    }


__all__ = [
    "CUT_SHARE",
    "GROWTH_SHARE",
    "Measured",
    "is_refused",
    "measured_at",
    "sequence_facts",
    "truncated_lengths",
    "truncation_finding",
]
