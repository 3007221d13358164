"""Which requests a system gets: those of the seed, new ones in each session, or those of a name."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.setting import prompts_of, salt_of
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.sut import SUT

SERVED = ("http://host/v1", "https://host/v1", "ws://host/v1", "grpc://host:50051")
OURS = ("sim", "sim:h100-8b", "replay", "python:module:serve")


@pytest.mark.parametrize("endpoint", SERVED)
def test_a_server_that_was_there_before_gets_new_ones_in_each_session(endpoint: str) -> None:
    names = {prompts_of(SUT(endpoint), Settings(new_prompts=drawn)) for drawn in ("1a", "2b")}
    assert names == {"1a", "2b"}


@pytest.mark.parametrize("endpoint", OURS)
def test_what_begins_with_the_session_gets_those_of_the_seed(endpoint: str) -> None:
    assert prompts_of(SUT(endpoint), Settings(new_prompts="1a")) == ""


@pytest.mark.parametrize("endpoint", [*SERVED, *OURS])
def test_a_name_and_the_seed_stand_before_that(endpoint: str) -> None:
    assert prompts_of(SUT(endpoint), Settings(new_prompts="1a", prompts="mine")) == "mine"
    assert prompts_of(SUT(endpoint), Settings(new_prompts="1a", prompts="seed")) == ""


def test_a_test_that_is_measured_anew_adds_its_own() -> None:
    settings = Settings(new_prompts="1a")
    assert salt_of(SUT("http://host/v1"), settings) == "1a"
    assert salt_of(SUT("http://host/v1"), settings, "t::a 2") == "1a t::a 2"
    assert salt_of(SUT("replay"), settings, "t::a 2") == "t::a 2"


@pytest.mark.parametrize("given", ["a b", "a/b", "-a", "x" * 65, "é"])
def test_what_is_no_name(given: str) -> None:
    with pytest.raises(SuiteError, match="--llm-prompts: use at most 64 letters"):
        Settings.from_options({"prompts": given})
