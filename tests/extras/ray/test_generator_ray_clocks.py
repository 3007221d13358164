"""Ray addresses, clock offsets by round trips, and instants brought onto the coordinator's clock."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.ray.clocks import (
    DONE_INSTANTS,
    INSTANTS,
    ClockLine,
    ClockOffset,
    RoundTrip,
    measured,
    mistake_of,
    shifted_done,
    shifted_record,
    shifted_records,
)
from pytest_llmbench.generator.workers.placement import RaySpec, is_ray
from pytest_llmbench.generator.workers.protocol import Done
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import MISSING, Records

MS = 1_000_000
S = 1_000_000_000


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ray", RaySpec()),
        ("RAY", RaySpec()),
        ("ray?workers=4", RaySpec(workers=4)),
        ("ray:auto", RaySpec("auto")),
        ("ray:head:6379?workers=8&cpus=0.5", RaySpec("head:6379", 8, 0.5)),
        ("ray://head:10001", RaySpec("ray://head:10001")),
        ("ray:ray://head.ns.svc:10001?cpus=2", RaySpec("ray://head.ns.svc:10001", None, 2.0)),
        ("ray:[::1]:6379", RaySpec("[::1]:6379")),
    ],
)
def test_an_address_is_read_and_told_again(given: str, meant: RaySpec) -> None:
    assert is_ray(given)
    assert RaySpec.parse(given) == meant
    assert RaySpec.parse(str(meant)) == meant


def test_who_has_to_answer() -> None:
    assert RaySpec.parse("ray://head:10001").host_port == ("head", 10001)
    assert RaySpec.parse("ray:[::1]:6379").host_port == ("::1", 6379)
    assert RaySpec.parse("ray").host_port is RaySpec.parse("ray:auto").host_port is None


def test_all_mistakes_of_an_address_are_told() -> None:
    with pytest.raises(SuiteError) as caught:
        RaySpec.parse("ray:head?workers=0&cpus=x&nodes=3")
    for part in (
        "'head' is neither auto nor HOST:PORT",
        "workers=0",
        "cpus=x",
        "nodes=3",
        "ray://HOST:10001",
    ):
        assert part in str(caught.value)
    with pytest.raises(SuiteError, match="70000 is not a port"):
        RaySpec.parse("ray:head:70000")


@pytest.mark.parametrize("given", ["4", "rays", "array", 4, "", "x-ray"])
def test_other_values_are_no_ray(given: object) -> None:
    assert not is_ray(given)


def test_the_shortest_round_trip_alone_counts() -> None:
    trips = [
        RoundTrip(1000, 52_000, 9000),  # a long way back
        RoundTrip(20_000, 70_100, 20_400),  # theirs is ahead by 49,900, known to ± 200
        RoundTrip(30_000, 81_900, 32_000),  # a long way there
    ]
    assert ClockOffset.of(trips) == ClockOffset(offset_ns=-49_900, error_ns=200, at_ns=20_200, trips=3)


def test_the_truth_is_within_the_error_whatever_the_ways_take() -> None:
    rng = np.random.default_rng(3)
    ahead = 123_456_789
    for _ in range(50):
        now = 0
        trips = []
        for there, back in rng.exponential(2e5, (12, 2)).astype(int).tolist():
            trips.append(RoundTrip(now, now + there + ahead, now + there + back))
            now += there + back + 1000
        offset = ClockOffset.of(trips)
        assert abs(offset.offset_ns + ahead) <= offset.error_ns
        assert offset.error_ns == (min(trip.rtt_ns for trip in trips) + 1) // 2


def test_round_trips_end_when_one_is_short_and_go_on_when_none_is() -> None:
    now = [0]

    def tick(by_ns: int) -> int:
        now[0] += by_ns
        return now[0]

    short = measured(lambda: tick(100_000) + 5 * S, lambda: tick(100_000))
    assert (short.trips, short.error_ns, short.offset_ns) == (8, 100_000, -5 * S)
    long = measured(lambda: tick(1 * MS), lambda: tick(1 * MS))
    assert (long.trips, long.error_ns) == (40, 1 * MS)


def line(start_ns: int, end_ns: int, *, seconds: float = 100.0, error_ns: int = 0) -> ClockLine:
    at_ns = 1000 * S
    return ClockLine(
        ClockOffset(start_ns, error_ns, at_ns, 8),
        ClockOffset(end_ns, error_ns, at_ns + round(seconds * S), 8),
    )


def test_instants_are_linear_between_two_offsets() -> None:
    drifting = line(-500 * S, -500 * S + 2 * MS)  # 20 µs per second
    assert drifting.drift == pytest.approx(2e-5)
    assert drifting.ours(1500 * S) == 1000 * S
    assert drifting.ours(1600 * S - 2 * MS) == 1100 * S
    assert drifting.ours(1550 * S - 1 * MS) == 1050 * S
    for ours_ns in (1000 * S, 1033 * S + 7, 1100 * S):
        assert abs(drifting.ours(drifting.theirs(ours_ns)) - ours_ns) <= 1
    many = np.array([1500 * S, MISSING, 1550 * S - 1 * MS], dtype=np.int64)
    assert drifting.all_ours(many).tolist() == [1000 * S, MISSING, 1050 * S]
    assert drifting.told()["drift_ppm"] == 20.0
    assert drifting.told()["round_trips"] == 16


def test_one_clock_needs_nothing() -> None:
    same = ClockLine(ClockOffset.shared(5), ClockOffset.shared(9))
    assert same.same
    assert same.ours(77) == same.theirs(77) == 77
    assert same.told() == {"method": "one clock", "offset_ms": 0.0, "error_ms": 0.0}
    assert mistake_of(same, "here") is None


def test_clocks_that_cannot_stand_beside_ours() -> None:
    assert mistake_of(line(5, 5, error_ns=10 * MS), "far") is None
    assert "± 10.1 ms" in str(mistake_of(line(5, 5, error_ns=10_100_000), "far"))
    # 100 s at 1000 parts in a million, and both errors, are what steady clocks may part by.
    assert mistake_of(line(0, 101 * MS, error_ns=1 * MS), "far") is None
    assert "moved by +103 ms" in str(mistake_of(line(0, 103 * MS, error_ns=1 * MS), "far"))
    assert "moved by -103 ms" in str(mistake_of(line(0, -103 * MS, error_ns=1 * MS), "far"))


def record() -> RequestRecord:
    instants = {name: 1500 * S + 10 * at for at, name in enumerate(INSTANTS) if name != "chunk_ns"}
    return RequestRecord(
        request_id="r",
        index=0,
        phase=Phase.MEASURE,
        outcome=Outcome.OK,
        token_source=TokenSource.NONE,
        chunk_ns=(1500 * S, 1550 * S - 1 * MS),
        queue_wait_ns=17,
        prefill_ns=18,
        server_token_ns=(3, 4),
        **instants,
    )


def test_all_instants_of_the_worker_are_moved_and_nothing_else() -> None:
    """A new column of nanoseconds must be put on one of the two sides."""
    others = {
        "queue_wait_ns", "prefill_ns", "generation_ns", "model_load_ns", "server_token_ns",
        "first_content_early_ns", "cut_after_ns",
    }  # fmt: skip
    assert {field.name for field in fields(Records) if field.name.endswith("_ns")} == {*INSTANTS, *others}
    assert {field.name for field in fields(Done) if field.name.endswith("_ns")} == set(DONE_INSTANTS)
    drifting = line(-500 * S, -500 * S + 2 * MS)
    given = record()
    moved = shifted_record(given, drifting)
    assert moved.scheduled_ns == 1000 * S
    assert list(moved.chunk_ns) == [1000 * S, 1050 * S]
    steady = line(-500 * S, -500 * S)
    assert shifted_record(given, steady).finished_ns == steady.ours(given.finished_ns or 0)
    assert list(shifted_record(given, steady).chunk_ns) == [1000 * S, 1050 * S - 1 * MS]
    assert replace(moved, **{name: getattr(given, name) for name in INSTANTS}) == given
    failed = replace(given, submitted_ns=None, chunk_ns=())
    columns = Records.from_rows([given, failed])
    expected = Records.from_rows([moved, shifted_record(failed, drifting)])
    shifted = shifted_records(columns, drifting)
    by_start = Records.from_rows([shifted_record(each, line(-500 * S, -500 * S)) for each in (given, failed)])
    put_right = shifted_records(by_start, drifting.since_start())
    for field in fields(Records):
        assert list(getattr(shifted, field.name)) == list(getattr(expected, field.name)), field.name
        assert list(getattr(put_right, field.name)) == list(getattr(expected, field.name)), field.name


def test_the_ends_of_a_plan_are_moved() -> None:
    done = Done(
        started_ns=1500 * S,
        ended_ns=1600 * S - 2 * MS,
        load_ended_ns=None,
        in_flight_at_end=0,
        interrupted=None,
        stopped=None,
        selfcheck=SelfCheck(),
        facts={},
    )
    moved = shifted_done(done, line(-500 * S, -500 * S + 2 * MS))
    assert (moved.started_ns, moved.ended_ns, moved.load_ended_ns) == (1000 * S, 1100 * S, None)
