"""The step arithmetic of the embedded engine: known answers first, then laws that hold for any load."""

from __future__ import annotations

import pytest
from engine_runs import A, B, C, D, config, drive, drive_at_once, us
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence


def test_one_request_alone_meets_the_formula() -> None:
    sequence = EngineSequence("r", prompt_tokens=320, max_tokens=5)
    run = drive_at_once(Engine(config()), [sequence])

    ttft = us(A + B * 320)
    gaps = [us(A + C + D * (320 + given)) for given in range(1, 5)]
    assert run.token_ns[sequence] == [ttft + sum(gaps[:i]) for i in range(5)]
    assert sequence.finish_reason == "length"


def test_a_batch_of_k_shares_each_step() -> None:
    k = 8
    sequences = [EngineSequence(str(i), prompt_tokens=100, max_tokens=3) for i in range(k)]
    run = drive_at_once(Engine(config()), sequences)

    ttft = us(A + B * 100 * k)
    second = ttft + us(A + C * k + D * 101 * k)
    third = second + us(A + C * k + D * 102 * k)
    assert all(run.token_ns[sequence] == [ttft, second, third] for sequence in sequences)


def test_a_prompt_slows_the_decoding_of_its_neighbours() -> None:
    early, late = EngineSequence("early", 100, 3), EngineSequence("late", 1000, 1)
    engine = Engine(config())
    engine.submit(early)
    engine.step()
    engine.submit(late)
    step = engine.step()

    assert (step.decoded, step.first_tokens) == ([early], [late])
    assert step.duration_ns == us(A + B * 1000 + C + D * 101)


def test_a_long_prompt_is_prefilled_in_chunks_that_leave_room_for_decoding() -> None:
    engine = Engine(config(max_num_seqs=4, max_num_batched_tokens=100))
    short, long = EngineSequence("short", 50, 9), EngineSequence("long", 240, 2)
    engine.submit(short)
    engine.submit(long)
    steps = [engine.step() for _ in range(4)]

    assert [step.prefill_tokens for step in steps] == [100, 99, 91, 0]
    assert [step.kv_tokens for step in steps] == [0, 50 + 51, 149 + 52, 241 + 53]
    assert [step.first_tokens for step in steps] == [[short], [], [long], []]
    assert steps[3].decoded == [short, long]


def test_places_are_limited_and_given_in_order_of_arrival() -> None:
    engine = Engine(config(max_num_seqs=2))
    sequences = [EngineSequence(str(i), 10, 2) for i in range(5)]
    for sequence in sequences:
        engine.submit(sequence)
    admitted = []
    while not engine.idle:
        admitted.append(engine.step().admitted)
        assert engine.running <= 2

    assert admitted == [sequences[:2], [], sequences[2:4], [], sequences[4:], []]


def test_the_token_budget_limits_admission_too() -> None:
    engine = Engine(config(max_num_seqs=8, max_num_batched_tokens=100))
    for i in range(4):
        engine.submit(EngineSequence(str(i), 90, 1))

    assert [len(engine.step().admitted) for _ in range(3)] == [2, 1, 1]


def test_one_output_token_means_first_is_last() -> None:
    engine = Engine(config())
    sequence = EngineSequence("r", 10, 1)
    engine.submit(sequence)
    step = engine.step()

    assert step.first_tokens == step.finished == [sequence]
    assert engine.idle


@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_an_aborted_sequence_leaves_nothing_behind(steps_before: int) -> None:
    engine = Engine(config(max_num_batched_tokens=64, max_num_seqs=2))
    gone, stays, after = (
        EngineSequence("gone", 100, 50),
        EngineSequence("stays", 30, 8),
        EngineSequence("after", 10, 3),
    )
    engine.submit(gone)
    for _ in range(steps_before):
        engine.step()
    assert engine.abort(gone)
    assert not engine.abort(gone)
    assert engine.idle

    run = drive_at_once(engine, [stays, after])
    fresh = drive_at_once(
        Engine(config(max_num_batched_tokens=64, max_num_seqs=2)),
        [stays2 := EngineSequence("", 30, 8), EngineSequence("", 10, 3)],
    )
    assert run.token_ns[stays] == fresh.token_ns[stays2]


def test_an_idle_engine_has_no_step() -> None:
    with pytest.raises(RuntimeError, match="idle"):
        Engine(config()).step()


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (100, 29), (129, 1)])
def test_what_can_never_run_is_not_queued(prompt: int, output: int) -> None:
    engine = Engine(config(context_limit_tokens=128))
    with pytest.raises(ValueError, match=r"at least one|exceed"):
        engine.submit(EngineSequence("r", prompt, output))
    assert engine.idle


def test_throughput_saturates_at_what_the_figures_allow() -> None:
    def output_rate(rate_hz: float) -> float:
        arrivals = [(round(i / rate_hz * 1e9), EngineSequence(str(i), 100, 50)) for i in range(600)]
        return 600 * 50 / drive(Engine(config(max_num_seqs=16)), arrivals).end_ns * 1e9

    # A full batch of 16 in steady state replaces 16/50 of its sequences per step.
    step_us = A + (16 / 50) * 100 * B + 16 * (49 / 50) * (C + D * 125)
    ceiling = 16 / step_us * 1e6
    assert output_rate(20) == pytest.approx(20 * 50, rel=0.02)
    assert output_rate(400) == pytest.approx(ceiling, rel=0.05)
    assert output_rate(4000) == pytest.approx(output_rate(400), rel=0.05)


loads = st.lists(
    st.tuples(
        st.integers(0, 50_000_000),
        st.integers(1, 300),
        st.integers(1, 40),
        st.integers(0, 10),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@given(
    load=loads, places=st.integers(1, 12), budget=st.integers(12, 400), mean=st.sampled_from(["none", 1, 7.5])
)
@settings(max_examples=120)
def test_every_sequence_ends_and_every_token_is_given(
    load: list[tuple[int, int, int, int, bool]], places: int, budget: int, mean: object
) -> None:
    """Conservation: tokens given = output lengths; nothing is lost, given twice, or held at the end."""
    engine = Engine(config(max_num_seqs=places, max_num_batched_tokens=budget, eos_mean_tokens=mean))
    arrivals = sorted(
        (
            (at, EngineSequence("", prompt, most, min(least, most), ignore))
            for at, prompt, most, least, ignore in load
        ),
        key=lambda arrival: arrival[0],
    )
    run = drive(engine, arrivals)

    assert {id(sequence) for sequence in run.finished} == {id(sequence) for _, sequence in arrivals}
    assert len(run.finished) == len(arrivals)
    for at, sequence in arrivals:
        times = run.token_ns[sequence]
        assert len(times) == sequence.output_tokens
        assert at <= run.admitted_ns[sequence] < times[0]
        assert times == sorted(set(times))
        assert sequence.min_tokens <= sequence.output_tokens <= sequence.max_tokens
        assert (sequence.finish_reason == "length") == (sequence.output_tokens == sequence.max_tokens)
        assert not sequence.ignore_eos or sequence.output_tokens == sequence.max_tokens
    admissions = [run.admitted_ns[sequence] for _, sequence in arrivals]
    assert admissions == sorted(admissions)


@given(load=loads, cuts=st.lists(st.integers(0, 39), max_size=20), every=st.integers(1, 5))
@settings(max_examples=80)
def test_aborts_at_any_time_leave_an_idle_engine(
    load: list[tuple[int, int, int, int, bool]], cuts: list[int], every: int
) -> None:
    engine = Engine(config(max_num_seqs=5, max_num_batched_tokens=50))
    sequences = [EngineSequence("", prompt, most) for _, prompt, most, _, _ in load]
    given_tokens = dict.fromkeys(sequences, 0)
    for sequence in sequences:
        engine.submit(sequence)
    aborted, finished, steps = set(), set(), 0
    while not engine.idle:
        step = engine.step()
        steps += 1
        finished.update(step.finished)
        for sequence in step.first_tokens + step.decoded:
            assert sequence not in aborted
            given_tokens[sequence] += 1
        if cuts and steps % every == 0:
            victim = sequences[cuts.pop() % len(sequences)]
            if engine.abort(victim):
                aborted.add(victim)
    assert aborted | finished == set(sequences)
    assert not aborted & finished
    assert all(given_tokens[sequence] == sequence.output_tokens for sequence in finished)
    probe = EngineSequence("probe", 10, 2)
    times = drive_at_once(engine, [probe]).token_ns[probe]
    assert times == [us(A + B * 10), us(A + B * 10) + us(A + C + D * 11)]
