"""The example suites run on the embedded engine in virtual time, and say what they are for."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from plugin_suite import Suite

SUITES = Path(__file__).parents[2] / "example_suites"
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
BASELINE = "--llm-baseline-endpoint=replay:h100-8b"
FILTERED = "replay:h100-8b?input_filter=enabled&input_filter_us=2000"
QUICKER = "replay:h100-8b?step_base_us=2000"
"""Whose throughput of a few requests is above the limit too."""
SLOWER = "replay:h100-8b?step_base_us=7800"
RUNS: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "ci_gate": ("replay:h100-8b", (), {"passed": 3}),
    "engine_regression": ("replay:h100-8b", ("-k=default",), {"passed": 5, "deselected": 10}),
    "ab_compare": (SLOWER, (BASELINE, "-k=chat"), {"failed": 1, "deselected": 2}),
    "gateway/test_overhead.py": (FILTERED, (BASELINE,), {"passed": 2}),
    "engines/vllm": (
        "replay:h100-8b", (BASELINE, "--llm-place=h100", "-k=even or token"), {"passed": 2, "deselected": 3}
    ),
    "engines/sglang": (
        QUICKER, ("--llm-place=h100", "-k=default"), {"passed": 2, "deselected": 4}
    ),
    "engines/tensorrt_llm": (
        "replay:h100-8b", (BASELINE, "--llm-place=pre-merge", "-k=many"), {"passed": 1, "deselected": 2}
    ),
    "engines/llama_cpp": ("replay:cpu-laptop", ("--llm-place=laptop",), {"passed": 2}),
    "gateway/test_filters.py": ("replay:h100-8b", (), {"passed": 1}),
    "custom_workload": (
        "replay:h100-8b", ("--llm-workloads=custom_workload/workloads.toml",), {"passed": 4}
    ),
}  # fmt: skip
"""Suite: the endpoint, further arguments, and what becomes of its tests."""


def run(suite: Suite, name: str, *more: str, scale: str) -> pytest.RunResult:
    endpoint, arguments, _ = RUNS[name]
    folder = name.partition("/")[0]
    shutil.copytree(SUITES / folder, suite.path / folder)
    return suite.measure(endpoint, name, *arguments, *more, scale=scale)


@pytest.mark.parametrize("name", RUNS)
def test_it_runs(suite: Suite, name: str) -> None:
    """A smoke run: what the limits say of so few requests is left open."""
    result = run(suite, name, "--llm-inconclusive=pass", scale="quick")
    result.assert_outcomes(**RUNS[name][2])
    assert {entry["validity"]["verdict"] for entry in suite.report["tests"]} == {"valid"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_its_limits_are_decided_at_its_own_scale(suite: Suite, name: str) -> None:
    run(suite, name, scale="standard").assert_outcomes(**RUNS[name][2])


def test_a_gate_is_tested_without_an_endpoint(suite: Suite) -> None:
    shutil.copytree(SUITES / "test_your_slo_suite", suite.path / "gate")
    suite.run("gate").assert_outcomes(passed=8, skipped=1)


@pytest.mark.slow
def test_the_file_of_a_gateway_is_one(suite: Suite) -> None:
    shutil.copytree(SUITES / "gateway", suite.path / "gateway")
    plan = ("--llm-plan", "--llm-sut=gateway/gateway.toml", "gateway/test_filters.py")
    result = suite.run("--llm-endpoint=https://gateway.example.org/v1", *plan)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_filters.py::test_filters*"])
    result.stdout.no_fnmatch_line("*not declared*")


def test_each_has_a_readme_whose_command_and_links_are_right() -> None:
    folders = {path.name for path in SUITES.iterdir() if path.is_dir() and not path.name.startswith("__")}
    overview = (SUITES / "README.md").read_text("utf-8")
    assert set(re.findall(r"\[(\w+)\]\(", overview)) == folders
    for page in (SUITES / "README.md", *SUITES.glob("*/README.md")):  # not those of caches
        text = page.read_text("utf-8")
        assert page.parent == SUITES or f"pytest example_suites/{page.parent.name}" in text
        for target in LINK.findall(text):
            assert (page.parent / target).exists(), f"{page} links to {target}"
