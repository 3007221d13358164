"""Running out of KV blocks, worked out by hand.

Two sequences of 7 prompt and 10 output tokens, and five blocks of four tokens. Both are admitted with two
blocks each. Step t ≥ 1 stores token 7 + t, which begins a block when t is 2 or 6. So at step 2 both need a
block and there is one: the later one gives way, with 7 + 2 - 1 = 8 tokens stored. It needs three blocks to
come back, which there are once the other has given its tenth token in step 9.
"""

from __future__ import annotations

import pytest
from engine_runs import A, B, C, D, Run, config, drive, drive_at_once, eight_blocks, small_memory, us

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.scheduling import Preemption
from pytest_llmbench.simulator.engine.sequence import EngineSequence


def pair() -> tuple[EngineSequence, EngineSequence]:
    return EngineSequence("early", 7, 10), EngineSequence("late", 7, 10)


def run_pair(**overrides: object) -> tuple[Engine, EngineSequence, EngineSequence, Run]:
    engine = Engine(small_memory(**overrides))
    early, late = pair()
    return engine, early, late, drive_at_once(engine, [early, late])


def test_recompute() -> None:
    engine, early, late, run = run_pair()
    assert run.preempted == [Preemption(late, lost_tokens=8, swapped=False, critical=False)]
    assert [step.index for step in run.steps if step.preempted] == [2]
    assert (early.spans, late.spans) == ([range(10)], [range(2), range(10, 18)])
    assert (late.preemptions, late.lost_tokens, early.preemptions) == (1, 8, 0)
    assert (engine.totals.preemptions, engine.totals.lost_tokens) == (1, 8)
    resumed = run.steps[10]
    assert (resumed.admitted, resumed.resumed, resumed.decoded) == ([], (late,), [late])
    assert resumed.prefill_tokens == 7 + 2
    assert resumed.duration_ns == us(A + B * 9)
    assert run.finished == [early, late]


def test_one_that_was_preempted_is_back_at_its_old_place_in_the_queue() -> None:
    engine = Engine(small_memory(max_num_seqs=2))
    early, late = pair()
    third = EngineSequence("third", 7, 1)  # its two blocks would be there from step 3 on
    run = drive_at_once(engine, [early, late, third])
    assert [step.index for step in run.steps if late in step.resumed] == [10]
    assert [step.index for step in run.steps if third in step.admitted] == [10]


def test_swap() -> None:
    engine, early, late, run = run_pair(preemption="swap", swap_us_per_block=30)
    assert run.preempted == [Preemption(late, lost_tokens=0, swapped=True, critical=False)]
    assert (early.spans, late.spans) == ([range(10)], [range(2), range(10, 18)])
    assert run.steps[2].duration_ns == us(A + C + D * 9 + 30 * 2)
    resumed = run.steps[10]
    assert (resumed.resumed, resumed.decoded, resumed.prefill_tokens) == ((late,), [late], 0)
    assert resumed.duration_ns == us(A + C + D * 9 + 30 * 2)
    assert engine.totals.swapped_blocks == 4
    assert late.lost_tokens == 0


def test_without_preemption_the_sequence_fails() -> None:
    engine, early, late, run = run_pair(preemption="off")
    assert run.failed == [late]
    assert (late.finish_reason, late.spans) == ("error", [range(2)])
    assert run.finished == [early]
    assert len(run.token_ns[early]) == 10
    assert (engine.totals.failed, engine.totals.preemptions) == (1, 0)


def test_without_preemption_the_engine_may_fail_with_all_it_holds() -> None:
    engine = Engine(small_memory(preemption="off", out_of_memory="engine", recovery_ms=1500, max_num_seqs=2))
    early, late = pair()
    third = EngineSequence("third", 3, 1)
    run = drive_at_once(engine, [early, late, third])
    crash = run.steps[2]
    assert (crash.crashed, crash.duration_ns, crash.failed) == (True, 1_500_000_000, (early, late, third))
    assert engine.idle
    assert engine.kv_usage == 0
    assert (engine.totals.failed, engine.totals.crashes) == (3, 1)
    after = EngineSequence("after", 7, 10)
    assert drive_at_once(engine, [after]).finished == [after]
    assert after.spans == [range(3, 13)]


@pytest.mark.parametrize(
    ("policy", "victim"), [("latest", "c"), ("lowest_priority", "b"), ("largest", "a"), ("smallest", "b")]
)
def test_victims_by_policy(policy: str, victim: str) -> None:
    engine = Engine(eight_blocks(preemption_victim=policy))
    sequences = [
        EngineSequence("a", 15, 8, priority=1),
        EngineSequence("b", 7, 8, priority=2),
        EngineSequence("c", 8, 8, priority=0),
    ]
    run = drive_at_once(engine, sequences)  # 4 + 2 + 2 blocks: none left, and c needs one at step 1
    assert run.preempted[0].sequence.request_id == victim
    assert sorted(s.request_id for s in run.finished) == ["a", "b", "c"]


def test_a_prompt_under_way_may_give_way_too() -> None:
    engine = Engine(eight_blocks(max_num_seqs=2, max_num_batched_tokens=9, preemption="swap"))
    engine.submit(early := EngineSequence("early", 8, 12))
    engine.step()
    engine.submit(late := EngineSequence("late", 22, 2))
    step = engine.step()  # early takes its third block, and the prompt does not fit into the other five
    assert step.admitted == []
    while early.spans == []:
        engine.step()
    assert late.preemptions == 0

    chunked = Engine(eight_blocks(max_num_seqs=2, max_num_batched_tokens=4, preemption="swap"))
    first, second = EngineSequence("first", 8, 10), EngineSequence("second", 20, 2)
    run = drive(chunked, [(0, first), (us(3 * A), second)])
    assert run.preempted == [
        Preemption(second, lost_tokens=run.preempted[0].lost_tokens, swapped=False, critical=False)
    ]
    assert 0 < run.preempted[0].lost_tokens < 20
    assert chunked.totals.swapped_blocks == 0
    assert [len(run.token_ns[sequence]) for sequence in (first, second)] == [10, 2]


def test_oversubscription_costs_time_but_no_tokens() -> None:
    def run(blocks: int) -> tuple[Engine, Run]:
        engine = Engine(config(kv_blocks=blocks, context_limit_tokens=1000, max_num_seqs=16))
        return engine, drive_at_once(engine, [EngineSequence(str(i), 100, 200) for i in range(32)])

    ample, roomy = run(16 * 19)
    short, tight = run(100)
    assert ample.totals.preemptions == 0
    assert short.totals.preemptions > 0
    assert tight.end_ns > roomy.end_ns
    assert sum(map(len, tight.token_ns.values())) == sum(map(len, roomy.token_ns.values())) == 32 * 200
