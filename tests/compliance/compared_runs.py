"""Complete comparisons of two systems: by results of both in one report, and by facts alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from complete_run import DISCLOSED, complete
from mutations import Mutation, stating
from situations import conversation_sibling

from pytest_llmbench.compliance.checks.reporting import CHECKLIST
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.facts import Facts, Origin

NAMES = ("ours", "theirs")
METRICS = ("ttft.p50", "ttft.p99")


def both(value: Any) -> dict[str, Any]:
    return dict.fromkeys(NAMES, value)


SAID: Mapping[str, Any] = {
    "comparison.claim": True,
    "comparison.metrics": list(METRICS),
    "comparison.runs": both(3),
    "comparison.tests": [
        {"metric": name, "name": "bootstrap of the difference", "interval": [-1, 1]} for name in METRICS
    ],
    "comparison.checklist": dict.fromkeys(CHECKLIST, "yes"),
    "comparison.normalisation": "per accelerator",
    "comparison.tokens_per_gpu_second": both(120.0),
    "comparison.tokens_per_dollar_hour": both({"value": 9.0, "dollars_per_hour": 4.0, "date": "2026-05-01"}),
}


@cache
def compared() -> Evidence:
    """Two results of the TTFT test: the same engine in two versions."""
    base = complete()
    metrics = {
        name: dataclasses.replace(estimate, lower=estimate.point, upper=estimate.point)
        for name, estimate in base.result.metrics.items()
    }
    ours = dataclasses.replace(base.result, metrics=metrics)
    theirs = dataclasses.replace(
        ours, facts=ours.facts | Facts.of(Origin.DECLARED, {"sut.software.version": "2.0"})
    )
    evidence = Evidence("ttft", ours, siblings=(theirs, conversation_sibling()), systems=2)
    own_siblings = evidence.siblings
    return dataclasses.replace(stating(SAID)(evidence), siblings=own_siblings)


def with_theirs(**facts: object) -> Mutation:
    """Other facts of the other system."""
    changed = Facts.of(Origin.DECLARED, {key.replace("__", "."): value for key, value in facts.items()})

    def mutate(evidence: Evidence) -> Evidence:
        theirs, *rest = evidence.siblings
        return dataclasses.replace(
            evidence, siblings=(dataclasses.replace(theirs, facts=theirs.facts | changed), *rest)
        )

    return mutate


@cache
def other_hardware() -> Evidence:
    """The other system has another accelerator."""
    return with_theirs(sut__hardware__accelerator_type="MI300X")(compared())


@cache
def other_tokenizer() -> Evidence:
    return with_theirs(tokenizer__name="llama-3")(compared())


@cache
def by_facts() -> Evidence:
    """The other system has no result here: the facts say what it was measured with."""
    load = {"load.model": "open", "load.arrival": "poisson", "load.rate_rps": 50.0}
    tokenizer = {key: DISCLOSED[key] for key in DISCLOSED if key.startswith("tokenizer.")}
    facts = {
        "comparison.sequences": both({"sequence_sha256": "0" * 64, "seed": 42, "schedule_sha256": "1" * 64}),
        "comparison.boundaries": both({"boundary": "application_gateway", "components": ["router"]}),
        "comparison.hardware": both({"accelerator_type": "H100", "accelerator_count": 8}),
        "comparison.loads": both(load),
        "comparison.tokenizers": both(tokenizer),
    }
    alone = dataclasses.replace(compared(), siblings=(conversation_sibling(),))
    return stating(facts)(alone)
