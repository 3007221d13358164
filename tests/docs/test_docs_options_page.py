"""The page about fixtures and options names all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.__main__ import _COMMANDS, _USAGE, main
from pytest_llmbench.plugin import fixtures, hookspecs
from pytest_llmbench.plugin.options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "fixtures-and-options.md").read_text("utf-8")


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_option_is_named(name: str) -> None:
    assert f"`--llm-{name}" in PAGE


@pytest.mark.parametrize("name", [*fixtures.__all__, *hookspecs.__all__])
def test_every_fixture_and_hook_is_named(name: str) -> None:
    assert f"| `{name}" in PAGE


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_is_named_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"| `{name}" in PAGE
    assert f"\n  {name} " in _USAGE
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: pytest-llmbench {name} " in capsys.readouterr().out
