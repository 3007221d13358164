"""How many guessed tokens are accepted: by the engine's counters, by its replies, and by the stream.

A step without a draft gives one token, one with a draft as many more as are accepted:

    acceptance length = 1 + accepted / drafts,      acceptance rate = accepted / guessed,
    tokens of a step  = tokens after the first / max(drafts, tokens after the first - accepted).

Length and tokens of a step differ where steps have no draft, as with n-grams, which guess where a text
repeats itself. What a last draft holds beyond the end of its reply counts as accepted, so there are as many
steps as drafts at least.

Counters give the spread of a draft where they tell acceptance by place, P(A > j) = c_j / drafts:
E A² = Σ (2j + 1) P(A > j). Else drafts are taken to be accepted whole or not at all, the widest spread with
that mean; where nobody tells how long they are, to end at each token alike: Var A = E A (1 + E A). Drafts
are taken to be independent of each other. Replies are clusters: the ratio of two sums has the standard error
of the residuals y - r x over replies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.latency import streamed_tokens
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.observation import ACCEPTED_AT, EngineReadings
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.ratios import exact_share_interval

_LEVEL = 0.95
_Z = NormalDist().inv_cdf((1 + _LEVEL) / 2)

LENGTH: Final = MetricDefinition(
    "acceptance_length",
    "Acceptance length",
    "tokens",
    "higher",
    "1 + accepted tokens / drafts; of a class of requests: tokens after the first / steps",
    "speculative",
)
RATE: Final = MetricDefinition(
    "acceptance_rate", "Acceptance rate", "ratio", "higher", "accepted / guessed tokens", "speculative"
)
AT: Final = MetricDefinition(
    "acceptance_at",
    "Acceptance at a place in the draft",
    "ratio",
    "higher",
    "drafts whose n-th token was accepted / drafts, n from 1",
    "speculative",
)
PER_STEP: Final = MetricDefinition(
    "tokens_per_step",
    "Tokens of a step",
    "tokens",
    "higher",
    "tokens after the first / steps that gave them, with a draft or without",
    "speculative",
)
PER_EVENT: Final = MetricDefinition(
    "tokens_per_event",
    "Tokens of an event of the stream",
    "tokens",
    "higher",
    "tokens after the first event / events after the first",
    "speculative",
)


class Acceptance(NamedTuple):
    """What was found of a load, by name, and who told it; empty: nobody did."""

    metrics: dict[str, Estimate]
    source: str = ""


def acceptance_of(engine: EngineReadings | None, records: Records) -> Acceptance:
    """The figures of the counters of the metrics page, else of the replies, else of a gauge of the page."""
    replies = by_replies(records)
    counted = {} if engine is None else _by_counters(engine, int(records.ok.sum()))
    if LENGTH.name in counted:
        # SGLang's counter tells no guessed tokens; its replies may.
        return Acceptance({**replies, **counted}, "the counters of the metrics page")
    if LENGTH.name in replies:
        return Acceptance({**counted, **replies}, "the replies")
    shown = None if engine is None else engine.gauges.get("acceptance_length")
    if shown is not None and len(known := shown[shown > 0]):
        length = Estimate(
            float(known.mean()), None, None, _LEVEL, len(known), "mean of a gauge over the load", "tokens"
        )
        return Acceptance({**counted, LENGTH.name: length}, "a gauge of the metrics page")
    return Acceptance(counted, "the counters of the metrics page" if counted else "")


def _by_counters(engine: EngineReadings, replies: int) -> dict[str, Estimate]:
    """``replies``: how many there were, where the engine does not count them."""
    drafts, accepted = engine.grown("drafts"), engine.grown("accepted_draft_tokens")
    guessed = engine.grown("draft_tokens")
    if not drafts:
        if not guessed or accepted is None:
            return {}
        method = "accepted / guessed, by counters without a number of drafts"
        return {RATE.name: Estimate(accepted / guessed, None, None, _LEVEL, round(guessed), method, "ratio")}
    generated, finished = engine.grown("generated_tokens"), engine.grown("requests_finished")
    further = None if generated is None else generated - (replies if finished is None else finished)
    if accepted is None:
        if further is None or finished is None:
            return {}
        mean = further / drafts
        error = math.sqrt(max(mean * (mean - 1), 0.0) / drafts)
        method = "tokens after the first / steps, by counters"
        length = _normal(mean, error, round(drafts), method, "tokens", least=1.0)
        return {LENGTH.name: length, PER_STEP.name: length}
    places, longest = _by_place(engine), (guessed or accepted) / drafts

    def error_of(steps: float) -> float:
        mean = accepted / steps
        weighted = sum((2 * place + 1) * count for place, count in enumerate(places))
        square = weighted / steps if places else mean * longest
        return math.sqrt(max(square - mean * mean, 0.0) / steps)

    mean, error = accepted / drafts, error_of(drafts)
    found = {LENGTH.name: _normal(1 + mean, error, round(drafts), "counters of drafts", "tokens", least=1.0)}
    if further:
        steps = max(drafts, further - accepted)
        found[PER_STEP.name] = _normal(
            further / steps,
            error_of(steps),
            round(steps),
            "counters of tokens and drafts",
            "tokens",
            least=1.0,
        )
    if guessed:
        scale = drafts / guessed
        rate = _normal(mean * scale, error * scale, round(drafts), "counters of drafts", "ratio")
        found[RATE.name] = rate
    for place, count in enumerate(places, 1):
        found[f"{AT.name}[{place}]"] = _share(round(count), round(drafts))
    return found


def _by_place(engine: EngineReadings) -> list[float]:
    told = engine.grown_by_label(ACCEPTED_AT) or {}
    counts = [told.get(str(place)) for place in range(len(told))]
    return [] if None in counts else [count for count in counts if count is not None]


def _share(ones: int, of: int) -> Estimate:
    ones = min(ones, of)
    lower, upper = exact_share_interval(ones, of, tail=(1 - _LEVEL) / 2)
    return Estimate(ones / of, lower, upper, _LEVEL, of, "Clopper-Pearson interval", "ratio")


def _normal(point: float, error: float, n: int, method: str, unit: str, least: float = 0.0) -> Estimate:
    lower, upper = max(point - _Z * error, least), point + _Z * error
    return Estimate(point, lower, upper, _LEVEL, n, f"normal interval, {method}", unit)


def by_replies(records: Records) -> dict[str, Estimate]:
    """The figures that replies tell of themselves; empty where none does, or where nothing was guessed."""
    further, accepted = streamed_tokens(records) - 1, records.accepted_draft_tokens
    told = records.ok & (records.draft_tokens != 0) & (accepted != MISSING) & (further > accepted)
    guessed = told & (records.draft_tokens > 0)  # TensorRT-LLM tells what was accepted alone
    if not guessed.any() and not accepted[told].any():
        return {}
    steps = (further - accepted)[told]
    length = _ratio(further[told], steps, "tokens", "tokens after the first / steps, by replies")
    found = {LENGTH.name: length, PER_STEP.name: length}
    if guessed.any():
        method = "accepted / guessed, by replies"
        found[RATE.name] = _ratio(accepted[guessed], records.draft_tokens[guessed], "ratio", method)
    return found


def by_stream(records: Records) -> Estimate:
    """Tokens of an event after the first, over the replies whose tokens are known event by event."""
    counts = np.diff(records.chunk_offsets)
    owner = np.repeat(np.arange(len(records)), counts)
    unknown = np.bincount(owner[records.chunk_tokens == MISSING], minlength=len(records)) > 0
    tokens = np.bincount(owner, weights=records.chunk_tokens, minlength=len(records)).astype(np.int64)
    known = records.ok & ~unknown & (counts > 1)
    if not known.any():
        method = "no reply tells the tokens of each event"
        return Estimate.undefined(unit="tokens", method=method, n=0, reason=Reason.NOT_MEASURABLE)
    first = records.chunk_tokens[records.chunk_offsets[:-1][known]]
    return _ratio(tokens[known] - first, counts[known] - 1, "tokens", "tokens / events after the first")


def _ratio(over: IntColumn, under: IntColumn, unit: str, method: str) -> Estimate:
    """The sum of ``over`` / the sum of ``under``, of one reply each."""
    n, whole = len(over), int(under.sum())
    ratio = float(over.sum()) / whole
    if n < 2:
        return Estimate(ratio, None, None, _LEVEL, n, method, unit)
    residuals = over - ratio * under
    error = math.sqrt(n / (n - 1) * float((residuals**2).sum())) / whole
    return _normal(ratio, error, n, method, unit)


def by_class(classes: Mapping[str, Sequence[Records]]) -> dict[str, Estimate]:
    """Length and rate of the requests of each label, which only replies tell, and what the stream shows; of
    the first run."""
    found: dict[str, Estimate] = {}
    for label, (own, *_) in classes.items():
        told = {**by_replies(own), PER_EVENT.name: by_stream(own)}
        found |= {f"{name}[{label}]": estimate for name, estimate in told.items()}
    return found
