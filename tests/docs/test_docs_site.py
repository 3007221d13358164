"""The site: every page has its place, generated pages hold what the code has, exports are described."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from loaded_script import loaded

import pytest_llmbench
from pytest_llmbench.compliance.audit import ambiguities, load_catalogue
from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.sentences import every_sentence
from pytest_llmbench.plugin.options import OPTIONS
from pytest_llmbench.probes.sut_schema import VariantTable, reference_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
CODE = re.compile(r"`[^`]+`")
"""In it a bar ends no cell."""
API = (DOCS / "reference" / "api.md").read_text("utf-8")


GENERATE = loaded("docs/generate.py")


def test_every_page_is_in_the_navigation_once_and_there() -> None:
    nav = GENERATE.complete(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert GENERATE.paths(nav) == written | set(GENERATE.PAGES)


def test_decisions_come_in_their_order() -> None:
    nav = GENERATE.complete([{"Project": [{"Decisions": []}]}])
    decisions = nav[0]["Project"][0]["Decisions"]
    assert decisions == sorted(decisions)
    assert "decisions/0012-runs-are-compared.md" in decisions


def test_the_site_asks_no_other_host_for_anything() -> None:
    assert SITE["strict"] is True
    assert SITE["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript"} & set(SITE)  # a repository's stars are fetched
    sheets = [(DOCS / sheet).read_text("utf-8") for sheet in SITE["extra_css"]]
    assert not any("url(" in sheet or "@import" in sheet for sheet in sheets)


@pytest.mark.parametrize(
    ("html", "asked"),
    [
        ('<script src="https://cdn.example/x.js">', ["https://cdn.example/x.js"]),
        ("<link rel=stylesheet href=//fonts.example/a.css>", ["//fonts.example/a.css"]),
        ('<img alt="a" src="../plots/a.svg"><a href="https://example.org">to follow</a>', []),
    ],
)
def test_what_a_page_fetches_is_told_from_what_it_links_to(html: str, asked: list[str]) -> None:
    assert GENERATE.fetched(html) == asked


@pytest.mark.parametrize("path", [path for path in GENERATE.PAGES if "generated" in path])
def test_tables_have_as_many_cells_in_every_row(path: str) -> None:
    page = GENERATE.PAGES[path]()
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", CODE.sub("", line))) for line in block.splitlines()}
        assert len(widths) == 1, block.splitlines()[0]


def test_text_cannot_leave_its_cell() -> None:
    assert GENERATE.cell("a | b\n`c|d` [x][y] <b> p_1*") == r"a \| b `c|d` \[x\]\[y\] \<b> p\_1\*"


@pytest.mark.parametrize(
    ("link", "path", "at", "there"),
    [
        ("[a](docs/how-to/x.md#y)", "CHANGELOG.md", "about/changelog.md", "[a](../how-to/x.md#y)"),
        ("[a](SECURITY.md)", "CHANGELOG.md", "about/changelog.md", "[a](security.md)"),
        ("[a](../../CONTRIBUTING.md)", "docs/how-to/x.md", "how-to/x.md", "[a](../about/contributing.md)"),
        ("see [a](../../tests/a.py), b", "docs/how-to/x.md", "how-to/x.md", "see a, b"),
        ("[a](../reference/x.md#y)", "docs/how-to/x.md", "how-to/x.md", "[a](../reference/x.md#y)"),
        (
            "[a](https://example.org/docs/x)",
            "SECURITY.md",
            "about/security.md",
            "[a](https://example.org/docs/x)",
        ),
        ("[a](#y)", "SECURITY.md", "about/security.md", "[a](#y)"),
    ],
)
def test_links_are_those_of_the_site(link: str, path: str, at: str, there: str) -> None:
    assert GENERATE.in_site(link, path, at) == there


def test_generated_pages_hold_all_that_the_code_has() -> None:
    options, metrics = GENERATE.options_page(), GENERATE.metrics_page()
    assert all(f"`--llm-{option.name}" in options and f"`{option.ini}`" in options for option in OPTIONS)
    assert all(f"| `{row.name}` |" in metrics for row in METRICS.values())
    keys, declared = (
        GENERATE.sut_keys_page(),
        (*reference_rows(), *reference_rows(VariantTable, "variants.NAME.")),
    )
    assert [key for key, values, _ in declared if f"| `{key}` | {values} | " not in keys] == []
    columns = GENERATE.columns_page()
    assert all(f"| `{column.name}` | " in columns for column in fields(RequestRecord))
    clauses, open_questions = GENERATE.clauses_page(), GENERATE.ambiguities_page()
    assert all(f'<a id="{identity}"></a>`{identity}`' in clauses for identity in load_catalogue())
    assert all(f"## {identity}\n" in open_questions for identity in ambiguities())
    findings = GENERATE.findings_page()
    assert all(f'<a id="{identity}"></a>`{identity}`' in findings for identity in every_sentence())


def test_every_command_is_there_with_its_help() -> None:
    page = GENERATE.commands_page()
    commands = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert {"selftest", "recompute", "recover"} <= set(commands)
    assert all(f"usage: pytest-llmbench {name} " in page for name in commands)


def test_every_exported_name_is_on_the_page_of_the_api() -> None:
    told = set(re.findall(r"(?:^::: pytest_llmbench\.|`)(\w+)(?:`|$)", API, re.MULTILINE))
    assert set(pytest_llmbench.__all__) - told == set()


def test_the_page_of_the_api_names_nothing_else() -> None:
    described = re.findall(r"^::: pytest_llmbench\.(\w+)$", API, re.MULTILINE)
    assert len(described) == len(set(described))
    assert set(described) <= set(pytest_llmbench.__all__)
