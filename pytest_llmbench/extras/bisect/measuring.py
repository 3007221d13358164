"""One measurement of a commit: a session of pytest in its work tree, and the metric that it saved."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.compare.comparability import IF_KNOWN, REQUIRED, made_alike, matched
from pytest_llmbench.compare.regression import better_of
from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.extras.bisect.state import State
from pytest_llmbench.reports.vocabulary import headline_names
from pytest_llmbench.store.baselines import BaselineTest, read_baseline, saved_baselines

_SAME = [name for name in (*REQUIRED, *IF_KNOWN) if not str(name).startswith("sut.")]
"""What has to agree: the load and the machine. What a system says of itself may change with its commits."""


@dataclass(frozen=True)
class Wanted:
    """What is measured."""

    arguments: Sequence[str]
    """The arguments of pytest."""
    below: str
    """The folder of the repository that pytest runs in; empty: its root."""
    test: str | None
    metric: str | None


def measured(tree: Path, folder: Path, wanted: Wanted, state: State) -> float | str:
    """The metric of the commit in ``tree``, or why there is none. ``folder``: of the bisection. The first
    measurement says which test and metric ``state`` is of.

    SuiteError where what was asked for cannot be had of any commit.
    """
    sessions, log = folder / "session", folder / "pytest.txt"
    shutil.rmtree(sessions, ignore_errors=True)
    inside = tree / wanted.below
    command = [sys.executable, "-m", "pytest", *wanted.arguments]
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
        _chosen(tests, wanted, state)
    return _value(tests, state)


def _chosen(tests: Sequence[BaselineTest], wanted: Wanted, state: State) -> None:
    """Fill in what the bisection is about."""
    named = [test for test in tests if wanted.test in (None, test.nodeid)]
    if len(named) != 1:
        there = ", ".join(test.nodeid for test in tests)
        raise SuiteError(
            f"one test is to be bisected, and there are: {there}",
            where="bisect" if wanted.test is None else f"--test {shown(wanted.test)}",
            remedy="give its id with --test, or select it with -k",
        )
    test = named[0]
    names = [name for name in test.by_run if better_of(name) is not None]
    chosen = wanted.metric or next(iter(headline_names(test.test, names)), None)
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
