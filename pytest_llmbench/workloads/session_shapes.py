"""Workloads of sessions by name, ``session:chat``, or as described: ``{"sessions": {"turns": 5, …}}``.

The two shapes follow interactive-chat and deep-research of inference-perf's catalogue of workloads, as far as
their figures are known: means and ranges. Spreads were not known and are ours: a log-normal law has a
standard deviation as large as its mean, a normal one a third of it. Replies of deep-research are bimodal
there; its modes were not known, so they are log-normal here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.workloads.adapted import cuts_of, seconds_law
from pytest_llmbench.workloads.lengths import LengthLaw, LogNormal, Normal, law_of
from pytest_llmbench.workloads.sessions import SessionWorkload, answers_mistakes

SESSION: Final = "session:"
_KEY: Final = "sessions"
_LAWS: Final = ("turns", "input_tokens", "output_tokens", "own_tokens")
_NUMBERS: Final = ("system_tokens", "group_tokens", "groups", "fan_out", "reset_every", "context_tokens")
_NEEDED: Final = ("turns", "input_tokens", "output_tokens")
_CUTS: Final = ("cut_share", "cut_after_s")
_TEXTS: Final = ("name", "answers")
_KNOWN: Final = (*_TEXTS, *_LAWS, "pause_s", *_NUMBERS, *_CUTS)


def _lognormal(mean: float, low: int, high: int) -> LogNormal:
    variance = math.log(2.0)  # of a standard deviation as large as the mean
    return LogNormal(round(math.log(mean) - variance / 2, 6), round(math.sqrt(variance), 6), low, high)


def _normal(mean: float, low: int, high: int) -> Normal:
    return Normal(mean, round(mean / 3, 6), low, high)


_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": {
        "turns": _lognormal(4, 1, 15),
        "pause_ms": _lognormal(45_000, 5_000, 300_000),
        "system_tokens": 1_000,
        "input_tokens": _lognormal(50, 10, 1_000),
        "output_tokens": _normal(300, 10, 1_000),
    },
    "deep-research": {
        "turns": _normal(15, 2, 50),
        "pause_ms": _normal(25_000, 5_000, 60_000),
        "system_tokens": 2_000,
        "input_tokens": _lognormal(3_000, 500, 15_000),
        "output_tokens": _lognormal(300, 50, 4_000),
    },
}
NAMES: Final = tuple(f"{SESSION}{name}" for name in _SHAPES)


@cache
def named_sessions(name: str) -> SessionWorkload:
    """The workload of sessions called ``session:NAME``. SuiteError, with the known names, for another."""
    shape = _SHAPES.get(name.removeprefix(SESSION))
    if shape is None:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise SuiteError(f"unknown workload {shown(name)}", remedy=f"{hint}sessions: {', '.join(NAMES)}")
    return SessionWorkload(name, **shape)


def described_sessions(described: Mapping[str, Any]) -> SessionWorkload:
    """The workload of ``{"sessions": {…}}``. Lengths are a number, a pair (uniform), a list, a histogram or a
    law; ``pause_s`` a number of seconds, a pair or a list. Raises SuiteError with all mistakes."""
    keys = described.get(_KEY) if set(described) == {_KEY} else None
    if not isinstance(keys, Mapping):
        raise SuiteError(f"{shown(described)} describes no workload", remedy='write {"sessions": {…}}')
    mistakes = [_unknown(str(key)) for key in keys if key not in _KNOWN]
    mistakes += [f"{key} is missing" for key in _NEEDED if key not in keys]
    given: dict[str, Any] = {"name": "sessions"}
    for key in (key for key in _KNOWN if key in keys and key not in _CUTS):
        try:
            given |= _given(key, keys[key])
        except SuiteError as error:
            mistakes.append(error.what)
    try:
        given["cuts"] = cuts_of(keys.get("cut_share"), keys.get("cut_after_s"))
    except SuiteError as error:
        mistakes.append(error.what)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="workload of sessions")
    return SessionWorkload(**given)


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, _KNOWN, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(_KNOWN)}"
    return f"unknown key {shown(key)}; {hint}"


def _given(key: str, value: Any) -> dict[str, Any]:
    if key in _LAWS:
        return {key: law_of(value, key)}
    if key == "pause_s":
        return {"pause_ms": _pause(value)}
    kind = str if key in _TEXTS else int
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SuiteError(f"{key} is {shown(value)}: give a {'name' if kind is str else 'whole number'}")
    if key == "answers" and (wrong := answers_mistakes(str(value))):
        raise SuiteError(wrong[0])
    return {key: value}


def _pause(value: Any) -> LengthLaw | None:
    """Seconds as a law of milliseconds; None for no pause."""
    if value == 0 and not isinstance(value, bool):
        return None
    return seconds_law(value, "pause_s")
