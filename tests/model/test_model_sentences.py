"""Findings and notes are ids with parameters: each is of the table, and fills its sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.sentences import (
    Note,
    as_told,
    every_sentence,
    fill,
    parameters_of,
    plain_parameters,
    read_note,
)
from pytest_llmbench.model.wording.findings import FINDINGS
from pytest_llmbench.model.wording.notes import NOTES
from pytest_llmbench.registry import every, extras

SENTENCES = every_sentence()
FOUND = {**FINDINGS, **{name: each for table in every("sentences").values() for name, each in table.items()}}
"""What a finding may say: extras bring sentences of their own."""
NOTED = {each.note for extra in extras() for each in extra.transports if each.note}
"""Notes on what is measured over a transport."""
_OWN = {"ok", "value", "limit", "voids", "unit"}


def made() -> Iterator[tuple[str, str, set[str], bool, str]]:
    """Where the package makes a finding or a note: class, id, names of its parameters, whether there may be
    more, place."""
    for path in sorted(Path(pytest_llmbench.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "Finding.of(" not in text and "Note.of(" not in text:
            continue
        tree = ast.parse(text)
        for call in ast.walk(tree):
            target = call.func if isinstance(call, ast.Call) else None
            if not isinstance(target, ast.Attribute) or target.attr != "of" or not isinstance(call, ast.Call):
                continue
            if not isinstance(target.value, ast.Name) or target.value.id not in ("Finding", "Note"):
                continue
            names = {keyword.arg for keyword in call.keywords if keyword.arg}
            more = len(names) < len(call.keywords)
            table = FOUND if target.value.id == "Finding" else SENTENCES
            found = texts(call.args[0])
            for identifier in found or texts(tree) & set(table):
                yield target.value.id, identifier, names, more or not found, f"{path.name}:{call.lineno}"


def texts(tree: ast.AST) -> set[str]:
    """The texts in an expression; a name is of none, and may stand for each of its module."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str)}


def names_in(identifier: str) -> set[str]:
    sentence = SENTENCES[identifier]
    text = f"{sentence.text} {sentence.advice}"
    return set(re.findall(r"\{(\w+)", text)) | set(re.findall(r"\[(\w+)[?!]", text))


MADE = list(made())
_ROOT = Path(pytest_llmbench.__file__).parent
BY_A_BASE = texts(ast.parse((_ROOT / "methodology/pressure.py").read_text("utf-8")))
"""Texts of a class whose base makes the finding of the id that it names."""
OF_CHECKS = set(SENTENCES) & {
    f"{which}_{time}" for which in ("repeated", "published") for time in ("ttft", "tpot")
}
"""A check of integrity says its finding under its own name."""


def test_every_id_that_is_made_is_in_the_table() -> None:
    assert [each for each in MADE if each[1] not in SENTENCES] == []
    assert [each for each in MADE if each[0] == "Finding" and each[1] not in FOUND] == []


def test_every_id_of_the_table_is_made() -> None:
    told = {identifier for _, identifier, *_ in MADE} | {"as_told", "files_on_disk"} | BY_A_BASE | OF_CHECKS
    assert set(SENTENCES) - told == NOTED


def test_extras_say_nothing_under_an_id_of_the_core() -> None:
    tables = every("sentences").values()
    assert not {*FINDINGS, *NOTES} & {identifier for table in tables for identifier in table}
    assert len(SENTENCES) == len(FINDINGS) + len(NOTES) + sum(map(len, tables))


def test_what_a_sentence_needs_is_given() -> None:
    lacking = []
    for _, identifier, names, more, place in MADE:
        sentence = SENTENCES[identifier]
        always = re.sub(r"\[[^\]]*\]", "", f"{sentence.text} {sentence.advice}")
        needed = set(re.findall(r"\{(\w+)", always)) - {"value", "limit"}
        lacking += [] if more or needed <= names else [(place, identifier, needed - names)]
    assert lacking == []


def test_what_is_given_is_told() -> None:
    further = [
        (place, identifier, names - names_in(identifier) - _OWN)
        for _, identifier, names, more, place in MADE
        if not more and not names - _OWN <= names_in(identifier)
    ]
    assert further == []


@pytest.mark.parametrize("identifier", sorted(SENTENCES))
def test_every_sentence_is_filled_whole(identifier: str) -> None:
    given = {name: f"<{name}>" for name in names_in(identifier)}
    for ok in (True, False):
        text = Note(identifier, given).text(ok)
        assert not re.search(r"[{}]|\[|\]", text), text


def test_a_template_shows_what_is_given() -> None:
    template = "{count} replies[, {most} at most][flag? by us][flag!, not by us]: {kinds:;}"
    kinds = (as_told("a"), "b")
    assert fill(template, {"count": 3, "kinds": kinds}) == "3 replies, not by us: a; b"
    with_most = {"count": 3, "most": Amount(12.34, "ms"), "flag": True, "kinds": ()}
    assert fill(template, with_most) == "3 replies, 12.3 ms at most by us: "


def test_braces_in_a_value_are_text() -> None:
    assert fill("{a} [{b}]", {"a": "{b} [x]", "b": "[c]"}) == "{b} [x] [c]"


def test_a_finding_says_its_advice_only_where_it_is_not_ok() -> None:
    assert Finding.of("loop_lag", True, 2.0, 10.0).message == "the measuring loop was late by 2 ms at P99"
    assert "may be late by as much" in Finding.of("loop_lag", False, 20.0, 10.0).message


def test_a_case_belongs_to_its_check() -> None:
    finding = Finding.of("stream_fidelity.late", value=0.5, limit=0.1)
    assert (finding.check, finding.voids, finding.unit) == ("stream_fidelity", True, "ratio")


def test_parameters_survive_json() -> None:
    parameters = {
        "a": Amount(0.5, "ratio"),
        "b": (Note.of("counted", name="x", count=2), "y"),
        "c": True,
        "d": 3,
    }
    assert parameters_of(plain_parameters(parameters)) == parameters
    assert plain_parameters({"a": float("nan")}) == {"a": None}


def test_a_note_that_is_not_known_is_its_text() -> None:
    assert str(read_note("of_a_later_version", {}, "as it was")) == "as it was"


def test_a_note_is_searched_as_the_text_that_it_was() -> None:
    note = as_told("the replay sent nothing")
    assert "sent nothing" in note
    assert "sent something" not in note
