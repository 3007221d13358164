"""Every Python block of the documentation is a test file that runs against the embedded engine.

In virtual time, for most pages, and none has a load void: what a page shows does not depend on how busy this
machine is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import BLOCK, PAGES, ROOT, of_extras, run_blocks

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

SERVED = ROOT / "docs/how-to/gate-an-endpoint.md"
"""The page whose tests run against a server, as its readers do it."""
QUARTER = "replay:fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
ENERGY = ROOT / "docs/how-to/measure-energy.md"
"""The page whose tests need an engine that knows its power."""
ADAPTERS = ROOT / "docs/how-to/measure-adapters.md"
"""The page whose tests need an engine with adapters."""
SEARCHING = {ROOT / "docs/reference/tests.md", ROOT / "docs/how-to/measure-sessions.md"}
"""Pages of searches, which on an engine of a quarter of the speed send a quarter of the requests."""
WITH: dict[Path, tuple[str, ...]] = {
    ROOT / "README.md": ("--llm-baseline-endpoint=replay", "--llm-runs=4"),
    ROOT / "docs/how-to/calibrate-a-gate.md": ("--llm-calibrate", "--llm-runs=3"),
    ROOT / "docs/how-to/compare-with-a-baseline.md": ("--llm-save=main",),
    ROOT / "docs/how-to/use-the-models-tokenizer.md": (
        f"--llm-sut={ROOT / 'docs/examples/own-tokenizer/sut.toml'}",
    ),
    ROOT / "docs/how-to/ab-test-two-builds.md": ("--llm-baseline-endpoint=replay",),
    ROOT / "docs/how-to/decide-in-five-minutes.md": ("--llm-baseline-endpoint=replay",),
    ROOT / "docs/how-to/compare-systems.md": ("--llm-endpoint=other=replay:h100-8b",),
}
"""Options without which the examples of a page are mistakes."""
EXAMPLES = {
    page: blocks
    for page in PAGES
    if (blocks := [each for each in BLOCK.findall(page.read_text("utf-8")) if not of_extras(page, each)])
}
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
_HOOK = (ROOT / "docs/generate.py").read_text("utf-8")
MADE = {ROOT / "docs" / name for name in re.findall(r'^    "([\w/]+\.md)":', _HOOK, re.MULTILINE)}
"""Pages that are only in the site."""


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start("fast") as running:
        yield running


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs(pytester: pytest.Pytester, request: pytest.FixtureRequest, page: Path) -> None:
    endpoint = QUARTER if page in SEARCHING else "replay"
    if page == ENERGY:
        endpoint = "replay:fast?idle_w=70&step_w=300&decode_mj_per_token=50"
    if page == ADAPTERS:
        endpoint = "replay:fast?adapters=3&max_adapters=2&adapter_load_ms=40"
    if page.stem == "measure-speculation":
        endpoint = "replay:fast?speculative_tokens=4&acceptance=0.8"
    if page == SERVED:
        endpoint = request.getfixturevalue("engine").url
    run_blocks(pytester, EXAMPLES[page], endpoint, *WITH.get(page, ()))


def test_links_lead_somewhere() -> None:
    lead = {
        (page, target): (page.parent / target).resolve()
        for page in PAGES
        for target in LINK.findall(FENCED.sub("", page.read_text("utf-8")))
    }
    assert [link for link, there in lead.items() if not there.exists() and there not in MADE] == []


def test_the_readme_has_its_two_commands_first() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    quickstart, tests = (block.strip() for block in blocks[:2])
    assert "\n" not in quickstart
    assert "\n" not in tests
    assert quickstart.endswith("pytest example_suites/quickstart")
    assert "[test]" in tests


def test_the_quickstart_needs_nothing_that_only_the_tests_have() -> None:
    """It runs in this directory, with settings of its own."""
    absent = [f"-pno:{name}" for name in ("xdist", "xdist.looponfail", "timeout", "hypothesispytest")]
    command = [sys.executable, "-m", "pytest", *absent, "-p", "no:cacheprovider", "--collect-only", "-q"]
    ran = subprocess.run(
        [*command, "example_suites/quickstart"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
