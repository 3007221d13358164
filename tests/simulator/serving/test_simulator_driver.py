"""The engine's driver on a clock that moves only when somebody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.router import replicas_of
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario.scenario import parse_scenario
from pytest_llmbench.simulator.serving.driver import EngineDriver, Waiting
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth, GroundTruthLog, parse_ground_truth

MS = 1_000_000
# A step takes 10 ms whatever it does.
CONFIG = parse_scenario(
    "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
).engine


class VirtualAlarm:
    """Moves its clock to the deadline, or past it by what ``late_ns`` says for that wait."""

    name = "virtual"

    def __init__(self, late_ns: Callable[[int], int] = lambda wait: 0) -> None:
        self.now_ns = 1000 * MS
        self.waits = 0
        self._late_ns = late_ns

    def clock(self) -> int:
        return self.now_ns

    async def until(self, deadline_ns: int) -> None:
        self.now_ns = max(self.now_ns, deadline_ns + self._late_ns(self.waits))
        self.waits += 1
        await asyncio.sleep(0)

    def close(self) -> None:
        """Nothing is held."""


class KeptReply:
    """Remembers when its tokens came."""

    def __init__(self, alarm: VirtualAlarm, request_id: str = "r") -> None:
        self.truth = GroundTruth(request_id, alarm.clock(), prompt_tokens=10)
        self._alarm = alarm
        self.token_ns: list[int] = []
        self.done = asyncio.Event()

    async def begin(self) -> None:
        """Nothing to do."""

    async def token(self) -> None:
        self.truth.output_tokens += 1
        self.token_ns.append(self._alarm.clock())

    async def finish(self, reason: str) -> None:
        self.done.set()


def driven(alarm: VirtualAlarm, log: GroundTruthLog) -> EngineDriver:
    return EngineDriver([Engine(CONFIG)], lambda: alarm, log, alarm.clock)


def given(driver: EngineDriver, sequence: EngineSequence, reply: KeptReply) -> Waiting:
    """The request, which is in the driver."""
    waiting = Waiting(sequence, reply)
    driver.submit(waiting, driver.clock())
    return waiting


async def run_alone(driver: EngineDriver, alarm: VirtualAlarm, tokens: int) -> KeptReply:
    reply = KeptReply(alarm)
    running = asyncio.create_task(driver.run())
    given(driver, EngineSequence("r", 10, tokens), reply)
    await reply.done.wait()
    running.cancel()
    return reply


def test_steps_take_their_time_and_truth_is_kept() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_late_step_does_not_delay_the_ones_after_it() -> None:
    async def scenario() -> None:
        alarm = VirtualAlarm(lambda wait: 25 * MS if wait == 1 else 0)
        driver = driven(alarm, GroundTruthLog())
        reply = await run_alone(driver, alarm, 6)
        assert [at // MS - 1000 for at in reply.token_ns] == [10, 45, 45, 45, 50, 60]
        assert driver.pacing.summary()["pacing_error_us"]["max"] == 25_000.0
        assert driver.pacing.schedule_restarts == 0

    asyncio.run(scenario())


def test_far_behind_the_schedule_begins_anew() -> None:
    async def scenario() -> None:
        alarm = VirtualAlarm(lambda wait: 200 * MS if wait == 1 else 0)
        driver = driven(alarm, GroundTruthLog())
        reply = await run_alone(driver, alarm, 4)
        assert [at // MS - 1000 for at in reply.token_ns] == [10, 220, 230, 240]
        assert driver.pacing.schedule_restarts == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("tokens_before", [0, 1, 3])
def test_an_abort_frees_the_place_and_is_recorded(tokens_before: int) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_wide_batch_is_handed_out_completely() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_work_that_is_aborted_before_it_begins_leaves_the_driver_waiting() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


# A block goes over in 1 ms, after 2 ms.
APART = (
    "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
    "&prefill_workers=1&decode_workers=1&kv_transfer_gb_per_s=0.262144&kv_transfer_latency_us=2000"
)


def two_stages(alarm: VirtualAlarm, log: GroundTruthLog, options: str = "") -> EngineDriver:
    scenario = parse_scenario(APART + options)
    engines = replicas_of(scenario.engine, scenario.router)
    return EngineDriver(engines, lambda: alarm, log, alarm.clock, scenario.router)


def test_a_request_in_two_stages_takes_prefill_transfer_and_a_step() -> None:
    """100 blocks; the last prompt token is computed again where it is decoded."""

    async def scenario() -> None:
        alarm, log = VirtualAlarm(), GroundTruthLog()
        driver = two_stages(alarm, log)
        running = asyncio.create_task(driver.run())
        reply, drawn = KeptReply(alarm), []
        sequence = EngineSequence("r", 1600, 3)
        waiting = Waiting(
            sequence, reply, drawn=lambda: drawn.append((alarm.clock(), sequence.output_tokens))
        )
        driver.submit(waiting, alarm.clock())
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

    asyncio.run(scenario())


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
def test_an_abort_between_two_engines_frees_what_is_held_in_either(reached: str, not_yet: str) -> None:
    """The decode worker has blocks for one request, so the second waits while the first is there."""

    async def scenario() -> None:
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

    asyncio.run(scenario())
