"""The page about the tests names every metric; the tables of keywords have each with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from loaded_script import loaded

from pytest_llmbench import llmbench
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.metrics.definitions import OWN

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tests.md").read_text("utf-8")


def sections(page: str) -> dict[str, str]:
    return dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))


def rows(section: str) -> dict[str, list[str]]:
    """Keyword → the lines of its table that name it."""
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| `.*", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0]):
            found.setdefault(name, []).append(line)
    return found


SECTIONS = sections(PAGE)
KEYWORDS = {title: rows(text) for title, text in sections(loaded("docs/generate.py").keywords_page()).items()}


@pytest.mark.parametrize("name", [*sorted(TESTS), "compare", "no_regression"])
def test_the_table_of_a_marker_has_its_keywords_with_their_defaults(name: str) -> None:
    own, common = KEYWORDS[name], KEYWORDS["All tests"]
    for keyword, parameter in inspect.signature(getattr(llmbench, name)).parameters.items():
        (row,) = own.get(keyword) or common[keyword]
        assert parameter.default is parameter.empty or row.endswith(f"| `{parameter.default!r}` |")


def test_a_default_by_scale_is_that_of_the_code() -> None:
    assert "Default by scale: 6 / 60 / 300." in KEYWORDS["throughput"]["duration_s"][0]
    assert "Default by scale: 3 / 20 / 60." in KEYWORDS["capacity"]["duration_s"][0]


@pytest.mark.parametrize("test", sorted(TESTS))
def test_every_section_leads_to_its_keywords(test: str) -> None:
    assert f"[Keywords](generated/keywords.md#{test})" in SECTIONS[test]


def test_the_overview_and_the_sections_are_the_tests_of_the_catalogue() -> None:
    assert list(SECTIONS) == ["All markers", *re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)]
    assert set(SECTIONS) >= set(TESTS)
    for name, definition in TESTS.items():
        assert f"{definition.title} ({definition.section or 'not in the draft'})" in SECTIONS[name]


def test_every_metric_is_named() -> None:
    assert {row.name for row in OWN.values() if not re.search(rf"`{row.name}[`\[.]", PAGE)} == set()
