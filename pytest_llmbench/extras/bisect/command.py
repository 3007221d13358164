"""Builds and measures commits, until one is known to have made the figure worse: a bisection by
probabilities, as every measurement is noisy.

Each commit is checked out and built in a work tree of its own; the user's own work tree and branches stay as
they are.

Commits stand in a line from the good one, 0, to the bad one. The change came with commit k, or there is none
that is worth finding. With y the logarithm of a figure, each measurement of commit i is

    y ~ N(m, s²)  for i < k,      N(m + d, s²)  for i ≥ k,

and m, d and s are unknown. They are integrated out: m over the whole line (Gaussian, in closed form), d and s
over grids, d flat on its logarithm; every k is as likely as any other beforehand. The result is the
probability of every k, given all measurements so far. It may be looked at after each of them: a posterior
does not depend on why one stopped. The next commit is the one that tells most: whose figure the hypotheses
that are left foresee most differently, by the variance of what they foresee. While levels are known that is
the median of k; where the doubt is about a level, it is a commit of that level. Probabilistic bisection
(Horstein 1963, IEEE Transactions on Information Theory 9; Waeber, Frazier and Henderson 2013, SIAM Journal on
Control and Optimization 51), with answers of unknown reliability.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_llmbench.compare.comparability import IF_KNOWN, REQUIRED, made_alike, matched
from pytest_llmbench.compare.regression import better_of, compared
from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.harness.history.sessions import print_lines
from pytest_llmbench.metrics.definitions import metric_unit
from pytest_llmbench.model import numbers
from pytest_llmbench.reports.comparisons import headline_names
from pytest_llmbench.store.baselines import BaselineTest, read_baseline, saved_baselines
from pytest_llmbench.store.files import read_object, write_text
from pytest_llmbench.store.objects import plain_object

FloatArray = npt.NDArray[np.float64]
NO_CHANGE: Final = 0.2
"""Probability beforehand that there is no change: who bisects has seen one."""
_FEWEST_OF_ENDS = 2
"""Measurements of the good and of the bad commit before anything is concluded."""
_USUAL_NOISE, _ITS_SPREAD = 0.03, 1.0
"""Noise of a run as a share of its figure, beforehand: about 3 %, two thirds of all within a factor of e."""
_NOISES: Final = np.geomspace(0.001, 0.4, 36)
_WEIGHTS: Final = -0.5 * (np.log(_NOISES / _USUAL_NOISE) / _ITS_SPREAD) ** 2
_LARGEST, _SIZES = 1.5, 40
_TINY = 1e-300
_AS_TELLING = 0.85
"""A commit that is built already is measured instead of the most telling one, if it tells so much of it."""


@dataclass(frozen=True)
class Suspects:
    """What the measurements say."""

    probability: FloatArray
    """The probability of each commit k = 1 … n to be the one; entry 0 is 0."""
    none: float
    """The probability of no change at all."""
    telling: FloatArray
    """How differently the hypotheses foresee the figure of each commit."""

    def likeliest(self, groups: Iterable[range]) -> tuple[range, float]:
        """The most probable of the groups of commits that cannot be told apart, and its probability."""
        shares = ((group, float(self.probability[group.start : group.stop].sum())) for group in groups)
        return max(shares, key=lambda found: found[1])


class Bisection:
    """Measurements of commits 0 … ``last``, and what they say. ``least``: the smallest change of the
    logarithm that is worth finding; ``rises``: whether the figure of the bad commit is the larger one."""

    def __init__(self, last: int, *, least: float, rises: bool) -> None:
        self.last, self._sign = last, 1.0 if rises else -1.0
        self._sizes = np.geomspace(least, max(_LARGEST, 2 * least), _SIZES)
        self._count, self._sum = np.zeros(last + 1), np.zeros(last + 1)
        self._values: list[float] = []

    def add(self, commit: int, value: float) -> None:
        """A measurement of a commit; ``value`` is above zero."""
        y = self._sign * math.log(value)
        self._count[commit] += 1
        self._sum[commit] += y
        self._values.append(y)

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def both_ends(self) -> bool:
        """Whether both ends are measured often enough to conclude anything."""
        return bool(self._count[[0, self.last]].min() >= _FEWEST_OF_ENDS)

    def suspects(self) -> Suspects:
        """The probabilities, given the measurements so far; at least one of them."""
        total, values = self.count, np.asarray(self._values)
        centre = float(values.mean())
        squares = float(((values - centre) ** 2).sum())
        # Behind the change: how many, and the sum of their distances from the mean. All k between the same
        # measured commits have the same.
        there = np.flatnonzero(self._count)
        distances = self._sum[there] - centre * self._count[there]
        after = np.append(np.cumsum(self._count[there][::-1])[::-1], 0.0)
        beyond = np.append(np.cumsum(distances[::-1])[::-1], 0.0)
        d = self._sizes
        left = squares - 2 * d * beyond[:, None] + d**2 * (after * (1 - after / total))[:, None]
        changed = self._of_noise(np.maximum(left, 0.0))
        same = self._of_noise(np.array(squares))
        top = max(float(changed.max()), float(same.max()))
        likelihood = np.exp(changed - top).sum(axis=0)
        segment = np.searchsorted(there, np.arange(1, self.last + 1))
        of_each = likelihood.sum(axis=1)[segment] * (1 - NO_CHANGE) / (self.last * _SIZES)
        of_none = float(np.exp(same - top).sum()) * NO_CHANGE
        whole = float(of_each.sum()) + of_none
        share = of_each / whole
        size = (likelihood @ d / np.maximum(likelihood.sum(axis=1), _TINY))[segment]
        telling = _variance_explained(share, size, -size * after[segment] / total)
        return Suspects(np.concatenate([[0.0], share]), of_none / whole, telling)

    def _of_noise(self, left: FloatArray) -> FloatArray:
        """Logarithm of the likelihood by the squares that are left, the level integrated out, for each noise
        in the first dimension."""
        noise = _NOISES.reshape(-1, *[1] * left.ndim)
        weight = _WEIGHTS.reshape(noise.shape)
        return np.asarray(weight - (self.count - 1) * np.log(noise) - left / (2 * noise**2))

    def next_commit(
        self, found: Suspects | None, skipped: Collection[int] = (), built: Collection[int] = ()
    ) -> int:
        """The commit to measure next: the ends until they are known to differ, then the one whose side is
        least known. ``found``: what is known; ``skipped``: cannot be measured; ``built``: at hand."""
        ends = (0, self.last)
        few = min(ends, key=lambda end: self._count[end])
        if found is None or self._count[few] < _FEWEST_OF_ENDS:
            return few
        able = [commit for commit in range(self.last + 1) if commit not in skipped]
        best = max(able, key=lambda commit: found.telling[commit])
        near = [commit for commit in able if commit in built]
        at_hand = max(near, key=lambda commit: found.telling[commit], default=best)
        return at_hand if found.telling[at_hand] >= _AS_TELLING * found.telling[best] else best


def _variance_explained(share: FloatArray, size: FloatArray, level: FloatArray) -> FloatArray:
    """The variance over the hypotheses k = 1 … of what they foresee of commits 0 …: ``level``, and ``size``
    more from k on; no change foresees 0, the mean."""
    rise = np.concatenate([[0.0], np.cumsum(share * size)])
    mean = float(share @ level) + rise
    square = np.concatenate([[0.0], np.cumsum(share * size * (2 * level + size))])
    return np.asarray(float(share @ level**2) + square - mean**2)


FOUND, NOT_FOUND = 0, 1
_TRIES = 2
"""A commit that failed so often is not tried any more."""
_OF_THE_MODEL = 0.5
"""Share of the promised error that is kept for noise that is not Gaussian."""


def sure_enough(error: float) -> float:
    """The probability from which on an answer is given that may be wrong so often."""
    return 1.0 - _OF_THE_MODEL * error


@dataclass
class _Search:
    commits: Sequence[str]
    trees: Trees
    folder: Path
    below: str
    """The folder of the repository that pytest runs in; empty: its root."""
    state: State
    error: float
    least: float
    _known: Bisection | None = field(default=None, init=False)

    @property
    def skipped(self) -> set[int]:
        return {at for at, commit in enumerate(self.commits) if len(self._failures(commit)) >= _TRIES}

    def _failures(self, commit: str) -> list[str]:
        return self.state.failed.get(commit, [])

    @property
    def groups(self) -> list[range]:
        """The commits that may have made the change, those together that cannot be told apart because the
        earlier ones of them cannot be measured."""
        there = {commit for commit, _ in self.state.measured}
        lost = {at for at in self.skipped if self.commits[at] not in there}
        found, start = [], 1
        for at in range(1, len(self.commits)):
            if at not in lost:
                found.append(range(start, at + 1))
                start = at + 1
        return found

    def known(self) -> Suspects | None:
        """What the measurements say; None while there are none."""
        if not self.state.measured:
            return None
        rises = better_of(self.state.metric) == "lower"
        self._known = Bisection(len(self.commits) - 1, least=math.log1p(self.least), rises=rises)
        for commit, value in self.state.measured:
            self._known.add(self.commits.index(commit), value)
        return self._known.suspects()

    def is_over(self, found: Suspects | None) -> bool:
        if found is None or self._known is None or not self._known.both_ends:
            return False
        return max(found.none, found.likeliest(self.groups)[1]) >= sure_enough(self.error)

    def step(self, found: Suspects | None) -> str:
        """Build and measure one commit; returns a line about it. SuiteError where an end fails."""
        built = [at for at, commit in enumerate(self.commits) if commit in self.trees.built]
        at = 0 if self._known is None else self._known.next_commit(found, self.skipped, built)
        commit = self.commits[at]
        why = self.trees.ready(commit)
        value = why or measured(self.trees.path(commit), self.folder, self.below, self.state)
        if isinstance(value, str):
            # A build that failed fails again; a session may have had bad luck.
            again = [value] * (_TRIES if why else 1)
            self.state.failed[commit] = [*self._failures(commit), *again]
            if at in (0, len(self.commits) - 1) and at in self.skipped:
                raise SuiteError(
                    value, where=f"commit {short(commit)}", remedy="give ends that can be measured"
                )
        else:
            self.state.measured.append((commit, value))
        self.state.save(self.folder)
        if isinstance(value, str):
            return f"{short(commit)}  {value}" + (": skipped" if at in self.skipped else "")
        return f"{short(commit)}  {numbers.quantity(value, self._unit)}"

    @property
    def _unit(self) -> str:
        return numbers.shown_unit(self.state.metric, metric_unit(self.state.metric))

    def told(self, found: Suspects) -> str:
        """The commits that are left, in words."""
        left = [
            at for at in range(1, len(self.commits)) if found.probability[at] > self.error / len(self.commits)
        ]
        if not left:
            return "no change so far"
        group, share = found.likeliest(self.groups)
        return (
            f"{len(left)} of {len(self.commits) - 1} left, likeliest {short(self.commits[group.stop - 1])} "
            f"({numbers.percentage(share)})"
        )

    def result(self, found: Suspects) -> tuple[list[str], int]:
        """The last lines, and the exit status."""
        counted = Counter(commit for commit, _ in self.state.measured)
        lost = len([at for at in self.skipped if self.commits[at] not in counted])
        cost = f"{_several(counted.total(), 'run')} of {_several(len(counted), 'commit')}"
        cost += f", {lost} could not be measured" if lost else ""
        if found.none >= sure_enough(self.error):
            least = numbers.percentage(self.least)
            sure = numbers.percentage(found.none)
            return [f"no change of {least} or more: {sure} sure, after {cost}"], NOT_FOUND
        group, share = found.likeliest(self.groups)
        sure = numbers.percentage(share)
        if not self.is_over(found):
            return [f"undecided after {cost}: {self.told(found)}"], NOT_FOUND
        names = [
            git(self.trees.repository, "log", "-1", "--format=%h %an: %s", self.commits[at]) for at in group
        ]
        head = "changed by" if len(names) == 1 else "changed by one of these, which cannot be distinguished:"
        lines = [f"{head} {names[0]}", *names[1:]] if len(names) == 1 else [head, *names]
        return [*lines, self._change(group.stop - 1), f"{sure} sure, after {cost}"], FOUND

    def _change(self, first_bad: int) -> str:
        better = better_of(self.state.metric)
        assert better is not None
        sides: tuple[list[float], list[float]] = [], []
        for commit, value in self.state.measured:
            sides[self.commits.index(commit) >= first_bad].append(value)
        found = compared(
            self.state.metric, metric_unit(self.state.metric), better, *sides, margin=self.least, paired=False
        )
        means = (
            numbers.quantity(math.exp(math.fsum(map(math.log, side)) / len(side)), self._unit)
            for side in sides
        )
        change = numbers.change(plain_object(found.change))
        return f"{self.state.metric} of {self.state.test}: {' to '.join(means)}, {change}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench bisect",
        usage="%(prog)s GOOD BAD [options] -- PYTEST-ARGUMENT ...",
        description="Find the commit between GOOD and BAD that made a metric of one test worse. Each commit "
        "is checked out in its own work tree, built there, and measured there by pytest with the "
        "arguments after --, as often as needed.",
        epilog="Exit status: 0 found; 1 no such change, or undecided; 2 nothing can be "
        "measured, or an argument is wrong.",
    )
    parser.add_argument("good", metavar="GOOD", help="a commit from before the change")
    parser.add_argument("bad", metavar="BAD", help="a commit with the change")
    parser.add_argument(
        "--build", metavar="COMMAND", help="shell command that builds a commit in its work tree"
    )
    parser.add_argument("--test", metavar="ID", help="the test, if pytest runs several")
    parser.add_argument("--metric", metavar="NAME", help="such as ttft.p50; default: the test's main one")
    share = "share between 0 and 1; default: %(default)s"
    parser.add_argument(
        "--error", type=_share, default=0.05, metavar="P", help=f"how often the answer may be wrong, {share}"
    )
    parser.add_argument(
        "--least", type=_share, default=0.02, metavar="P", help=f"smallest change worth finding, {share}"
    )
    parser.add_argument(
        "--max-runs",
        type=_count,
        default=400,
        metavar="N",
        help="stop after this many runs; default: %(default)s",
    )
    parser.add_argument(
        "--keep", type=_count, default=4, metavar="N",
        help="built work trees to keep besides those of GOOD and BAD; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=Path, metavar="DIR",
        help="folder of the work trees and results, from which a killed bisection continues; default: "
        "beside the repository",
    )  # fmt: skip
    return parser


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def main(arguments: Sequence[str]) -> int:
    """find the commit that made a metric worse, with as many measurements as that needs"""
    split = list(arguments).index("--") if "--" in arguments else len(arguments)
    given = _parser().parse_args(list(arguments[:split]))
    try:
        search = _prepared(given, list(arguments[split + 1 :]))
        return _searched(search, given.max_runs)
    except KeyboardInterrupt:
        print_lines(["interrupted: the same command goes on from here"])
        return 2


def _prepared(given: argparse.Namespace, of_pytest: list[str]) -> _Search:
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    commits = line_of(root, given.good, given.bad)
    folder = (given.state or root.with_name(f"{root.name}.llmbench-bisect")).absolute()
    if folder.is_relative_to(root):
        raise SuiteError(
            "work trees inside of the repository would be taken for a part of it",
            where=f"--state {given.state}",
            remedy="name a folder outside of it",
        )
    asked = {
        "good": commits[0], "bad": commits[-1], "build": given.build, "pytest": of_pytest,
        "test": given.test, "metric": given.metric,
    }  # fmt: skip
    state = state_of(folder, asked)
    (folder / "trees").mkdir(parents=True, exist_ok=True)
    trees = Trees(root, folder / "trees", given.build, given.keep, (commits[0], commits[-1]))
    below = git(Path(), "rev-parse", "--show-prefix")
    return _Search(commits, trees, folder, below, state, given.error, given.least)


def _searched(search: _Search, most: int) -> int:
    count, done = len(search.commits) - 1, len(search.state.measured)
    going_on = f", going on after {_several(done, 'run')}" if done else ""
    print_lines(
        [f"{_several(count, 'commit')} behind {short(search.commits[0])}, in {search.folder}{going_on}"]
    )
    found = search.known()
    while not search.is_over(found) and len(search.state.measured) < most:
        line = search.step(found)
        found = search.known()
        told = "" if found is None else f"  {search.told(found)}"
        print_lines([f"{len(search.state.measured):>4}  {line}{told}"])
    if found is None:
        raise SuiteError("nothing was measured", where="bisect")
    lines, status = search.result(found)
    print_lines(lines)
    if search.is_over(found):
        search.trees.remove()
    return status


_SAME = [name for name in (*REQUIRED, *IF_KNOWN) if not str(name).startswith("sut.")]
"""What has to agree: the load and the machine. What a system says of itself may change with its commits."""


def measured(tree: Path, folder: Path, below: str, state: State) -> float | str:
    """The metric of the commit in ``tree``, or why there is none. ``folder``: of the bisection; ``below``: of
    the repository, in which pytest runs; empty: its root. The first measurement says which test and metric
    ``state`` is of.

    SuiteError where what was asked for cannot be had of any commit.
    """
    sessions, log = folder / "session", folder / "pytest.txt"
    shutil.rmtree(sessions, ignore_errors=True)
    inside = tree / below
    command = [sys.executable, "-m", "pytest", *state.asked["pytest"]]
    command += ["--llm-save=bisect", f"--llm-storage={sessions}"]
    with log.open("wb") as file:
        ran = subprocess.run(
            command,
            cwd=inside if inside.is_dir() else tree,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        )
    saved = saved_baselines(sessions)
    if not saved:
        return f"pytest ended with status {ran.returncode} and saved nothing, see {log}"
    try:
        tests = read_baseline(saved[-1]).tests
    except StoreError as error:
        return error.what
    if not state.test:
        _choose(tests, state)
    return _value(tests, state)


def _choose(tests: Sequence[BaselineTest], state: State) -> None:
    """Fill in what the bisection is about."""
    nodeid, metric = state.asked["test"], state.asked["metric"]
    named = [test for test in tests if nodeid in (None, test.nodeid)]
    if len(named) != 1:
        there = ", ".join(test.nodeid for test in tests)
        raise SuiteError(
            f"give one test to bisect; found: {there}",
            where="bisect" if nodeid is None else f"--test {shown(nodeid)}",
            remedy="give its id with --test, or select it with -k",
        )
    test = named[0]
    names = [name for name in test.by_run if better_of(name) is not None]
    chosen = metric or next(iter(headline_names(test.test, names)), None)
    if chosen not in names:
        raise SuiteError(
            f"{test.nodeid} has no such metric with a better direction; it has {', '.join(names)}",
            where=f"--metric {shown(chosen)}",
            remedy="give one of them with --metric",
        )
    state.test, state.metric, state.identity = test.nodeid, chosen, test.identity


def _value(tests: Sequence[BaselineTest], state: State) -> float | str:
    """Geometric mean over the runs of the session, which are one measurement: they share its weather."""
    test = next((each for each in tests if each.nodeid == state.test), None)
    if test is None:
        return f"it has no results of {state.test}"
    differs = (
        *matched(state.identity, test.identity, required=_SAME).mismatches,
        *made_alike(state.metric, state.identity, test.identity).mismatches,
    )
    if differs:
        return f"it measures something else: {'; '.join(differs)}"
    values = test.by_run.get(state.metric, [])
    known = [value for value in values if value is not None and value > 0 and math.isfinite(value)]
    if not known or len(known) < len(values):
        return f"{state.metric} is undefined or not above zero"
    return math.exp(math.fsum(map(math.log, known)) / len(known))


_NAME = "bisect.json"


class State(BaseModel):
    """What was asked, and what has been found so far."""

    model_config = ConfigDict(extra="forbid")

    asked: dict[str, Any]
    """What the bisection is of: commits, build command, arguments of pytest, metric."""
    test: str = ""
    """The test whose metric is looked at; empty: nothing is measured yet."""
    metric: str = ""
    identity: dict[str, Any] = {}
    """What the first measurement was of."""
    measured: list[tuple[str, float]] = []
    """Commit and value, in the order of the measurements."""
    failed: dict[str, list[str]] = {}
    """Commit → why it could not be built or measured, each time."""

    def save(self, folder: Path) -> None:
        write_text(folder / _NAME, self.model_dump_json(indent=1) + "\n")


def state_of(folder: Path, asked: dict[str, Any]) -> State:
    """The state in a folder, or a new one. SuiteError where it is of another bisection."""
    path = folder / _NAME
    if not path.exists():
        return State(asked=asked)
    remedy = f"remove {folder}, or name another folder with --state"
    content = read_object(path, "state of a bisection", absent=remedy, damaged=remedy)
    try:
        found = State.model_validate(content)
    except ValidationError as error:
        raise StoreError(
            f"no whole state of a bisection: {error.errors()[0]['msg']}", where=str(path), remedy=remedy
        ) from error
    if found.asked != json.loads(json.dumps(asked)):
        differs = [name for name in asked if found.asked.get(name) != asked[name]]
        raise SuiteError(
            f"there is a bisection with other arguments: {', '.join(differs)}",
            where=str(path),
            remedy=remedy,
        )
    return found


_BUILT = "built"
_DIGITS = 12


def short(commit: str) -> str:
    return commit[:_DIGITS]


def git(folder: Path, *arguments: str) -> str:
    """The output of a Git command. SuiteError, with what Git says, if it fails."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise SuiteError(f"git cannot be run: {error.strerror}", remedy="install Git") from None
    if ran.returncode:
        told = " ".join(ran.stderr.decode(errors="replace").split())
        raise SuiteError(told or f"git ended with status {ran.returncode}", where=f"git {arguments[0]}")
    return ran.stdout.decode(errors="surrogateescape").strip()


def line_of(folder: Path, good: str, bad: str) -> list[str]:
    """The commits from the good to the bad one, along first parents: a merge stands for what it brought.

    SuiteError where one is no commit, or the good one is not an ancestor of the bad one.
    """
    found = []
    for name in (good, bad):
        try:
            found.append(git(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"))
        except SuiteError:
            raise SuiteError(
                f"{name} is not a commit of this repository",
                where="bisect",
                remedy="give a commit, branch or tag of it; in a shallow clone: git fetch --unshallow",
            ) from None
    first, last = found
    if first == last or git(folder, "merge-base", first, last) != first:
        raise SuiteError(
            f"{good} is not an ancestor of {bad}",
            where="bisect",
            remedy="give the good commit first, then a bad one that was made from it",
        )
    between = git(folder, "rev-list", "--first-parent", "--reverse", f"{first}..{last}")
    return [first, *between.splitlines()]


@dataclass
class Trees:
    """Work trees below ``folder``, of which at most ``most`` are kept, beside those of ``always``."""

    repository: Path
    folder: Path
    build: str | None
    most: int
    always: Collection[str]
    _used: list[str] = field(default_factory=list)
    """Commits with a built tree, that of the last use last."""

    def __post_init__(self) -> None:
        self._used = [
            path.name for path in self.folder.glob("*") if path.is_dir() and self._marker(path.name).exists()
        ]

    @property
    def built(self) -> tuple[str, ...]:
        return tuple(self._used)

    def path(self, commit: str) -> Path:
        return self.folder / commit

    def ready(self, commit: str) -> str | None:
        """Have the commit checked out and built; returns why that failed, None if it is there."""
        if commit in self._used:
            self._used.remove(commit)
            self._used.append(commit)
            return None
        self._removed(commit)  # what a killed build has left
        git(self.repository, "worktree", "add", "--detach", "--force", str(self.path(commit)), commit)
        log = self.folder.parent / f"build-{short(commit)}.txt"
        if self.build is not None:
            with log.open("wb") as file:
                ran = subprocess.run(
                    self.build,
                    shell=True,  # it is a command line of the user's own shell
                    cwd=self.path(commit),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    check=False,
                )
            if ran.returncode:
                self._removed(commit)
                return f"--build ended with status {ran.returncode}, see {log}"
        self._marker(commit).touch()
        self._used.append(commit)
        spare = [each for each in self._used if each not in self.always]
        for old in spare[: -self.most]:
            self._removed(old)
        return None

    def remove(self) -> None:
        for commit in [path.name for path in self.folder.glob("*") if path.is_dir()]:
            self._removed(commit)

    def _marker(self, commit: str) -> Path:
        return self.folder / f"{commit}.{_BUILT}"

    def _removed(self, commit: str) -> None:
        self._marker(commit).unlink(missing_ok=True)
        if commit in self._used:
            self._used.remove(commit)
        if self.path(commit).exists():
            shutil.rmtree(self.path(commit))
        git(self.repository, "worktree", "prune")
