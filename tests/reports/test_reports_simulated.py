"""A run in virtual time says in every artefact that nothing was sent, and its class is marked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.reports.ci_files import properties
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.reports.terminal import section_lines


def terminal(report: Entry) -> str:
    return "\n".join(line.text for test in report["tests"] for line in section_lines(test))


def junit(report: Entry) -> str:
    return "\n".join(f"{name}={value}" for test in report["tests"] for name, value in properties(test))


ARTEFACTS: dict[str, Callable[[Entry], str]] = {
    "terminal": terminal,
    "html": html_report,
    "markdown": markdown_report,
    "minimum": minimum_report,
    "junit": junit,
}


@pytest.mark.parametrize("artefact", ARTEFACTS)
def test_the_artefact_says_so(report: Entry, artefact: str) -> None:
    render = ARTEFACTS[artefact]
    assert "simulated" not in render(report).lower()
    for test in report["tests"]:
        test["compliance"]["simulated"] = True
    text = render(report)
    assert "(simulated)" in text or artefact == "minimum"
    assert "nothing was sent" in text or artefact == "terminal"
