"""Whatever lies in place of a file of another tool, one message says what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_things import THINGS, within

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.extras.foreign.reading import read_foreign
from pytest_llmbench.extras.foreign.vllm_serving_tests import read_serving_tests
from pytest_llmbench.store.baselines import read_baseline

READERS: dict[str, Callable[[Path], object]] = {
    "result": lambda path: read_foreign(path) or read_baseline(path),
    "list of tests": read_serving_tests,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("thing", [each for each in THINGS if each != "8 TiB"])
def test_what_lies_there_is_told(tmp_path: Path, thing: str, reader: str) -> None:
    path = tmp_path / "file.json"
    THINGS[thing](path)
    with within(20, mebibytes=400), pytest.raises(LLMBenchError) as raised:
        READERS[reader](path)
    assert len(str(raised.value)) < 2000
    assert path.name in str(raised.value)
