"""The view over a whole report: its tests and what is known about the system under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_llmbench.model.fact_keys import COLD_START, Key, SUTFact, Value
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.document import TestView, views

_SHOWN_TESTS = 10
_OF_ONE_RUN = ("workload.", "load.", "warmup.", "timing.", COLD_START)


@dataclass(frozen=True)
class ReportView:
    """The view over a whole report."""

    report: Entry

    @cached_property
    def tests(self) -> tuple[TestView, ...]:
        return tuple(views(self.report["tests"]))

    @property
    def simulated(self) -> str | None:
        """The statement that nothing was sent, for the head of every artefact; None if something was sent."""
        virtual = [test for test in self.tests if test.simulated]
        if not virtual:
            return None
        which = "" if len(virtual) == len(self.tests) else f" ({len(virtual)} of {len(self.tests)} tests)"
        return f"Simulated{which}: nothing was sent, the embedded engine ran in virtual time."

    @property
    def incomplete(self) -> str | None:
        """The statement on what is missing because the session did not end properly, for the head of every
        artefact; else None."""
        found = self.report.get("incomplete")
        return None if found is None else incomplete_text(found)

    def fact(self, key: Key[Value]) -> Value | None:
        """A fact about the SUT: as declared for the session, else as found by a test; None if it is
        unknown."""
        sources = [self.report["sut"]["facts"], *(test.entry.get("facts") or {} for test in self.tests)]
        return next((facts[key]["value"] for facts in sources if key in facts), None)

    @property
    def facts(self) -> dict[str, Entry]:
        """All facts about the SUT and its surroundings, without those that belong to one run."""
        found: dict[str, Entry] = {}
        for test in self.tests:
            found |= test.entry.get("facts") or {}
        found |= self.report["sut"]["facts"]
        return {key: fact for key, fact in sorted(found.items()) if not key.startswith(_OF_ONE_RUN)}

    @property
    def tally(self) -> str:
        """Numbers of tests by headline: ``1 PASS, 2 INCONCLUSIVE``."""
        headlines = [test.headline for test in self.tests]
        counts = ", ".join(f"{headlines.count(word)} {word}" for word in dict.fromkeys(headlines))
        return (counts or "no test ran") + (", INCOMPLETE" if self.incomplete else "")

    @property
    def model(self) -> str:
        name = self.fact(SUTFact.MODEL_NAME) or self.report["sut"]["model"]
        parts = [name, self.fact(SUTFact.MODEL_VERSION), self.fact(SUTFact.MODEL_QUANTIZATION)]
        return " ".join(str(part) for part in parts if part not in (None, "none")) or "not declared"

    @property
    def hardware(self) -> str:
        if self.fact(SUTFact.HARDWARE_DISCLOSED) is False:
            return "undisclosed"
        kind, count = self.fact(SUTFact.ACCELERATOR_TYPE), self.fact(SUTFact.ACCELERATOR_COUNT)
        if kind is None:
            return "not declared"
        return f"{kind} x {count}" if count is not None else str(kind)

    @property
    def software(self) -> str:
        parts = [self.fact(SUTFact.SOFTWARE_ENGINE), self.fact(SUTFact.SOFTWARE_VERSION)]
        return " ".join(str(part) for part in parts if part is not None) or "not declared"

    @property
    def boundary(self) -> str:
        declared = self.fact(SUTFact.BOUNDARY)
        return _BOUNDARIES.get(str(declared), str(declared)) if declared is not None else "not declared"


def warnings_of(tests: Iterable[TestView]) -> list[str]:
    """Warnings of all tests, each once, with the number of tests that have it."""
    found: Counter[str] = Counter()
    for test in tests:
        told = [f"{one['check']}: {one['message']}" for one in test.warnings]
        found.update(list(dict.fromkeys([*told, *test.void_loads])) if test.measured else ())
    return [text if count == 1 else f"{text} ({count} tests)" for text, count in found.items()]


def incomplete_text(found: Entry) -> str:
    """What a session that did not end properly lacks (``incomplete`` of a report), in words."""
    unfinished = [test["nodeid"] for test in found["unfinished"]]
    parts = [f"INCOMPLETE: {found['why']}."]
    if unfinished:
        parts.append(f"Begun, and without a result: {_listed(unfinished)}.")
    if found["not_begun"]:
        parts.append(f"Not begun: {_listed(found['not_begun'])}.")
    if found["damaged_lines"]:
        parts.append(f"Lines of the journal that could not be read: {found['damaged_lines']}.")
    return " ".join(parts)


def _listed(nodeids: Sequence[str]) -> str:
    more = len(nodeids) - _SHOWN_TESTS
    return ", ".join(nodeids[:_SHOWN_TESTS]) + (f" and {more} more" if more > 0 else "")


_BOUNDARIES = {
    "model_engine": "Model Engine",
    "application_gateway": "Gateway",
    "compound_system": "Compound",
}
"""Boundary → its name in appendix C.1."""
