"""Prefill and decode apart, in the driver on a clock that moves only when somebody waits."""

from __future__ import annotations

import asyncio

import pytest
from driven_engine import MS, KeptReply, VirtualAlarm, given

from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.driver import EngineDriver, Waiting
from pytest_llmbench.simulator.serving.ground_truth import GroundTruthLog, parse_ground_truth

# A block goes over in 1 ms, after 2 ms.
APART = (
    "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
    "&prefill_workers=1&decode_workers=1&kv_transfer_gb_per_s=0.262144&kv_transfer_latency_us=2000"
)


def two_stages(alarm: VirtualAlarm, log: GroundTruthLog, options: str = "") -> EngineDriver:
    return EngineDriver(parse_scenario(APART + options), lambda: alarm, log, alarm.clock)


@pytest.mark.asyncio
async def test_a_request_in_two_stages_takes_prefill_transfer_and_a_step() -> None:
    """100 blocks; the last prompt token is computed again where it is decoded."""

    alarm, log = VirtualAlarm(), GroundTruthLog()
    driver = two_stages(alarm, log)
    running = asyncio.create_task(driver.run())
    reply, drawn = KeptReply(alarm), []
    sequence = EngineSequence("r", 1600, 3)
    waiting = Waiting(sequence, reply, drawn=lambda: drawn.append((alarm.clock(), sequence.output_tokens)))
    driver.loop.submit(waiting, alarm.clock())
    assert not drawn
    await reply.done.wait()
    running.cancel()
    assert drawn == [(1010 * MS, 3)]
    assert reply.token_ns == [1122 * MS, 1132 * MS, 1142 * MS]
    (truth,) = parse_ground_truth(log.json_lines().decode())
    assert (truth.replica, truth.decode_replica) == (0, 1)
    instants = (truth.prefilled_ns, truth.transfer_begun_ns, truth.transfer_ended_ns)
    assert instants == (1010 * MS, 1010 * MS, 1112 * MS)
    assert (truth.admitted_ns, truth.first_token_ns) == (1000 * MS, 1122 * MS)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reached", "not_yet"),
    [
        ("admitted_ns", "prefilled_ns"),
        ("prefilled_ns", "transfer_begun_ns"),
        ("transfer_begun_ns", "transfer_ended_ns"),
        ("transfer_ended_ns", "first_token_ns"),
        ("first_token_ns", "finish_reason"),
    ],
)
async def test_an_abort_between_two_engines_frees_what_is_held_in_either(reached: str, not_yet: str) -> None:
    """The decode worker has blocks for one request, so the second waits while the first is there."""

    alarm, log = VirtualAlarm(), GroundTruthLog()
    driver = two_stages(alarm, log, "&kv_blocks=102&context_limit_tokens=1632")
    running = asyncio.create_task(driver.run())
    replies = {name: KeptReply(alarm, name) for name in ("first", "gone", "after")}
    given(driver, EngineSequence("first", 1600, 4), replies["first"])
    gone, truth = given(driver, EngineSequence("gone", 1600, 20), replies["gone"]), replies["gone"].truth
    while getattr(truth, reached) is None:
        await asyncio.sleep(0)
    assert getattr(truth, not_yet) is None
    driver.abort(gone)
    driver.abort(gone)
    given(driver, EngineSequence("after", 1600, 2), replies["after"])
    await replies["first"].done.wait()
    await replies["after"].done.wait()
    for _ in range(10):  # a transfer that has begun goes on
        await asyncio.sleep(0)
    running.cancel()
    truths = {truth.request_id: truth for truth in parse_ground_truth(log.json_lines().decode())}
    assert {name: truth.aborted for name, truth in truths.items()} == {
        "first": False,
        "gone": True,
        "after": False,
    }
    engines = [replica.engine for replica in driver.replicas]
    assert [engine.kv_usage for engine in engines] == [0, 0]
    assert [(engine.running, engine.waiting) for engine in engines] == [(0, 0)] * 2
    assert [replica.requests for replica in driver.replicas] == [0, 0]
