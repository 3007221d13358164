"""Who goes first: the orders of the queue, its limit, and the two phases of the phase-aware scheduler."""

from __future__ import annotations

import pytest
from engine_runs import config, drive, drive_at_once, eight_blocks, us

from pytest_llmbench.simulator.engine.engine import Engine, QueueFullError
from pytest_llmbench.simulator.engine.sequence import EngineSequence

THREE = (("a", 30, 2), ("b", 10, 1), ("c", 20, 0))  # name, prompt, priority


@pytest.mark.parametrize(
    ("scheduler", "order"), [("fcfs", "abc"), ("priority", "cba"), ("shortest", "bca"), ("phase", "abc")]
)
def test_the_queue_is_served_in_the_order_of_the_scheduler(scheduler: str, order: str) -> None:
    engine = Engine(config(scheduler=scheduler, max_num_seqs=1))
    sequences = [EngineSequence(name, prompt, 2, priority=priority) for name, prompt, priority in THREE]
    run = drive_at_once(engine, sequences)
    assert "".join(sequence.request_id for sequence in run.finished) == order


@pytest.mark.parametrize("scheduler", ["priority", "shortest"])
def test_ties_go_by_arrival(scheduler: str) -> None:
    engine = Engine(config(scheduler=scheduler, max_num_seqs=1))
    sequences = [EngineSequence(str(i), 10, 1) for i in range(20)]
    assert drive_at_once(engine, sequences).finished == sequences


def test_one_who_gives_up_leaves_the_queue() -> None:
    engine = Engine(config(max_num_seqs=1))
    sequences = [EngineSequence(str(i), 10, 1) for i in range(4)]
    for sequence in sequences:
        engine.submit(sequence)
    assert engine.abort(sequences[1])
    assert not engine.abort(sequences[1])
    assert engine.waiting == 3
    finished = [engine.step().finished[0] for _ in range(3)]
    assert finished == [sequences[0], *sequences[2:]]


def test_a_full_queue_takes_nobody_in() -> None:
    engine = Engine(config(max_num_seqs=1, max_waiting=2))
    for i in range(2):
        engine.submit(EngineSequence(str(i), 10, 5))
    assert engine.full
    with pytest.raises(QueueFullError, match="2 sequences wait"):
        engine.submit(EngineSequence("r", 10, 5))
    engine.step()  # one of them leaves the queue
    assert not engine.full
    engine.submit(EngineSequence("r", 10, 5))
    assert engine.full
    assert not Engine(config()).full


THINKING = {"think_mean_tokens": 12, "think_spread": 0}


def memory_for_two(**overrides: object) -> Engine:
    """Room for two prompts of 7 tokens and some output."""
    return Engine(eight_blocks(**THINKING, **overrides))


def test_output_is_protected_against_thoughts_when_memory_is_short() -> None:
    def first_victim(scheduler: str) -> tuple[str, int]:
        engine = memory_for_two(scheduler=scheduler)
        thinks, answers = EngineSequence("thinks", 7, 20), EngineSequence("answers", 7, 20, thinks=False)
        run = drive_at_once(engine, [thinks, answers])
        assert len(run.finished) == 2
        return run.preempted[0].sequence.request_id, engine.totals.critical_evictions

    assert first_victim("fcfs") == ("answers", 0)  # the latest; and nothing counts as critical
    assert first_victim("phase") == ("thinks", 0)


def test_evictions_of_output_are_counted_when_only_output_is_there() -> None:
    engine = memory_for_two(scheduler="phase")
    run = drive_at_once(engine, [EngineSequence(str(i), 7, 20, thinks=False) for i in range(2)])
    assert [event.critical for event in run.preempted] == [True]
    assert engine.totals.critical_evictions == 1


def test_thoughts_may_not_use_the_blocks_kept_for_output() -> None:
    def most_used(share: float) -> float:
        engine = Engine(
            config(
                kv_block_tokens=4,
                kv_blocks=40,
                context_limit_tokens=64,
                scheduler="phase",
                output_kv_share=share,
                think_mean_tokens=1000,
            )
        )
        for i in range(10):
            engine.submit(EngineSequence(str(i), 8, 30))
        used = []
        while not engine.idle:
            engine.step()
            used.append(engine.kv_usage)
        return max(used)

    assert most_used(0) > 0.9
    assert most_used(0.5) == 0.5


def test_the_number_that_think_at_a_time_is_limited_and_output_overtakes() -> None:
    engine = Engine(config(scheduler="phase", max_think_seqs=2, **THINKING))
    thinkers = [EngineSequence(f"t{i}", 10, 20) for i in range(5)]
    quick = EngineSequence("quick", 10, 3, thinks=False)
    run = drive(engine, [(0, thinker) for thinker in thinkers] + [(us(2000), quick)])

    for step in run.steps:
        running = [t for t in thinkers if t.spans[0].start <= step.index < t.spans[0].start + 12]
        assert len(running) <= 2
    assert run.admitted_ns[quick] < run.admitted_ns[thinkers[2]]
    assert run.finished[0] is quick
    assert {s.request_id for s in run.finished} == {"quick", "t0", "t1", "t2", "t3", "t4"}
