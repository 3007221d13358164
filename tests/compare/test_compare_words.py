"""Words decide nothing: estimates whose method says something else are judged and shown alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pytest_llmbench
from pytest_llmbench.compare.gate import judge
from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.jobs import job_metrics
from pytest_llmbench.metrics.overload import as_overloaded
from pytest_llmbench.metrics.summary import GivenUp, distribution
from pytest_llmbench.model import numbers
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason, by_run
from pytest_llmbench.model.judgement import Overload
from pytest_llmbench.model.numbers import Figure
from pytest_llmbench.model.objective import Objective

OTHER = "Lorem ipsum."
OLD_WORDS = (
    "a lower bound: 3 requests that were given up on are above it; range exhausted",
    "observed",
    "bracket of the search, observed, not measurable: bound reached, crude ends",
)
"""Phrases by which the gate, the audit and reports once decided."""
OVERLOAD = Overload(20.0, 15.0, 0.25, 0, ("ttft",))
_SEARCHES_WORDS = re.compile(
    r"""\bin \w+\.(method|message)\b|\.(method|message)\.(startswith|endswith|r?partition|split)\b"""
    r"""|\.method [!=]=|\["(method|message)"\]\)?\.(startswith|endswith|r?partition)"""
)


def estimates() -> dict[str, Estimate]:
    """Metrics of all kinds and reasons."""
    samples = np.random.default_rng(1).lognormal(3, 0.5, 400)
    found = distribution("ttft", samples, given_up=GivenUp(np.full(3, 500.0), np.empty(0)))
    found |= distribution("e2e", samples[:60])
    rate = Estimate(20.0, 19.0, 21.0, 0.95, 400, "ratio", "req/s")
    found |= {"request_throughput": replace(rate, given_up=3), "max_request_throughput": rate}
    found["sustainable_rate"] = replace(rate, kind=EstimateKind.BRACKET)
    for number, reason in enumerate(Reason):
        found[f"completion_rate[{number}]"] = rate.at_least(reason, "why")
        found[f"goodput[{number}]"] = Estimate.undefined(unit="req/s", method="why", reason=reason)
    return found


def without_words(metrics: Mapping[str, Estimate]) -> dict[str, Estimate]:
    return {name: replace(each, method="") for name, each in metrics.items()}


def outcomes(metrics: Mapping[str, Estimate]) -> list[Any]:
    """Verdicts, what else is made of the metrics, and how those are shown that have a value."""
    told: list[Any] = []
    for name, each in metrics.items():
        for limit in (0.5 * (each.point or 1.0), each.point or 1.0, 2.0 * (each.point or 1.0)):
            for objective in (
                Objective(name, "<=", limit, each.unit),
                Objective(name, ">=", limit, each.unit),
            ):
                judged = judge(objective, each)
                reason = judged.reason.replace(f"({each.method})", "")
                told.append((name, objective.op, limit, judged.verdict, judged.growth, reason))
        if each.defined:
            told.append([Figure(name, each, part).text for part in ("value", "interval", "both")])
        told.append(replace(change(metrics["e2e.p50"], replace(each, unit="ms")), method=""))
    told += [without_words(job_metrics(metrics, {}, {})), without_words(as_overloaded(metrics, OVERLOAD))]
    return [*told, by_run([metrics, metrics])]


@pytest.mark.parametrize("words", [OTHER, *OLD_WORDS])
def test_no_word_of_a_method_decides(words: str) -> None:
    metrics = estimates()
    assert outcomes({name: replace(each, method=words) for name, each in metrics.items()}) == outcomes(
        metrics
    )


@pytest.mark.parametrize("reason", Reason)
def test_an_undefined_metric_is_told_by_its_reason(reason: Reason) -> None:
    metric = {"point": None, "reason": reason.value, "method": OTHER}
    assert numbers.undefined(metric).endswith(f": {OTHER}")


def test_nobody_looks_for_words_in_a_method_or_message() -> None:
    root = Path(pytest_llmbench.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in root.rglob("*.py")
        if path.parts[-3:-1] != ("extras", "grpc")  # the texts of a server, which has no other way to say it
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if _SEARCHES_WORDS.search(line)
    ]
    assert found == []
