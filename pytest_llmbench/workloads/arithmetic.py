"""Sums by seed: questions with a known answer that need no data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_llmbench.model.reply_checks import ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.lengths import Fixed, specification_of
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import NO_SHARING, NO_SYSTEM_PROMPT

NAME: Final = "arithmetic"
_OUTPUT_TOKENS: Final = 256
"""Output limit: room for a model that thinks aloud before it answers."""
_LEAST, _MOST = 12, 98


@dataclass(frozen=True, slots=True)
class ArithmeticWorkload(StreamedWorkload):
    """Sums, differences and products of two numbers from 12 to 98, a class each: ``add``, ``subtract``,
    ``multiply``.

    Draw order of request i: the operation is i modulo 3; then both numbers. The answer is the last number of
    the reply.
    """

    name: str = NAME
    max_tokens: int = _OUTPUT_TOKENS

    @property
    def draws_anew(self) -> bool:
        return True

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator, count = BulkRandom(seed), reference_tokenizer().count
        index = 0
        while True:
            left, right = generator.randint(_LEAST, _MOST), generator.randint(_LEAST, _MOST)
            label, sign, answer = (
                ("add", "+", left + right),
                ("subtract", "-", left - right),
                ("multiply", "*", left * right),
            )[index % 3]
            text = _asked(left, sign, right)
            yield PlannedRequest(
                index=index,
                max_tokens=self.max_tokens,
                input_tokens=count(text),
                text=text,
                class_label=label,
                expected=ExpectedAnswer(str(answer), "number"),
            )
            index += 1

    def specification(self) -> Mapping[str, Any]:
        # Each number is one token, so all questions are of one length.
        length = Fixed(reference_tokenizer().count(_asked(_LEAST, "+", _MOST)))
        output = specification_of(Fixed(self.max_tokens), "cl100k_base")
        return {
            "input_length": specification_of(length, "cl100k_base"),
            "output_length": output | {"control": "max_tokens"},
            "content": {
                "domain": "arithmetic",
                "language": "English",
                "system_prompt": dict(NO_SYSTEM_PROMPT),
            },
            "prefix_sharing": dict(NO_SHARING),
            "temperature": 0.0,
            "stop": [],
            "scorer": "number",
            "generation": {
                "generator": "Python random.Random(seed)",
                "order": ["operation by index modulo 3", "left number", "right number"],
            },
        }


def _asked(left: int, sign: str, right: int) -> str:
    return f"What is {left} {sign} {right}? End your reply with the number."


ARITHMETIC = ArithmeticWorkload()
