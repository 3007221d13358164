"""Questions with a known answer: how a reply is scored, and what comes of it.

A reply is scored where it is read, so that no report has to keep the texts of replies. What a scorer took for
the answer is kept in short (:data:`SHOWN_CHARS`), since a wrong scorer looks like a wrong model.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown

RIGHT: Final = "right"
WRONG: Final = "wrong"
NO_ANSWER: Final = "no_answer"
"""The scorer found no answer in the reply."""
CUT: Final = "cut_by_limit"
"""The reply ended at its limit, and is not right as far as it goes."""
SCORER_FAILED: Final = "scorer_failed"
"""The author's scorer raised, or gave no truth value."""
UNANSWERED: Final = "unanswered"
"""The request failed, or its reply had no text."""
CHECKS: Final = (RIGHT, WRONG, NO_ANSWER, CUT, UNANSWERED, SCORER_FAILED)
SHOWN_CHARS: Final = 200
"""Most characters of a wrong answer that a record keeps."""
LETTERS: Final = "ABCDEFGHIJ"
"""The letters of choices."""

FINGERPRINT: Final = "fingerprint"
"""The scorer of requests without a known answer whose replies are compared with one another. Not for
authors."""
SAID: Final = "said"
"""What it gives instead of one of :data:`CHECKS`: :func:`fingerprint` behind a colon."""
_PREFIXES: Final = (1, 8)
"""Words of the beginnings that a fingerprint tells apart."""

SCORERS: Final = ("exact", "number", "choice", "contains")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?|[-+]?\.\d+")
_STATED = re.compile(r"\b(?i:answer)(?:\s+(?i:is))?[\s:*(\[]*([A-J])(?![A-Za-z0-9'])")
_ALONE = re.compile(r"(?<![A-Za-z0-9])([A-J])(?![A-Za-z0-9'])")


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """The answer that a reply should give. Make it by :meth:`of`, which checks it.

    ``scorer``: ``exact`` (the reply without the white space around it), ``number`` (the last number in the
    reply, as for GSM8K), ``choice`` (the letter from A to J after the last "answer is" or "Answer:", else
    the last that stands alone, as for MMLU), ``contains`` (the answer stands in the reply),
    ``regex:PATTERN`` (the first group of the last match, or the whole match), ``python:MODULE:FUNCTION``
    (called with reply and answer; gives a truth value).
    """

    answer: str
    scorer: str = "exact"
    row: str = ""
    """Where its file has the question, in words; empty where it is of no file."""

    @classmethod
    def of(cls, answer: str, scorer: str = "exact", row: str = "") -> ExpectedAnswer:
        """Raises SuiteError for an unknown scorer, and for an answer that no reply could give by it."""
        if mistakes := scorer_mistakes(scorer) or _answer_mistakes(answer, scorer):
            raise SuiteError.from_mistakes(mistakes, where="expected answer")
        return cls(answer, scorer, row)

    def check(self, reply: str, *, cut: bool) -> str:
        """One of :data:`CHECKS`; after a colon, of one that is not right, what was taken for the answer.

        ``cut``: the reply ended at its limit.
        """
        if self.scorer == FINGERPRINT:
            return f"{SAID}: {fingerprint(reply)}"
        try:
            said, right = _scorer(self.scorer)(reply, self.answer)
        except Exception as error:  # noqa: BLE001 - an author's function may raise anything
            where = f"{self.row}: " if self.row else ""
            return _told(SCORER_FAILED, f"{where}{type(error).__name__}: {error}")
        if right:
            return RIGHT
        if cut:
            return CUT
        return NO_ANSWER if said is None else _told(WRONG, said)


def check_of(told: str) -> str:
    """Which of :data:`CHECKS` a record tells."""
    return told.partition(":")[0]


def fingerprint(reply: str) -> str:
    """The number of characters, and digests of its first word, its first eight and the whole: what tells
    whether two replies are alike, and where the text itself is not kept."""
    words = reply.split()
    parts = [*(" ".join(words[:count]) for count in _PREFIXES), reply]
    return " ".join([str(len(reply)), *(f"{zlib.crc32(part.encode()):08x}" for part in parts)])


def scorer_mistakes(scorer: str) -> list[str]:
    """What is wrong with the name of a scorer, in words; empty: nothing."""
    kind, _, rest = scorer.partition(":")
    if scorer in SCORERS:
        return []
    if kind == "regex" and rest:
        try:
            re.compile(rest)
        except re.error as error:
            return [f"scorer {shown(scorer)} is no regular expression: {error}"]
        return []
    if kind == "python" and rest.count(":") == 1 and all(rest.split(":")):
        return []
    forms = f"{', '.join(SCORERS)}, regex:PATTERN or python:MODULE:FUNCTION"
    return [f"scorer is {shown(scorer)}; it has to be {forms}"]


def _answer_mistakes(answer: str, scorer: str) -> list[str]:
    if scorer.startswith(("python:", "regex:")):
        return []
    if not answer.strip():
        return ["the answer is empty"]
    if scorer == "number" and _last_number(answer) is None:
        return [f"the answer {shown(answer)} holds no number, for scorer number"]
    if scorer == "choice" and not re.fullmatch(r"\(?[A-J]\)?", answer.strip()):
        return [f"the answer {shown(answer)} is no letter from A to J, for scorer choice"]
    return []


_Scored = tuple[str | None, bool]
_Scorer = Callable[[str, str], _Scored]


@lru_cache(maxsize=16)
def _scorer(name: str) -> _Scorer:
    kind, _, rest = name.partition(":")
    if kind == "regex":
        return _by_pattern(re.compile(rest))
    if kind == "python":
        module, _, function = rest.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # a process that measures does not have what pytest's rootdir adds
        return _by_function(getattr(import_module(module), function))
    return {"exact": _exact, "number": _number, "choice": _choice, "contains": _contains}[name]


def _exact(reply: str, answer: str) -> _Scored:
    said = reply.strip()
    return said, said == answer.strip()


def _contains(reply: str, answer: str) -> _Scored:
    return reply.strip(), answer.strip() in reply


def _number(reply: str, answer: str) -> _Scored:
    said = _last_number(reply)
    return said, said is not None and float(said) == float(_last_number(answer) or "nan")


def _last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def _choice(reply: str, answer: str) -> _Scored:
    found = _STATED.findall(reply) or _ALONE.findall(reply)
    return (found[-1], found[-1] == answer.strip("() ")) if found else (None, False)


def _by_pattern(pattern: re.Pattern[str]) -> _Scorer:
    def scored(reply: str, answer: str) -> _Scored:
        found = [match.group(1 if pattern.groups else 0) for match in pattern.finditer(reply)]
        said = found[-1] if found else None
        return said, said is not None and said.strip() == answer.strip()

    return scored


def _by_function(function: Callable[[str, str], Any]) -> _Scorer:
    def scored(reply: str, answer: str) -> _Scored:
        right = function(reply, answer)
        if not isinstance(right, bool | int):
            raise TypeError(f"it gave {shown(right)}, not True or False")
        return reply.strip(), bool(right)

    return scored


def _told(check: str, said: str) -> str:
    text = " ".join(said.split())
    return f"{check}: {text[:SHOWN_CHARS]}{'…' if len(text) > SHOWN_CHARS else ''}"
