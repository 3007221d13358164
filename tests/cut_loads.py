"""Loads of users who cut requests, and what the embedded engine has to say of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planned_load import TextWorkload

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.catalogue import with_cuts
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

MS = 1_000_000
TOKENS = 400
LONG = with_cuts(SyntheticWorkload("long", Fixed(20), Fixed(TOKENS)), Cuts(0.5, Uniform(400, 1200)))
"""Replies take at least two seconds of the engine below; half of them are cut long before, and so late that a
busy machine has sent them by then: the engine says nothing of what never reached it."""
SLOW = "fast?step_base_us=5000&context_limit_tokens=2000"


@dataclass(frozen=True)
class Impatient(TextWorkload):
    """Request i is cut after ``after_ms[i]``; 0: its user waits."""

    after_ms: tuple[int, ...] = ()

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        texts = super().requests(count, seed)
        pairs = zip(texts, self.after_ms, strict=True)
        return [PlannedRequest(r.index, 8, 1, text=r.text, cut_after_ns=ms * MS or None) for r, ms in pairs]

    def specification(self) -> Mapping[str, Any]:
        return {"cuts": list(self.after_ms)}


def ends(seen: Observation) -> list[tuple[str, str | None, str | None]]:
    """Outcome, end before the cut and error of each request, in the order of the plan."""
    records = seen.records
    rows = zip(records.index, records.outcome, records.end_before_cut, records.error, strict=True)
    return [
        (OUTCOMES[outcome].value, end, error) for _, outcome, end, error in sorted(rows, key=lambda r: r[0])
    ]


def truth_of(engine: EmbeddedEngine, ids: Sequence[str]) -> dict[str, GroundTruth]:
    """What the engine says of these requests, once it has heard of the end of each."""
    until = time.monotonic() + 20
    while True:
        told = {entry.request_id: entry for entry in engine.ground_truth()}
        if set(ids) <= told.keys() or time.monotonic() > until:
            return {name: told[name] for name in ids}
        time.sleep(0.05)


def assert_aborted_where_cut(seen: Observation, engine: EmbeddedEngine, requests: int) -> None:
    records = seen.records
    planned = {request.index: request.cut_after_ns for request in LONG.requests(requests, 1)}
    waited = list(planned.values()).count(None)
    assert 0 < waited < requests
    assert (records.ok.sum(), records.has_outcome(Outcome.CUT_BY_USER).sum()) == (waited, requests - waited)
    truth = truth_of(engine, list(records.request_id))
    for row, name in enumerate(records.request_id):
        after_ns, true = planned[records.index[row]], truth[name]
        assert true.aborted == (after_ns is not None)
        if after_ns is None:
            assert records.output_tokens[row] == true.output_tokens == TOKENS
        else:
            assert records.cut_after_ns[row] == after_ns
            assert records.finished_ns[row] - records.submitted_ns[row] >= after_ns
            # It gave what we read, a little more on the way, and then no more.
            assert max(records.output_tokens[row], 0) <= true.output_tokens < TOKENS
