"""What sessions of 200 and 1000 requests of an open loop decide, for every figure that a gate may limit.

    python benchmarks/bench_stationary.py [--sessions 100] [--only NAME] [--figures] [--truths FILE]
    python benchmarks/bench_stationary.py --short
    python benchmarks/bench_stationary.py --looks

Each session is a load by itself, from an idle system to the last reply. Of the embedded engine it has all
figures, of simulated queues (stamps alone) the latency and the rates. A row says, of a limit three times away
from the truth at 200 requests and twice at 1000, how often it is decided where it is kept ("pass") and where
it is broken ("fail"), how often a limit at the truth itself is passed ("false", 2.5 % are promised), and how
often the end that such a pass needs is open. Shares are asked for 90 and 95 % of requests within limits three
and two times P99; "false" of a share and of the rates within limits is that of a limit that 95 % keep.

Truths of latencies are those of six long runs without their beginnings (in 20,000 requests the slots of
``fast`` at 80 % are full fifteen times, and P99 of TTFT is from 23 to 47 ms); of rates the mean over all
sessions, as these end with a drain. ``--figures``: one row for each figure. By default one for each system
and size, the table of benchmarks/coverage.md: of each kind of figure the share decided, the lower of
pass and fail, and of false passes, both of its worst figure. ``--short``: how much lower latencies of short
loads are than those of a lasting one (means over the sessions), beside W / D, the time of a reply over that
of sending, and what intervals allow for it. ``--looks``: loads that are looked at after each 100 of 3000
requests (``requests="auto"``): how often a limit twice away passes, after how many, and how often one at the
truth does.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/stats"))

from coverage_table import constant, exponential, log_normal, stamped_times
from queue_models import stamps_of_bursts, stamps_of_slots

from pytest_llmbench.metrics.itl import choose_option, itl_distribution, itl_samples
from pytest_llmbench.metrics.latency import FAMILIES, distributions
from pytest_llmbench.metrics.overload import with_slots
from pytest_llmbench.metrics.throughput import Limits, goodput, rates
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, Looks, OpenLoop, Watched
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.batching import as_lasting, idle_share, load_at_full_slots, shortfall
from pytest_llmbench.stats.looks import LookTaker
from pytest_llmbench.stats.percentiles import PERCENTILES
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

Floats = npt.NDArray[np.float64]
SIZES: Mapping[int, float] = {200: 3.0, 1000: 2.0}
"""Requests of a session, and how far away its limits are."""
LEAST_SHARE: Mapping[int, float] = {200: 0.9, 1000: 0.95}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_RAMP_UP, _LONG, _LONG_RUNS = 2000, 40_000, 6
_QUEUED = LoadPlan("stationary", SYNTHETIC_UNIFORM, OpenLoop(1.0), 1, seed=1)
_TIGHT = "at 95 %"


class System(NamedTuple):
    name: str
    sessions: Callable[[int, int], Iterator[Observation]]
    """``sessions(n, count)``: so many loads of n requests."""
    long_runs: Callable[[], Iterator[Records]]
    families: tuple[str, ...]


class Row(NamedTuple):
    system: str
    n: int
    figure: str
    passed: float
    failed: float
    false: float
    open: float

    def __str__(self) -> str:
        cells = (f"{100 * share:.0f}" for share in self[3:])
        return f"| {self.system} | {self.n:,} | {self.figure} | " + " | ".join(cells) + " |"


# Systems.


@cache
def capacity(scenario: str) -> float:
    """Requests a second that the engine serves when it always has 256 of them."""
    plan = LoadPlan("capacity", SYNTHETIC_UNIFORM, ClosedLoop(256), 6000, seed=7)
    ends = np.sort(ReplayEngine(parse_scenario(scenario)).run(plan).records.finished_ns)
    tenth = len(ends) // 10
    return 8 * tenth / float(ends[9 * tenth] - ends[tenth]) * 1e9


def engine(scenario: str, load: float) -> System:
    def run(n: int, seed: int) -> Observation:
        plan = LoadPlan("stationary", SYNTHETIC_UNIFORM, OpenLoop(load * capacity(scenario)), n, seed=seed)
        return ReplayEngine(parse_scenario(scenario)).run(plan)

    def long_runs() -> Iterator[Records]:
        for seed in range(_LONG_RUNS):
            yield run(_RAMP_UP + _LONG, 99 + seed).records.part(_RAMP_UP, _RAMP_UP + _LONG)

    def sessions(n: int, count: int) -> Iterator[Observation]:
        return (run(n, 1000 + seed) for seed in range(count))

    name = f"{scenario} at {load:.0%}"
    return System(name, sessions, long_runs, ("ttft", "tpot", "e2e"))


def queue(name: str, stamps: Callable[[int, int, np.random.Generator], tuple[Floats, Floats]]) -> System:
    """``stamps(n, rows, random)``: latencies, and when each request was sent, in seconds."""

    def sessions(n: int, count: int, stream: int = 5) -> Iterator[Observation]:
        random = np.random.default_rng([stream, n, *name.encode()])
        for first in range(0, count, 50):
            for times, sent in zip(*stamps(n, min(50, count - first), random), strict=True):
                yield _observed(times, sent)

    def long_runs() -> Iterator[Records]:
        return (seen.records for seen in sessions(4000, 100, 6))

    return System(name, sessions, long_runs, ("e2e",))


def _observed(times: Floats, sent: Floats) -> Observation:
    starts_ns = ((1 + sent - sent[0]) * 1e9).astype(np.int64).tolist()
    ends_ns = ((1 + sent - sent[0] + times) * 1e9).astype(np.int64).tolist()
    rows = [
        RequestRecord(
            place, f"r{place}", Phase.MEASURE, scheduled_ns=start, submitted_ns=start,
            first_content_ns=end, last_content_ns=end, finished_ns=end, outcome=Outcome.OK,
            chunk_ns=(end,), chunk_tokens=(1,), input_tokens=1, output_tokens=1,
        )
        for place, (start, end) in enumerate(zip(starts_ns, ends_ns, strict=True))
    ]  # fmt: skip
    return Observation(
        _QUEUED,
        Records.from_rows(rows),
        anchor=ClockAnchor(0, 0),
        started_ns=starts_ns[0],
        ended_ns=max(ends_ns),
    )


def slots(count: int, load: float, n: int, rows: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    sent, ended = stamps_of_slots(count, load, n, rows, random)
    return (ended - sent)[:, -n:], sent[:, -n:]


SYSTEMS: tuple[System, ...] = (
    *(engine("h100-8b", load) for load in (0.3, 0.5, 0.7, 0.8)),
    *(engine("fast", load) for load in (0.5, 0.8)),
    *(engine("fast?max_num_seqs=8", load) for load in (0.1,)),
    queue("M/M/1 at 50%", partial(stamped_times, exponential, 0.5)),
    queue("M/M/1 at 70%", partial(stamped_times, exponential, 0.7)),
    queue("M/D/1 at 70%", partial(stamped_times, constant, 0.7)),
    queue("M/G/1 (log-normal) at 50%", partial(stamped_times, log_normal, 0.5)),
    queue("M/M/8 at 50%", partial(slots, 8, 0.5)),
    queue("M/M/8 at 70%", partial(slots, 8, 0.7)),
    queue("M/M/8 at 80%", partial(slots, 8, 0.8)),
    queue("M/M/32 at 80%", partial(slots, 32, 0.8)),
    queue("MMPP/M/1 at 40%", partial(stamps_of_bursts, 0.4)),
)


# Figures.


def figures(seen: Observation, families: Sequence[str], loose: Limits, tight: Limits) -> dict[str, Estimate]:
    found = distributions(families, [seen.records]) | rates([seen], seed=1)
    if "tpot" in families:
        found |= itl_distribution(itl_samples(seen.records, choose_option(seen.records)))
    runs, rate = [with_slots(seen)], seen.plan.load.rate  # type: ignore[union-attr]
    closer = as_lasting(goodput([seen], tight, seed=1), runs, rate, tight)
    found = as_lasting(found | goodput([seen], loose, seed=1), runs, rate, loose)
    return found | {f"{name} {_TIGHT}": each for name, each in closer.items()}


def gated(families: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The names of figures with an upper limit, of rates, and of shares."""
    itl = ("itl",) if "tpot" in families else ()
    ceilings = [f"{family}.{statistic}" for family in (*families, *itl) for statistic in _STATISTICS]
    tokens = ("output_token_throughput", "output_token_goodput") if itl else ()
    return ceilings, ["request_throughput", "goodput", *tokens], ["goodput_share"]


def true_latencies(runs: Iterator[Records], families: Sequence[str]) -> dict[str, float]:
    """Of all runs; gaps between tokens, which are thousands of times as many, of the first."""
    pooled: dict[str, list[Floats]] = {family: [] for family in families}
    truth: dict[str, float] = {}
    for records in runs:
        if "tpot" in families and not truth:
            gaps = itl_distribution(itl_samples(records, choose_option(records)))
            truth |= {name: each.point for name, each in gaps.items() if each.point is not None}
        for family, samples in pooled.items():
            samples.append(FAMILIES[family](records))
    for family, samples in pooled.items():
        every = np.concatenate(samples)
        truth |= {f"{family}.{name}": float(np.percentile(every, q)) for name, q in PERCENTILES.items()}
        truth[f"{family}.mean"] = float(every.mean())
    return truth


def rows_of(system: System, n: int, count: int, truth: Mapping[str, float]) -> Iterator[Row]:
    away, first = SIZES[n], system.families[0]
    loose = [(family, away * truth[f"{family}.p99"]) for family in system.families if family != "e2e"]
    loose = loose or [(first, away * truth[f"{first}.p99"])]
    tight = [(first, truth[f"{first}.p95"])]
    every = [figures(seen, system.families, loose, tight) for seen in system.sessions(n, count)]  # type: ignore[arg-type]
    ceilings, of_rates, shares = gated(system.families)

    def ends(name: str) -> tuple[Floats, Floats]:
        pairs = [(found[name].lower, found[name].upper) for found in every]
        return (
            np.array([-math.inf if lower is None else lower for lower, _ in pairs]),
            np.array([math.inf if upper is None else upper for _, upper in pairs]),
        )

    for name in ceilings:
        low, high = ends(name)
        true = truth[name]
        yield Row(
            system.name, n, name, np.mean(high <= away * true), np.mean(low > true / away),
            np.mean(high <= true), np.mean(np.isinf(high)),
        )  # fmt: skip
    for name in (*of_rates, *shares):
        low, high = ends(name)
        tight_name = f"{name} {_TIGHT}" if "goodput" in name else name
        true, at_limit = (
            float(np.mean([found[each].point for found in every])) for each in (name, tight_name)
        )
        at_limit = 0.95 if name in shares else at_limit
        below, above = (LEAST_SHARE[n], 1.0) if name in shares else (true / away, true * away)
        yield Row(
            system.name, n, name, np.mean(low >= below),
            math.nan if name in shares else np.mean(high < above),
            np.mean(ends(tight_name)[0] >= at_limit), np.mean(np.isinf(low)),
        )  # fmt: skip


SHORT = (60, 120, 200, 1000)
"""Requests of a short load."""


def short_rows(system: System, count: int, truth: Mapping[str, float]) -> Iterator[str]:
    for n in SHORT:
        seen = list(system.sessions(n, count))
        found = [distributions(("ttft", "e2e"), [each.records]) for each in seen]
        runs, rate = [with_slots(each) for each in seen], seen[0].plan.load.rate  # type: ignore[union-attr]
        idle = [idle_share(run) for run, _ in runs]
        loads = [load_at_full_slots(*run, rate) for run in runs]
        allowed = [
            shortfall([] if load is None else [load], share) for load, share in zip(loads, idle, strict=True)
        ]
        lower = [
            np.mean([truth[name] / each[name].point - 1 for each in found])  # type: ignore[operator]
            for name in ("e2e.mean", "ttft.mean")
        ]
        cells = (f"{100 * value:.0f} %" for value in (*lower, np.mean(allowed)))
        yield f"| {system.name} | {n:,} | {np.mean(idle):.2f} | " + " | ".join(cells) + " |"


MOST = 3000
"""Requests of a load that may end early."""
LOOKED = ("ttft.mean", "ttft.p50", "ttft.p95", "ttft.p99", "tpot.p50", "tpot.p99", "e2e.p50", "e2e.p95")


def look_rows(system: System, count: int, truth: Mapping[str, float]) -> Iterator[str]:
    every = list(system.sessions(MOST, count))
    for name in LOOKED:
        away, at = (
            np.mean([_last_look(seen, name, times * truth[name]) for seen in every], axis=0)
            for times in (2.0, 1.0)
        )
        yield f"| {system.name} | {name} | {away[0]:.0%} | {away[1]:,.0f} | {at[0]:.0%} |"


def _last_look(seen: Observation, name: str, limit: float) -> tuple[bool, int]:
    """Whether the limit is passed, and after how many requests."""
    family, _, statistic = name.partition(".")
    watched = Watched(Objective(name, "<=", limit, "ms"), family, PERCENTILES.get(statistic))  # type: ignore[arg-type]
    _, slots = with_slots(seen)
    taker = LookTaker(Looks((watched,), 0.0), first=0, most=MOST, load=seen.plan.load, slots=slots)
    taker.add_all(seen.records)
    verdict = taker.close()
    upper = verdict.estimates[0].upper
    return upper is not None and upper <= limit, verdict.n


KINDS: Mapping[str, tuple[str, ...]] = {
    **{family.upper(): tuple(f"{family}.{name}" for name in _STATISTICS) for family in ("ttft", "tpot")},
    "E2E": tuple(f"e2e.{name}" for name in _STATISTICS),
    "ITL": tuple(f"itl.{name}" for name in _STATISTICS),
    "rates": ("request_throughput", "output_token_throughput", "goodput", "output_token_goodput"),
    "goodput share": ("goodput_share",),
}


def worst(rows: Sequence[Row]) -> str:
    """One row for a system and a size: of each kind of figure, how often its worst decides and passes
    falsely, and is open if it ever is."""
    cells = [rows[0].system, f"{rows[0].n:,}"]
    for names in KINDS.values():
        own = np.array([row[3:] for row in rows if row.figure in names], dtype=np.float64)
        if len(own):
            decided, false, missing = np.nanmin(own[:, :2]), own[:, 2].max(), own[:, 3].max()
            cells.append(f"{decided:.0%} · {false:.0%}" + (f" · {missing:.0%} open" if missing else ""))
        else:
            cells.append("")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--only", default="", help="systems whose name holds this")
    parser.add_argument("--requests", type=int, choices=tuple(SIZES), help="of a session; default: both")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--short", action="store_true", help="how much lower latencies of short loads are")
    parser.add_argument("--looks", action="store_true", help="loads that may end early")
    parser.add_argument("--truths", type=Path, help="a file that keeps what the long runs say")
    asked = parser.parse_args()
    known = pickle.loads(asked.truths.read_bytes()) if asked.truths and asked.truths.exists() else {}
    names = ("figure", "pass", "fail", "false", "open") if asked.figures else tuple(KINDS)
    names = ("W / D", "E2E lower by", "TTFT lower by", "allowed for") if asked.short else names
    names = ("2 x passes", "after requests", "false") if asked.looks else names
    second = "figure" if asked.looks else "n"
    print(f"| system | {second} | " + " | ".join(names) + " |\n|---|---:|" + "---|" * len(names))
    for system in SYSTEMS:
        if asked.only not in system.name or ((asked.short or asked.looks) and "ttft" not in system.families):
            continue
        if system.name not in known:
            known[system.name] = true_latencies(system.long_runs(), system.families)
            if asked.truths:
                asked.truths.write_bytes(pickle.dumps(known))
        if asked.short or asked.looks:
            rows_of_system = short_rows if asked.short else look_rows
            print("\n".join(rows_of_system(system, asked.sessions, known[system.name])), flush=True)
            continue
        for n in (asked.requests,) if asked.requests else SIZES:
            rows = list(rows_of(system, n, asked.sessions, known[system.name]))
            print("\n".join(map(str, rows)) if asked.figures else worst(rows), flush=True)


if __name__ == "__main__":
    main()
