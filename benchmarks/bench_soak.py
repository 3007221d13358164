"""A soak: memory of every process of a session over time, and the picture of it in docs/plots.

    python benchmarks/bench_soak.py --replay 10000000       # ten million requests in virtual time: an hour
    python benchmarks/bench_soak.py --minutes 60            # an hour of real load over HTTP on loopback
    python benchmarks/bench_soak.py --replay 1000000 --minutes 10 --draw soak.svg

Each is a session of pytest as a user starts it, in a process of its own; its tree is looked at twice a second
(RssAnon: what the system cannot take back). The load has ended when 99 % of the records are written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

RATE = 100
REPLAYED_RATE = 2_000
EVERY_S = 0.5
SUITE = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

SHORT = SyntheticWorkload("short-replies", Fixed(16), Fixed({tokens}))

@llmbench.ttft(rate={rate}, requests={requests}, workload=SHORT)
def test_soak():
    pass
"""
ROLES = {"pytest_llmbench.simulator": "engine", "workers.process": "measuring process", "pytest": "pytest"}
"""Who they are by a word of their command line; the first that fits."""


@dataclass
class Soak:
    """``series``: role to (seconds, MiB), each in the order in which it was looked at."""

    name: str
    requests: int
    wall_s: float = 0.0
    load_ended_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def grown_mib(self, role: str) -> float:
        """By how much the median of the last quarter of the load is above that of the second."""
        begun, ended = 0.0, self.load_ended_s
        during = [mib for at, mib in self.series[role] if begun <= at <= ended]
        quarter = len(during) // 4
        if quarter == 0:
            raise ValueError(f"{self.name}: too short to say how {role} grows")
        return _median(during[-quarter:]) - _median(during[quarter : 2 * quarter])


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def replayed(requests: int) -> Soak:
    """In virtual time: one process that measures and then analyses."""
    return _session(
        f"{requests:,} requests in virtual time", "replay:fast", requests, REPLAYED_RATE, tokens=3
    )


def served(minutes: float, rate: float = RATE) -> Soak:
    """Over HTTP on loopback: pytest, its measuring process, and the embedded engine."""
    return _session(
        f"{minutes:g} minutes at {rate:g} req/s over HTTP", "sim:fast", round(minutes * 60 * rate), rate, 8
    )


def _session(name: str, endpoint: str, requests: int, rate: float, tokens: int) -> Soak:
    soak, written = Soak(name, requests), list[tuple[float, int]]()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        work = Path(folder)
        (work / "test_soak.py").write_text(SUITE.format(tokens=tokens, rate=rate, requests=requests), "utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--llm-endpoint={endpoint}",
        ]
        command += ["--llm-remeasure=0", "--llm-report=out"]
        command += [f"--llm-caps=requests={2 * requests + 10_000}"]  # a session sends a million and no more
        began = time.monotonic()
        with (work / "said").open("wb") as said:
            process = subprocess.Popen(command, cwd=work, stdout=said, stderr=said)
            while process.poll() is None:
                at_s = time.monotonic() - began
                _look(soak, process.pid, at_s)
                written.append((at_s, sum(each.stat().st_size for each in (work / "out").rglob("*.jsonl*"))))
                time.sleep(EVERY_S)
        soak.wall_s = time.monotonic() - began
        if process.returncode not in (0, 1):
            raise SystemExit((work / "said").read_text("utf-8", "replace")[-3000:])
        _told(soak, work)
    # The file is closed only after the analysis, which takes memory of its own.
    soak.load_ended_s = next(at_s for at_s, size in written if size >= 0.99 * written[-1][1])
    return soak


def _look(soak: Soak, pid: int, at_s: float) -> None:
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            command = " ".join(process.cmdline())
            status = Path(f"/proc/{process.pid}/status").read_text("ascii")
        except (psutil.Error, OSError):
            continue
        role = next((role for word, role in ROLES.items() if word in command), None)
        if role is not None and "RssAnon:" in status:
            mib = int(status.split("RssAnon:")[1].split()[0]) / 1024
            soak.series.setdefault(role, []).append((at_s, mib))


def _told(soak: Soak, work: Path) -> None:
    """What the report says of the load."""
    (entry,) = json.loads((work / "out" / "report.json").read_text("utf-8"))["tests"]
    soak.counts = {name: count for name, count in entry["counts"].items() if count}


def text(soak: Soak) -> str:
    lines = [f"{soak.name}: {soak.wall_s:.0f} s in all, load until {soak.load_ended_s:.0f} s, {soak.counts}"]
    for role, seen in soak.series.items():
        during = [mib for at, mib in seen if at <= soak.load_ended_s] or [0.0]
        lines.append(
            f"  {role}: at most {max(during):.0f} MiB during the load, "
            f"{max(mib for _, mib in seen):.0f} in all; "
            f"last quarter of the load above the second: {soak.grown_mib(role):+.1f} MiB"
        )
    return "\n".join(lines)


def draw(soaks: Sequence[Soak], path: Path) -> None:
    """One drawing beside the other, the end of the load marked."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "soak", "font.size": 9})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(soaks), 3.2), layout="constrained")
    for axes, soak in zip(figure.subplots(1, len(soaks), squeeze=False)[0], soaks, strict=True):
        for role, seen in soak.series.items():
            axes.plot([at / 60 for at, _ in seen], [mib for _, mib in seen], label=role, linewidth=1.2)
        axes.axvline(soak.load_ended_s / 60, color="#7a8594", linestyle=":", linewidth=1.1)
        axes.set(
            xlabel="minutes (dotted: the load has ended)", ylabel="anonymous memory (MiB)", title=soak.name
        )
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replay", type=int, metavar="REQUESTS", help="so many in virtual time")
    parser.add_argument("--minutes", type=float, help="so long over HTTP")
    parser.add_argument("--rate", type=float, default=RATE, help=f"requests per second over HTTP ({RATE})")
    parser.add_argument("--draw", type=Path, metavar="SVG")
    parser.add_argument("--json", action="store_true", help="the growth of each process, for a test")
    asked = parser.parse_args()
    soaks = [replayed(asked.replay)] if asked.replay else []
    soaks += [served(asked.minutes, asked.rate)] if asked.minutes else []
    for soak in soaks:
        grown = {role: soak.grown_mib(role) for role in soak.series}
        told: Any = {"requests": soak.requests, "counts": soak.counts, "grown_mib": grown}
        print(json.dumps(told) if asked.json else text(soak), flush=True)
    if asked.draw:
        draw(soaks, asked.draw)


if __name__ == "__main__":
    main()
