"""The tutorial: its commands run in their order, each on the file as it is by then and end as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-gate.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str, str]]:
    """(test file, command, output shown) for each command of pytest that the page has in a block."""
    found: list[tuple[str, str, str]] = []
    file = ""
    for kind, text in BLOCK.findall(PAGE):
        if kind in ("python", "py"):
            file = text
        elif kind == "sh" and text.startswith("pytest"):
            found.append((file, text, ""))
        elif kind == "text":
            found[-1] = (*found[-1][:2], text)
    return found


def cells(output: str) -> list[str]:
    """The cells of the last row of a table, without the name of the test, whose width differs."""
    return re.split(r"\s{2,}", output.strip().splitlines()[-1].strip())[1:]


def test_every_step_ends_as_the_page_says(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # cells are shortened in a narrower terminal
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    verdicts = []
    for file, command, shown in steps():
        (pytester.path / "test_gate.py").write_text(file, "utf-8")
        program, *arguments = command.split()
        assert program == "pytest"
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
        output = result.stdout.str()
        for cell in cells(shown) if shown else ():
            assert cell in output
        verdicts.append(cells(shown)[0] if shown else "")
        assert result.ret == (0 if verdicts[-1] in ("PASS", "") else 1)
    assert verdicts == ["PASS", "FAIL", "INCONCLUSIVE", "PASS", ""]
    written = {path.name + "/" * path.is_dir() for path in (pytester.path / "llm-report").iterdir()}
    assert written >= {name.rstrip("`") for name in re.findall(r"`llm-report/([\w./]+)`", PAGE)}


def test_what_is_shown_is_what_the_page_explains() -> None:
    """The figures in the text are those of the outputs."""
    outputs = " ".join(shown for _, _, shown in steps())
    for figure in ("86.1", "52.4", "161.2"):
        assert figure in outputs
        assert figure in BLOCK.sub("", PAGE)
