"""A server that is lost during a load is told from one that fails now and then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_llmbench.harness.judging import stopped_answering
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.catalogue import workload

START_NS = 5_000_000_000
STEP_NS = 100_000_000

OK, LOST = (Outcome.OK, None), (Outcome.DISCONNECTED, None)
DEAD_ENGINE, BUSY, SLOW = (Outcome.HTTP_ERROR, 500), (Outcome.RATE_LIMITED, 429), (Outcome.TIMEOUT, None)
STOPPED = (Outcome.CANCELLED, None)

Kind = tuple[Outcome, int | None]


def load(kinds: Sequence[Kind], label: str = "load") -> Observation:
    """A request every 0.1 s; one that is answered takes 0.05 s."""
    rows = []
    for index, (outcome, status) in enumerate(kinds):
        sent = START_NS + index * STEP_NS
        ended = sent + STEP_NS // 2
        answered = ended if outcome is Outcome.OK else None
        rows.append(
            RequestRecord(
                index,
                f"r{index}",
                Phase.MEASURE,
                dispatched_ns=sent,
                first_content_ns=answered,
                last_content_ns=answered,
                finished_ns=ended,
                outcome=outcome,
                http_status=status,
            )
        )
    plan = LoadPlan(label, workload("synthetic-uniform"), ClosedLoop(1), len(kinds), seed=1)
    end = START_NS + len(kinds) * STEP_NS
    return Observation(plan, Records.from_rows(rows), START_NS, end, ClockAnchor(0, 0))


@pytest.mark.parametrize("kind", [LOST, DEAD_ENGINE, SLOW])
def test_nothing_but_failures_from_an_instant_on(kind: Kind) -> None:
    # the tenth answer ends at 0.95 s
    assert stopped_answering([load([OK] * 10 + [kind] * 5)]) == "the server stopped answering at 0.95 s"
    assert stopped_answering([load([OK] * 10 + [kind] * 5 + [STOPPED] * 2)]) is not None


@pytest.mark.parametrize(
    "kinds",
    [
        [OK] * 20,
        [OK] * 20 + [LOST] * 2,  # too few to tell
        [OK] * 20 + [BUSY] * 9,  # somebody says so
        [LOST] * 9 + [OK],
        [OK, LOST] * 20 + [LOST] * 5,  # half of them fail, and five in a row by chance
        [STOPPED] * 9,
        [],
    ],
)
def test_failures_that_tell_no_such_thing(kinds: Sequence[Kind]) -> None:
    assert stopped_answering([load(kinds)]) is None


def test_many_in_a_row_are_no_chance() -> None:
    assert stopped_answering([load([OK, LOST] * 20 + [LOST] * 15)]) is not None


def test_the_first_of_several_loads_in_which_it_did() -> None:
    loads = [load([OK] * 9, "a"), load([OK] * 4 + [LOST] * 5, "b"), load([LOST] * 9, "c")]
    assert stopped_answering(loads) == "the server stopped answering at 0.35 s of b"


def test_a_load_without_any_answer() -> None:
    lost = load([LOST] * 9)
    assert stopped_answering([lost]) == "the server stopped answering at 0 s"
