"""The share of questions that were answered rightly."""

from __future__ import annotations

import pytest

from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.metrics.ratios import accuracy, counts
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records


def records(*checks: str | None, outcome: Outcome = Outcome.OK) -> Records:
    return Records.from_rows(
        RequestRecord(at, str(at), Phase.MEASURE, outcome=outcome, answer_check=check)
        for at, check in enumerate(checks)
    )


def test_what_was_not_answered_is_not_right() -> None:
    runs = [
        records("right", None, "wrong: 4", "right"),
        records("unanswered", "no_answer", "cut_by_limit", None),
    ]
    found = accuracy(runs)
    assert {name: (each.point, each.n) for name, each in found.items()} == {
        "accuracy": (2 / 6, 6),
        "accuracy_of_set": (2 / 6, 6),
    }
    assert counts(runs) == {"right": 2, "wrong": 1, "no_answer": 1, "cut_by_limit": 1, "unanswered": 1}
    assert all(definition(name).unit == "ratio" for name in found)


def test_the_interval_is_of_such_questions_and_not_of_just_these() -> None:
    found = accuracy([records(*["right"] * 100)])
    assert found["accuracy"].lower == pytest.approx(0.025 ** (1 / 100))  # Clopper-Pearson of 100 in 100
    assert found["accuracy"].upper == 1.0
    assert (found["accuracy_of_set"].lower, found["accuracy_of_set"].upper) == (1.0, 1.0)


def test_nothing_asked_is_nothing_and_a_failed_scorer_leaves_it_undefined() -> None:
    assert accuracy([records(None, None), records()]) == {}
    failed = accuracy([records("right", "scorer_failed: ValueError: no")])
    assert [each.point for each in failed.values()] == [None, None]


def test_questions_that_users_cut_are_left_out() -> None:
    assert accuracy([records("unanswered", outcome=Outcome.CUT_BY_USER)]) == {}
