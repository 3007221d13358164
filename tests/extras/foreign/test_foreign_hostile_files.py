"""Whatever lies in place of a file of another tool, one message says what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_things import THINGS, within

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.extras.foreign.comparing import read_foreign
from pytest_llmbench.extras.foreign.recipe_files import read_recipes
from pytest_llmbench.store.baselines import read_baseline

READERS: dict[str, Callable[[Path], object]] = {
    "result.json": lambda path: read_foreign(path) or read_baseline(path),
    "list.json": lambda path: read_recipes(path, path.parent),
    "recipe.yaml": lambda path: read_recipes(path, path.parent),
    "script.sh": lambda path: read_recipes(path, path.parent),
    "test_of_sglang.py": lambda path: read_recipes(path, path.parent),
}
"""Name of a file → what reads it."""


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("thing", [each for each in THINGS if each != "8 TiB"])
def test_what_lies_there_is_told(tmp_path: Path, thing: str, name: str) -> None:
    path = tmp_path / name
    THINGS[thing](path)
    with within(20, mebibytes=400), pytest.raises(LLMBenchError) as raised:
        READERS[name](path)
    assert len(str(raised.value)) < 2000
    assert path.name in str(raised.value)
