"""The think phase: its length law, what ends it, and the tokens of both phases."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median

import pytest
from engine_runs import config, drive_at_once, eight_blocks

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence, ThinkLaw


def draws(count: int, **figures: object) -> list[tuple[int, str | None]]:
    law = ThinkLaw(config(**figures))
    return [law.draw() for _ in range(count)]


def test_a_model_that_does_not_reason_has_no_thoughts() -> None:
    assert set(draws(10)) == {(0, None)}


def test_without_spread_every_thought_has_the_mean_length() -> None:
    assert set(draws(10, think_mean_tokens=40, think_spread=0)) == {(40, "converged")}


def test_lengths_follow_the_lognormal_law() -> None:
    lengths = [length for length, _ in draws(20_000, think_mean_tokens=500, think_spread=0.8)]
    assert fmean(lengths) == pytest.approx(500, rel=0.03)
    assert median(lengths) == pytest.approx(500 * 2.718281828 ** (-0.32), rel=0.03)


def test_a_budget_cuts_what_is_found_out_and_the_cap_all() -> None:
    figures = {"think_mean_tokens": 500, "think_budget_tokens": 400, "think_hard_cap_tokens": 900}
    natural = [length for length, _ in draws(4000, think_mean_tokens=500)]

    always = draws(4000, **figures)
    expected = [(min(n, 400), "converged" if n <= 400 else "overthinking") for n in natural]
    assert always == expected

    never = draws(4000, overthinking_detected=0, **figures)
    assert never == [(min(n, 900), "converged" if n <= 900 else "hard_cap") for n in natural]

    half = draws(4000, overthinking_detected=0.5, **figures)
    reasons = Counter(reason for _, reason in half)
    over_budget = sum(n > 400 for n in natural)
    assert reasons["overthinking"] == pytest.approx(over_budget / 2, rel=0.1)
    assert reasons["hard_cap"] == pytest.approx(sum(n > 900 for n in natural) / 2, rel=0.15)
    assert {length for length, reason in half if reason == "overthinking"} == {400}


def test_a_cap_below_the_budget_comes_first() -> None:
    drawn = draws(200, think_mean_tokens=500, think_budget_tokens=400, think_hard_cap_tokens=100)
    assert {reason for length, reason in drawn if length == 100} <= {"hard_cap", "converged"}
    assert max(length for length, _ in drawn) == 100


def test_thoughts_come_first_and_the_answer_is_announced() -> None:
    engine = Engine(config(think_mean_tokens=5, think_spread=0))
    thinks, plain = EngineSequence("thinks", 10, 12), EngineSequence("plain", 10, 12, thinks=False)
    run = drive_at_once(engine, [thinks, plain])

    assert (thinks.think_tokens, thinks.think_reason, thinks.output_tokens) == (5, "converged", 12)
    assert (plain.think_tokens, plain.think_reason) == (0, None)
    assert [step.index for step in run.steps if thinks in step.answering] == [5]
    assert [step.index for step in run.steps if plain in step.answering] == [0]


def test_max_tokens_may_end_a_sequence_that_still_thinks() -> None:
    engine = Engine(config(think_mean_tokens=50, think_spread=0))
    sequence = EngineSequence("r", 10, 12)
    run = drive_at_once(engine, [sequence])
    assert (sequence.think_tokens, sequence.output_tokens, sequence.think_reason) == (12, 12, None)
    assert sequence.finish_reason == "length"
    assert not any(step.answering for step in run.steps)


def test_reasoning_leaves_the_lengths_of_the_answers_alone() -> None:
    def answers(**figures: object) -> list[int]:
        engine = Engine(config(eos_mean_tokens=20, seed=3, **figures))
        sequences = [EngineSequence(str(i), 10, 5000) for i in range(50)]
        drive_at_once(engine, sequences)
        return [sequence.output_tokens - sequence.think_tokens for sequence in sequences]

    assert answers(think_mean_tokens=100) == answers()


def test_one_that_never_answers_leaves_the_answers_of_the_others_alone() -> None:
    def answers(first_ceiling: int) -> list[int]:
        engine = Engine(config(eos_mean_tokens=20, think_mean_tokens=100, think_spread=0))
        sequences = [
            EngineSequence("first", 10, first_ceiling),
            *(EngineSequence(str(i), 10, 5000) for i in range(9)),
        ]
        drive_at_once(engine, sequences)
        return [sequence.output_tokens - sequence.think_tokens for sequence in sequences]

    assert answers(30)[0] == 0
    assert answers(30)[1:] == answers(3000)[1:]


def test_min_tokens_counts_thoughts_too() -> None:
    engine = Engine(config(eos_mean_tokens=1, think_mean_tokens=8, think_spread=0))
    sequence = EngineSequence("r", 10, 100, min_tokens=12)
    drive_at_once(engine, [sequence])
    assert (sequence.output_tokens, sequence.finish_reason) == (12, "stop")


def test_a_preempted_thought_goes_on_and_answers_once() -> None:
    engine = Engine(eight_blocks(think_mean_tokens=12, think_spread=0))
    sequences = [EngineSequence(str(i), 7, 20) for i in range(3)]
    run = drive_at_once(engine, sequences)
    assert run.preempted
    for sequence in sequences:
        (answering,) = [step.index for step in run.steps if sequence in step.answering]
        steps_of_tokens = [step for span in sequence.spans for step in span]
        assert len(steps_of_tokens) == 20
        assert steps_of_tokens[12] == answering
