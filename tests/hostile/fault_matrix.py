"""Every fault of the embedded engine × each of the ten tests: the table of tests/hostile/tables.md.

    python tests/hostile/fault_matrix.py [--write] [--only FAULT ...] [--together 2]

A session per fault, over HTTP on loopback: the ten tests with loads of seconds, of whose requests three in
ten suffer once the first twelve are through. What is asked of a cell stands at :func:`objections`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from watched_session import Ended, watched

from pytest_llmbench.simulator.engine.faults import FaultKind

PAGE = Path(__file__).parent / "tables.md"
BEGIN, END = "<!-- faults: tests/hostile/fault_matrix.py --write -->\n", "<!-- end of faults -->\n"

SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(rate=40, requests=20, p50_ms=2_000)
def test_ttft(): ...

@llmbench.throughput(min_rate=10, max_rate=20, rate_step=10, probe_s=1, duration_s=1, min_output_tok_s=1)
def test_throughput(): ...

@llmbench.tradeoff(
    capacity_rps=20, levels_percent=(50, 100), duration_s=1, ttft_p99_ms=5_000, min_operating_tok_s=1
)
def test_tradeoff(): ...

@llmbench.itl(capacity_rps=20, levels_percent=(50,), requests=5, duration_s=1, p50_ms=2_000)
def test_itl(): ...

@llmbench.capacity(
    initial=2, maximum=4, output_tokens=8, duration_s=1, ttft_p99_ms=5_000, min_concurrency=1
)
def test_capacity(): ...

@llmbench.fairness(capacity_rps=20, requests_per_class=5, duration_s=1, min_jain=0.01)
def test_fairness(): ...

@llmbench.prefix_cache(rate=40, requests=20, min_hit_rate=0.01)
def test_prefix_cache(): ...

@llmbench.memory_pressure(
    capacity=4, levels_percent=(100, 150), duration_s=1, ttft_p99_ms=10_000, min_completion=0.5
)
def test_memory_pressure(): ...

@llmbench.long_context(lengths=(256, 512, 1024), requests=3, output_tokens=8, max_exponent=5)
def test_long_context(): ...

@llmbench.guardrail(
    capacity_rps=20, levels_percent=(50,), duration_s=1, max_overhead_ms=5_000, without="the loads are small"
)
def test_guardrail(): ...
"""
TESTS = (
    "ttft", "throughput", "tradeoff", "itl", "capacity", "fairness", "prefix_cache", "memory_pressure",
    "long_context", "guardrail",
)  # fmt: skip
OPTIONS = ("--llm-scale=quick", "--llm-remeasure=0", "--llm-timeout=2", "--llm-inconclusive=pass")
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
SEARCHES = ("probe", "burst", "characterisation", "overload")
"""Roles of levels that are looked at, and not judged."""
_MORE = {"drip": "&drip_ms=0.5", "crash": "&recovery_ms=200"}


def scenario(faults: Sequence[FaultKind], *, share: float = 0.3, first: int = 12) -> str:
    """Of an engine that lets ``share`` of the requests suffer, after the first ones."""
    more = "".join(_MORE.get(fault, "") for fault in faults)
    return f"fast?fault={','.join(faults)}&fault_rate={share:g}&fault_from={first}{more}"


def measured(how: str, suite: str = SUITE, limit_s: float = 900.0) -> Ended:
    """A session of the suite on that endpoint, ``sim:…`` (HTTP on loopback) or ``replay:…``."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        arguments = (f"--llm-endpoint={how}", *OPTIONS)
        return watched(Path(folder), suite, *arguments, limit_s=limit_s)


def objections(ended: Ended, tests: Sequence[str]) -> list[str]:
    """What is wrong with a session under faults: that something is left or lost, that accounts do not agree,
    that a test is missing or does not say why it did not pass; and that one passes on a load of which more
    failed than its error budget allows."""
    found = [*ended.problems]
    for test in tests:
        entry = ended.tests.get(test)
        if entry is None:
            found.append(f"{test} is missing in the report")
        elif entry["outcome"] == "passed":
            found += [f"{test} passes, but {failed}" for failed in _beyond_budget(entry)]
        elif not _reason(entry):
            found.append(f"{test} does not say why it did not pass")
    return found


def _beyond_budget(entry: Mapping[str, Any]) -> list[str]:
    """Of the loads that are judged; a search may well have looked at worse."""
    counts, levels = entry["counts"], entry["levels"]
    loads = [(level["label"], level["n_failed"], level["n_submitted"]) for level in levels if _judged(level)]
    if not levels:
        loads = [("its load", counts["submitted"] - counts["ok"], counts["submitted"])]
    return [f"{failed} of {sent} of {label} failed" for label, failed, sent in loads if failed > 0.01 * sent]


def _judged(level: Mapping[str, Any]) -> bool:
    return not level["role"].startswith(SEARCHES)


def _reason(entry: Mapping[str, Any]) -> str:
    """The error budget, if that is used up; else the first check that voids the run, or limit not kept."""
    voided = [f["check"] for f in entry["validity"]["findings"] if f["voids"] and not f["ok"]]
    broken = [o["metric"] for o in entry["gate"]["objectives"] if o["verdict"] != "pass"]
    return "error_budget" if "error_budget" in voided else next(iter([*voided, *broken]), "")


def cell(entry: Mapping[str, Any] | None) -> str:
    """``void: error_budget, 14/20 ok``."""
    if entry is None:
        return "missing"
    counts = entry["counts"]
    share = f"{counts.get('ok', 0)}/{counts.get('submitted', 0)} ok"
    if entry["outcome"] == "passed":
        return f"pass, {share}"
    word = "void" if entry["validity"]["verdict"] == "invalid" else str(entry["gate"]["verdict"])
    return f"{word}: {_reason(entry)}, {share}"


def outcomes(ended: Ended) -> str:
    """``ok 263, disconnected 91``, of all tests."""
    total: dict[str, int] = {}
    for entry in ended.tests.values():
        for name, count in entry["counts"].items():
            total[name] = total.get(name, 0) + count
    return ", ".join(f"{name} {count}" for name, count in total.items() if count and name != "submitted")


def table(rows: Mapping[FaultKind, Ended]) -> list[str]:
    """Markdown: what the ten tests say, then what became of their requests."""
    lines = ["| fault | " + " | ".join(f"`{test}`" for test in TESTS) + " |", "|---" * 11 + "|"]
    lines += [
        f"| `{fault}` | {' | '.join(cell(ended.tests.get(test)) for test in TESTS)} |"
        for fault, ended in rows.items()
    ]
    lines += ["", "| fault | requests of all ten tests | left or lost |", "|---|---|---|"]
    for fault, ended in rows.items():
        wrong = objections(ended, TESTS)
        lines.append(f"| `{fault}` | {outcomes(ended)} | {'; '.join(wrong) or 'nothing'} |")
    return lines


def _served(fault: FaultKind) -> Ended:
    return measured(f"sim:{scenario([fault])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT")
    parser.add_argument("--together", type=int, default=1, help="sessions at the same time")
    asked = parser.parse_args()
    with ThreadPoolExecutor(asked.together) as pool:
        ended = dict(zip(asked.only, pool.map(_served, asked.only), strict=True))
    lines = table(ended)
    for fault, wrong in ended.items():
        if objections(wrong, TESTS):
            print(
                f"--- {fault}, status {wrong.code} after {wrong.wall_s:.0f} s\n{wrong.terminal[-4000:]}",
                file=sys.stderr,
            )
    print("\n".join(lines))
    if asked.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2], "utf-8")
    return int(any(objections(ended[fault], TESTS) for fault in asked.only))


if __name__ == "__main__":
    sys.exit(main())
