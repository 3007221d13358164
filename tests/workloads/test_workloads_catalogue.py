"""Workloads by name, and custom ones refused unless they are fully specified."""

from __future__ import annotations

from copy import deepcopy

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.catalogue import FROM_DATASETS, WORKLOADS, workload
from pytest_llmbench.workloads.lengths import REQUIRED_ITEMS, Fixed, Uniform, check_specification
from pytest_llmbench.workloads.synthetic import STANDARD_NAMES, SYNTHETIC_UNIFORM, SyntheticWorkload


class Greetings:
    """A custom workload from code, completely specified."""

    name = "greetings"
    standard = False

    def __init__(self, specification=None):
        complete = deepcopy(dict(SYNTHETIC_UNIFORM.specification()))
        self._specification = complete if specification is None else specification

    def requests(self, count, seed):
        return [PlannedRequest(index, max_tokens=8, input_tokens=1, text="hello") for index in range(count)]

    def specification(self):
        return self._specification


def without(item: str) -> dict:
    specification = deepcopy(dict(SYNTHETIC_UNIFORM.specification()))
    *path, last = item.split(".")
    inner = specification
    for key in path:
        inner = inner[key]
    del inner[last]
    return specification


def test_the_reference_workload_is_found_by_name():
    assert workload("synthetic-uniform") is SYNTHETIC_UNIFORM
    assert workload(SYNTHETIC_UNIFORM) is SYNTHETIC_UNIFORM


@pytest.mark.parametrize("wanted", ["synthetic-unifrom", "synthetic_uniform", "Synthetic-Uniform"])
def test_a_misspelt_name_gets_a_suggestion(wanted):
    with pytest.raises(SuiteError, match="did you mean 'synthetic-uniform'\\?"):
        workload(wanted)


def test_an_unknown_name_gets_the_list():
    with pytest.raises(SuiteError) as caught:
        workload("chatty")
    assert "unknown workload 'chatty'" in str(caught.value)
    assert "available: synthetic-uniform" in str(caught.value)


def test_reference_workloads_are_generated_or_made_of_a_data_set():
    beyond = {"long-context-uniform", "chat-and-reasoning", "arithmetic"}
    assert {*WORKLOADS, *FROM_DATASETS} == {*STANDARD_NAMES, *beyond}
    for name, known in WORKLOADS.items():
        assert workload(name) is known
        assert known.name == name
        assert known.standard == (name not in ("chat-and-reasoning", "arithmetic"))
        assert check_specification(known) == []


@pytest.mark.parametrize("name", FROM_DATASETS)
def test_workloads_of_a_data_set_say_how_to_give_it(name):
    with pytest.raises(SuiteError, match="needs a data set") as caught:
        workload(name)
    assert "--llm-workloads FILE" in str(caught.value)
    assert "pytest_llmbench_workloads" in str(caught.value)


def test_a_complete_custom_workload_is_taken_as_it_is():
    mine = Greetings()
    assert workload(mine) is mine
    other = SyntheticWorkload("short prompts", Uniform(8, 16), Fixed(4))
    assert workload(other) is other
    assert not other.standard


@pytest.mark.parametrize("item", REQUIRED_ITEMS)
def test_every_missing_item_is_named(item):
    assert check_specification(Greetings(without(item))) == [f"{item} is missing"]
    with pytest.raises(SuiteError, match=f"{item} is missing"):
        workload(Greetings(without(item)))


def test_an_empty_specification_misses_everything():
    assert check_specification(Greetings({})) == [f"{item} is missing" for item in REQUIRED_ITEMS]
    with pytest.raises(SuiteError) as caught:
        workload(Greetings({}))
    assert all(item in str(caught.value) for item in REQUIRED_ITEMS)


def test_empty_values_are_missing_but_zero_and_no_stop_sequences_are_not():
    specification = without("content.domain")
    specification["content"]["domain"] = ""
    specification["input_length"]["params"] = {}
    found = check_specification(Greetings(specification))
    assert found == ["input_length.params is missing", "content.domain is missing"]


def test_words_outside_of_the_vocabulary_are_named():
    specification = without("stop") | {"stop": []}
    specification["output_length"]["control"] = "hope"
    specification["input_length"]["type"] = "zipf"
    found = check_specification(Greetings(specification))
    assert found == [
        "input_length.type is 'zipf': choose one of fixed, uniform, normal, lognormal, empirical",
        "output_length.control is 'hope': choose one of max_tokens, stop, both",
    ]


def test_a_workload_from_a_dataset_states_its_origin():
    specification = without("stop") | {"stop": [], "dataset": {"name": "mine", "preprocessing": []}}
    found = check_specification(Greetings(specification))
    assert found == ["dataset.version is missing", "dataset.subset_method is missing"]


def test_a_specification_that_is_no_mapping():
    assert check_specification(Greetings(["no"])) == ["specification() gives list, not a mapping"]


def test_an_object_that_is_no_workload():
    with pytest.raises(SuiteError) as caught:
        workload(42)
    assert "it has no requests" in str(caught.value)
    assert "it has no specification" in str(caught.value)


def test_a_class_instead_of_an_object():
    with pytest.raises(SuiteError, match=r"write Greetings\("):
        workload(Greetings)


def test_a_custom_workload_cannot_claim_to_be_standard():
    impostor = Greetings()
    impostor.standard = True
    with pytest.raises(SuiteError, match="claims to be a reference workload"):
        workload(impostor)
    namesake = Greetings()
    namesake.name = "conversation"
    with pytest.raises(SuiteError, match="claims to be a reference workload"):
        workload(namesake)
