"""What ``llm_workload`` makes of friendly arguments."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.workloads.adapted import Salted, SharedPrefix, WithFixedOutput
from pytest_llmbench.workloads.lengths import (
    Choice,
    Empirical,
    Fixed,
    LogNormal,
    Uniform,
    check_specification,
)
from pytest_llmbench.workloads.mixture import Mixture
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SYNTHETIC_UNIFORM, SyntheticWorkload


def test_names_and_objects():
    assert make_workload() is SYNTHETIC_UNIFORM
    assert make_workload("synthetic-skewed") is SYNTHETIC_SKEWED
    mine = SyntheticWorkload("mine", Fixed(3), Fixed(4))
    assert make_workload(mine) is mine
    with pytest.raises(SuiteError, match="unknown workload 'mine'"):
        make_workload("mine")


@pytest.mark.parametrize("given", [{"input": 5}, {"input_tokens": 5}])
def test_keywords_written_as_a_mapping_are_answered_with_the_call(given):
    with pytest.raises(SuiteError, match=r"write make_workload\(input_tokens=5\)"):
        make_workload(mix=given)


@pytest.mark.parametrize(
    ("given", "law"),
    [
        (64, Fixed(64)),
        ((16, 32), Uniform(16, 32)),
        ([16, 32], Choice((16, 32))),
        ((16, 32, 64), Choice((16, 32, 64))),
        ({16: 3, 32: 1}, Empirical((16, 32), (3, 1))),
        (LogNormal(4, 1, 2, 500), LogNormal(4, 1, 2, 500)),
    ],
)
def test_lengths_of_all_kinds(given, law):
    made = make_workload(input_tokens=given, output_tokens=8)
    assert made == SyntheticWorkload("custom", law, Fixed(8))
    assert make_workload("mine", input_tokens=8, output_tokens=given).output_tokens == law
    assert check_specification(made) == []


def test_a_fixed_output_for_a_named_workload():
    assert make_workload(output_tokens=256) == WithFixedOutput(SYNTHETIC_UNIFORM, 256)
    assert make_workload("synthetic-skewed", output_tokens=9).base is SYNTHETIC_SKEWED
    for wrong, said in (
        ({"output_tokens": (1, 2)}, "both input_tokens and output_tokens"),
        ({"input_tokens": 5}, "both input_tokens and output_tokens"),
        ({"input_tokens": 5, "name": "mine"}, "unknown workload 'mine'"),
    ):
        with pytest.raises(SuiteError, match=said):
            make_workload(**wrong)


def test_shared_prefixes_salt_and_mixtures():
    shared = make_workload("mine", prefix_tokens=(100, 200), prefix_fraction=0.5, prefixes=4)
    assert shared == SharedPrefix("mine", SYNTHETIC_UNIFORM, Uniform(100, 200), 0.5, 4)
    assert make_workload(prefix_tokens=64).fraction == 1.0
    small = make_workload("mine", input_tokens=5, output_tokens=6, prefix_tokens=7)
    assert small == SharedPrefix("mine", SyntheticWorkload("mine", Fixed(5), Fixed(6)), Fixed(7), 1.0)
    assert make_workload(salt="x") == Salted(SYNTHETIC_UNIFORM, "x")
    mixed = make_workload(mix={"a": ("synthetic-uniform", 3), "b": (small, 1)}, salt="x")
    assert isinstance(mixed.base, Mixture)
    assert mixed.base.shares == (0.75, 0.25)
    assert check_specification(mixed) == []


def test_all_mistakes_at_once():
    with pytest.raises(SuiteError, match="4 mistakes") as caught:
        make_workload(input_tokens=0, output_tokens="long", prefix_tokens=(9, 3), salt="")
    for said in ("tokens is 0", "output_tokens is 'long'", "lower bound comes first", "salt is empty"):
        assert said in str(caught.value)
    with pytest.raises(SuiteError, match="3 mistakes") as caught:
        make_workload(mix={"a": "synthetic-uniform", "b": ("nonsense", 1)}, input_tokens=3)
    assert "exclude each other" in str(caught.value)
    assert "give (workload, weight)" in str(caught.value)
    with pytest.raises(SuiteError, match="need prefix_tokens"):
        make_workload(prefixes=3)
