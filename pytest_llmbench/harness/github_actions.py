"""What GitHub Actions is told of a session that runs in one of its jobs: a summary, and annotations.

A runner tells of itself by environment variables: ``GITHUB_STEP_SUMMARY`` names a file that Markdown is
appended to, ``GITHUB_ACTIONS`` is ``true`` (docs.github.com, "Variables reference", "Workflow commands").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_llmbench.harness.reporting import shown
from pytest_llmbench.redaction import outward
from pytest_llmbench.reports.entry import Entry

_SUMMARY = "GITHUB_STEP_SUMMARY"
_ACTIONS = "GITHUB_ACTIONS"


def wants_to_know(environment: Mapping[str, str]) -> bool:
    """Whether anything is to be told."""
    return bool(environment.get(_SUMMARY)) or environment.get(_ACTIONS) == "true"


class Told(NamedTuple):
    annotations: list[str]
    """Lines to print, which the runner takes for commands; none elsewhere."""
    problem: str | None
    """What could not be told, and why."""


def tell(document: Entry, environment: Mapping[str, str], *, path: str | None) -> Told:
    """Appends the summary of the job, and returns what is to be printed. Raises nothing: whatever goes wrong
    here costs no verdict and no file.

    ``path``: where the whole report is, None if it was not written.
    """
    from pytest_llmbench.reports.ci.github import workflow_commands
    from pytest_llmbench.reports.job_summary import job_summary

    lines, name = [], environment.get(_SUMMARY)
    try:
        if environment.get(_ACTIONS) == "true":
            lines = workflow_commands(document)
        if name:
            _append(Path(name), f"{job_summary(document, path=path)}\n")
    except OSError as error:
        problem = outward(f"the summary of the job is not written: {name}: {error.strerror or error}")
        return Told(lines, problem)
    except Exception as error:  # noqa: BLE001 - of ours, see above
        return Told(lines, f"GitHub is not told: {type(error).__name__}: {shown(error)}")
    return Told(lines, None)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)
