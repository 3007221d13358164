"""Two hundred nights of the four engines' suites: false alarms, and how soon a slower build is found.

    python benchmarks/bench_nights.py [--nights 200] [--runs 5] [--only vllm] [--way saved|pairs] [--level]
    python benchmarks/bench_nights.py --whole 3

Each suite of example_suites/engines is run by pytest on the embedded engine at four speeds, and saved. The
figures of a night's runs are interpolated between these sessions, on logarithms: all costs of the engine are
those of the preset times the speed of the run. Runs differ by the noise (log-normal). With drift nights
differ by another 1 %, and each becomes 1 % slower or faster from its first run to its last. Limits of
the suites are at least 7 % away, and are left out.

``saved``: a night is compared with those that were saved before it, and saved, as by ``--llm-compare=nightly
--llm-save=nightly --llm-inconclusive=pass``, with ``--llm-compare-fail`` for throughput and P50 of TTFT.
``pairs``: both builds run in each night, in turns, as with ``--llm-baseline-endpoint``. Change points and
nights far from all others are looked for with ``--level`` only, which takes ten times as long.

A row is of a suite, the runs of each of its tests, and the noise. *alarm*: the share of nights of the
unchanged build that fail, after the first ten. *undecided*: that has a comparison that is not decided.
*at once*, *in two*: the share of builds 5 % slower that fail in the first of their nights, and in one of the
first two; one begins in every second night.

``--whole``: so many nights of each suite by pytest, and how far the interpolation is off.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compare import regression
from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.compare.regression import better_of, compared_by_session
from pytest_llmbench.harness.comparison.baselines import standing
from pytest_llmbench.model.judgement import MOST_SESSIONS, ComparisonVerdict
from pytest_llmbench.simulator.scenario import PRESETS
from pytest_llmbench.store.baselines import BaselineTest, Standing, read_baseline

Floats = npt.NDArray[np.float64]
Values = Mapping[str, Sequence[float]]
"""Metric → its values by run."""
Random = np.random.Generator
FOLDER = Path(__file__).parents[1] / "example_suites/engines"
SUITES: Mapping[str, tuple[str, str, str]] = {
    "vllm": ("h100-8b", "h100", "1.5%"),
    "sglang": ("h100-8b", "h100", "1.5%"),
    "tensorrt_llm": ("h100-8b", "post-merge", "1.5%"),
    "llama_cpp": ("cpu-laptop", "laptop", "1%"),
}
"""Suite → the preset of the engine, the place, and what nights allow (of few tests less may be asked)."""
STEP_COSTS = ("step_base_us", "prefill_us_per_token", "decode_us_per_sequence", "kv_us_per_token")
SPEEDS = (-0.25, 0.0, 0.05, 0.3)
"""Logarithms of how much slower the engine is."""
GATED = "output_token_throughput", "ttft.p50"
RUNS = 5
"""Of a session at one speed. Further runs of a night have their requests again."""
NOISES: Mapping[float, int] = {0.01: 6, 0.02: 6, 0.05: 20}
"""Noise between runs → the runs of each test in a night."""
DRIFT, SLOWER = 0.01, math.log(1.05)
FIRST_NIGHTS = 10
HEADS = ("alarm", "undecided", "5 % at once", "in two nights")


class Row(NamedTuple):
    alarm: float
    undecided: float
    first: float
    second: float


class ItemNight(NamedTuple):
    """The night of one test."""

    values: Values
    red: bool
    undecided: bool
    counts: bool


class Item(NamedTuple):
    """A test of a suite."""

    nodeid: str
    figures: Mapping[str, Floats]
    """Metric → its logarithm at each speed, in each run."""
    limits: Sequence[RegressionLimit]

    def by_run(self, speeds: Floats) -> dict[str, list[float]]:
        """The figures of runs at these speeds."""
        return {
            name: [
                math.exp(np.interp(speed, SPEEDS, logs[:, run % logs.shape[1]]))
                for run, speed in enumerate(speeds)
            ]
            for name, logs in self.figures.items()
        }

    def night(self, before: Sequence[Values], speeds: Floats) -> ItemNight:
        now = self.by_run(speeds)
        found = [
            compared_by_session(
                each.metric, "", better, [values[each.metric] for values in before], now[each.metric],
                margin=each.margin, same_runs=False, gated=True,
            )
            for each in self.limits
            if (better := better_of(each.metric)) is not None
        ]  # fmt: skip
        known = [each for each in found if each is not None]  # none before the fourth night
        comparisons = list(map(asdict, known))
        entry = {"outcome": "passed", "error": None, "comparisons": comparisons, "gate": {"objectives": []}}
        verdicts = {each.verdict for each in known}
        return ItemNight(
            now,
            ComparisonVerdict.REGRESSED in verdicts,
            ComparisonVerdict.INCONCLUSIVE in verdicts,
            standing(entry) is Standing.COUNTS,
        )


# Whole sessions.


def session(suite: str, folder: Path, slower: float, *options: str) -> dict[str, Any]:
    """The report of a session at this speed."""
    preset, place, _ = SUITES[suite]
    costs = "&".join(f"{name}={getattr(PRESETS[preset], name) * math.exp(slower):.9g}" for name in STEP_COSTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(FOLDER / suite)]
    given = f"--llm-endpoint=replay:{preset}?{costs}", f"--llm-place={place}", f"--llm-storage={folder}"
    more = f"--llm-runs={RUNS}", f"--llm-report={folder / 'report'}", *options
    subprocess.run([*command, *given, *more], check=False, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "report/report.json").read_text(encoding="utf-8"))
    return report


def saved(suite: str, folder: Path, slower: float, name: str) -> dict[str, BaselineTest]:
    """Node id → the result of a session at this speed, which is saved."""
    session(suite, folder, slower, f"--llm-save={name}")
    (path,) = folder.glob(f"*/*_{name}.json")
    return {test.nodeid: test for test in read_baseline(path).tests}


def items_of(suite: str) -> list[Item]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        every = [saved(suite, folder, slower, f"speed{at}") for at, slower in enumerate(SPEEDS)]
        usual = SPEEDS.index(0.0)
        limits = ",".join(f"{metric}:{SUITES[suite][2]}" for metric in GATED)
        report = session(suite, folder, 0.0, f"--llm-compare=speed{usual}", f"--llm-compare-fail={limits}")
        found = [_item(entry, [tests[entry["nodeid"]] for tests in every]) for entry in report["tests"]]
        return [item for item in found if item.limits]


def _item(entry: Mapping[str, Any], at_speeds: Sequence[BaselineTest]) -> Item:
    limits = [
        RegressionLimit(each["metric"], each["margin"], "marker")
        for each in entry["comparisons"]
        if each["gated"]
    ]
    names = dict.fromkeys(each.metric for each in limits)
    figures = {name: np.log([np.array(test.by_run[name], float) for test in at_speeds]) for name in names}
    return Item(entry["nodeid"], figures, limits)


# Nights.


class Weather(NamedTuple):
    noise: float
    drift: float

    def speeds(self, items: int, runs: int, random: np.random.Generator) -> Floats:
        """Those of the runs of each item in a night."""
        course = self.drift * random.choice((-1.0, 1.0)) * np.linspace(-0.5, 0.5, items * runs)
        level = self.drift * random.standard_normal()
        return (level + course + self.noise * random.standard_normal(items * runs)).reshape(items, runs)


class Night(NamedTuple):
    red: bool
    undecided: bool


class Saved:
    """A suite whose nights are compared with those before, and saved."""

    def __init__(self, items: Sequence[Item], before: Sequence[list[Values]] = ()) -> None:
        self.items = items
        self.before = [*before] or [[] for _ in items]

    def night(self, speeds: Floats) -> Night:
        every = list(map(Item.night, self.items, self.before, speeds))
        self.before = [
            [*before, night.values][-MOST_SESSIONS:] if night.counts else before
            for before, night in zip(self.before, every, strict=True)
        ]
        return Night(any(each.red for each in every), any(each.undecided for each in every))


def by_saved(items: Sequence[Item], weather: Weather, runs: int, count: int, random: Random) -> Iterator[Row]:
    chain = Saved(items)
    for number in range(FIRST_NIGHTS + count):
        before = chain.before
        usual = chain.night(weather.speeds(len(items), runs, random))
        if number < FIRST_NIGHTS:
            continue
        slower: tuple[float, float] = math.nan, math.nan
        if number % 2:
            slow = Saved(items, before)
            reds = [slow.night(SLOWER + weather.speeds(len(items), runs, random)).red for _ in range(2)]
            slower = reds[0], any(reds)
        yield Row(*usual, *slower)


def by_pairs(items: Sequence[Item], weather: Weather, runs: int, count: int, random: Random) -> Iterator[Row]:
    def night(slower: float) -> Night:
        speeds = weather.speeds(len(items), 2 * runs, random).reshape(len(items), runs, 2)
        speeds[:, 1::2] = speeds[:, 1::2, ::-1]  # every second pair the other way round
        found = [
            comparisons(item.by_run(own[:, 0]), item.by_run(own[:, 1] + slower), item.limits, paired=True)
            for item, own in zip(items, speeds, strict=True)
        ]
        verdicts = {each.verdict for own in found for each in own if each.gated}
        return Night(ComparisonVerdict.REGRESSED in verdicts, ComparisonVerdict.INCONCLUSIVE in verdicts)

    for number in range(count):
        reds = [night(SLOWER).red for _ in range(2)] if number % 2 else [math.nan]
        yield Row(*night(0.0), reds[0], max(reds))


WAYS = {"saved": by_saved, "pairs": by_pairs}


# Tables.


def table(suite: str, ways: Sequence[str], runs: int | None, count: int) -> Iterator[str]:
    items = items_of(suite)
    for way, drift, noise in product(ways, (0.0, DRIFT), NOISES):
        each = NOISES[noise] if runs is None else runs
        random = np.random.default_rng([each, round(1e4 * noise), round(1e4 * drift), *suite.encode()])
        found = WAYS[way](items, Weather(noise, drift), each, count, random)
        shares = " | ".join(f"{share:.1%}" for share in np.nanmean(list(found), axis=0))
        yield f"| {suite} | {way}, {each} | {noise:.0%}{', drift' if drift else ''} | {shares} |"


def whole(suite: str, count: int) -> Iterator[str]:
    """Sessions by pytest whose engine is slower by the noise of a night: what they measure, and what is
    interpolated."""
    items, random = {item.nodeid: item for item in items_of(suite)}, np.random.default_rng(3)
    for slower in (0.05 * random.standard_normal(count)).tolist():
        with TemporaryDirectory() as name:
            for nodeid, test in saved(suite, Path(name), slower, "night").items():
                if nodeid not in items:
                    continue
                for metric, values in items[nodeid].by_run(np.full(RUNS, slower)).items():
                    off = max(abs(math.log(a / b)) for a, b in zip(test.by_run[metric], values, strict=True))
                    yield f"| {nodeid.rpartition('::')[2]} | {metric} | {slower:+.2%} | {off:.3%} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--runs", type=int, help="of each test in a night, whatever the noise")
    parser.add_argument("--only", default="", help="suites with this in their name")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--whole", type=int, metavar="NIGHTS", help="by pytest, beside their interpolation")
    parser.add_argument("--level", action="store_true", help="look for change points and far nights")
    given = parser.parse_args()
    if not given.level:
        regression.present_level = lambda logs: list(range(len(logs)))  # type: ignore[assignment]
    names = ("test", "metric", "slower", "off by") if given.whole else ("suite", "way, runs", "noise", *HEADS)
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for suite in SUITES:
        if given.only in suite:
            rows = (
                whole(suite, given.whole)
                if given.whole
                else table(suite, given.way or list(WAYS), given.runs, given.nights)
            )
            for row in rows:
                print(row, flush=True)


if __name__ == "__main__":
    main()
