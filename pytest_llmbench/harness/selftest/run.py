"""The selftest: which loads the generator can be trusted with on this host, measured against a server of
known delays.

A gentle load first, which says how exact the figures are; then the highest open-loop rate and the highest
number of paced streams that hold, by doubling and then bisection; then a flood of chunks. A level *holds*
when its requests all ended well, its sends kept the schedule by the limits that void a run
(``methodology/measuring/offered.py``) and the TTFT error at P99 is at most 1 ms. One that does not is run
once more.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.harness.selftest.certificate import STATE_DIR_VARIABLE, TRANSPORTS, host_identity, store
from pytest_llmbench.harness.selftest.levels import TTFT_ERROR_LIMIT_US, LevelFigures, Spread, figures
from pytest_llmbench.harness.sut.endpoint import SampledMachine
from pytest_llmbench.model.numbers import number, quantity, rough_duration
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.own_folder import own_folder
from pytest_llmbench.registry import named, required
from pytest_llmbench.simulator.known_delay import MODEL, SCRIPT_HEADER, KnownDelayServer, Script
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.timing import MonotonicClock, anchor
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SCHEMA = "pytest-llmbench/selftest/1"
SAMPLED = "the same, sampled"
"""Label of the gentle level while the machine is sampled."""
_TTFT_US, _ITL_US = 20_000, 5_000
_INPUT_TOKENS = 32
_SEED = 1
_DEADLINES = Deadlines(connect_s=5.0, first_byte_s=5.0, between_chunks_s=5.0, total_s=15.0, drain_s=5.0)
_DESCRIPTORS_KEPT = 128
"""File descriptors that are kept for other things than connections."""

_OF_THE_GENERATOR = (
    "clock", "clock_resolution_ns", "stamp_source", "event_loop", "transport", "gc_collections",
)  # fmt: skip

Measure = Callable[[float], LevelFigures]


@dataclass(frozen=True, slots=True)
class _Way:
    """How to reach the known-delay server over one transport."""

    url: str
    """Format of the URL; the server's address and the script's query are filled in."""
    api: str
    http2: bool = False
    names_script: bool = False
    """Whether a header tells the script, because the URL has no room for it."""

    def address(self, server: KnownDelayServer, script: Script) -> Address:
        headers = {SCRIPT_HEADER: script.query} if self.names_script else {}
        return Address(self.url.format(server.place, script.query), headers, http2=self.http2)


_WAYS = {
    "http/1.1": _Way("http://{}/v1?{}", "openai-chat"),
    "http/2": _Way("http://{}/v1?{}", "openai-chat", http2=True),
    "websocket": _Way("ws://{}/v1?{}", "openai-responses"),
    "grpc": _Way("grpc://{}", "vllm-grpc", names_script=True),
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. Rates in requests per second, times in seconds."""

    name: str
    gentle_rate: float = 20.0
    gentle_s: float = 5.0
    rate_tokens: int = 16
    rate_from: float = 100.0
    rate_s: float = 2.0
    stream_from: int = 32
    stream_tokens: int = 200
    """The tokens of each paced stream, at one token every 5 ms."""
    flood_requests: int = 4000
    flood_tokens: int = 256
    flood_streams: int = 64
    bisections: int = 3
    search_s: float = 19.5
    """The seconds for each of the two searches."""
    rate_limit: float = 20_000.0
    stream_limit: int = 8192


FULL = Extent("full")
QUICK = Extent(
    "quick", gentle_s=1.5, rate_from=200.0, rate_s=0.6, stream_from=64, stream_tokens=100, flood_requests=800,
    bisections=1, search_s=5.6,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: the highest level that holds."""

    highest: float | None
    levels: tuple[LevelFigures, ...]
    """The levels in the order measured, repetitions included."""
    ended: str
    """Why the search ended there, in words."""


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The result of ``pytest-llmbench selftest`` and of ``llm_selftest``."""

    host: Mapping[str, Any]
    date: str
    """The time of the selftest in UTC, ISO 8601."""
    extent: str
    """The name of the extent: ``quick`` or ``full``."""
    gentle: LevelFigures
    rates: Found
    streams: Found
    flood: LevelFigures
    check: SelfCheck
    """The self-check of the gentle level: clock, source of the stamps, event loop, transport, garbage
    collections."""
    duration_s: float
    workers: int = 1
    """How many processes sent the load; 0: that of the selftest itself."""
    over: str = "http/1.1"
    """The transport: one of ``TRANSPORTS``."""
    sampled: LevelFigures | None = None
    """The gentle level once more, while the machine is sampled; None: that was not asked for."""

    @property
    def trusted(self) -> bool:
        """Whether the generator held at the lowest rate."""
        return self.gentle.holds

    @property
    def highest_rate_rps(self) -> float | None:
        return self.rates.highest

    @property
    def highest_streams(self) -> int | None:
        """The most requests in flight of all levels that hold; None if none does."""
        return None if self.streams.highest is None else round(self.streams.highest)

    @property
    def worst_ttft_error_p99_us(self) -> float | None:
        """The largest TTFT error at P99 over all levels that hold, in microseconds; None if there is none."""
        levels = (self.gentle, *self.rates.levels, *self.streams.levels)
        found = [level.ttft_error.p99 for level in levels if level.holds]
        return max((p99 for p99 in found if p99 is not None), default=None)

    def plain(self) -> dict[str, Any]:
        """The result as JSON values, as it is stored and as ``--json`` writes it."""
        figures = ("trusted", "highest_rate_rps", "highest_streams", "worst_ttft_error_p99_us")
        return {
            "schema": SCHEMA,
            "date": self.date,
            "host": dict(self.host),
            "extent": self.extent,
            "workers": self.workers,
            "over": self.over,
            "duration_s": round(self.duration_s, 1),
            "criterion": f"sends keep their schedule, TTFT error P99 <= {number(TTFT_ERROR_LIMIT_US)} us",
            **{name: getattr(self, name) for name in figures},
            "generator": {name: getattr(self.check, name) for name in _OF_THE_GENERATOR},
            **{name: asdict(getattr(self, name)) for name in ("gentle", "rates", "streams", "flood")},
            "sampled": None if self.sampled is None else asdict(self.sampled),
        }


class Bench:
    """The known-delay server, and the generator as it is shipped: all columns, records to disk.

    Its worker processes are kept from level to level. To be closed.
    """

    def __init__(
        self, server: KnownDelayServer, directory: Path, workers: int = 1, over: str = "http/1.1"
    ) -> None:
        self._server = server
        self._way = _WAYS[over]
        self._directory = directory
        self._workers = workers
        self._apart: DistributedLoadGenerator | None = None
        self.check = SelfCheck()
        """The self-check of the last level."""

    def level(self, label: str, script: Script, load: Load, requests: int) -> LevelFigures:
        workload = SyntheticWorkload("selftest", Fixed(_INPUT_TOKENS), Fixed(script.tokens))
        plan = LoadPlan(label, workload, load, requests, _SEED, deadlines=_DEADLINES)
        header = RecordsHeader(anchor(MonotonicClock()), "selftest", {"load": load.describe()})
        last_ns = 0
        with RecordsWriter(self._directory / "records.jsonl", header) as writer:

            def keep(record: RequestRecord) -> None:
                nonlocal last_ns
                writer.write(record, label)
                last_ns = time.monotonic_ns()

            address = self._way.address(self._server, script)
            if self._workers:
                if self._apart is None:
                    self._apart = DistributedLoadGenerator(
                        address, self._way.api, workers=self._workers, model=MODEL, count_text=True
                    )
                self._apart.aim(address)
                seen = self._apart.run(plan, keep)
                if seen.interrupted == INTERRUPTED_BY_CTRL_C:
                    raise KeyboardInterrupt
                last_ns = self._apart.decoded_ns or 0  # all records had been made by then
            else:
                spoken, count = dialect_at(address.url, self._way.api), reference_tokenizer().count
                with LoadGenerator(address.target(), spoken, model=MODEL, count_text=count) as generator:
                    seen = generator.run(plan, keep)
        self.check = seen.selfcheck
        return figures(seen, self._server.truth(), script, last_ns)

    def close(self) -> None:
        if self._apart is not None:
            self._apart.close()

    def paced(self, label: str, load: OpenLoop, requests: int, tokens: int) -> LevelFigures:
        return self.level(label, Script(_TTFT_US, _ITL_US, tokens), load, requests)


def run_selftest(
    extent: Extent = FULL,
    on_level: Callable[[LevelFigures], None] | None = None,
    *,
    workers: int = 1,
    over: str = "http/1.1",
    sampled: bool = False,
) -> SelftestResult:
    """Measure this host. ``on_level`` hears of each level as it ends. ``workers``: processes that send, as in
    ``--llm-workers``. ``over``: the transport, one of ``TRANSPORTS``. ``sampled``: measure the gentle level
    also while the machine is sampled.

    :raises SUTError: the known-delay server cannot be started or does not answer.
    :raises SuiteError: a package that the transport needs is not installed.
    """
    if _WAYS[over].http2:
        required(over, "--over")
    began, date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    tell = on_level or (lambda _: None)

    def told(level: LevelFigures) -> LevelFigures:
        tell(level)
        return level

    with (
        KnownDelayServer() as server,
        tempfile.TemporaryDirectory(prefix="selftest-", dir=own_folder()) as directory,
        closing(Bench(server, Path(directory), workers, over)) as bench,
    ):
        bench.paced("warm-up", OpenLoop(100.0), 20, 4)
        gentle = _gentle(bench, extent, told)
        check = bench.check
        beside = told(_beside_sampler(bench, extent)) if sampled else None
        in_flight_s = (_TTFT_US + extent.rate_tokens * _ITL_US) / 1e6
        rates = highest(
            lambda rate: told(_at_rate(bench, extent, rate)),
            extent.rate_from,
            holds=extent.gentle_rate if gentle.holds else None,
            limit=min(extent.rate_limit, _descriptors() / (2 * in_flight_s)),
            bisections=extent.bisections,
            seconds=extent.search_s,
        )
        streams = _streams(bench, extent, told)
        flood_of = Script(0, 0, extent.flood_tokens)
        flood = told(bench.level("flood", flood_of, ClosedLoop(extent.flood_streams), extent.flood_requests))
    took_s = time.monotonic() - began
    host = host_identity()
    return SelftestResult(
        host, date, extent.name, gentle, rates, streams, flood, check, took_s, workers, over, beside
    )


def _gentle(
    bench: Bench, extent: Extent, told: Callable[[LevelFigures], LevelFigures] = lambda level: level
) -> LevelFigures:
    for _ in range(2):
        level = told(_at_rate(bench, extent, extent.gentle_rate, extent.gentle_s))
        if level.holds:
            break
    return level


def _beside_sampler(bench: Bench, extent: Extent) -> LevelFigures:
    """The gentle level while a process of its own samples this host, as with ``[telemetry]``."""
    sampler = named("machine", "sampler")
    if sampler is None:
        raise SuiteError(
            "this installation has no sampler",
            where="--sampled",
            remedy="install the package with its extras",
        )
    with closing(sampler(SampledMachine(this_host=True))) as running:
        running.ready()
        return replace(_gentle(bench, extent), label=SAMPLED)


def _at_rate(bench: Bench, extent: Extent, rate: float, seconds: float | None = None) -> LevelFigures:
    requests = max(2, round(rate * (extent.rate_s if seconds is None else seconds)))
    return bench.paced(quantity(rate, "req/s"), OpenLoop(rate), requests, extent.rate_tokens)


def _streams(bench: Bench, extent: Extent, told: Callable[[LevelFigures], LevelFigures]) -> Found:
    """Replies that last T seconds, begun at n / T per second for 2 T: n streams are open for one T."""
    lasts_s = (_TTFT_US + (extent.stream_tokens - 1) * _ITL_US) / 1e6

    def measure(count: float) -> LevelFigures:
        streams = round(count)
        load = OpenLoop(streams / lasts_s, "uniform")
        return told(bench.paced(f"{streams} streams", load, 2 * streams, extent.stream_tokens))

    return highest(
        measure,
        extent.stream_from,
        limit=min(extent.stream_limit, round(_descriptors() / 1.2)),
        bisections=extent.bisections,
        seconds=extent.search_s,
    )


def _descriptors() -> int:
    """How many connections this process, and the server as its child, may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(soft - _DESCRIPTORS_KEPT, 32)


def highest(
    measure: Measure,
    start: float,
    *,
    holds: float | None = None,
    limit: float,
    bisections: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """The highest level that holds. Doubles from ``start`` while levels hold, then bisects (by the geometric
    mean) below the first that does not. A level that does not hold is measured twice. Ends when its time is
    up.

    ``holds``: a lower level that is known to hold; None: none is. ``limit``: the highest level to try, by the
    file descriptors or by what is worth knowing.
    """
    levels: list[LevelFigures] = []
    failed: dict[float, LevelFigures] = {}
    ends, took = clock() + seconds, 0.0

    def held_at(load: float) -> bool | None:
        """Whether the level holds; None if there was no time to measure it, or to measure it again."""
        nonlocal took
        for _ in range(2):
            began = clock()
            if levels and began + took > ends:
                return None
            levels.append(measure(load))
            took = clock() - began
            if levels[-1].holds:
                failed.pop(load, None)
                return True
            failed[load] = levels[-1]
        return False

    best, load = holds, min(start, limit)
    while (held := held_at(load)) and load < limit:
        best, load = load, min(2 * load, limit)
    if held:
        return Found(load, tuple(levels), f"{number(load)} is the highest load tested here")
    failing: float | None = None
    for _ in range(bisections):
        if held is None:
            break
        best, failing = (load, failing) if held else (best, load)
        assert failing is not None
        load = float(round(math.sqrt((best or failing / 4) * failing)))
        if load in (best, failing):
            break
        held = held_at(load)
    else:
        best = load if held else best
    ended = f"no limit was found in the {quantity(seconds, 's')} of the search"
    if failed:
        lowest = failed[min(failed)]
        ended = f"{lowest.label} did not hold: {lowest.reasons[0].partition(': ')[0]}"
    return Found(best, tuple(levels), ended)


_HEADINGS = (
    "level", "in flight", "TTFT error µs", "ITL error µs", "send lag µs", "chunks/s", "CPU/request", "holds",
)  # fmt: skip
_DESCRIPTION = """\
Run the load generator against a bundled server with known delays on this host. The result says how far
measured TTFT and ITL are from the truth, and up to which rate and how many streams. It is stored: reports
cite it as measurement uncertainty, and runs beyond it are flagged. It takes about a minute, with --quick
about 12 s. Run nothing else meanwhile that would not run next to a benchmark.
"""


def main(arguments: list[str] | None = None, extents: tuple[Extent, Extent] = (FULL, QUICK)) -> int:
    """Run the command. Exit status: 0; 1 if the generator cannot be trusted even at the lowest rate; 2 if it
    cannot be tested."""
    options = _parser().parse_args(arguments)
    full, quick = extents
    try:
        extent = quick if options.quick else full
        result = run_selftest(
            extent, on_level=_said, workers=options.workers, over=options.over, sampled=options.sampled
        )
        plain = result.plain()
        print(text(result))
        if options.json is not None:
            options.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        if not options.no_store:
            path = store(plain, options.out)
            left = "not stored: a quick selftest does not replace the full one that is stored"
            print(f"stored: {path}" if path else left)
    except (LLMBenchError, OSError) as error:
        print(f"selftest: {error}", file=sys.stderr)
        return 2
    return 0 if result.trusted else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench selftest",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="shorter and coarser, about 12 s")
    workers = "number of processes that send the load, like --llm-workers (default: 1; 0: this one)"
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help=workers)
    over = "transport of the load, for sessions that use it (default: %(default)s)"
    parser.add_argument("--over", choices=TRANSPORTS, default=TRANSPORTS[0], help=over)
    sampled = "repeat the lowest level while the machine is sampled, as with [telemetry]"
    parser.add_argument("--sampled", action="store_true", help=sampled)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    out = f"store the result in DIR; sessions find it if {STATE_DIR_VARIABLE} names DIR"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    parser.add_argument("--no-store", action="store_true", help="print only")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def _said(level: LevelFigures) -> None:
    if sys.stderr.isatty():
        print(f"  {level.label}: {'holds' if level.holds else level.reasons[0]}", file=sys.stderr)


def text(result: SelftestResult) -> str:
    """The selftest in lines for a terminal."""
    return "\n".join([*_head(result), "", *_table(result), "", *_conclusions(result)])


def _head(result: SelftestResult) -> list[str]:
    host, check = result.host, result.check
    workers = f"{result.workers} worker process{'' if result.workers == 1 else 'es'}"
    resolution = "?" if check.clock_resolution_ns is None else f"{check.clock_resolution_ns} ns"
    took = f"{result.extent}, {rough_duration(result.duration_s)}"
    where = (host["hostname"], host["cpu"], f"{host['cpus_usable']} CPUs", host["kernel"], host["python"])
    return [
        f"pytest-llmbench {host['version']} selftest ({took}), {result.date}",
        f"host: {', '.join(map(str, where))}",
        f"sent by {'this process' if not result.workers else workers}",
        f"loop {check.event_loop}, transport {check.transport}, {check.gc_collections} garbage collections",
        f"clock {check.clock}, resolution {resolution}; stamps: {check.stamp_source}",
    ]


def _table(result: SelftestResult) -> list[str]:
    gentle = replace(result.gentle, label=f"{result.gentle.label}, gentle")
    levels = (gentle, *([result.sampled] if result.sampled else []), *result.rates.levels)
    rows: list[tuple[str, ...]] = [
        _HEADINGS,
        ("", "peak", "P50 / P99 / max", "P50 / P99 / max", "P50 / P99 / max", "", "µs", ""),
    ]
    rows += [_row(level) for level in (*levels, *result.streams.levels, result.flood)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in [*lines[:2], "  ".join("-" * width for width in widths), *lines[2:]]]


def _row(level: LevelFigures) -> tuple[str, ...]:
    flood = level.rate_rps is None
    return (
        level.label,
        str(level.streams),
        "-" if flood else _spread(level.ttft_error),
        _spread(level.itl_error),
        _spread(level.send_lag),
        _figure(level.chunks_per_s),
        _figure(level.cpu_us_per_request),
        "-" if flood else "yes" if level.holds else "no",
    )


def _spread(spread: Spread) -> str:
    return " / ".join(map(_figure, (spread.p50, spread.p99, spread.max))) if spread.n else "-"


def _figure(value: float | None) -> str:
    return "-" if value is None else number(value)


def _conclusions(result: SelftestResult) -> list[str]:
    limit = quantity(TTFT_ERROR_LIMIT_US / 1000, "ms")
    lines = [
        "holds: all requests ended well, sends kept their schedule (lag P99 at most max(10 ms, 0.1 / rate),",
        f"       not growing, 95% of the rate), TTFT error at P99 at most {limit}",
        f"highest rate:    {_highest(result.rates, 'req/s')}",
        f"highest streams: {_highest(result.streams, 'in flight')}",
        f"flood:           {_figure(result.flood.chunks_per_s)} chunks/s, decoded and recorded",
    ]
    if result.trusted:
        worst = _figure(result.worst_ttft_error_p99_us)
        return [*lines, f"uncertainty:     TTFT {worst} µs at P99, the worst of the levels that hold"]
    why = [f"  - {reason}" for reason in result.gentle.reasons]
    return [*lines, "NOT TO BE TRUSTED on this host, not even at the lowest rate:", *why]


def _highest(found: Found, unit: str) -> str:
    figure = "none" if found.highest is None else quantity(found.highest, unit)
    return f"{figure} ({found.ended})"
