"""Workloads whose requests name adapters: shares, turns, Zipf's law, and what cannot be asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench import Fixed, SessionWorkload, SyntheticWorkload, make_workload, zipf
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import fairness, job, ttft
from pytest_llmbench.workloads.mixture import Mixture, SessionMix, of_adapters, on_base_model

BASE = SyntheticWorkload("short", Fixed(8), Fixed(4))


def test_shares_and_the_rest_goes_to_the_base_model() -> None:
    made = of_adapters(BASE, {"a": 0.6, "b": 0.3})
    asked = made.requests(4000, 7)
    counted = Counter((each.class_label, each.model) for each in asked)
    assert set(counted) == {("a", "a"), ("b", "b"), ("base", None)}
    assert [counted[key] / 4000 for key in (("a", "a"), ("b", "b"), ("base", None))] == pytest.approx(
        [0.6, 0.3, 0.1], abs=0.03
    )
    assert [part.get("model") for part in made.specification()["parts"]] == ["a", "b", None]
    # No two adapters are asked the same.
    firsts = {
        label: next(each for each in asked if each.class_label == label) for label in ("a", "b", "base")
    }
    assert len({tuple(each.token_ids or ()) for each in firsts.values()}) == 3


@pytest.mark.parametrize("shares", [{"a": 1.0}, {"a": 0.1, "b": 0.2, "c": 0.7}])
def test_shares_of_one_leave_nothing_to_the_base_model(shares: dict[str, float]) -> None:
    assert {each.model for each in of_adapters(BASE, shares).requests(300, 7)} == set(shares)


def test_names_take_turns() -> None:
    asked = of_adapters(BASE, ["a", "b", "c"]).requests(7, 7)
    assert [each.model for each in asked] == ["a", "b", "c", "a", "b", "c", "a"]
    order = of_adapters(BASE, ["a", "b"]).specification()["generation"]["order"]
    assert order == ["part in turn", "next request of that part, from a seed of its own"]


def test_all_turns_of_a_session_name_one_adapter() -> None:
    sessions = make_workload({"sessions": {"turns": 3, "input_tokens": 8, "output_tokens": 4}})
    assert isinstance(sessions, SessionWorkload)
    made = of_adapters(sessions, ["a", "b"])
    assert isinstance(made, SessionMix)
    assert made.specification()["generation"]["order"][1].startswith("next session of that part")
    turns = made.requests(12, 7)
    assert [each.model for each in turns] == [*"aaabbbaaabbb"]
    # The adapters of a session are the labels by which its turns are counted.
    assert [each.class_label for each in turns] == [*"aaabbbaaabbb"]


def test_an_own_mixture_may_name_models() -> None:
    from pytest_llmbench import Part

    asked = Mixture("two", (Part("x", BASE, 1, model="m-1"), Part("y", BASE, 1))).requests(50, 7)
    assert {(each.class_label, each.model) for each in asked} == {("x", "m-1"), ("y", None)}


def test_zipf() -> None:
    assert zipf(["a", "b", "c"]) == pytest.approx({"a": 6 / 11, "b": 3 / 11, "c": 2 / 11})
    assert zipf(["a", "b"], 0) == {"a": 0.5, "b": 0.5}
    assert zipf(["a", "b"], 2.0) == pytest.approx({"a": 0.8, "b": 0.2})
    for names, exponent in (([], 1.0), (["a"], -1), (["a"], float("nan")), (["a"], 11)):
        with pytest.raises(SuiteError, match="exponent"):
            zipf(names, exponent)


def test_a_keyword_of_tests_that_send_the_workload() -> None:
    asked = build(job.Parameters, {"workload": BASE, "adapters": {"a": 0.5}}, test="job")
    assert asked.workload == of_adapters(BASE, {"a": 0.5})
    assert build(ttft.Parameters, {"adapters": ["a"]}, test="ttft").workload.name.endswith("on 1 adapter")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": 0.6, "b": 0.5}, "shares that add up to at most 1, got 1.1"),
        (
            {"": 0.2, "b": 1.5},
            "2 mistakes\n  - adapters has the name '': give the name that the server lists\n",
        ),
        ({"a": 0.0}, "above 0"),
        ({"a": -0.1}, "between 0 and 1"),
        ({"a": "much"}, "must be a number"),
        ({1: 0.5}, "name 1"),
        ({}, "list of names"),
        ([], "list of names"),
        ("a", "list of names"),
        (["a", "a"], "different names"),
        (["a", 1], "name 1"),
        ({"base": 0.5}, "a different name"),
        (["a[0]", "b"], "use no brackets"),
    ],
)
def test_what_cannot_be_asked_for(given: Any, said: str) -> None:
    with pytest.raises(SuiteError, match="adapters") as error:
        build(job.Parameters, {"workload": BASE, "adapters": given}, test="job")
    assert said in str(error.value)


def test_on_the_base_model_the_same_is_asked() -> None:
    for shares in ({"a": 1.0}, {"a": 0.5}):
        made = of_adapters(BASE, shares)
        plain = on_base_model(made)
        assert [replace(each, model=None) for each in made.requests(20, 7)] == plain.requests(20, 7)
        assert {each.model for each in plain.requests(20, 7)} == {None}


def test_not_of_prompts_of_exact_lengths() -> None:
    exact = ExactLengths(BASE)
    with pytest.raises(SuiteError, match="cannot have prompts of exact lengths"):
        build(job.Parameters, {"workload": exact, "adapters": ["a"]}, test="job")


def test_not_of_a_test_with_prompts_that_belong_together() -> None:
    with pytest.raises(SuiteError, match="adapters does not apply to this test"):
        build(fairness.Parameters, {"adapters": ["a"]}, test="fairness")
