"""Looks at a load while it runs: what is looked at, how often, at what risk. A pure value, of a LoadPlan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_llmbench.model.objective import Objective

EVERY = 100
"""Requests from one look to the next."""
ALPHA = 0.05
"""The promise: no more false verdicts than an interval of 95 % at the end has."""
SPENT = ALPHA / 2
"""What the looks spend of it. The rest stands for what short samples do not show of their dependence."""
JUDGED = "as judged"

Quantity = Literal[
    "ttft", "ttft_scheduled", "ttft_any", "ttft_first_event", "tpot", "e2e", "e2e_scheduled", "latency",
    "latency_scheduled", "ok", "good",
]  # fmt: skip
"""A quantity of a request: a latency in ms; ``ok``: it ended well; ``good``: it met all limits of a
goodput."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One objective, with all that is needed to judge it from the requests themselves."""

    objective: Objective
    quantity: Quantity
    percentile: float | None = None
    """The percentile of a latency; ``None``: its mean. Shares have none."""
    least_tokens: int = 0
    below_tokens: int | None = None
    """The upper end of the input tokens: only requests with ``least_tokens`` or more, and fewer than this,
    count."""
    failures_over_limit: bool = False
    """A request that did not end well counts as slower than the limit, instead of not at all."""
    limits_ms: tuple[tuple[Quantity, float], ...] = ()
    """The limits of a goodput: all of them have to be met."""

    @property
    def is_share(self) -> bool:
        return self.quantity in ("ok", "good")

    @property
    def rarity(self) -> float:
        """The smaller of the two shares that a percentile, or the limit of a share, divides requests into."""
        share = 0.5
        if self.is_share:
            share = self.objective.limit
        elif self.percentile is not None:
            share = self.percentile / 100
        return max(0.0, min(share, 1 - share))


@dataclass(frozen=True, slots=True)
class Looks:
    """The rule for ending a load early: at the first look at which every objective is decided, one way or the
    other.

    A look is at the first n requests in the order of the sequence, once all of them have ended: the slow ones
    that are still on their way are never missing from it.
    """

    watched: tuple[Watched, ...]
    max_error_share: float
    """Error budget: as long as more have failed, nothing is decided."""
    every: int = EVERY
    alpha: float = SPENT


def judged_name(metric: str) -> str:
    """The metric under which the interval stands that its limit is judged on, where that is one of its own:
    ``ttft[as judged].p95``, ``ttft[0-256, as judged].p95``."""
    stem, dot, statistic = metric.partition(".") if "[" not in metric else _after_bracket(metric)
    if stem.endswith("]"):
        return f"{stem[:-1]}, {JUDGED}]{dot}{statistic}"
    return f"{stem}[{JUDGED}]{dot}{statistic}"


def _after_bracket(metric: str) -> tuple[str, str, str]:
    """A qualifier may hold dots."""
    end = metric.rindex("]") + 1
    return metric[:end], metric[end : end + 1], metric[end + 1 :]
