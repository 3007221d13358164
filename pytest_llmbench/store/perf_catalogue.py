"""``config.json`` of inference-perf's workload catalogue: length distributions, for single requests.

An entry gives each length by mean, standard deviation, minimum, maximum and the kind of its law. What mean
and deviation do not define (``bimodal``) and what was only observed (no kind) is refused: nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.store.traces.request import instant_of, number_of, refuse, tokens_of
from pytest_llmbench.workloads.lengths import Choice, Fixed, LengthLaw, LogNormal, Normal, Uniform

QUANTILES: Final = 200
"""Number of equally likely lengths that represent a distribution which has no form of its own here."""
INPUT, OUTPUT, SYSTEM = "input_sequence_length", "output_sequence_length", "system_prompt"

_Quantile = Callable[[float], float]


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of the catalogue. ``input_tokens``: lengths without the system prompt."""

    input_tokens: LengthLaw
    output_tokens: LengthLaw
    system_tokens: int
    """Length of the system prompt with which all requests begin; 0 for none."""
    told: tuple[str, ...]
    """Messages on what is left out, and on the limits that the file suggests."""


def is_catalogue(content: object) -> bool:
    """Whether a JSON document is such an entry."""
    return isinstance(content, Mapping) and INPUT in content and OUTPUT in content


def read_catalogue(path: Path) -> CatalogueEntry:
    """Read the entry in a file. SuiteError with every mistake in it."""
    try:
        content = parse_json(read_bytes(path, SMALL_BYTES))
    except OSError as error:
        raise SuiteError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="check the path"
        ) from error
    except ValueError as error:
        raise SuiteError(f"not JSON: {error}", where=str(path), remedy="check the file") from error
    if not is_catalogue(content):
        remedy = f"give the config.json of an entry, with {INPUT} and {OUTPUT}"
        raise SuiteError(
            "is not an entry of inference-perf's workload catalogue", where=str(path), remedy=remedy
        )
    return _entry(content, str(path))


def _entry(content: Mapping[str, Any], where: str) -> CatalogueEntry:
    mistakes: list[str] = []
    system = 0
    if content.get(SYSTEM) is not None:
        system = round(_noting(mistakes, SYSTEM, lambda: number_of(_table(content, SYSTEM), "mean")) or 0)
    whole = _noting(mistakes, INPUT, lambda: _law(_table(content, INPUT)))
    output = _noting(mistakes, OUTPUT, lambda: _law(_table(content, OUTPUT)))
    if not 0 <= system <= 10_000_000:
        mistakes.append(f"{SYSTEM}: mean is {system}")
    refuse(mistakes, where)
    assert whole is not None
    assert output is not None
    # The system prompt is part of the input.
    after = _chosen(lambda q: whole[1](q) - system) if system else whole[0]
    return CatalogueEntry(after, output[0], system, tuple(_told(content)))


def _noting(mistakes: list[str], name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (ValueError, SuiteError) as error:
        mistakes.append(f"{name}: {error}")
        return None


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content[name]
    if not isinstance(found, Mapping):
        raise ValueError(f"it is {shown(found)}: give mean, standard_deviation, min, max, distribution_type")
    return found


def _law(table: Mapping[str, Any]) -> tuple[LengthLaw, _Quantile]:
    """The length distribution, and its quantile function."""
    kind = table.get("distribution_type")
    low, high = max(1, tokens_of(table, "min")), tokens_of(table, "max")
    mean, deviation = number_of(table, "mean"), instant_of(table, "standard_deviation")
    if high < low or not low <= mean <= high:
        raise ValueError(f"min {low}, mean {trimmed(mean)} and max {high} are not in order")
    if low == high or (deviation == 0 and kind in ("normal", "log_normal", "fixed", "constant")):
        return Fixed(round(mean)), lambda _: mean

    def within(value: float) -> float:
        return min(max(value, low), high)

    if kind == "normal":
        normal = NormalDist(mean, deviation)
        return Normal(mean, deviation, low, high), lambda q: within(normal.inv_cdf(q))
    if kind in ("log_normal", "lognormal"):
        variance = math.log1p((deviation / mean) ** 2)
        mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
        logs = NormalDist(mu, sigma)
        return LogNormal(mu, sigma, low, high), lambda q: within(math.exp(logs.inv_cdf(q)))
    if kind == "uniform":
        return Uniform(low, high), lambda q: low + q * (high - low)
    if kind == "exponential":

        def quantile(q: float) -> float:
            return within(low - math.log1p(-q) * (mean - low))

        return _chosen(quantile), quantile
    if kind is None:
        raise ValueError("it has no distribution_type: observed figures alone do not define a distribution")
    raise ValueError(f"distribution_type is {shown(kind)}: a mean and a deviation do not define it")


def _chosen(quantile: _Quantile) -> Choice:
    return Choice(tuple(max(1, round(quantile((at + 0.5) / QUANTILES))) for at in range(QUANTILES)))


def _told(content: Mapping[str, Any]) -> list[str]:
    found = []
    turns = content.get("number_of_turns")
    if content.get("multi_turn") is True and isinstance(turns, Mapping):
        found.append(
            f"sent as single requests: turns ({turns.get('mean')} on average) and pauses are left out"
        )
    metadata = content.get("metadata")
    slos = metadata.get("slos") if isinstance(metadata, Mapping) else None
    if isinstance(slos, Mapping) and slos:
        limits = ", ".join(f"{name} {limit}" for name, limit in slos.items())
        found.append(f"the file suggests limits: {limits} (a suggestion, not applied)")
    return found
