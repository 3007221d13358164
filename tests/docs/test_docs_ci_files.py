"""The workflow files of the documentation: what they call is there, and forks get no more than they may have.

The schemas of GitHub's and GitLab's files are checked where the documentation is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.plugin.options import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "ci").glob("*.yml"))
GITHUB = [file for file in FILES if file.name.startswith("github-")]
PAGES = {"github-actions.md": GITHUB, "gitlab-ci.md": [DOCS / "ci" / "gitlab.yml"]}


def read(name: str) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load((DOCS / "ci" / name).read_text("utf-8"))
    return content


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    """``on:``, which YAML 1.1 takes for a boolean."""
    found: dict[str, Any] = workflow[True]
    return found


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_links_its_files(page: str) -> None:
    text = (DOCS / "how-to" / page).read_text("utf-8")
    assert sorted(re.findall(r"\]\(\.\./ci/([\w.-]+)\)", text)) == [file.name for file in PAGES[page]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_options_are_those_that_there_are(file: Path) -> None:
    known = {f"--llm-{option.name}" for option in OPTIONS}
    assert set(re.findall(r"--llm-[a-z-]+", file.read_text("utf-8"))) <= known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_gate_without_its_endpoint_is_an_error(file: Path) -> None:
    for command in re.findall(r"pytest gates/[^#]*?junit\.xml", file.read_text("utf-8")):
        assert "--llm-require" in command


@pytest.mark.parametrize("file", GITHUB, ids=lambda file: file.name)
def test_no_expression_is_put_into_a_script(file: Path) -> None:
    for step in steps(read(file.name)):
        assert "${{" not in step.get("run", "")
        assert re.match(r"actions/[\w/-]+@v\d+$", step.get("uses", "actions/checkout@v5"))


def test_what_runs_code_of_a_pull_request_has_no_secret_and_only_reads() -> None:
    gate = read("github-gate.yml")
    assert "pull_request_target" not in triggers(gate)
    assert gate["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in gate["jobs"].values())
    assert "secrets." not in (DOCS / "ci" / "github-gate.yml").read_text("utf-8")


def test_what_may_comment_runs_nothing_of_the_pull_request() -> None:
    comment, gate = read("github-comment.yml"), read("github-gate.yml")
    assert list(triggers(comment)) == ["workflow_run"]
    assert triggers(comment)["workflow_run"]["workflows"] == [gate["name"]]
    assert comment["permissions"] == {"actions": "read", "pull-requests": "write"}
    used = [step["uses"] for step in steps(comment) if "uses" in step]
    assert [name.partition("@")[0] for name in used] == ["actions/download-artifact"]
    (taken,) = [step["with"]["name"] for step in steps(comment) if "uses" in step]
    uploads = [step["with"] for step in steps(gate) if "upload-artifact" in step.get("uses", "")]
    assert [upload["name"] for upload in uploads] == [taken]
    (script,) = [step for step in steps(comment) if "run" in step]
    assert not re.search(r"\b(pytest|pip|bash|sh|eval|source)\b", script["run"])
    assert script["env"]["REPORT"].endswith("/llm-report/summary.md")


@pytest.mark.parametrize("job", ["llm-gate", "llm-nightly"])
def test_gitlab_finds_what_the_command_writes(job: str) -> None:
    pipeline = read("gitlab.yml")
    artefacts = pipeline[pipeline[job]["extends"]]["artifacts"]
    command = pipeline[job]["script"][-1]
    assert f"--junitxml={artefacts['reports']['junit']}" in command
    assert artefacts["paths"] == ["llm-report/"]
    assert "--llm-report=llm-report " in command


def test_one_job_at_a_time_loads_a_deployed_endpoint() -> None:
    assert read("gitlab.yml")["llm-nightly"]["resource_group"]
    nightly = read("github-nightly.yml")
    assert nightly["concurrency"]["group"]
    assert not nightly["concurrency"].get("cancel-in-progress")
