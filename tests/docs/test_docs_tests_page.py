"""The page about the ten tests names every keyword with its default, every metric and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pytest_llmbench import llmbench
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.metrics.definitions import OWN

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tests.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
KEYWORD_TABLE = re.compile(r"^\| keyword \|.*?\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def rows(section: str) -> dict[str, str]:
    """Keyword → cell of its default, from the section's table."""
    table = KEYWORD_TABLE.search(SECTIONS[section])
    assert table is not None, f"section {section} has no table of keywords"
    found = {}
    for line in table[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        names, defaults = re.findall(r"`(\w+)`", cells[0]), cells[-1].split("`, `")
        for place, name in enumerate(names):
            found[name] = defaults[place] if len(defaults) == len(names) else cells[-1]
    return found


@pytest.mark.parametrize("test", sorted(TESTS))
def test_every_keyword_is_in_the_section_of_its_test(test: str) -> None:
    keywords = set(inspect.signature(getattr(llmbench, test)).parameters)
    own, common = set(rows(test)), set(rows("All markers"))
    assert keywords == own | common
    assert not own & common


@pytest.mark.parametrize("test", sorted(TESTS))
def test_every_default_is_the_one_of_the_marker(test: str) -> None:
    told = rows(test)
    for name, parameter in inspect.signature(getattr(llmbench, test)).parameters.items():
        if name in told:
            default = str(parameter.default).removesuffix(".0") if parameter.default is not None else "None"
            assert default in told[name].replace('"', ""), f"{name}: {told[name]}"


def test_the_overview_and_the_sections_are_the_tests_of_the_catalogue() -> None:
    assert list(SECTIONS) == ["All markers", *re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)]
    assert set(SECTIONS) >= set(TESTS)
    for name, definition in TESTS.items():
        assert f"{definition.title} ({definition.section or 'no test of the draft'})" in SECTIONS[name]


def test_every_metric_is_named() -> None:
    assert {row.name for row in OWN.values() if not re.search(rf"`{row.name}[`\[.]", PAGE)} == set()
