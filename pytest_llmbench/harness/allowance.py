"""What a session may send: the budgets of ``--llm-caps``, kept before and while loads are sent.

Requests, tokens and seconds are counted over all loads of the session, warm-ups and void ones included; rate
and concurrency are limits of every single load. No request leaves above a budget (docs/decisions/0020).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from itertools import islice

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import TIME_IS_UP, ClockAnchor, Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.stream import streamed

_LONGEST = 2_000_000
"""Assumed most tokens of a request. Requests are looked at only where so many each might exceed the
budget."""
_LOOKED_AT = 16
_LONGER = 20
"""The factor by which no load's requests are longer, on average, than the longest of its first ones."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of a session, as the options set them."""

    requests: int
    tokens: int
    """Input and output tokens together."""
    seconds: float
    """Seconds of load, each load counted from its start to its last reply."""
    rate: float
    """The highest rate of an open loop, in requests per second."""
    concurrency: int
    """The most requests in flight in a closed loop."""

    def describe(self) -> str:
        return (
            f"{self.requests:,} requests, {self.tokens:,} tokens, {trimmed(self.seconds)} s, "
            f"{trimmed(self.rate)} req/s, {self.concurrency:,} in flight"
        )

    def divided(self, sessions: int) -> Budgets:
        """The budgets of each of so many sessions that send side by side."""
        requests, tokens = self.requests // sessions, self.tokens // sessions
        return replace(self, requests=requests, tokens=tokens, seconds=self.seconds / sessions)

    def refusal(self, plan: LoadPlan) -> str | None:
        """Why a load of this rate or concurrency may not be sent; None if it may."""
        load = plan.load
        if isinstance(load, OpenLoop) and load.peak_rate > self.rate:
            told = "sessions/s are" if load.of_sessions else "req/s is"
            return f"{trimmed(load.peak_rate)} {told} more than {raised('rate', self.rate, load.peak_rate)}"
        if load.in_flight is not None and load.in_flight > self.concurrency:
            told = "sessions at once are" if load.of_sessions else "in flight is"
            limit = raised("concurrency", self.concurrency, load.in_flight)
            return f"{load.in_flight} {told} more than {limit}"
        return None


def raised(name: str, budget: float, needed: float) -> str:
    """How to raise a budget, to the next of 1, 2 and 5: ``--llm-caps=requests=1000 allows: raise it with
    --llm-caps=requests=2000``."""
    if not math.isfinite(needed) or needed <= 0:
        needed = budget
    power = 10 ** math.floor(math.log10(max(needed, 1.0)))
    round_one = int(next(each * power for each in (1, 2, 5, 10) if each * power >= needed))
    given = int(budget) if float(budget).is_integer() else round(budget, 6)
    return f"--llm-caps={name}={given} allows: raise it with --llm-caps={name}={round_one}"


@dataclass(frozen=True, slots=True)
class Spent:
    """Amounts that were sent and came back, over all loads, warm-ups and void ones included."""

    requests: int = 0
    input_tokens: int = 0
    """Input tokens, by the server's count if it reports one, else as requested."""
    output_tokens: int = 0
    """Output tokens. A lost reply counts with its ``max_tokens``, since the server may have generated
    them."""

    def __add__(self, more: Spent) -> Spent:
        return Spent(*map(operator.add, astuple(self), astuple(more)))

    def since(self, before: Spent) -> Spent:
        return Spent(*map(operator.sub, astuple(self), astuple(before)))


class Allowance:
    """Runs the loads of a session within its budgets and keeps account of them. One load at a time."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self.spent = Spent()
        self._requests = 0
        self._tokens = 0
        self._seconds = 0.0

    def run(
        self, plan: LoadPlan, execute: Callable[[LoadPlan], Observation], anchor: Callable[[], ClockAnchor]
    ) -> Observation:
        """Send as much of the plan as the budgets allow. If that is less than all of it, ``interrupted`` says
        so.

        Raises SuiteError for a warm-up or a probe that may not be sent whole: nothing was measured yet.
        """
        refused = self._budgets.refusal(plan)
        count, why = self._affordable(plan)
        if refused is not None or count == 0 < plan.most_requests:
            short: str | None = f"not sent: {refused or why}"
            seen = nothing_sent(plan, anchor())
        else:
            seen, short = self._within(plan, count, why, execute)
        if short is None:
            return seen
        if plan.phase is not Phase.MEASURE:
            raise SuiteError(short, where=plan.label)
        return replace(seen, interrupted=short)

    def _within(
        self, plan: LoadPlan, count: int, why: str, execute: Callable[[LoadPlan], Observation]
    ) -> tuple[Observation, str | None]:
        """Send the first ``count`` requests; returns the observation, and which budget cut the load short, if
        one did."""
        most_s = self._budgets.seconds - self._seconds
        ceiling = None if plan.max_requests is None else min(plan.max_requests, count)
        # Looks are planned over all requests: of fewer there is nothing to decide.
        looks = plan.looks if count >= plan.most_requests else None
        asked = plan.with_(
            requests=min(plan.requests, count), max_requests=ceiling, most_s=most_s, looks=looks
        )
        seen = replace(execute(asked), plan=plan)
        records = seen.records
        self._requests += len(records)
        self._seconds += seen.duration_s
        unknown = records.output_tokens == MISSING  # a reply that was lost may have been made all the same
        answered = np.where(unknown, records.requested_max_tokens, records.output_tokens)
        input_tokens, output_tokens = records.requested_input_tokens.clip(0), int(answered.clip(0).sum())
        self._tokens += int(input_tokens.sum()) + output_tokens
        counted = np.where(records.input_tokens == MISSING, input_tokens, records.input_tokens)
        self.spent += Spent(len(records), int(counted.clip(0).sum()), output_tokens)
        if seen.interrupted == TIME_IS_UP:
            self._seconds = self._budgets.seconds  # its last reply may have come before
            over = raised("seconds", self._budgets.seconds, 2 * self._budgets.seconds)
            return seen, f"{TIME_IS_UP}: the session may send for no more seconds than {over}"
        ended = seen.interrupted is not None or seen.stopped is not None
        if count < plan.most_requests and len(seen.records) >= count and not ended:
            return seen, why
        return seen, None

    def _affordable(self, plan: LoadPlan) -> tuple[int, str]:
        """How many requests of the plan may be sent, and why no more."""
        wanted, budgets = plan.most_requests, self._budgets
        if self._seconds >= budgets.seconds:
            more = raised("seconds", budgets.seconds, 2 * budgets.seconds)
            return 0, f"the session has sent for as many seconds as {more}"
        count = min(wanted, budgets.requests - self._requests)
        needed = self._requests + wanted
        why = f"with this load the session sends {needed:,} requests, more than "
        why += raised("requests", budgets.requests, needed)
        afforded = _first_of(plan, count, budgets.tokens - self._tokens)
        if afforded < count:
            count, why = afforded, "the requests of this load ask for more tokens than "
            why += raised("tokens", budgets.tokens, 2 * budgets.tokens)
        return max(count, 0), why


def _first_of(plan: LoadPlan, count: int, tokens: int) -> int:
    """How many of the plan's first ``count`` requests stay within ``tokens`` in total, prompts and longest
    answers. They are counted one by one only where that may matter."""
    if count * _LONGEST <= tokens:
        return count
    requests = streamed(plan.workload).stream(plan.seed)
    some = [_asked(each) for each in islice(requests, min(_LOOKED_AT, count))]
    if count * _LONGER * max(some, default=0) <= tokens:
        return count
    total = 0
    requests = islice(streamed(plan.workload).stream(plan.seed), plan.first, plan.first + count)
    for sent, each in enumerate(requests):
        total += _asked(each)
        if total > tokens:
            return sent
    return count


def _asked(request: PlannedRequest) -> int:
    """The most tokens that a request may use: its prompt and its longest answer."""
    return request.input_tokens + request.max_tokens


def nothing_sent(
    plan: LoadPlan, anchor: ClockAnchor, *, interrupted: str | None = None, declined: str | None = None
) -> Observation:
    """An observation of a plan of which nothing was sent."""
    now_ns = anchor.monotonic_ns
    began_ns = now_ns - 1  # rates are over a duration, which must not be zero
    empty = Records.concatenate([])
    return Observation(plan, empty, began_ns, now_ns, anchor, interrupted=interrupted, declined=declined)
