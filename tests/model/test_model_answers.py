"""How replies to questions are scored: what each scorer takes for the answer, and what it makes of it."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import ExpectedAnswer, check_of


@pytest.mark.parametrize(
    ("scorer", "answer", "reply", "told"),
    [
        ("exact", "Paris", "  Paris\n", "right"),
        ("exact", "Paris", "paris", "wrong: paris"),
        ("number", "#### 1,042", "So it is 1042.", "right"),
        ("number", "42", "17 + 25 = 42.0", "right"),
        ("number", "42", "42 of 50", "wrong: 50"),
        ("number", "-3", "It is -3.", "right"),
        ("number", "42", "I do not know.", "no_answer"),
        ("choice", "B", "The answer is (B).", "right"),
        ("choice", "B", "Answer: **B**, since A is wrong", "right"),
        ("choice", "(C)", "C", "right"),
        ("choice", "B", "A then. No: B", "right"),
        ("choice", "B", "none of these", "no_answer"),
        ("choice", "I", "I'm sure it is B", "wrong: B"),
        ("contains", "1969", "It was in 1969, in July", "right"),
        ("contains", "1969", "It was in July", "wrong: It was in July"),
        (r"regex:<a>(.*?)</a>", "7", "<a>6</a> no, <a> 7 </a>", "right"),
        (r"regex:<a>(.*?)</a>", "7", "it is 7", "no_answer"),
        (r"regex:\d+", "7", "7 8", "wrong: 8"),
        ("python:math:isclose", "1", "1", "scorer_failed: TypeError: must be real number, not str"),
        ("python:operator:eq", "1", "1", "right"),
        ("python:operator:add", "1", "1", "scorer_failed: TypeError: it gave '11', not True or False"),
        (
            "python:no_such_module:f",
            "1",
            "1",
            "scorer_failed: ModuleNotFoundError: No module named 'no_such_module'",
        ),
    ],
)
def test_a_reply_is_scored_by_what_it_says(scorer: str, answer: str, reply: str, told: str) -> None:
    assert ExpectedAnswer.of(answer, scorer).check(reply, cut=False) == told
    assert check_of(told) == told.split(":")[0]


def test_a_reply_that_was_cut_is_no_wrong_answer() -> None:
    asked = ExpectedAnswer.of("42", "number")
    assert asked.check("17 and 25 make", cut=True) == "cut_by_limit"
    assert asked.check("it is 42", cut=True) == "right"


def test_a_record_keeps_little_of_a_wrong_reply() -> None:
    told = ExpectedAnswer.of("x").check("many\nwords " * 100, cut=False)
    assert told.startswith("wrong: many words many")
    assert len(told) < 220


@pytest.mark.parametrize(
    ("answer", "scorer", "complaint"),
    [
        ("4", "fuzzy", "scorer is 'fuzzy'; it must be exact, number, choice, contains, regex:PATTERN"),
        ("4", "regex:(", "no regular expression"),
        ("4", "regex:", "it must be"),
        ("4", "python:module", "it must be"),
        (" ", "exact", "the answer is empty"),
        ("four", "number", "holds no number"),
        ("four", "choice", "no letter from A to J"),
    ],
)
def test_what_could_never_be_answered_is_refused(answer: str, scorer: str, complaint: str) -> None:
    with pytest.raises(SuiteError, match="expected answer") as refused:
        ExpectedAnswer.of(answer, scorer)
    assert complaint in str(refused.value)
