"""Amounts of load: requests, tokens and time of plans, without drawing a long sequence to its end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.stream import stream_of

SAMPLE_REQUESTS = 2_000
"""Longer loads are reckoned from the mean of so many requests …"""
SAMPLE_TOKENS = 4_000_000
"""… or of those with so many input tokens, which long contexts reach sooner."""


@dataclass(frozen=True)
class Amount:
    """``seconds`` are those whose length is known beforehand; of the rest the SUT decides."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    open_ended: bool = False
    """True: some of the load takes as long as the SUT needs."""
    about: bool = False
    """True: token counts come from a sample."""
    at_least: bool = False
    """True: some of the load goes on for a time, with as many requests as the SUT completes in it."""
    at_most: bool = False
    """True: some of the load may end early."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
            self.open_ended or other.open_ended,
            self.about or other.about,
            self.at_least or other.at_least,
            self.at_most or other.at_most,
        )

    def describe(self, note: str = "") -> str:
        """In words; ``note`` stands behind the requests."""
        about = "about " if self.about else ""
        least, most = ("at least ", "") if self.at_least else ("", "at most ")
        if self.at_most:
            least = "about " if self.at_least else "at most "
        return (
            f"{least}{self.requests:,} requests{note}, {about}{self.input_tokens:,} input and {most}"
            f"{about}{self.output_tokens:,} output tokens, {self._duration()}"
        )

    def _duration(self) -> str:
        if self.open_ended and self.seconds == 0:
            return "duration set by the SUT (closed loop)"
        more = ", and closed loops as long as the SUT needs" if self.open_ended else ""
        return f"about {_time(self.seconds)} of measured load{more}"


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


@dataclass(frozen=True)
class _Sample:
    """Cumulated lengths of the first requests of a sequence."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def tokens(self, first: int, count: int) -> tuple[int, int, bool]:
        """Input and output tokens of ``count`` requests, and whether they are reckoned."""
        known = len(self.inputs)
        if first + count <= known:
            end = first + count
            return sum(self.inputs[first:end]), sum(self.outputs[first:end]), False
        return count * sum(self.inputs) // known, count * sum(self.outputs) // known, True


class Sampler:
    """Draws the beginning of each sequence once."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, int], _Sample] = {}

    def amount(self, plan: LoadPlan) -> Amount:
        """What a plan sends; of a closed loop with a duration at least, of a load that may end early at most.
        Its time is the duration, or that of the schedule."""
        ends_early = plan.looks is not None
        requests = plan.most_requests if ends_early else plan.requests
        inputs, outputs, about = self._tokens(plan.workload, plan.seed, plan.first, requests)
        seconds, more = _seconds(plan), not ends_early and plan.ceiling > plan.requests
        return Amount(requests, inputs, outputs, seconds or 0.0, seconds is None, about, more, ends_early)

    def warmup(self, setting: Setting, workload: Workload) -> Amount:
        """It goes on until both amounts are reached, with requests of the same shape."""
        policy = setting.warmup
        inputs, outputs, _ = self._tokens(workload, setting.seed, 0, SAMPLE_REQUESTS)
        by_tokens = -(-policy.output_tokens * SAMPLE_REQUESTS // outputs) if outputs else 0
        requests = max(policy.requests, by_tokens)
        return Amount(
            requests, requests * inputs // SAMPLE_REQUESTS, requests * outputs // SAMPLE_REQUESTS, about=True
        )

    def _tokens(self, workload: Workload, seed: int, first: int, count: int) -> tuple[int, int, bool]:
        if count == 0:
            return 0, 0, False
        key = (workload.name, str(workload.specification()), seed)
        if key not in self._samples:
            self._samples[key] = _sampled(workload, seed)
        return self._samples[key].tokens(first, count)


def _sampled(workload: Workload, seed: int) -> _Sample:
    inputs: list[int] = []
    outputs: list[int] = []
    tokens = 0
    for request in islice(stream_of(workload, seed), SAMPLE_REQUESTS):
        inputs.append(request.input_tokens)
        outputs.append(request.max_tokens)
        tokens += request.input_tokens
        if tokens > SAMPLE_TOKENS:
            break
    return _Sample(tuple(inputs), tuple(outputs))


def _seconds(plan: LoadPlan) -> float | None:
    if plan.duration_s is not None:
        return plan.duration_s
    return plan.requests / plan.load.rate if isinstance(plan.load, OpenLoop) else None


__all__ = ["SAMPLE_REQUESTS", "SAMPLE_TOKENS", "Amount", "Sampler"]
