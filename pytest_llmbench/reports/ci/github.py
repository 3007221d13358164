"""Annotations of GitHub Actions: workflow commands, which a runner reads from the output of a step.

The form and the escapes are those of ``@actions/core`` (actions/toolkit, ``packages/core/src/command.ts``).
Of a step ten errors, ten warnings and ten notices are shown (actions/toolkit, ``docs/problem-matchers.md``).
"""

from __future__ import annotations

from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.first_screen import Card, FirstScreen
from pytest_llmbench.reports.markdown_text import clipped
from pytest_llmbench.reports.report_view import ReportView

MOST_ANNOTATIONS = 10
_LONGEST = 500


def workflow_commands(report: Entry) -> list[str]:
    """The annotations ``::error file=…,line=…,title=…::…`` of tests that did not pass, the worst first, at
    most ten.

    The file is as pytest names it, seen from its root directory; without a line where none is known.
    """
    cards = FirstScreen(ReportView(report)).cards
    return [_annotation(card) for card in cards[:MOST_ANNOTATIONS]]


def annotations_text(report: Entry) -> str:
    """The annotations as a file: ``cat`` it in a step to have them shown."""
    return "".join(f"{line}\n" for line in workflow_commands(report))


def _annotation(card: Card) -> str:
    test = card.test
    passed = test.entry["outcome"] in ("passed", "xpassed")
    place = f"file={_property(test.nodeid.partition('::')[0])}"
    if (line := test.entry.get("line")) is not None:
        place += f",line={line}"
    title = f"{test.headline} {clipped(test.name, 200)}"
    lines = [clipped(text, _LONGEST) for text in (_told(card), card.cause) if text]
    return (
        f"::{'warning' if passed else 'error'} {place},title={_property(title)}::{_data(chr(10).join(lines))}"
    )


def _told(card: Card) -> str:
    if card.deciding is None:
        return ""
    distance = f" ({card.deciding.distance})" if card.deciding.distance else ""
    return f"{card.deciding.limit}: {card.deciding.measured}{distance}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
