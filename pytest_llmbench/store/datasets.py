"""Data sets from files: rows, and the prompts in the known formats (sections 4.3.2 and 4.3.3, AMB-35).

Only values come out of here; which workload is made of them is decided elsewhere. No data set is bundled.

Functions of source files, up to the point where a model is to complete them (section 4.3.2, AMB-34).

The completion point is the beginning of the body: signature and documentation are the prompt.
"""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.input_files import MOST_BYTES, open_file
from pytest_llmbench.model.reply_checks import LETTERS, ExpectedAnswer, scorer_mistakes
from pytest_llmbench.store.rows import Broken, FileFormat, rows_of, unreadable
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.workloads.dataset import Conversation, Prompt

_READ_AT_ONCE = 1 << 20

_HUMAN = ("human", "user")
_ASSISTANT = ("gpt", "assistant", "chatgpt", "bing", "bard")

PROMPT_FIELDS = ("prompt", "problem", "question", "instruction", "text")
"""Fields in which a prompt is looked for, in this order, if no field is named."""
ANSWER_FIELDS = ("solution", "canonical_solution", "answer", "output", "response", "completion")
"""Fields in which the answer that limits the output is looked for, in this order."""
SHORT_ANSWER_FIELDS = ("answer", *(name for name in ANSWER_FIELDS if name != "answer"), "answerKey")
"""The same for an answer that replies are scored by."""
CHOICES_FIELDS = ("choices", "options")
"""Fields in which the choices of a question are looked for."""
CODE_FIELDS = ("content", "whole_func_string", "original_string", "code", "function")

MAX_ANSWER_TOKENS: Final = 256
"""Output limit of a question: room for a model that thinks aloud before it answers."""
_ASKED = 'Give the letter of the right choice after "Answer:".'
"""What the scorer of choices looks for."""
_MOST_TOLD = 10
"""Mistakes in the rows of one file that are told."""


def file_sha256(path: Path) -> str:
    """Digest of the file's bytes. Raises SuiteError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_file(path, MOST_BYTES) as file:
            while piece := file.read(_READ_AT_ONCE):
                digest.update(piece)
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def read_rows(path: Path, format_: FileFormat | None = None) -> Iterator[Mapping[str, Any]]:
    """The rows of a JSON array, JSON Lines, CSV or Parquet file, in file order.

    The format is that of the suffix, ``.gz`` aside, unless it is given. Raises SuiteError that names the
    file and the line for what cannot be read.
    """
    return _unbroken(rows_of(path, format_), path)  # which refuses an unknown suffix at once


def _unbroken(rows: Iterable[tuple[str, Any]], path: Path) -> Iterator[Mapping[str, Any]]:
    for place, row in rows:
        if not isinstance(row, Mapping):
            why = row if isinstance(row, Broken) else Broken("is not a JSON object")
            raise SuiteError(f"{place} {why}", where=str(path), remedy=why.remedy)
        yield row


def conversations(rows: Iterable[Mapping[str, Any]], path: Path) -> list[Conversation]:
    """Conversations of ShareGPT, ``{"id", "conversations": [{"from", "value"}]}``, with an assistant turn.

    AMB-35: the first human turn, and the first assistant turn after it; conversations without either are
    left out, and so are those whose human turn is blank. Raises SuiteError when nothing is left.
    """
    found = []
    for row in rows:
        turns = row.get("conversations") or row.get("messages") or ()
        pair = _first_pair(turns if isinstance(turns, list) else ())
        if pair is not None:
            found.append(pair)
    if not found:
        raise SuiteError(
            "holds no conversation with a human and an assistant turn",
            where=str(path),
            remedy='give a file of {"conversations": [{"from": "human", "value": "…"}, …]} objects',
        )
    return found


Told = tuple[int, str]
"""The number of a row, and what is wrong with it."""


def exercises(
    rows: Iterable[Mapping[str, Any]],
    path: Path,
    prompt_field: str = "",
    answer_field: str = "",
    *,
    answered: bool = False,
    further: Iterable[Told] = (),
) -> list[tuple[str, str | None]]:
    """(prompt, answer or None) of data sets such as MATH-500 (``problem``, ``solution``) and HumanEval
    (``prompt``, ``canonical_solution``).

    ``answered``: each row needs an answer, whose length limits the output. ``further``: what else is wrong
    with the rows. Raises one SuiteError with that, and with each row without a prompt.
    """
    found, mistakes, remedies = [], list(further), list[str]()
    for number, row in enumerate(rows):
        prompt = _text(row, (prompt_field,) if prompt_field else PROMPT_FIELDS)
        if prompt is None:
            wanted = prompt_field or " or ".join(PROMPT_FIELDS)
            mistakes.append((number, f"row {number} has no text under {wanted}; it has {_names(row)}"))
            remedies = ['name the field: prompt_field = "…"']
        found.append((prompt or "", _text(row, (answer_field,) if answer_field else ANSWER_FIELDS)))
    unlimited = sum(answer is None for _, answer in found) if answered else 0
    if unlimited:
        told = f"{unlimited} of {len(found)} rows have no answer to set the output length"
        mistakes.append((-1, told))
        remedies.append('give max_tokens = …, or name the field: answer_field = "…"')
    if not found:
        remedies.append("give the file of the data set")
        mistakes.append((-1, "holds no rows"))
    _refuse(mistakes, path, "; ".join(remedies) or None)
    return found


def _refuse(mistakes: Iterable[Told], path: Path, remedy: str | None = None) -> None:
    """Raise SuiteError for mistakes, if there are any, in the order of the rows."""
    told = [each for _, each in sorted(mistakes, key=lambda one: one[0])]
    if told:
        more = [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
        raise SuiteError.from_mistakes([*told[:_MOST_TOLD], *more], where=str(path), remedy=remedy)


def scored_prompts(
    rows: Iterable[Mapping[str, Any]],
    path: Path,
    scorer: str,
    max_tokens: int,
    prompt_field: str = "",
    answer_field: str = "",
    *,
    further: Iterable[Told] = (),
) -> tuple[Prompt, ...]:
    """Questions with the answers that replies are scored by. An answer may be a number.

    With scorer ``choice`` the choices of a row (:data:`CHOICES_FIELDS`) follow its question, each with a
    letter, and the answer is a letter, a label of theirs, the text of one, or its index from 0. Raises one
    SuiteError that names each row without a prompt, without an answer, or with one that the scorer cannot
    use, with what ``further`` is wrong.
    """
    if wrong := scorer_mistakes(scorer):
        raise SuiteError.from_mistakes(wrong, where=str(path))
    made, mistakes, number = [], list(further), -1
    wanted = (answer_field,) if answer_field else SHORT_ANSWER_FIELDS
    for number, row in enumerate(rows):
        prompt = _text(row, (prompt_field,) if prompt_field else PROMPT_FIELDS)
        told = next((row[name] for name in wanted if row.get(name) not in (None, "")), None)
        is_number = isinstance(told, int | float) and not isinstance(told, bool)
        answer = _text({"answer": str(told) if is_number else told}, ("answer",))
        if prompt is None or answer is None:
            missing = (prompt_field or " or ".join(PROMPT_FIELDS)) if prompt is None else " or ".join(wanted)
            mistakes.append((number, f"row {number} has no text under {missing}; it has {_names(row)}"))
            continue
        try:
            if scorer == "choice" and (listed := next(filter(None, map(row.get, CHOICES_FIELDS)), None)):
                choices = _choices(listed)
                lettered = (
                    f"{letter}. {text.strip()}"
                    for letter, text in zip(LETTERS, choices.values(), strict=False)
                )
                prompt, answer = "\n".join((prompt, "", *lettered, "", _ASKED)), _letter(told, choices)
            expected = ExpectedAnswer.of(answer, scorer, f"row {number}")
            made.append(Prompt(prompt, max_tokens, expected=expected))
        except SuiteError as error:
            mistakes.append((number, f"row {number}: {error.what}"))
    if number < 0:
        mistakes.append((-1, "holds no rows"))
    _refuse(mistakes, path)
    return tuple(made)


def _choices(given: Any) -> dict[str, str]:
    """The choices of a row by their labels. Raises SuiteError for what is no list of them.

    Data sets have a list of texts (MMLU), lists of texts and labels (ARC), or an object of texts by letter
    (MedQA).
    """
    texts, labels = given, None
    if isinstance(given, Mapping):
        lists = isinstance(given.get("text"), list)
        texts, labels = (given["text"], given.get("label")) if lists else (list(given.values()), list(given))
    labels = LETTERS[: len(texts)] if labels is None and isinstance(texts, list) else labels
    count = len(texts) if isinstance(texts, list) else 0
    right = 2 <= count <= len(LETTERS) and all(isinstance(text, str) and text.strip() for text in texts)
    if not right or not isinstance(labels, Sequence) or len(set(map(str, labels))) != count:
        raise SuiteError(f"the choices must be a list of 2 to {len(LETTERS)} texts")
    return dict(zip(map(str, labels), texts, strict=True))


def _letter(answer: Any, choices: Mapping[str, str]) -> str:
    """The letter of the right choice: the answer is its index, its label or its text."""
    found: list[int] = []
    if isinstance(answer, int) and not isinstance(answer, bool):
        found = [answer] if 0 <= answer < len(choices) else []
    elif isinstance(answer, str):
        for names in (choices, choices.values()):
            found = found or [at for at, name in enumerate(names) if name.strip() == answer.strip("() \n")]
    if len(found) != 1:
        raise SuiteError(f"the answer {shown(answer)} is not one of the {len(choices)} choices")
    return LETTERS[found[0]]


def code_texts(
    rows: Iterable[Mapping[str, Any]], path: Path, languages: Sequence[str]
) -> list[tuple[str, str]]:
    """(language, source text) of files or functions such as those of The Stack (``content``, ``lang``).

    Rows in other languages are left out; a row that names none counts as the first of ``languages``.
    """
    wanted = {language.lower(): language for language in languages}
    found = []
    for row in rows:
        named = _text(row, ("lang", "language", "programming_language"))
        language = wanted.get(named.lower()) if named else languages[0]
        text = _text(row, CODE_FIELDS)
        if language is not None and text is not None:
            found.append((language, text))
    if not found:
        raise SuiteError(
            f"holds no source text in {', '.join(languages)} under {' or '.join(CODE_FIELDS)}",
            where=str(path),
            remedy="give an extract of the data set with its columns content and lang",
        )
    return found


def _first_pair(turns: Sequence[Any]) -> Conversation | None:
    human: str | None = None
    for turn in turns:
        if not isinstance(turn, Mapping):
            continue
        speaker, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(said, str):
            continue
        if human is None and speaker in _HUMAN:
            human = said
        elif human is not None and speaker in _ASSISTANT:
            return Conversation(human, said) if human.strip() and said.strip() else None
    return None


def _text(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _names(row: Mapping[str, Any]) -> str:
    """The names of the fields of a row. Cells beyond the header of a CSV file have the name None."""
    return shorten(", ".join(map(str, row)), 200) or "nothing"


HOW = "functions extracted; each prompt is signature and documentation, the body is to be completed"
"""Description of the preprocessing, for the report."""

_JAVASCRIPT = re.compile(
    r"(?P<doc>/\*\*(?:[^*/]|/(?!\*\*)|\*(?!/))*+\*/\s{0,99}+)?"
    r"^[ \t]{0,99}+(?:export\s{1,99}+)?(?:default\s{1,99}+)?(?:async\s{1,99}+)?"
    r"function\s{0,99}+\*?\s{0,99}+\w{1,999}+\s{0,99}+(?:<[^>\n]{0,999}+>)?"
    r"\([^)]{0,999}+\)[^{};\n]{0,999}+\{",
    re.MULTILINE,
)


def function_prompts(language: str, text: str) -> list[str]:
    """The beginnings of the functions in a source text, in its order; empty where there are none."""
    if language.lower() == "python":
        return _python(text)
    return [textwrap.dedent(found.group()) + "\n" for found in _JAVASCRIPT.finditer(text)]


def _python(text: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # Python 2, templates, null bytes, generated monsters
        return []
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    prompts = []
    for node in sorted(found, key=lambda node: node.lineno):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        end = node.body[0].lineno
        if ast.get_docstring(node, clean=False) is not None:
            end = (node.body[0].end_lineno or end) + 1
        if end > node.lineno:  # a body on the line of the signature leaves nothing to cut
            prompts.append(textwrap.dedent("".join(lines[first - 1 : end - 1])))
    return prompts
