"""The page about fixtures and options names all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.__main__ import _COMMANDS, _USAGE, main
from pytest_llmbench.plugin import fixtures, hookspecs
from pytest_llmbench.plugin.options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "fixtures-and-options.md").read_text("utf-8")


def test_every_option_fixture_and_hook_is_named() -> None:
    options = [f"`--llm-{option.name}" for option in OPTIONS]
    rows = [f"| `{name}" for name in (*fixtures.__all__, *hookspecs.__all__)]
    assert [text for text in (*options, *rows) if text not in PAGE] == []


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_is_named_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"| `{name}" in PAGE
    assert f"\n  {name} " in _USAGE
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: pytest-llmbench {name} " in capsys.readouterr().out
