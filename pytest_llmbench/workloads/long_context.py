"""The reference workload Long Context: a document and a short question about it (section 4.3.2, A.5).

The structure defines the workload (AMB-03): the document fills the target length minus 100 tokens, the
question has 100, the output is fixed at 256 tokens, every document is different. The lengths depend on the
test: one fixed length per level in the scaling test, the appendix's list as a mixed workload, the body's
uniform law under the name ``long-context-uniform``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.draft import CONTEXT_OUTPUT_TOKENS
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.lengths import Choice, Fixed, LengthLaw, Uniform, specification_of
from pytest_llmbench.workloads.readable import WORDS, as_ids, encoded, readable_ids
from pytest_llmbench.workloads.stream import BulkRandom, Rewording, StreamedWorkload
from pytest_llmbench.workloads.synthetic import RESERVED_NAMES, specified

QUESTION_TOKENS: Final = 100
MIXED_TARGETS: Final = (8192, 16384, 32768, 65536, 131072)
"""Target lengths of the mixed workload (appendix A.5.1)."""
UNIFORM_NAME: Final = "long-context-uniform"

_QUOTED = 12
_SHORTEST_TARGET = QUESTION_TOKENS + 2 * _QUOTED
_BEFORE_QUOTE = (
    "Question: The document above contains many short sentences, and somewhere among them stand the words"
)
_AFTER_QUOTE = (
    ", in exactly this order. Find that place in the document. Then write a careful summary in plain"
    " prose of what the document says there: begin with the sentence in which those words stand, continue"
    " with the sentences that follow it, and end with one remark on how that part differs from the"
    " beginning of the document. Use only what the document itself contains."
)


@dataclass(frozen=True, slots=True)
class LongContextWorkload(StreamedWorkload):
    """Documents of readable random text, each followed by a question that quotes a part of it.

    One generator; per request: the target length from ``targets``, the words and sentence lengths of the
    document (``readable_ids``), then ``randint`` for the place of the quoted words. The prompt has exactly as
    many tokens of cl100k_base as the target says, as ids and as text.
    """

    draws_anew = True

    targets: LengthLaw
    name: str = "long-context"
    output_tokens: int = CONTEXT_OUTPUT_TOKENS
    temperature: float = 0.0

    def __post_init__(self) -> None:
        mistakes = []
        if not self.name:
            mistakes.append("it has no name: give one, reports show it")
        if self.targets.bounds[0] < _SHORTEST_TARGET:
            mistakes.append(
                f"targets start at {self.targets.bounds[0]}: at least {_SHORTEST_TARGET} are needed"
            )
        if self.output_tokens < 1:
            mistakes.append(f"output_tokens is {self.output_tokens}: give a whole number, at least 1")
        if self.name in RESERVED_NAMES and not self._is_reference:
            mistakes.append("the name belongs to a reference workload: choose another name")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    @property
    def _is_reference(self) -> bool:
        laws = {"long-context": isinstance(self.targets, Fixed | Choice)}
        laws[UNIFORM_NAME] = self.targets == Uniform(8192, 32768)
        return laws.get(self.name, False) and (self.output_tokens, self.temperature) == (
            CONTEXT_OUTPUT_TOKENS,
            0.0,
        )

    @property
    def standard(self) -> bool:
        return self._is_reference

    def at_length(self, target: int) -> LongContextWorkload:
        """This workload at one fixed target length, as a level of the scaling test."""
        name = "long-context" if self.name == UNIFORM_NAME else self.name
        return replace(self, targets=Fixed(target), name=name)

    def rewording(self) -> Rewording:
        return lambda generator, _, tokens: as_ids(_prompt(generator, tokens))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        for index in count():
            target = self.targets.draw(generator)
            yield PlannedRequest(
                index=index,
                max_tokens=self.output_tokens,
                input_tokens=target,
                token_ids=as_ids(_prompt(generator, target)),
                temperature=self.temperature,
            )

    def specification(self) -> Mapping[str, Any]:
        structure = "a document of random plain words in sentences, then a question that quotes it"
        return specified(
            specification_of(self.targets, "cl100k_base"),
            specification_of(Fixed(self.output_tokens), "cl100k_base"),
            domain="general",
            content={"structure": structure, "question_tokens": QUESTION_TOKENS},
            temperature=self.temperature,
            order=("target length", "words", "sentence lengths", "place of the quoted words"),
            generation={"words": len(WORDS)},
        )


def long_context(limit_tokens: int | None = None) -> LongContextWorkload:
    """The mixed workload: those targets of the appendix's list that leave room for the output in the
    context."""
    remedy = "give workload='synthetic-uniform' or your own, or serve the model with a longer context"
    return LongContextWorkload(Choice(fitting_targets(MIXED_TARGETS, limit_tokens, remedy=remedy)))


def fitting_targets(
    targets: Sequence[int],
    limit_tokens: int | None,
    *,
    at_least: int = 1,
    output_tokens: int = CONTEXT_OUTPUT_TOKENS,
    remedy: str,
) -> tuple[int, ...]:
    """The targets that, with the output, fit into a context of ``limit_tokens``; all without a limit.

    Raises SuiteError, with the ``remedy`` that its caller knows, when fewer than ``at_least`` are left.
    """
    fitting = tuple(t for t in targets if limit_tokens is None or t + output_tokens <= limit_tokens)
    if len(fitting) >= at_least:
        return fitting
    room = "" if limit_tokens is None else f" into a context of {limit_tokens} tokens"
    raise SuiteError(
        f"{len(fitting)} of the lengths {', '.join(map(str, targets))} fit{room} with {output_tokens} output "
        f"tokens: at least {at_least} are needed",
        where="workload 'long-context'",
        remedy=remedy,
    )


def _prompt(generator: BulkRandom, target: int) -> npt.NDArray[np.uint32]:
    before, after, end, stop = _question()
    ids = np.empty(target, dtype=np.uint32)
    document = target - QUESTION_TOKENS
    ids[: document - 1] = readable_ids(generator, document - 1)
    ids[document - 1] = end
    if ids[document - 2] == stop:
        ids[document - 2] = ids[document - 3]  # two stops in a row would become one token
    place = generator.randint(1, document - 1 - _QUOTED)
    if ids[place + _QUOTED - 1] == stop:
        place -= 1  # and so would a stop and the comma behind the quoted words
    quote = document + len(before)
    ids[document:quote] = before
    ids[quote : quote + _QUOTED] = ids[place : place + _QUOTED]
    ids[quote + _QUOTED :] = after
    return ids


@cache
def _question() -> tuple[list[int], list[int], int, int]:
    """The ids of the question before and after the quoted words, the id that ends the document, and that of a
    full stop."""
    return encoded(_BEFORE_QUOTE), encoded(_AFTER_QUOTE), encoded(".\n\n")[0], encoded(".")[0]


LONG_CONTEXT: Final = LongContextWorkload(Choice(MIXED_TARGETS))
"""The mixed workload without a context limit (appendix A.5)."""

LONG_CONTEXT_UNIFORM: Final = LongContextWorkload(Uniform(8192, 32768), name=UNIFORM_NAME)
"""The variant in the body of the draft (section 4.3.2.5)."""
