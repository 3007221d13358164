"""The page about fixtures names all fixtures and hooks; every command explains itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench import plugin
from pytest_llmbench.__main__ import _COMMANDS, _USAGE, main
from pytest_llmbench.plugin import hookspecs

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "fixtures-and-options.md").read_text("utf-8")


def test_every_fixture_and_hook_is_named() -> None:
    hooks = [name for name in vars(hookspecs) if name.startswith("pytest_llmbench_")]
    rows = [f"| `{name}" for name in (*plugin.__all__, *hooks)]
    assert [row for row in rows if row not in PAGE] == []


@pytest.mark.parametrize("name", list(_COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"\n  {name} " in _USAGE
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: pytest-llmbench {name} " in capsys.readouterr().out
