"""Arms in turns: who is sent what in which order, and what Ctrl-C leaves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from pytest_llmbench.errors import SUTError
from pytest_llmbench.harness.comparison.arms import drive_together, drive_whole, in_turns, rounds
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.catalogue import workload

ARMS = ("candidate", "baseline")


def plan(label: str, phase: Phase = Phase.MEASURE) -> LoadPlan:
    return LoadPlan(label, workload("synthetic-uniform"), ClosedLoop(1), 1, seed=1, phase=phase)


def seen(answered: LoadPlan, interrupted: str | None = None) -> Observation:
    return Observation(answered, Records.concatenate([]), 0, 1, ClockAnchor(0, 0), interrupted=interrupted)


def procedure(warmups: int, runs: int) -> Procedure[list[str]]:
    """Its result names what it was answered; a run that was cut short ends it."""
    labels = []
    for number in range(warmups):
        yield plan(f"warm-up {number}", Phase.WARMUP)
    for number in range(runs):
        answer = yield plan(f"run {number}")
        labels.append(answer.interrupted or answer.plan.label)
        if answer.interrupted:
            break
    return labels


def never(_: object) -> bool:
    return False


def sent_by(log: list[tuple[str, str]], *labels: str) -> list[tuple[str, ...]]:
    """Who sent each of these, in order, in pairs."""
    names = [name for name, label in log if label.startswith(labels)]
    return _pairs(names)


def _pairs(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(names[i : i + 2]) for i in range(0, len(names), 2)]


def with_attempts(attempts: Sequence[int]) -> Procedure[int]:
    """Runs that take so many attempts each."""
    for number, count in enumerate(attempts):
        for attempt in range(1, count + 1):
            yield plan(f"run {number}").with_(attempt=attempt)
    return len(attempts)


def test_a_run_that_is_measured_again_is_waited_for() -> None:
    log: list[tuple[str, str]] = []

    def execute(name: str, asked: LoadPlan) -> Observation:
        log.append((name, asked.title))
        return seen(asked)

    arms = {"candidate": with_attempts([1, 3, 1]), "baseline": with_attempts([1, 1, 2])}
    assert drive_together(arms, execute, seed=5) == {"candidate": 3, "baseline": 3}
    rounds_of_runs = [[title for _, title in log if title.startswith(f"run {n}")] for n in range(3)]
    assert [title for _, title in log] == [title for each in rounds_of_runs for title in each]
    assert [len(each) for each in rounds_of_runs] == [2, 4, 3]


def test_every_second_round_reverses_the_one_before_it() -> None:
    orders = list(itertools.islice(rounds(("a", "b", "c"), seed=3), 40))
    assert all(set(order) == {"a", "b", "c"} for order in orders)
    assert all(
        drawn == tuple(reversed(after)) for drawn, after in zip(orders[::2], orders[1::2], strict=True)
    )
    assert len(set(orders)) > 2, "the orders are drawn"
    assert orders == list(itertools.islice(rounds(("a", "b", "c"), seed=3), 40))


def test_runs_are_sent_in_pairs_once_both_arms_are_warm() -> None:
    log: list[tuple[str, str]] = []

    def execute(name: str, sent: LoadPlan) -> Observation:
        log.append((name, sent.label))
        return seen(sent)

    procedures = {"candidate": procedure(1, 6), "baseline": procedure(4, 6)}
    results = drive_together(procedures, execute, seed=1)
    assert results == {name: [f"run {i}" for i in range(6)] for name in ARMS}
    assert all(label.startswith("warm-up") for _, label in log[:5])
    pairs = sent_by(log, "run")
    assert all(set(pair) == set(ARMS) for pair in pairs)
    assert {pair[0] for pair in pairs} == set(ARMS), "neither arm always goes first"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("who", ARMS)
def test_ctrl_c_ends_both_arms_and_keeps_what_they_saw(who: str, seed: int) -> None:
    log: list[str] = []

    def execute(name: str, sent: LoadPlan) -> Observation:
        log.append(name)
        return seen(sent, INTERRUPTED_BY_CTRL_C if (name, sent.label) == (who, "run 2") else None)

    results = drive_together({name: procedure(0, 9) for name in ARMS}, execute, seed=seed)
    assert all(labels[:2] == ["run 0", "run 1"] for labels in results.values())
    assert all(labels[-1] == INTERRUPTED_BY_CTRL_C for labels in results.values())
    assert len(log) <= 6, "nothing is sent after it"


def test_ctrl_c_before_an_arm_was_warm_leaves_it_out() -> None:
    def execute(name: str, sent: LoadPlan) -> Observation:
        return seen(sent, INTERRUPTED_BY_CTRL_C)

    stuck = drive_together({"candidate": procedure(0, 3), "baseline": procedure(0, 0)}, execute, seed=1)
    assert stuck == {"candidate": [INTERRUPTED_BY_CTRL_C], "baseline": []}


def test_an_error_is_thrown_into_its_own_procedure_and_the_others_are_closed() -> None:
    closed: list[str] = []

    def watched(name: str) -> Procedure[None]:
        try:
            yield plan(name)
            yield plan(name)
        except SUTError:
            closed.append(f"{name} was told")
            raise
        finally:
            closed.append(name)

    def execute(name: str, sent: LoadPlan) -> Observation:
        if name == "baseline":
            raise SUTError("gone")
        return seen(sent)

    with pytest.raises(SUTError, match="gone"):
        drive_together({name: watched(name) for name in ARMS}, execute, seed=1)
    assert sorted(closed) == ["baseline", "baseline was told", "candidate"]


def test_whole_procedures_take_turns() -> None:
    log: list[tuple[str, str]] = []

    def execute(name: str, sent: LoadPlan) -> Observation:
        log.append((name, sent.label))
        return seen(sent)

    made: list[tuple[str, int]] = []

    def make(name: str, number: int) -> Procedure[list[str]]:
        made.append((name, number))
        return procedure(1, 2)

    results = drive_whole(make, ARMS, 4, execute, seed=1, cut=never)
    assert results == {name: [["run 0", "run 1"]] * 4 for name in ARMS}
    assert [number for _, number in made] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(set(pair) == set(ARMS) for pair in _pairs([name for name, _ in made]))
    assert [name for name, _ in log] == [name for name, _ in made for _ in range(3)], "each is whole"


def test_ctrl_c_leaves_the_round_of_whole_procedures() -> None:
    sent_loads = itertools.count()

    def execute(name: str, sent: LoadPlan) -> Observation:
        return seen(sent, INTERRUPTED_BY_CTRL_C if next(sent_loads) == 3 else None)

    results = drive_whole(lambda name, number: procedure(0, 1), ARMS, 5, execute, seed=1, cut=never)
    ends = [labels for labels in results.values() if labels[-1] == [INTERRUPTED_BY_CTRL_C]]
    assert len(ends) == 1
    assert sum(len(labels) for labels in results.values()) == 4


def test_a_result_that_is_cut_short_leaves_the_round_too() -> None:
    """Such as one that a budget of the session ended: no later run would be sent whole."""
    made: list[str] = []

    def make(name: str, number: int) -> Procedure[list[str]]:
        made.append(name)
        return procedure(0, 1)

    results = drive_whole(
        make, ARMS, 5, lambda _, sent: seen(sent), seed=1, cut=lambda labels: len(made) == 4 and labels
    )
    assert len(made) == 4
    assert sum(map(len, results.values())) == 4


@pytest.mark.parametrize(
    ("names", "whole", "turns"),
    [
        (["only"], 1, ["only: run 0", "only: run 1"]),
        (["only"], 2, ["only: run 0", "only: run 1"] * 2),
    ],
)
def test_a_single_arm_has_every_turn(names: list[str], whole: int, turns: list[str]) -> None:
    assert taken(names, whole) == turns


def test_of_several_arms_the_loads_take_turns_or_else_whole_procedures() -> None:
    loads = taken(ARMS, 1)
    assert {turn.partition(":")[0] for turn in loads[:2]} == set(ARMS)
    assert [turn.partition(": ")[2] for turn in loads] == ["run 0", "run 0", "run 1", "run 1"]
    whole = taken(ARMS, 2)
    assert [turn.partition(": ")[2] for turn in whole] == ["run 0", "run 1"] * 4
    assert all(one.partition(":")[0] == two.partition(":")[0] for one, two in _pairs(whole))


def taken(names: Sequence[str], whole: int) -> list[str]:
    """Who sent what, in order: two loads in each procedure."""
    log: list[str] = []

    def execute(name: str, sent: LoadPlan) -> Observation:
        log.append(f"{name}: {sent.label}")
        return seen(sent)

    results = in_turns(lambda name, number: procedure(0, 2), names, whole, execute, seed=1, cut=never)
    assert results == {name: [["run 0", "run 1"]] * whole for name in names}
    return log
