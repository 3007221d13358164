"""The engine's driver on a clock that moves only when somebody waits."""

from __future__ import annotations

import asyncio

import pytest
from driven_engine import MS, KeptReply, VirtualAlarm, given

from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.ground_truth import GroundTruthLog, parse_ground_truth

# A step takes 10 ms whatever it does.
ROUND = parse_scenario(
    "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
)


def driven(alarm: VirtualAlarm, log: GroundTruthLog) -> EngineDriver:
    return EngineDriver(ROUND, lambda: alarm, log, alarm.clock)


async def run_alone(driver: EngineDriver, alarm: VirtualAlarm, tokens: int) -> KeptReply:
    reply = KeptReply(alarm)
    running = asyncio.create_task(driver.run())
    given(driver, EngineSequence("r", 10, tokens), reply)
    await reply.done.wait()
    running.cancel()
    return reply


@pytest.mark.asyncio
async def test_steps_take_their_time_and_truth_is_kept() -> None:
    alarm = VirtualAlarm()
    log = GroundTruthLog()
    driver = driven(alarm, log)
    reply = await run_alone(driver, alarm, 4)
    assert reply.token_ns == [1010 * MS, 1020 * MS, 1030 * MS, 1040 * MS]
    (truth,) = parse_ground_truth(log.json_lines().decode())
    assert (truth.received_ns, truth.admitted_ns, truth.first_token_ns) == (
        1000 * MS,
        1000 * MS,
        1010 * MS,
    )
    assert (truth.output_tokens, truth.finish_reason, truth.aborted) == (4, "length", False)
    assert driver.pacing.summary()["pacing_error_us"] == {"n": 4, "p50": 0.0, "p99": 0.0, "max": 0.0}


@pytest.mark.asyncio
async def test_a_late_step_does_not_delay_the_ones_after_it() -> None:
    alarm = VirtualAlarm(lambda wait: 25 * MS if wait == 1 else 0)
    driver = driven(alarm, GroundTruthLog())
    reply = await run_alone(driver, alarm, 6)
    assert [at // MS - 1000 for at in reply.token_ns] == [10, 45, 45, 45, 50, 60]
    assert driver.pacing.summary()["pacing_error_us"]["max"] == 25_000.0
    assert driver.pacing.schedule_restarts == 0


@pytest.mark.asyncio
async def test_far_behind_the_schedule_begins_anew() -> None:
    alarm = VirtualAlarm(lambda wait: 200 * MS if wait == 1 else 0)
    driver = driven(alarm, GroundTruthLog())
    reply = await run_alone(driver, alarm, 4)
    assert [at // MS - 1000 for at in reply.token_ns] == [10, 220, 230, 240]
    assert driver.pacing.schedule_restarts == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("tokens_before", [0, 1, 3])
async def test_an_abort_frees_the_place_and_is_recorded(tokens_before: int) -> None:
    alarm = VirtualAlarm()
    log = GroundTruthLog()
    driver = driven(alarm, log)
    gone = KeptReply(alarm, "gone")
    running = asyncio.create_task(driver.run())
    waiting = given(driver, EngineSequence("gone", 10, 1000), gone)
    while len(gone.token_ns) < tokens_before:
        await asyncio.sleep(0)
    driver.abort(waiting)
    driver.abort(waiting)
    after = KeptReply(alarm, "after")
    given(driver, EngineSequence("after", 10, 2), after)
    await after.done.wait()
    running.cancel()
    truths = {truth.request_id: truth for truth in parse_ground_truth(log.json_lines().decode())}
    assert truths["gone"].aborted
    assert truths["gone"].output_tokens == tokens_before
    assert truths["gone"].finish_reason is None
    assert not truths["after"].aborted
    assert driver.replicas[0].engine.idle


@pytest.mark.asyncio
async def test_a_wide_batch_is_handed_out_completely() -> None:
    alarm = VirtualAlarm()
    driver = driven(alarm, GroundTruthLog())
    replies = [KeptReply(alarm, str(i)) for i in range(40)]
    running = asyncio.create_task(driver.run())
    for reply in replies:
        given(driver, EngineSequence("r", 10, 3), reply)
    for reply in replies:
        await reply.done.wait()
    running.cancel()
    assert all(reply.token_ns == [1010 * MS, 1020 * MS, 1030 * MS] for reply in replies)


@pytest.mark.asyncio
async def test_work_that_is_aborted_before_it_begins_leaves_the_driver_waiting() -> None:
    alarm = VirtualAlarm()
    driver = driven(alarm, GroundTruthLog())
    running = asyncio.create_task(driver.run())
    await asyncio.sleep(0)
    driver.abort(given(driver, EngineSequence("gone", 10, 5), KeptReply(alarm, "gone")))
    after = KeptReply(alarm, "after")
    await asyncio.sleep(0)
    given(driver, EngineSequence("after", 10, 2), after)
    answered = asyncio.create_task(after.done.wait())
    await asyncio.wait((running, answered), return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    running.cancel()
