"""Answers of the embedded engine to questions, right or deliberately wrong. Pure.

Served, it can do sums (:func:`sum_in`); in replay it knows the answer that is expected.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmbench.model.reply_checks import CUT, RIGHT, WRONG
from pytest_llmbench.simulator.engine.structured_replies import StructuredReply
from pytest_llmbench.tokens import reference_tokenizer

OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_SUM = re.compile(r"What is (-?\d{1,9}) ([-+*]) (-?\d{1,9})\?")
_LOOKED_AT = 200
"""Characters at the end of a prompt in which a sum is looked for, so that a long one costs nothing."""


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The model's answer to a question, before it is known how many tokens it gets."""

    text: str
    right: bool

    @property
    def least_tokens(self) -> int:
        """The tokens that the whole answer takes; the model says no more."""
        return reference_tokenizer().count(self.text)

    def reply(self, tokens: int, *, limited: bool) -> StructuredReply:
        """The reply of ``tokens`` visible tokens: the answer, and white space behind it. ``limited``: it ends
        at its limit."""
        tokenizer = reference_tokenizer()
        ids: Sequence[int] = tokenizer.encode(self.text)
        pieces = [tokenizer.decode([token]) for token in ids[:tokens]]
        pieces += [" "] * (tokens - len(pieces))
        whole = len(ids) <= tokens
        check = CUT if limited and not whole else RIGHT if self.right else WRONG
        return StructuredReply("", tuple(pieces), whole, check)


def sum_in(texts: Sequence[str]) -> str | None:
    """The answer to the last sum that a prompt asks for; None: it asks for none."""
    found = _SUM.findall(texts[-1][-_LOOKED_AT:]) if texts else []
    if not found:
        return None
    left, sign, right = found[-1]
    return str(OPERATIONS[sign](int(left), int(right)))


def wrong_answer(answer: str, choice: int) -> str:
    """An answer that is not ``answer``, of its kind. ``choice``: from 1 to 9, which."""
    try:
        return str(int(answer) + choice)
    except ValueError:
        letters = "ABCDEFGHIJ"
        if answer in letters and len(answer) == 1:
            return letters[(letters.index(answer) + choice) % len(letters)]
        return "that is not known"
