"""Scenarios as text."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.faults import FaultOptions, StreamOptions
from pytest_llmbench.simulator.scenario import (
    OPTIONS,
    PARTS,
    PRESETS,
    Scenario,
    option_meanings,
    parse_scenario,
)


def test_a_preset_alone_has_plain_streams_and_no_faults() -> None:
    assert parse_scenario("h100-8b") == Scenario(PRESETS["h100-8b"], StreamOptions(), FaultOptions())
    assert parse_scenario("").engine.name == "fast"


def test_options_of_all_parts_in_one_string() -> None:
    found = parse_scenario(
        "h100-8b?max_num_seqs=64&fault=reset,stall&fault_rate=0.1&usage=finish&done_marker=false&seed=7"
    )
    assert (found.engine.max_num_seqs, found.engine.seed) == (64, 7)
    assert found.faults == FaultOptions(fault=("reset", "stall"), fault_rate=0.1)
    assert found.stream == StreamOptions(usage="finish", done_marker=False)
    assert found.deployment == Deployment()


def test_no_name_belongs_to_two_parts() -> None:
    assert not set(OPTIONS) & set(names("deployments"))
    assert len(set(OPTIONS)) == len(OPTIONS)
    assert [*PARTS, "deployment"] == [each.name for each in fields(Scenario)]


def test_every_mistake_of_every_part_is_said_at_once() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario(
            "fst?max_num_seqs=none&max_num_sq=3&fault=rest&fault_rate=2&usage=finsh&done_marker=yes"
            "&blank_every=-1&seed=1&seed=2&tokens_per_chunk=x&loose"
        )
    text = str(caught.value)
    for said in (
        "did you mean 'fast'",
        "max_num_seqs is 'none'",
        "did you mean 'max_num_seqs'",
        "did you mean 'reset'",
        "fault_rate is 2",
        "did you mean 'finish'",
        "done_marker is 'yes'; it must be true or false",
        "blank_every is -1",
        "'seed' is given twice",
        "tokens_per_chunk is 'x'; it must be a whole number",
        "'loose' is not of the form option=value",
    ):
        assert said in text
    assert "11 mistakes" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("fault_rate=nan", "fault_rate"),
        ("fault_status=200", "from 400 to 599"),
        ("full_status=500", "429 or 503"),
        ("stall_ms=-1", "stall_ms"),
        ("stall_ms=inf", "stall_ms"),
        ("huge_line_mib=1000", "at most 256"),
        ("fault_after_tokens=-1", "fault_after_tokens"),
        ("acceptance=1.5", "from 0 to 1"),
        ("comment_ms=nan", "comment_ms"),
        ("tokens_per_chunk=0", "1 or more"),
        ("tokens_per_chunk=2&speculative_tokens=2", "choose one"),
        ("events_per_write=2&writes_per_event=2", "choose one"),
    ],
)
def test_values_that_cannot_be(options: str, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario(f"fast?{options}")
    assert said in str(caught.value)


@pytest.mark.parametrize("part", [EngineConfig, StreamOptions, FaultOptions])
def test_every_option_has_a_meaning(part: type) -> None:
    meanings = option_meanings(part)
    assert set(meanings) == {each.name for each in fields(part)}
    assert all(meaning and "\n" not in meaning and "``" not in meaning for meaning in meanings.values())
