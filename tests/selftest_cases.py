"""Levels, results and observations of selftests, made by hand."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmbench.harness.selftest.certificate import host_identity
from pytest_llmbench.harness.selftest.levels import LevelFigures, Spread
from pytest_llmbench.harness.selftest.run import Extent, Found, SelftestResult
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.known_delay import Script, Truth
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

TINY = Extent(
    "quick",
    gentle_rate=40.0,
    gentle_s=0.3,
    rate_tokens=3,
    rate_from=80.0,
    rate_s=0.15,
    stream_from=4,
    stream_tokens=8,
    flood_requests=40,
    flood_tokens=16,
    flood_streams=4,
    bisections=1,
    search_s=0.0,
)
"""One level of each search."""

START_NS, MS, US = 1_000_000_000_000, 1_000_000, 1_000
SCRIPT = Script(20_000, 5_000, 3)


def level(
    label: str = "100 req/s", *, rate: float | None = 100.0, reasons: tuple[str, ...] = ()
) -> LevelFigures:
    return LevelFigures(
        label=label,
        rate_rps=rate,
        streams=10,
        requests=100,
        chunks_per_s=1_000.0,
        ttft_error=Spread(40.0, 120.0, 300.0, 100),
        itl_error=Spread(0.5, 9.0, 20.0, 1500),
        stamp_error=Spread(20.0, 60.0, 90.0, 1600),
        send_lag=Spread(2.0, 80.0, 150.0, 100),
        server_late=Spread(30.0, 200.0, 900.0, 1600),
        cpu_share=0.1,
        cpu_us_per_request=500.0,
        coalesced_share=0.0,
        reasons=reasons,
    )


def result(*, trusted: bool = True, extent: str = "full", rate: float | None = 400.0) -> SelftestResult:
    gentle = level("20 req/s", rate=20.0, reasons=() if trusted else ("TTFT error 9000 µs at P99",))
    return SelftestResult(
        host=host_identity(),
        date="2026-01-02T03:04:05Z",
        extent=extent,
        gentle=gentle,
        rates=Found(rate, (level("400 req/s", rate=400.0),), "800 req/s did not hold"),
        streams=Found(
            64.0, (level("64 streams", rate=60.0),), "no limit was found in the 19.5 s of the search"
        ),
        flood=level("flood", rate=None),
        check=SelfCheck(event_loop="uvloop", transport="http/1.1", clock_resolution_ns=60),
        duration_s=12.0,
    )


def observed(
    rows: list[RequestRecord], load: Load | None = None, check: SelfCheck | None = None
) -> Observation:
    workload = SyntheticWorkload("canned", Fixed(8), Fixed(3))
    return Observation(
        plan=LoadPlan("canned", workload, load or OpenLoop(20.0), len(rows), seed=1),
        records=Records.from_rows(rows),
        started_ns=START_NS,
        ended_ns=START_NS + 2_000 * MS,
        anchor=ClockAnchor(START_NS, 0),
        selfcheck=check or SelfCheck(peak_in_flight=2, cpu_share=0.5, content_chunks=3 * len(rows)),
    )


def request(
    name: str, *, hop_us: int = 30, stamps_us: tuple[int, ...] = (10, 10, 10)
) -> tuple[RequestRecord, Truth]:
    """A reply on SCRIPT: read ``hop_us`` after it was sent, and stamped so long after each write."""
    submitted = START_NS + 100 * MS
    received = submitted + hop_us * US
    written = tuple(received + due for due in SCRIPT.offsets_ns)
    stamps = [at + late * US for at, late in zip(written, stamps_us, strict=True)]
    row = RequestRecord(
        index=0,
        request_id=name,
        phase=Phase.MEASURE,
        scheduled_ns=submitted - 7 * US,
        dispatched_ns=submitted - 5 * US,
        submitted_ns=submitted,
        first_content_ns=stamps[0],
        chunk_ns=stamps,
        chunk_tokens=[1] * len(stamps),
        last_content_ns=stamps[-1],
        finished_ns=stamps[-1],
        outcome=Outcome.OK,
    )
    return row, Truth(received, written)


def late_by(truth: Truth, late_us: int) -> Truth:
    """The same, as a server would have it that wrote later than it was to."""
    return replace(truth, written_ns=tuple(at + late_us * US for at in truth.written_ns))
