"""The filters before and after the engine: cost, what is held back, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from engine_runs import config, drive_at_once, us
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.guardrails import Guardrails, Release
from pytest_llmbench.simulator.engine.sequence import EngineSequence

INPUT = {"input_filter": "enabled", "input_filter_us": 3000, "input_filter_us_per_token": 2}
OUTPUT = {
    "output_filter": "enabled",
    "output_filter_us": 500,
    "output_filter_us_per_token": 10,
    "output_filter_window_tokens": 4,
}


def test_the_input_filter_costs_by_request_and_by_token() -> None:
    screening = Guardrails(config(**INPUT)).screen(320)
    assert (screening.delay_ns, screening.refused) == (us(3000 + 2 * 320), False)


@pytest.mark.parametrize("state", ["absent", "disabled"])
def test_filters_that_are_not_on_cost_nothing(state: str) -> None:
    stages = Guardrails(
        config(
            **{**INPUT, **OUTPUT, "input_filter": state, "output_filter": state, "output_refusal_share": 1}
        )
    )
    assert (stages.screen(320).delay_ns, stages.screens, stages.holds) == (0, False, False)
    assert stages.cut(10) is None
    assert Release(stages).produced(17, last=False) == 17
    assert stages.released_ns(np.array([1, 2, 3])).tolist() == [1, 2, 3]


def test_a_window_is_held_until_it_has_been_checked() -> None:
    stages = Guardrails(config(**OUTPUT))
    token_ns = np.arange(1, 10) * us(1000)  # windows end at 4, 8 and 9 ms
    expected = [us(4540)] * 4 + [us(8540)] * 4 + [us(9510)]
    assert stages.released_ns(token_ns).tolist() == expected


def test_checks_of_one_answer_are_made_one_after_another() -> None:
    stages = Guardrails(config(**OUTPUT))
    token_ns = np.arange(1, 9) * us(10)
    assert stages.released_ns(token_ns).tolist() == [us(40 + 540)] * 4 + [us(40 + 2 * 540)] * 4


@given(gaps=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60), window=st.integers(1, 9))
@settings(max_examples=100)
def test_token_by_token_and_all_at_once_agree(gaps: list[int], window: int) -> None:
    stages = Guardrails(config(**{**OUTPUT, "output_filter_window_tokens": window}))
    token_ns = np.cumsum(np.array(gaps, dtype=np.int64))
    release, expected, held = Release(stages), [], 0
    for number, at_ns in enumerate(token_ns.tolist(), 1):
        held += 1
        leaves = release.produced(at_ns, last=number == len(token_ns))
        if leaves is not None:
            expected += [leaves] * held
            held = 0
    released = stages.released_ns(token_ns)
    assert released.tolist() == expected
    assert np.all(released > token_ns)
    assert np.all(np.diff(released) >= 0)


def test_prompts_are_refused_by_their_share_and_seed() -> None:
    def refused(seed: int) -> list[bool]:
        stages = Guardrails(config(**INPUT, input_refusal_share=0.3, seed=seed))
        return [stages.screen(100).refused for _ in range(2000)]

    assert sum(refused(1)) == pytest.approx(600, abs=80)
    assert refused(1) == refused(1) != refused(2)


def test_a_refused_answer_ends_with_its_window() -> None:
    engine = Engine(config(**OUTPUT, output_refusal_share=1))
    sequences = [EngineSequence(str(i), 10, 18) for i in range(200)]
    run = drive_at_once(engine, sequences)
    assert {sequence.finish_reason for sequence in run.finished} == {"content_filter"}
    ends = {(sequence.output_tokens, sequence.withheld_tokens) for sequence in sequences}
    assert ends == {(4, 4), (8, 4), (12, 4), (16, 4), (18, 2)}
    assert all(len(run.token_ns[sequence]) == sequence.output_tokens for sequence in sequences)


def test_a_share_of_answers_is_refused_and_the_others_are_whole() -> None:
    engine = Engine(config(**OUTPUT, output_refusal_share=0.25))
    sequences = [EngineSequence(str(i), 10, 18) for i in range(1000)]
    drive_at_once(engine, sequences)
    whole = [sequence for sequence in sequences if sequence.finish_reason == "length"]
    assert len(whole) == pytest.approx(750, abs=60)
    assert {(sequence.output_tokens, sequence.withheld_tokens) for sequence in whole} == {(18, 0)}
