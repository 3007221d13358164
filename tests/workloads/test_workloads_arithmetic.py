"""Sums by seed: the answers are right, and each request is as long as the workload says."""

from __future__ import annotations

import re

from pytest_llmbench.simulator.engine.answers import sum_in, wrong_answer
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.synthetic import ARITHMETIC


def test_every_answer_is_that_of_its_question() -> None:
    requests = ARITHMETIC.requests(300, 7)
    for request in requests:
        assert request.text is not None
        assert request.expected is not None
        asked = re.search(r"What is (.*)\?", request.text)
        assert asked is not None
        assert int(request.expected.answer) == eval(asked[1])
        assert sum_in((request.text,)) == request.expected.answer
    assert {request.class_label for request in requests} == {"add", "subtract", "multiply"}


def test_its_specification_is_complete_and_true() -> None:
    assert check_specification(ARITHMETIC) == []
    stated = ARITHMETIC.specification()["input_length"]["params"]
    counted = {reference_tokenizer().count(request.text or "") for request in ARITHMETIC.requests(200, 1)}
    assert counted == {request.input_tokens for request in ARITHMETIC.requests(200, 1)}
    assert counted == set(stated.values())


def test_the_answer_is_part_of_what_was_asked() -> None:
    one, other = ARITHMETIC.requests(1, 7), ARITHMETIC.requests(1, 7)
    other[0].expected = None
    assert sequence_sha256(one) != sequence_sha256(other)


def test_a_wrong_answer_is_never_the_right_one() -> None:
    for answer in ("42", "-3", "B", "Paris"):
        assert all(wrong_answer(answer, choice) != answer for choice in range(1, 10))
