"""The selftest as text (a table, what holds, and what that means), and its command line."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.selftest.certificate import STATE_DIR_VARIABLE, TRANSPORTS, store
from pytest_llmbench.harness.selftest.levels import TTFT_ERROR_LIMIT_US, LevelFigures, Spread
from pytest_llmbench.harness.selftest.run import FULL, QUICK, Extent, Found, SelftestResult, run_selftest

_HEADINGS = (
    "level", "in flight", "TTFT error µs", "ITL error µs", "send lag µs", "chunks/s", "CPU/request", "holds",
)  # fmt: skip
_DESCRIPTION = """\
Runs the load generator against a bundled server of known delays on this host, and says what it can be trusted
with here: how far measured TTFT and ITL are from what the server did, and up to which rate and how many
streams. The result is stored; reports cite it as measurement uncertainty, and runs beyond it are flagged.
Takes about a minute, --quick some 12 s. Let nothing else run meanwhile that would not run beside a benchmark.
"""


def main(arguments: list[str] | None = None, extents: tuple[Extent, Extent] = (FULL, QUICK)) -> int:
    """Run the command. Exit status: 0; 1 if the generator cannot be trusted even at the lowest rate; 2 if it
    cannot be tested."""
    options = _parser().parse_args(arguments)
    full, quick = extents
    try:
        extent = quick if options.quick else full
        result = run_selftest(extent, on_level=_said, workers=options.workers, over=options.over)
        plain = result.plain()
        print(text(result))
        if options.json is not None:
            options.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        if not options.no_store:
            path = store(plain, options.out)
            print(
                f"stored: {path}"
                if path
                else "not stored: there is a full selftest, which a quick one leaves"
            )
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
    parser.add_argument("--quick", action="store_true", help="shorter and coarser, some 12 s")
    parser.add_argument(
        "--workers",
        type=_count,
        default=1,
        metavar="N",
        help="processes that send the load, as --llm-workers of a session (default: 1; 0: this one)",
    )
    parser.add_argument(
        "--over",
        choices=TRANSPORTS,
        default=TRANSPORTS[0],
        help="transport of the load, for sessions that go by it (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"store in DIR; sessions find it there when {STATE_DIR_VARIABLE} names it",
    )
    parser.add_argument("--no-store", action="store_true", help="print only")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)


def _said(level: LevelFigures) -> None:
    if sys.stderr.isatty():
        print(f"  {level.label}: {'holds' if level.holds else level.reasons[0]}", file=sys.stderr)


def text(result: SelftestResult) -> str:
    """The selftest in lines for a terminal."""
    return "\n".join(
        [
            *_head(result),
            "",
            *_table(result),
            "",
            *_conclusions(result),
        ]
    )


def _head(result: SelftestResult) -> list[str]:
    host, check = result.host, result.check
    resolution = "?" if check.clock_resolution_ns is None else f"{check.clock_resolution_ns} ns"
    took = f"{result.extent}, {result.duration_s:.0f} s"
    where = (host["hostname"], host["cpu"], f"{host['cpus_usable']} CPUs", host["kernel"], host["python"])
    return [
        f"pytest-llmbench {host['version']} selftest ({took}), {result.date}",
        f"host: {', '.join(map(str, where))}",
        f"sent by {_senders(result.workers)}",
        f"loop {check.event_loop}, transport {check.transport}, {check.gc_collections} garbage collections",
        f"clock {check.clock}, resolution {resolution}; stamps: {check.stamp_source}",
    ]


def _senders(workers: int) -> str:
    return "this process" if workers == 0 else f"{workers} worker process{'' if workers == 1 else 'es'}"


def _table(result: SelftestResult) -> list[str]:
    levels = (replace(result.gentle, label=f"{result.gentle.label}, gentle"), *result.rates.levels)
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
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def _conclusions(result: SelftestResult) -> list[str]:
    lines = [
        "holds: all requests ended well, sends kept their schedule (lag P99 at most max(10 ms, 0.1 / rate),",
        f"       not growing, 95% of the rate), TTFT error at P99 at most {TTFT_ERROR_LIMIT_US / 1000:g} ms",
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
    figure = "none" if found.highest is None else f"{found.highest:,.0f} {unit}"
    return f"{figure} ({found.ended})"
