"""The first screen: how many limits are broken, by how much, why, and what to do next.

Decided here once, so that the page and the comment of a pull request never contradict each other.
"""

from __future__ import annotations

import math
import posixpath
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, counted
from pytest_llmbench.reports import comparisons
from pytest_llmbench.reports.document import TONES, ReportView, TestView, measured_text, objective_text, words

State = Literal["broken", "undecided", "kept", "shown"]
"""How a limit or comparison came out. ``shown``: a comparison that decides nothing."""
STATE_TONES: Mapping[State, str] = {"broken": "bad", "undecided": "warn", "kept": "good", "shown": "neutral"}
WORST_FIRST: Sequence[State] = ("broken", "undecided", "kept", "shown")

_OF_LIMITS: Mapping[str, State] = {"fail": "broken", "inconclusive": "undecided", "pass": "kept"}
_OF_COMPARISONS: Mapping[str, State] = {"regressed": "broken", "inconclusive": "undecided"}
_NOT_JUDGED = ("INVALID", "ERROR", "SKIPPED", "XFAIL", "XPASS")
_NEEDS_NO_CARD = ("PASS", "SKIPPED", "XFAIL")

_LOADS_TOLD = 2
_HARDWARE = {
    "undisclosed": "undisclosed hardware",
    "not declared": "undeclared hardware",
    "simulated x 1": "simulated hardware",
}


class Span(NamedTuple):
    """A point with its interval, on an axis where worse is to the right. An open end is None."""

    low: float | None
    point: float | None
    high: float | None


@dataclass(frozen=True)
class Held:
    """A limit, or a comparison that decides, with its outcome."""

    test: TestView
    state: State
    word: str
    """The outcome in a word; for a comparison its verdict."""
    limit: str
    measured: str
    distance: str | None
    """Distance of the value from the limit, ``+51 %``. None where there is no such figure, and for a
    comparison, which is one."""
    reason: str
    span: Span
    """Position on the axis. For a limit the share of it that was used, at most 1 if it was kept, whichever
    way it points; for a comparison the worsening as a share of the baseline."""
    allowed: float | None = None
    """The worsening that a comparison allows, as a share; None for a limit."""
    sentence: str = ""
    """A comparison in a sentence; empty for a limit."""

    @property
    def rank(self) -> tuple[int, float]:
        """The sort key: broken ones first, and the farthest beyond its limit, or nearest to it."""
        beyond = self.span.point if self.span.point is not None else -math.inf
        return WORST_FIRST.index(self.state), -beyond


def held_of(test: TestView) -> list[Held]:
    """The limits and comparisons that decided a test. Empty if its numbers are not judged, or its failure is
    expected."""
    return [] if test.headline in _NOT_JUDGED else limits_of(test)


def limits_of(test: TestView) -> list[Held]:
    """The limits and then the comparisons of a valid test, whatever their outcome."""
    if not test.valid:
        return []
    gated = [one for one in test.comparisons if one.get("gated")]
    return [
        *(_limit(test, objective) for objective in test.objectives),
        *(_comparison(test, comparison) for comparison in gated),
    ]


def first_of(test: TestView) -> Held | None:
    """The one limit or comparison that stands for a test where there is room for one: the worst, or if all
    were kept the one nearest to its limit. None without limits, and for a void test."""
    return min(limits_of(test), key=lambda one: one.rank, default=None)


def _limit(test: TestView, objective: Entry) -> Held:
    point, limit = objective["point"], objective["limit"]
    state = _OF_LIMITS[objective["verdict"]]
    ends = [objective[end] for end in ("lower", "point", "upper")]
    # The used share: value / limit for a ceiling, limit / value for a floor.
    if limit <= 0:
        span = Span(None, None, None)
    elif objective["op"] in ("<=", "<"):
        span = Span(*(None if end is None else end / limit for end in ends))
    else:
        span = Span(*(None if end is None or end <= 0 else limit / end for end in reversed(ends)))
    # What this machine may have done is told where it reaches from what was measured to the limit.
    lower, _, upper = (point if end is None else end for end in ends)
    doubt = point is not None and (
        lower - (objective.get("too_high_by") or 0.0) <= limit <= upper + (objective.get("too_low_by") or 0.0)
    )
    return Held(
        test=test,
        state=state,
        word=state,
        limit=objective_text(objective),
        measured=measured_text(objective, doubt=doubt),
        distance=None if point is None or limit == 0 else numbers.distance(point / limit - 1),
        reason=str(objective.get("reason") or ""),
        span=span,
    )


def _comparison(test: TestView, comparison: Entry) -> Held:
    change = comparison["change"]
    ends = [change[end] for end in ("lower", "point", "upper")]
    if comparison["better"] == "higher":
        ends = [None if end is None else -end for end in reversed(ends)]
    system = comparisons.system_of(comparison, test.comparisons)
    baseline = comparison["baseline_name"]
    if comparison.get("gated"):
        op = "<=" if comparison["better"] == "lower" else ">="
        limit = f"{op} {baseline} {comparisons.allowed_text(comparison)}"
    else:
        limit = f"against {baseline}"
    return Held(
        test=test,
        state=_OF_COMPARISONS.get(comparison["verdict"], "kept") if comparison.get("gated") else "shown",
        word=comparisons.verdict_text(comparison),
        limit=f"{system}{comparison['metric']} {limit}",
        measured=comparisons.change_text(comparison),
        distance=None,
        reason=str(comparison["reason"]),
        span=Span(*ends),
        allowed=float(comparison["margin"]),
        sentence=comparisons.sentence(comparison),
    )


def compared_of(test: TestView) -> list[Held]:
    """The comparisons that decide; if none does, all of the test's comparisons."""
    if not test.valid:
        return []
    gated = [one for one in test.comparisons if one.get("gated")]
    return [_comparison(test, comparison) for comparison in gated or test.comparisons]


def has_systems(test: TestView) -> bool:
    """Whether systems stand side by side in one table, and none of their differences decides."""
    return comparisons.SYSTEMS in test.tables and not any(one.get("gated") for one in test.comparisons)


@dataclass(frozen=True)
class Card:
    """The card of a test that did not pass."""

    number: int
    """Index of the test in the report, from 0."""
    test: TestView
    deciding: Held | None
    """The worst limit or comparison of the test; None if no such decided."""
    more: int
    """How many others were undecided or worse."""
    cause: str


@dataclass(frozen=True)
class FirstScreen:
    """The summary of a whole report."""

    view: ReportView

    @property
    def tests(self) -> Sequence[TestView]:
        return self.view.tests

    @cached_property
    def held(self) -> list[Held]:
        """All limits and comparisons of judged tests, in the order of the tests."""
        return [one for test in self.tests for one in held_of(test)]

    @cached_property
    def compared(self) -> list[Held]:
        """The comparisons that decide; if none of any test does, all of them."""
        found = [one for test in self.tests for one in compared_of(test)]
        return [one for one in found if one.state != "shown"] or found

    @cached_property
    def systems(self) -> list[tuple[TestView, comparisons.Systems]]:
        """Systems side by side in short, of each test where no difference decides; equal rows once."""
        shown: set[str] = set()
        found = []
        for test in filter(has_systems, self.tests):
            table = test.tables[comparisons.SYSTEMS]
            made = comparisons.systems(table, shown)
            shown.update("\n".join(row) for row in table["rows"])
            found += [(test, made)] if made.rows else []
        return found

    @cached_property
    def banner(self) -> str:
        """The verdict of the report in a line: ``1 of 6 limits broken, 1 undecided; 2 tests void``."""
        limits = [one.state for one in self.held if one.allowed is None]
        compared = [one.state for one in self.held if one.allowed is not None]
        told = [_states_text(limits, "limit", "broken"), _states_text(compared, "comparison", "regressed")]
        if "broken" in compared and "broken" not in limits:
            told.reverse()
        parts = [*told, *self._beside_the_limits()]
        if not self.tests:
            return "no test ran"
        every = [one for test in self.tests if test.valid for one in test.comparisons]
        shown = comparisons.shown_text(every) if not compared else ""
        limited = any(test.objectives or test.comparisons for test in self.tests)
        nothing = "" if self.held else "no limit was judged" if limited and not shown else "no limit was set"
        return "; ".join(part for part in (nothing, *parts, shown) if part)

    @property
    def about(self) -> str:
        """What was measured on what, ``m on NVIDIA H100 x 2: closed loop, 8 in flight``; empty where nothing
        was."""
        loads = list(dict.fromkeys(t.entry["load"]["description"] for t in self.tests if t.entry["load"]))
        if not loads:
            return ""
        model = "an undeclared model" if self.view.model == "not declared" else self.view.model
        on = _HARDWARE.get(self.view.hardware, self.view.hardware)
        more = f"; and {counted(len(loads) - _LOADS_TOLD, 'other load')}" if len(loads) > _LOADS_TOLD else ""
        return f"{model} on {on}: {'; '.join(loads[:_LOADS_TOLD])}{more}"

    @property
    def change(self) -> str:
        """The comparison that decides, in a sentence: the worst of all; empty where none does."""
        worst = min((one for one in self.held if one.sentence), key=lambda one: one.rank, default=None)
        return "" if worst is None else worst.sentence

    def _beside_the_limits(self) -> Iterable[str]:
        counts = Counter(test.headline for test in self.tests)
        otherwise = sum(test.headline == "FAIL" and _worst(test) is None for test in self.tests)
        again = sum(test.headline == "PASS" and test.entry.get("attempts", 1) > 1 for test in self.tests)
        for count, text in (
            (otherwise, "failed, but not by a limit"),
            (counts["INVALID"], "void"),
            (counts["ERROR"], "without a measurement"),
            (counts["SKIPPED"], "skipped"),
            (counts["XFAIL"], "expected to fail"),
            (counts["XPASS"], "passed, expected to fail"),
            (again, "passed only when run again"),
        ):
            if count:
                yield f"{counted(count, 'test')} {text}"
        if self.view.incomplete:
            yield "INCOMPLETE"

    @property
    def tone(self) -> str:
        """The worst tone of all tests: ``bad``, ``warn``, ``good``, or ``neutral`` where nothing was
        judged."""
        tones = {TONES[test.headline] for test in self.tests}
        if self.view.incomplete:
            return "bad"
        found = next((tone for tone in ("bad", "warn", "good") if tone in tones), "neutral")
        worse = any(one.state == "shown" and one.word == "regressed" for one in self.compared)
        return "neutral" if found == "good" and (worse or not self.held) else found

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values of what was measured: endpoint, build, baseline, date, duration, cost, failed."""
        report = self.view.report
        generator = report["generator"]
        attempts = [attempt for test in self.tests for attempt in test.every_attempt]
        took = [attempt["duration_s"] for attempt in attempts if attempt.get("duration_s")]
        named = dict.fromkeys(one["baseline_name"] for test in self.tests for one in test.comparisons)
        settings = report["environment"].get("settings", {})
        endpoint, systems = settings.get("baseline_endpoint"), settings.get("endpoints") or ()
        baselines = [str(endpoint) if endpoint and name == "baseline" else str(name) for name in named]
        counts = [test.completed for test in self.tests if test.measured]
        of = sum(every for _, every in counts)
        failed = of - sum(ok for ok, _ in counts)
        beyond = any(test.levels and test.completed[0] < test.completed[1] for test in self.tests)
        more = ", loads beyond capacity included" if beyond else ""
        share = f"{numbers.percentage(failed / of)}{more}" if failed else ""
        failures = f"{failed} of {of} requests ({share})" if failed else ""
        known = [
            ("Systems", ", ".join(map(str, systems))),
            ("Endpoint", "" if systems else str(report["sut"]["endpoint"])),
            ("Model", "" if self.about else self.view.model),
            ("Build", self.view.software),
            ("Baseline", "" if systems else ", ".join(baselines)),
            ("Started", str(report["started"])[:16].replace("T", " ") + " UTC"),
            ("Took", numbers.duration(sum(took)) if took else ""),
            ("Cost", self._cost),
            ("Failed", failures),
            ("Measured by", f"{generator['name']} {generator['version']}"),
        ]
        return [(name, text) for name, text in known if text and text != "not declared"]

    @property
    def _cost(self) -> str:
        """The cost of all attempts, ``0.42 USD``; empty where no price is known. A test that broke off may
        have sent more than is known."""
        spent = [attempt.get("spent") or {} for test in self.tests for attempt in test.every_attempt]
        priced = [one for one in spent if one.get("cost") is not None]
        if not priced:
            return ""
        least = "at least " if len(priced) < len(spent) or self.view.incomplete else ""
        amount = sum(one["cost"] for one in priced)
        return f"{least}{numbers.money(amount, priced[0]['currency'] or '')}".rstrip()

    @property
    def compliance(self) -> str | None:
        """Compliance in words, ``Compliance with the draft: 3 conditional, 7 not compliant``; None without a
        test of the draft."""
        classes = [t.compliance_text for t in self.tests if t.of_the_draft and t.measured]
        counts = ", ".join(f"{classes.count(word)} {word}" for word in dict.fromkeys(classes))
        return f"Compliance with the draft: {counts}" if counts else None

    @property
    def compliance_demanded(self) -> bool:
        """Whether a test that requires a compliance class failed."""
        return any(
            (test.entry.get("parameters") or {}).get("compliance") and test.headline == "FAIL"
            for test in self.tests
        )

    @cached_property
    def cards(self) -> list[Card]:
        """Cards of the tests that did not pass, the worst first, then in the order of the report."""
        order = ("FAIL", "ERROR", "INVALID", "INCONCLUSIVE", "XPASS")
        cards = []
        for number, test in enumerate(self.tests):
            if test.headline not in _NEEDS_NO_CARD:
                deciding = _worst(test)
                not_kept = sum(one.state != "kept" for one in held_of(test))
                cards.append(Card(number, test, deciding, max(not_kept - 1, 0), _cause(test, deciding)))
        return sorted(cards, key=lambda card: order.index(card.test.headline))

    @property
    def command(self) -> str:
        """The session's command for the tests of the :attr:`cards` only; options that are not ours are left
        out. Empty where all passed."""
        if not self.cards:
            return ""
        environment = self.view.report["environment"]
        settings = environment.get("settings", {})
        command = list(environment.get("command", []))
        options = []
        for word, following in zip_longest(command, command[1:], fillvalue=""):
            if not word.startswith("--llm-"):
                continue
            options.append(word)
            name = word.removeprefix("--llm-").replace("-", "_")
            if "=" not in word and not isinstance(settings.get(name), bool) and name in settings:
                options.append(following)
        places = []
        for card in self.cards:
            file, *rest = card.test.nodeid.split("::", 1)
            place = posixpath.normpath(posixpath.join(environment.get("root", "."), file))
            places.append("::".join([place, *rest]))
        return shlex.join(["pytest", *dict.fromkeys(places), *options])


def _worst(test: TestView) -> Held | None:
    """The limit or comparison that decided: the farthest off of the broken ones, or else of the undecided;
    None if none did."""
    found = [one for one in held_of(test) if one.state != "kept"]
    return min(found, key=lambda one: one.rank, default=None)


def _cause(test: TestView, deciding: Held | None) -> str:
    """Why a test did not pass, in one sentence."""
    if test.headline == "XPASS":
        return "the test was expected to fail, and passed"
    error = str(test.entry.get("error") or "").strip()
    if test.headline == "INVALID":
        void = [finding["message"] for finding in test.noteworthy_findings if finding["voids"]]
        return str(void[0]) if void else "the run is void"
    if deciding is not None and test.headline != "ERROR":
        return deciding.reason
    if error:
        return error.splitlines()[0]
    asked = (test.entry.get("parameters") or {}).get("compliance")
    if test.measured and asked and test.compliance != asked:
        return f"{words(str(asked))} was asked for, and the run is {test.compliance_text}"
    return "the test itself failed, see what pytest says" if test.measured else "nothing was measured"


def _states_text(states: Sequence[State], noun: str, broken_word: str) -> str:
    counts = Counter(states)
    if not states:
        return ""
    if not counts["broken"] and not counts["undecided"]:
        passed = "kept" if noun == "limit" else "passed"
        return f"the {noun} {passed}" if len(states) == 1 else f"all {len(states)} {noun}s {passed}"
    if len(states) == 1:
        return f"the {noun} {broken_word if counts['broken'] else 'undecided'}"
    of = f"{len(states)} {noun}s"
    told = [(counts["broken"], broken_word), (counts["undecided"], "undecided")]
    first, *rest = [f"{count} {word}" for count, word in told if count]
    count, _, word = first.partition(" ")
    return ", ".join([f"{count} of {of} {word}", *rest])
