"""How long the load generator waits for a reply: as the user asked, else by the SUT's own speed.

A deadline is there to tell a hung server from a slow one. Its default fits a quick server; of a slow one, or
with long prompts, it would end requests that are well under way. So a wait becomes ``TIMES`` as long as the
same took at hardly any load (warm-up, and levels of few requests in flight), scaled by the lengths of the
requests to come, and never less than the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.methodology.procedure import Procedure, Setting, relayed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.sequence import drawn

TIMES = 20.0
"""Factor between the usual time and the wait: twice the ten-fold TTFT at which a level counts as saturated
(section 5.2.3.1)."""
FEW_IN_FLIGHT = 4
_SAMPLE = 8
_NS = 1e9

Test = Callable[[Any, Setting], Procedure[TestResult]]


@dataclass
class _Waits:
    """The times that the SUT took so far at hardly any load, and the requests that they are from."""

    given: bool
    """Whether the waits for the first byte and between chunks are the user's own."""
    first_s: float | None = None
    rest_s: float = 0.0
    input_tokens: int = 1
    output_tokens: int = 1
    longest: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Workload → the longest prompt and answer of a few of its requests."""
    measuring: bool = False

    def watched(self, seen: Observation) -> Observation:
        """The observation itself, once its times are noted."""
        plan = seen.plan
        self.measuring = self.measuring or plan.phase is Phase.MEASURE
        if not _is_light(plan, self.measuring):
            return seen
        records = seen.records.select(seen.records.ok & (seen.records.first_content_ns != MISSING))
        if not len(records):
            return seen
        first = float((records.first_content_ns - records.submitted_ns).max()) / _NS
        rest = float((records.finished_ns - records.first_content_ns).max()) / _NS
        self.first_s, self.rest_s = max(self.first_s or 0.0, first), max(self.rest_s, rest)
        self.input_tokens = max(self.input_tokens, int(records.requested_input_tokens.max()))
        self.output_tokens = max(self.output_tokens, int(records.output_tokens.max()))
        return seen

    def deadlines(self, plan: LoadPlan) -> Deadlines:
        usual = plan.deadlines
        if self.first_s is None:
            # Of a first probe nothing is known; it is one request, so its patience costs little.
            alone = plan.phase is Phase.PROBE and not self.given
            return _first(usual, usual.total_s) if alone else usual
        inputs, outputs = self._longest(plan)
        first_s = self.first_s * max(1.0, inputs / self.input_tokens)
        whole_s = first_s + self.rest_s * max(1.0, outputs / self.output_tokens)
        raised = usual if self.given else _first(usual, TIMES * first_s)
        return replace(
            raised,
            total_s=_raised(usual.total_s, TIMES * whole_s),
            drain_s=_raised(usual.drain_s, TIMES * whole_s),
        )

    def _longest(self, plan: LoadPlan) -> tuple[int, int]:
        key = (plan.workload.name, str(plan.workload.specification()))
        if key not in self.longest:
            some = drawn(plan.workload, 0, min(_SAMPLE, plan.most_requests), plan.seed)
            self.longest[key] = (
                max((request.input_tokens for request in some), default=0),
                max((request.max_tokens for request in some), default=0),
            )
        return self.longest[key]


def _is_light(plan: LoadPlan, measuring: bool) -> bool:
    """Whether the load is light enough to tell the SUT's usual speed. Not a probe after a load, which may see
    what that left."""
    if plan.phase is Phase.PROBE:
        return not measuring
    slots = plan.load.requests_in_flight
    return plan.phase is Phase.WARMUP or (slots is not None and slots <= FEW_IN_FLIGHT)


def _first(usual: Deadlines, wanted_s: float) -> Deadlines:
    """The deadlines with both waits raised, as a server that sends its headers at once is silent until the
    first token."""
    return replace(
        usual,
        first_byte_s=_raised(usual.first_byte_s, wanted_s),
        between_chunks_s=_raised(usual.between_chunks_s, wanted_s),
    )


def _raised(usual_s: float, wanted_s: float) -> float:
    """The usual wait, doubled until it suffices: a little noise then leaves the plan, and who shares it,
    unchanged."""
    return usual_s if wanted_s <= usual_s else usual_s * 2 ** math.ceil(math.log2(wanted_s / usual_s))


def with_raised_deadlines(procedure: Test) -> Test:
    """The procedure with every plan's deadlines raised to the needs of its SUT."""

    def raised(parameters: Any, setting: Setting) -> Procedure[TestResult]:
        waits = _Waits(given=setting.timeout_s is not None)

        def sent(plan: LoadPlan) -> LoadPlan:
            return plan.with_(deadlines=waits.deadlines(plan))

        return (yield from relayed(procedure(parameters, setting), sent, waits.watched))

    return raised
