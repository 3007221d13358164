"""Whole sessions come out as the golden reference has them, see ``golden``."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import CASES, compared, differences, told


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_session_comes_out_as_before(name: str, tmp_path: Path) -> None:
    found, _ = compared(name, tmp_path)
    if found:
        pytest.fail(f"{told(found)}\nmeant so? python tests/golden/golden.py --write {name}", pytrace=False)


def test_what_moved_is_told_by_path_and_words_last() -> None:
    figure = [1.0, 0.5, None, "ms sample n=8"]
    old = {
        "tests": {
            "test_a": {"metrics": {"ttft.p50": figure, "ttft.p90": figure}, "notes": ["so"], "levels": [1]}
        }
    }
    new = {
        "tests": {
            "test_a": {
                "metrics": {"ttft.p50": [1.0 + 1e-12, *figure[1:]], "ttft.p90": [2.0, *figure[1:]]},
                "notes": ["thus"],
                "levels": [1, 2],
            }
        }
    }
    assert told(list(differences(old, new))).splitlines() == [
        "verdicts, classes, figures, names: 2 differences",
        '  tests.test_a.metrics.ttft.p90: [1.0, 0.5, null, "ms sample n=8"] -> '
        '[2.0, 0.5, null, "ms sample n=8"]',
        "  tests.test_a.levels: [1] -> [1, 2]",
        "words: 1 differences",
        '  tests.test_a.notes.0: "so" -> "thus"',
    ]


def test_an_undefined_figure_is_not_zero() -> None:
    (found,) = differences(
        {"metrics": {"x": [None, None, None, ""]}}, {"metrics": {"x": [0.0, None, None, ""]}}
    )
    assert "null" in str(found)
    assert "0.0" in str(found)
