"""The hook of MkDocs: pages made from the code's own tables, the list of decisions, no foreign requests.

Each function whose name ends in ``_page`` gives the Markdown of one page. ``PAGES`` says where it lies in the
site.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import itertools
import json
import logging
import os
import posixpath
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

    from pytest_llmbench.workloads.profiles import Profile

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_MADE = "This page is made from the code when the documentation is built."
_CODE = re.compile(r"(`+[^`]+`+)")
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)
"""What a browser would fetch from another host when it shows a page."""
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")


def cell(text: object) -> str:
    """Text as one cell of a table: one line, no character that Markdown would read. Code is kept."""
    parts = _CODE.split(" ".join(str(text).split()))
    return "".join(
        part if i % 2 else re.sub(r"([\\*_\[\]<|])", r"\\\1", part) for i, part in enumerate(parts)
    )


def code(text: object) -> str:
    """Text as code in a cell; nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown whose cells are ready."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def options_page() -> str:
    """``pytest_llmbench.plugin.options.OPTIONS``, with the setting of each in an ini or TOML file."""
    from pytest_llmbench.plugin.options import OPTIONS

    rows = [
        (
            code(f"--llm-{option.name} {option.metavar or _of(option.choices)}".strip()),
            code(option.ini),
            "yes" if option.many or option.systems or option.parts else "",
            cell(option.help),
        )
        for option in OPTIONS
    ]
    return (
        f"# Options and settings\n\n{_MADE} A setting belongs into `pytest.ini`, `pyproject.toml` or "
        "another file that pytest reads; the command line overrides it. "
        "Flags are `true` or `false` there.\n\n"
        + table(("option", "setting", "several times", "meaning"), rows)
    )


def _of(choices: Sequence[str] | None) -> str:
    return "{" + ",".join(choices) + "}" if choices else ""


def prose(text: str) -> str:
    """A docstring as paragraphs: roles of reStructuredText become code, ``::`` a colon."""
    return re.sub(r"::\s*\n", ":\n", re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`")))


def commands_page() -> str:
    """The help of ``pytest-llmbench`` and of each of its commands."""
    usage = _help()
    commands = re.findall(r"^  (\w+)  +\S", usage.partition("commands:")[2], re.MULTILINE)
    parts = [f"# Commands\n\n{_MADE} Load tests themselves are run by pytest.\n\n```text\n{usage}```\n"]
    parts += [f"## {name}\n\n```text\n{_help(name)}```\n" for name in commands]
    return "\n".join(parts)


def _help(*command: str) -> str:
    """What a command prints with ``--help``, in lines of 100 characters."""
    from pytest_llmbench.__main__ import main

    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return printed.getvalue()


PROFILE_REQUESTS, PROFILE_SEED = 400, 42


@functools.cache
def profiles_page() -> str:
    """``pytest_llmbench/workloads/profiles.toml``: what each profile asks for, and what is drawn."""
    from pytest_llmbench.workloads.profiles import PREFIX, SOURCE, groups, profiles

    parts = [
        f"# Workload profiles\n\n{_MADE} The profiles are {SOURCE}; what for, and how they are mixed: "
        "[Choose a workload](../../how-to/choose-a-workload.md#workload-profiles). Ranges and latency "
        "classes are the draft's (as retold in public notes); a length is log-normal around the geometric "
        f"middle of its range, clamped to it. Drawn: the first {PROFILE_REQUESTS} requests of seed "
        f"{PROFILE_SEED}, as P5 / P50 / P95 and mean of the tokens, and the share of the input tokens that "
        "an earlier request began with. Suggested limits are told and never applied.\n"
    ]
    head = (
        "profile", "input asked", "drawn", "output asked", "drawn", "shared", "cut by users", "class",
        "suggested limit",
    )  # fmt: skip
    for letter, title in groups().items():
        rows = [_profile(name) for name, profile in profiles().items() if profile.group == letter]
        if rows:
            parts.append(f"## {letter}: {title}\n\n" + table(head, rows))
    told = [
        (
            code(f"{PREFIX}{name}"),
            cell(each.left_out or "nothing told"),
            cell(each.not_known or "nothing told"),
        )
        for name, each in profiles().items()
    ]
    parts.append(
        "## What single requests leave out\n\nAll prompts are readable random words.\n\n"
        + table(("profile", "left out", "not known"), told)
    )
    return "\n".join(parts)


def _profile(name: str) -> tuple[str, ...]:
    import numpy as np

    from pytest_llmbench.workloads.profiles import PREFIX, profile_workload, profiles

    profile, seen = profiles()[name], set[int]()
    inputs, outputs, shared = [], [], 0
    for request in islice(profile_workload(f"{PREFIX}{name}").stream(PROFILE_SEED), PROFILE_REQUESTS):
        inputs.append(request.input_tokens)
        outputs.append(request.max_tokens)
        if request.prefix_id is not None:
            shared += request.shared_prefix_tokens if request.prefix_id in seen else 0
            seen.add(request.prefix_id)

    def drawn(tokens: Sequence[int]) -> str:
        if not any(tokens):
            return "none"
        low, middle, high = np.percentile(tokens, (5, 50, 95))
        return f"{low:,.0f} / {middle:,.0f} / {high:,.0f}, mean {np.mean(tokens):,.0f}"

    return (
        f"{code(f'{PREFIX}{name}')} {profile.title}",
        f"{profile.input[0]:,} to {profile.input[1]:,}" + (" (system prompt)" if name == "PERS" else ""),
        drawn(inputs),
        f"{profile.output[0]:,} to {profile.output[1]:,}" if profile.output[1] else "none",
        drawn(outputs),
        f"{shared / sum(inputs):.0%}: {cell(profile.heads.what)}" if profile.heads else "none",
        _cut(profile),
        profile.latency or "none given",
        "; ".join(map(code, profile.suggestions)) or "none",
    )


def _cut(profile: Profile) -> str:
    if profile.cuts is None:
        return "none"
    low, high = profile.cuts.after_ms.bounds
    return f"{profile.cuts.share:.0%}, {low:,} to {high:,} ms after submission"


def metrics_page() -> str:
    """``pytest_llmbench.metrics.definitions.METRICS``: name, formula, unit, place in the draft."""
    from pytest_llmbench.metrics.definitions import METRICS

    rows = [
        (
            code(row.name),
            cell(row.title),
            code(row.unit),
            row.better,
            cell(row.formula),
            re.sub(r"(AMB-\d+)", lambda m: f"[{m[1]}](ambiguities.md#{m[1].lower()})", row.section),
            " ".join(code("." + statistic) for statistic in row.statistics),
        )
        for row in METRICS.values()
    ]
    return (
        f"# Metrics\n\n{_MADE} One row is one definition, used by procedures, limits, audit and reports. "
        "A metric with statistics is named with one of them, `ttft.p99`; a qualifier says what it is of, "
        "`ttft[90%].p99`. Which test yields which: [The tests](../tests.md). Their intervals: "
        "[Statistics](../statistics.md). `AMB-…` are [ambiguities of the draft](ambiguities.md) that were "
        "settled.\n\n"
        + table(("metric", "title", "unit", "better", "formula", "section", "statistics"), rows)
    )


def keywords_page() -> str:
    """The keywords of all markers, from the parameters that their tests declare."""
    from pytest_llmbench import llmbench
    from pytest_llmbench.methodology.catalogue import TESTS
    from pytest_llmbench.methodology.parameters import TestParameters

    told = {name: _keywords(getattr(llmbench, name)) for name in (*TESTS, "compare", "no_regression")}
    of_all = [each.name for each in fields(TestParameters) if each.name != "runs"]
    common = {name: told["ttft"][name] for name in of_all}
    parts = [
        f"# Keywords of the markers\n\n{_MADE} `help(llmbench.ttft)` shows the same for one marker. What "
        "each test answers and measures: [The tests](../tests.md). Defaults by scale are those of "
        "`--llm-scale=quick / standard / full`. A keyword without a meaning says it in its name: a limit "
        "(ceilings end in a unit of time or begin with `max_`, floors begin with `min_`), or what the "
        "keyword next to it tells.\n\n## All tests\n\nUnless the table of a test says otherwise.\n\n"
        + _table_of_keywords(common)
    ]
    for name, keywords in told.items():
        intro = prose(getattr(llmbench, name).documentation.partition("\n\n:param ")[0])
        own = {each: row for each, row in keywords.items() if common.get(each) != row}
        parts.append(f"## {name}\n\n{intro}\n\n{_table_of_keywords(own)}")
    return "\n".join(parts)


def _keywords(builder: Any) -> dict[str, tuple[str, str]]:
    """Keyword of a marker → its meaning and its default, ready for a cell."""
    meant = dict(re.findall(r"^:param (\w+): (.*?)(?=^:param |\Z)", builder.documentation, re.M | re.S))
    return {
        name: (
            cell(prose(meant.get(name, ""))),
            "" if each.default is each.empty else code(repr(each.default)),
        )
        for name, each in inspect.signature(builder).parameters.items()
    }


def _table_of_keywords(keywords: Mapping[str, tuple[str, str]]) -> str:
    """Keywords that follow one another, without a meaning and of one default, share a line."""
    rows = []
    for (meaning, default), group in itertools.groupby(keywords, key=keywords.__getitem__):
        names = [code(name) for name in group]
        rows += [(name, meaning, default) for name in (names if meaning else [", ".join(names)])]
    return table(("keyword", "meaning", "default"), rows)


def sut_keys_page() -> str:
    """The keys of a SUT file, from the schema that reads it."""
    from pytest_llmbench.probes.sut_schema import VariantTable, reference_rows

    tables: dict[str, list[Sequence[str]]] = {}
    for key, values, meaning in (*reference_rows(), *reference_rows(VariantTable, "variants.NAME.")):
        title = key.rpartition(".")[0] if not key.startswith("variants.") else "variants.NAME"
        tables.setdefault(title, []).append((code(key), values, cell(meaning)))
    head = ("key", "values", "meaning")
    return (
        f"# Keys of the SUT file\n\n{_MADE} What the tables are for: [The SUT file](../sut-file.md).\n\n"
        + "\n".join(
            f"## {f'[{title}]' if title else 'Top of the file'}\n\n{table(head, rows)}"
            for title, rows in tables.items()
        )
    )


def columns_page() -> str:
    """The columns of a request, by the classes of ``pytest_llmbench.model.record`` that declare them."""
    from pytest_llmbench.model.record import RequestColumns, RequestRecord

    rows = []
    for owner in (RequestColumns, RequestRecord):
        told = {column.name: column for column in fields(owner)}
        body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]).body
        for column, meaning in itertools.pairwise(body):
            if isinstance(column, ast.AnnAssign):
                name, value = ast.unparse(column.target), cast(ast.Constant, cast(ast.Expr, meaning).value)
                kind, unit = str(told[name].type), name.rpartition("_")[2]
                rows.append(
                    (
                        code(name),
                        _KINDS[kind],
                        _UNITS.get(unit, ""),
                        cell(_unobserved(told[name])),
                        cell(prose(str(value.value))),
                    )
                )
    return (
        f"# Columns of a request\n\n{_MADE} They are the fields of [a record's line]"
        "(../report.md#recordsjsonlgz), the columns of `pytest-llmbench records` and, as arrays, those of "
        "[`load_report`](../../how-to/analyse-in-a-notebook.md).\n\n"
        + table(("column", "holds", "unit", "if nothing was observed", "meaning"), rows)
    )


_KINDS = {
    "Whole": "a count",
    "Instant": "an instant of the monotonic clock",
    "Number": "a number",
    "Text": "a text",
    "Words": "a text",
    "PhaseOf": "a word",
    "SourceOf": "a word",
    "OutcomeOf": "a word",
    "Several": "several numbers",
    "str": "a word",
    "dict[str, float]": "numbers by their names",
}
_UNITS = {"ns": "ns", "tokens": "tokens"}


def _unobserved(column: Field[Any]) -> str:
    if column.default is MISSING:
        return "always there" if column.default_factory is MISSING else "no number"
    default = column.default
    return "no number" if default == () else "`null`" if default is None else f"`{json.dumps(default)}`"


def clauses_page() -> str:
    """``requirements.yaml`` with the predicate of each clause."""
    from pytest_llmbench.compliance.audit import DRAFT, load_catalogue, predicates

    def check(identity: str) -> str:
        predicate = predicates().get(identity)
        module = getattr(predicate, "__module__", "").rpartition(".")[2]
        return code(f"checks/{module}.py") if module else "follows from others"

    sections: dict[str, list[Sequence[str]]] = {}
    for entry in load_catalogue().values():
        title = entry.section
        if title[0].isdigit():
            title = "Section " + ".".join(title.split(".")[:2])
        elif title[1:2] == ".":
            title = f"Appendix {title}"
        sections.setdefault(title, []).append(
            (
                f'<a id="{entry.id}"></a>{code(entry.id)}<br>{cell(entry.section)}',
                f"{entry.level}<br>{entry.verdict_effect}",
                cell(", ".join(entry.applies_to)),
                cell(entry.statement),
                cell(entry.evidence) + f" {check(entry.id)}",
            )
        )
    head = ("clause and section", "level and effect", "tests", "what it asks", "what is looked at")
    parts = [
        f"# Clauses of the draft\n\n{_MADE} Each clause of `{DRAFT}` that can be checked by itself, in our "
        "words. The effect says what an unmet clause does to the verdict: `blocks` it, `downgrades` it to "
        "conditional, or `none`. How a verdict comes about: "
        "[How compliance is decided](../../explanation/compliance.md).\n"
    ]
    parts += [f"## {title}\n\n" + table(head, rows) for title, rows in sections.items()]
    return "\n".join(parts)


def findings_page() -> str:
    """The table of findings and notes."""
    from pytest_llmbench.model.sentences import every_sentence
    from pytest_llmbench.model.wording.findings import FINDINGS

    known = every_sentence()

    def row(identity: str, severity: str = "") -> Sequence[str]:
        sentence = known[identity]
        texts = code(sentence.text) + (f"<br>if not ok: {code(sentence.advice)}" if sentence.advice else "")
        return (f'<a id="{identity}"></a>{code(identity)}', *([severity] if severity else []), texts)

    findings = [row(each, "voids" if FINDINGS[each].voids else "warns") for each in sorted(FINDINGS)]
    return (
        f"# Findings and notes\n\n{_MADE} Each finding of `validity.findings` and each note in "
        "`report.json` has the id of its sentence and the parameters that fill it; verdicts read these, "
        "never the sentence. `{name}` is a parameter, `{value}` and `{limit}` are the numbers of the "
        "finding; `[…]` stands where its parameters are given, `[name?…]` where that one is true, "
        "`[name!…]` where it is not. The part of an id before the dot is the `check`. A few checks void the "
        "run in some cases and warn in others: the report's `voids` counts.\n\n## Findings\n\n"
        + table(("id", "if not ok", "sentence"), findings)
        + "\n## Notes, and parts of sentences\n\n"
        + table(("id", "sentence"), [row(each) for each in sorted(known.keys() - FINDINGS)])
    )


def ambiguities_page() -> str:
    """What the draft leaves open and how it is read here, from the same file."""
    from pytest_llmbench.compliance.audit import ambiguities

    parts = [
        f"# Ambiguities of the draft\n\n{_MADE} Where the draft contradicts itself or leaves something open, "
        "one reading was chosen and is used everywhere.\n"
    ]
    for identity, entry in ambiguities().items():
        sections = cell(", ".join(map(str, entry.get("sections", ()))))
        parts.append(
            f"## {identity}\n\n**Sections** {sections}. {cell(entry['issue'])}\n\n**Read as.** "
            f"{cell(entry['resolution'])}\n\n**Why.** {cell(entry['rationale'])}\n"
        )
    return "\n".join(parts)


def schema_page() -> str:
    """The objects of ``report.json``, from its published schema."""
    schema = json.loads((DOCS / "report.schema.json").read_text("utf-8"))
    parts = [
        f"# Fields of the report\n\n{_MADE} The schema itself: "
        f"[report.schema.json](../../report.schema.json) ({schema['title']}). "
        "What the fields are for: [The report](../report.md).\n",
        _object("Report", schema),
    ]
    parts += [_object(name, entry) for name, entry in sorted(schema["$defs"].items())]
    return "\n".join(parts)


def _object(name: str, entry: Mapping[str, Any]) -> str:
    text = f"## {name}\n\n{cell(prose(entry.get('description', '')))}\n\n"
    if "enum" in entry:
        return text + "One of " + ", ".join(code(value) for value in entry["enum"]) + ".\n"
    if "properties" not in entry:
        return text
    required = set(entry.get("required", ()))
    rows = []
    for field, told in entry["properties"].items():
        meaning = cell(prose(told.get("description", "")))
        rows.append((code(field), _kind(told), "yes" if field in required else "", meaning))
    return text + table(("field", "type", "always there", "meaning"), rows)


def _kind(told: Mapping[str, Any]) -> str:
    """The type of a field, with a link to the object it holds."""
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in told:
        return " or ".join(_kind(option) for option in told["anyOf"])
    if "const" in told:
        return code(json.dumps(told["const"]))
    if "enum" in told:
        return ", ".join(code(value) for value in told["enum"])
    if told.get("type") == "array":
        return "list of " + _kind(told.get("items", {}))
    if told.get("type") == "object" and isinstance(told.get("additionalProperties"), dict):
        return "name → " + _kind(told["additionalProperties"])
    return str(told.get("type", "any"))


def in_site(text: str, path: str, at: str) -> str:
    """The Markdown of the file at ``path`` of the repository as the page ``at`` of the site, with its links.

    What the site has not (a test, a suite to copy) keeps its words and loses its link.
    """

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        there = target.removeprefix("docs/") if target.startswith("docs/") else ROOT_PAGES.get(target)
        if there is None:
            return link[1]
        return f"[{link[1]}]({posixpath.relpath(there, posixpath.dirname(at) or '.')}{link[3] or ''})"

    return _LINK.sub(moved, text)


def root_page(name: str) -> Callable[[], str]:
    """A page that lies outside ``docs``, by its path in the repository."""

    def page() -> str:
        text = (ROOT / name).read_text("utf-8")
        return in_site(text, name, ROOT_PAGES[name])

    return page


def license_page() -> str:
    """The license, word for word."""
    return f"# License\n\n```text\n{(ROOT / 'LICENSE').read_text('utf-8')}```\n"


ROOT_PAGES: Mapping[str, str] = {
    "CONTRIBUTING.md": "about/contributing.md",
    "CHANGELOG.md": "about/changelog.md",
    "SECURITY.md": "about/security.md",
    "LICENSE": "about/license.md",
    "benchmarks/coverage.md": "reference/generated/coverage.md",
    "benchmarks/performance.md": "reference/generated/performance.md",
}
"""Files outside ``docs`` by their paths in the repository, and their places in the site."""
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/generated/options.md": options_page,
    "reference/generated/commands.md": commands_page,
    "reference/generated/keywords.md": keywords_page,
    "reference/generated/sut_file.md": sut_keys_page,
    "reference/generated/metrics.md": metrics_page,
    "reference/generated/columns.md": columns_page,
    "reference/generated/profiles.md": profiles_page,
    "reference/generated/clauses.md": clauses_page,
    "reference/generated/ambiguities.md": ambiguities_page,
    "reference/generated/findings.md": findings_page,
    "reference/generated/schema.md": schema_page,
    "reference/generated/coverage.md": root_page("benchmarks/coverage.md"),
    "reference/generated/performance.md": root_page("benchmarks/performance.md"),
    "about/contributing.md": root_page("CONTRIBUTING.md"),
    "about/changelog.md": root_page("CHANGELOG.md"),
    "about/security.md": root_page("SECURITY.md"),
    "about/license.md": license_page,
}


def paths(nav: object) -> set[str]:
    """The pages that a navigation names, at any depth."""
    if isinstance(nav, str):
        return {nav}
    entries = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return set().union(*map(paths, entries))


def section(nav: Any, *titles: str) -> list[Any]:
    """The entries of the section with that title, of that one's section, and so on."""
    for title in titles:
        nav = next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)
    found: list[Any] = nav
    return found


def complete(nav: list[Any]) -> list[Any]:
    """``nav`` with all decisions, at the end of their section."""
    decisions = sorted((DOCS / "decisions").glob("*.md"))
    section(nav, "Project", "Decisions").extend(f"decisions/{page.name}" for page in decisions)
    return nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """MkDocs' event: the navigation."""
    config.nav = complete(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs' event: the pages that are made."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, **event: Any) -> str:
    """MkDocs' event: a page is read. Links that leave the documentation become words."""
    at = event["page"].file.src_uri
    return markdown if at in PAGES else in_site(markdown, f"docs/{at}", at)


def fetched(html: str) -> list[str]:
    """The addresses on other hosts that a browser asks when it shows ``html``; links to follow are none."""
    return _LOADED.findall(html)


def on_post_page(output: str, **event: Any) -> str:
    """MkDocs' event: a page is ready. A request to another host is a warning: it ends a strict build."""
    for address in fetched(output):
        logging.getLogger("mkdocs.hooks").warning("%s asks another host: %s", event["page"], address)
    return output
