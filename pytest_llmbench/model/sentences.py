"""What findings and notes say: an id with parameters, which becomes a sentence last.

Nothing reads a sentence: verdicts, clauses and figures read ids, parameters and numbers. The table of the
core's sentences is ``model/wording/``; extras bring theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from pytest_llmbench.model.numbers import Amount, number, quantity
from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.model.wording.findings import FINDINGS
from pytest_llmbench.model.wording.notes import NOTES
from pytest_llmbench.registry import every

Parameter = Union[None, bool, int, float, str, Amount, "Note", tuple["Parameter", ...]]
Parameters = Mapping[str, Parameter]

SENTENCES: Mapping[str, Sentence] = {**FINDINGS, **NOTES}
"""Those of the core."""
_OPTIONAL = re.compile(r"\[(?:(\w+)([?!]))?([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


@dataclass(frozen=True, slots=True)
class Note:
    """A note on a result: the id of a sentence, and what fills it."""

    id: str
    parameters: Parameters = field(default_factory=dict)

    @classmethod
    def of(cls, identifier: str, **parameters: Parameter) -> Note:
        """A note; parameters that are None state nothing and are left out."""
        return cls(identifier, {name: value for name, value in parameters.items() if value is not None})

    def __hash__(self) -> int:
        return hash((self.id, *self.parameters.items()))

    def __str__(self) -> str:
        return self.text()

    def __contains__(self, text: str) -> bool:
        """Whether the sentence has the text in it, as where suites read notes that were texts."""
        return text in str(self)

    def text(self, ok: bool = True, **more: Parameter) -> str:
        """The sentence, with what to do where a finding is not ``ok``."""
        sentence = sentence_of(self.id)
        advice = f": {sentence.advice}" if sentence.advice and not ok else ""
        return fill(sentence.text + advice, {**more, **self.parameters})


def sentence_of(identifier: str) -> Sentence:
    """The sentence of that id; extras are asked only for what the core does not know. KeyError: nobody has
    it."""
    own = SENTENCES.get(identifier)
    return every_sentence()[identifier] if own is None else own


def every_sentence() -> Mapping[str, Sentence]:
    """All sentences by id, those of extras as well. What the core knows it says itself."""
    tables = (*every("sentences").values(), SENTENCES)
    return {identifier: sentence for table in tables for identifier, sentence in table.items()}


def as_told(text: str) -> Note:
    """The note of a text that comes as text: from an earlier report, an error, or a server."""
    return Note("as_told", {"text": text})


def read_note(identifier: str, stored: Mapping[str, Any], text: str) -> Note:
    """A note of a report. ``text``: its sentence there, which stands for one that is not known here."""
    known = identifier in SENTENCES or identifier in every_sentence()
    return Note(identifier, parameters_of(stored)) if known else as_told(text)


def fill(template: str, parameters: Parameters) -> str:
    """A template with its parameters.

    ``{name}`` is the value, ``{name:;}`` the entries of a list with a semicolon between them, else commas.
    ``[…]`` stands only if all parameters in it are given; ``[flag?…]`` if the flag is given and true,
    ``[flag!…]`` if it is not.
    """

    def kept(match: re.Match[str]) -> str:
        flag, sign, inner = match.groups()
        if flag is not None:
            return inner if bool(parameters.get(flag)) is (sign == "?") else ""
        names = (found[1] for found in _NAME.finditer(inner))
        return inner if all(parameters.get(name) not in (None, ()) for name in names) else ""

    def value(match: re.Match[str]) -> str:
        return _text(parameters[match[1]], match[2] or ",")

    return _NAME.sub(value, _OPTIONAL.sub(kept, template))


def _text(value: Parameter, between: str) -> str:
    if isinstance(value, Amount):
        return quantity(_finite(value.value), value.unit)
    if isinstance(value, tuple):
        return f"{between} ".join(_text(entry, between) for entry in value)
    return number(_finite(value)) if isinstance(value, float) else str(value)


def _finite(value: float | None) -> float | None:
    """The value; None where it is not finite, or too large for a float: no check costs the report."""
    try:
        return value if value is not None and math.isfinite(value) else None
    except OverflowError:
        return None


def plain_parameters(parameters: Parameters) -> dict[str, Any]:
    """Parameters as JSON: an amount as its ``value`` and ``unit``, a note as its ``id`` and
    ``parameters``. A number that is not finite is null."""
    return {name: _plain(value) for name, value in parameters.items()}


def _plain(value: Parameter) -> Any:
    if isinstance(value, Amount):
        return {"value": _finite(value.value), "unit": value.unit}
    if isinstance(value, Note):
        return {"id": value.id, "parameters": plain_parameters(value.parameters)}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return _finite(value) if isinstance(value, float) else value


def parameters_of(stored: Mapping[str, Any]) -> dict[str, Parameter]:
    """Parameters as :func:`plain_parameters` made them JSON."""
    return {name: _parsed(value) for name, value in stored.items()}


def _parsed(value: Any) -> Parameter:
    if isinstance(value, list):
        return tuple(_parsed(entry) for entry in value)
    if isinstance(value, Mapping):
        if "id" in value:
            return Note(value["id"], parameters_of(value["parameters"]))
        return Amount(value["value"], value["unit"])
    return value  # type: ignore[no-any-return]
