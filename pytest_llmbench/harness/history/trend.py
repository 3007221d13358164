"""``pytest-llmbench history METRIC``: metrics over the saved sessions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmbench.compare.identity import waivers_of_option
from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.harness.history import trend_table
from pytest_llmbench.harness.history.series import Series, every_series
from pytest_llmbench.harness.history.sessions import add_common, read_sessions, refused, say, width
from pytest_llmbench.stats.change_points import SIGNIFICANCE
from pytest_llmbench.store.csv_file import write_csv
from pytest_llmbench.store.json_file import write_text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench history",
        description="Follow metrics over the saved sessions, with the points where their level changed.",
        epilog="Exit status: 0 shown, 2 there is nothing to show, or an option is wrong.",
    )
    parser.add_argument("metrics", nargs="+", metavar="METRIC", help="ttft.p99, output_token_throughput …")
    add_common(parser)
    parser.add_argument("--test", metavar="TEXT", help="only tests whose node id holds this")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N sessions")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it: one metric of one test")
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="FIELD=REASON@DATE",
        help="take in sessions in spite of a difference; may be given several times",
    )
    parser.add_argument(
        "--significance",
        type=float,
        default=SIGNIFICANCE,
        metavar="P",
        help=f"how often a series without a change may show one (default: {SIGNIFICANCE})",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(list(arguments))
    try:
        _check(given)
        waivers = waivers_of_option(given.waive, datetime.now(UTC).date(), "--waive")
        sessions, problems = read_sessions(given.storage)
        found = every_series(
            sessions,
            given.metrics,
            given.test,
            waivers=waivers,
            significance=given.significance,
            last=given.last,
        )
        if given.csv is not None:
            write_csv(given.csv, trend_table.CSV_COLUMNS, trend_table.csv_rows(found))
        if given.svg is not None:
            _draw(given.svg, found)
    except LLMBenchError as error:
        return refused(error)
    lines = [line for series in found for line in ("", *trend_table.table(series, width=width()))]
    say(lines[1:], problems)
    return 0


def _check(given: argparse.Namespace) -> None:
    if given.last is not None and given.last < 1:
        raise SuiteError(f"--last must be 1 or more, got {given.last}")
    if not 0.001 <= given.significance <= 0.5:
        raise SuiteError(f"--significance must lie from 0.001 to 0.5, got {given.significance}")


def _draw(path: Path, found: Sequence[Series]) -> None:
    if len(found) > 1:
        names = "; ".join(f"{series.metric} of {series.nodeid}" for series in found[:10])
        raise SuiteError(
            f"--svg draws one metric of one test, and these are {len(found)}: {names}",
            remedy="choose with --test TEXT",
        )
    write_text(path, trend_table.drawing(found[0]))
