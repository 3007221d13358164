"""Known answers of the self-check."""

from __future__ import annotations

from pytest_llmbench.generator.http.transport import KERNEL, Stamping
from pytest_llmbench.generator.selfcheck import HostCpu, of_loop_lags, of_records
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records


def rows(lags: list[int | None]) -> Records:
    return Records.from_rows(
        RequestRecord(
            index=index,
            request_id=str(index),
            phase=Phase.MEASURE,
            scheduled_ns=1000 * index,
            dispatched_ns=None if lag is None else 1000 * index + lag,
            submitted_ns=None if lag is None else 1000 * index + lag + 1,
            chunk_ns=[5, 6, 6],
            coalesced_chunks=1,
            stale_retries=index % 2,
            outcome=Outcome.OK,
        )
        for index, lag in enumerate(lags)
    )


def test_send_lags_of_an_open_loop():
    seen = SelfCheck(**of_records(OpenLoop(10.0), rows(list(range(100)))))
    assert seen.send_lag_p50_ns == 50  # type 7: 49.5, rounded half to even
    assert seen.send_lag_p99_ns == 98
    assert seen.send_lag_max_ns == 99
    assert seen.send_lag_first_tenth_p50_ns == 4
    assert seen.send_lag_last_tenth_p50_ns == 94


def test_tenths_go_by_the_schedule_not_by_the_sending():
    seen = SelfCheck(**of_records(OpenLoop(10.0), rows([50_000] + [0] * 9)))
    assert (seen.send_lag_first_tenth_p50_ns, seen.send_lag_last_tenth_p50_ns) == (50_000, 0)


def test_requests_without_a_dispatch_have_no_lag():
    assert SelfCheck(**of_records(OpenLoop(10.0), rows([7, None]))).send_lag_max_ns == 7
    assert SelfCheck(**of_records(OpenLoop(10.0), rows([None]))).send_lag_max_ns is None


def test_nothing_measured_is_none_and_not_zero():
    told = of_records(OpenLoop(10.0), Records.from_rows([])) | of_loop_lags([]) | Stamping().figures(0)
    assert SelfCheck(**told) == SelfCheck()


def test_switches_and_stamps_are_counted():
    stamping = Stamping(True, unstamped=3, distrusted=2, too_early=1, clock_steps=4)
    assert stamping.figures(9) == {
        "stamp_source": f"{KERNEL}; 5 of 9 reads in user space, 1 moved to what came before them, "
        "4 steps of the wall clock",
        "unstamped_reads": 3,
        "distrusted_stamps": 2,
        "moved_stamps": 1,
        "clock_steps": 4,
    }
    # Where the kernel was not asked, no read lacks its stamp.
    assert Stamping(unstamped=3).figures(9)["unstamped_reads"] == 0


def test_counters_of_the_kernel_are_those_since_the_start():
    before, after = HostCpu(5, 7, 1000, 10, 100), HostCpu(11, 7, 1500, 30, 180)
    assert after.since(before, 2000) == {
        "voluntary_switches": 6,
        "involuntary_switches": 0,
        "waited_for_core_share": 0.25,
        "stolen_share": 0.25,
    }
    assert after.since(before, 100)["waited_for_core_share"] == 1.0
    assert after.since(before, 0)["waited_for_core_share"] is None
    assert after.since(after, 5)["stolen_share"] is None  # no tick since
    for one, other in ((after, HostCpu()), (HostCpu(), before)):
        assert set(one.since(other, 5).values()) == {None}
    assert (HostCpu.now().voluntary_switches or 0) > 0


def test_counts():
    seen = SelfCheck(**of_records(ClosedLoop(2), rows([5, 5, 5])), **of_loop_lags([1] * 98 + [200, 300]))
    assert seen.send_lag_p50_ns is None  # a closed loop has no schedule
    assert (seen.loop_lag_p99_ns, seen.loop_lag_max_ns) == (201, 300)
    assert (seen.content_chunks, seen.coalesced_chunks, seen.stale_retries) == (9, 3, 1)
