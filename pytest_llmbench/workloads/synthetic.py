"""Synthetic workloads: random token ids without meaning, lengths from declared distributions.

Two are reference workloads: Synthetic-Uniform isolates inference from content (section 4.3.2.1 and appendix
A.1 of the draft), Synthetic-Skewed has a realistic spread of lengths (4.3.2.2, A.2). Others of the same
making are custom workloads: allowed, and completely specified by their parameters.

Sums by seed are questions with a known answer that need no data set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, LogNormal, Uniform, specification_of
from pytest_llmbench.workloads.stream import BulkRandom, Rewording, StreamedWorkload

HIGHEST_CL100K_ID: Final = 100_255
"""The last ordinary (non-special) id of cl100k_base."""

STANDARD_NAMES: Final = (
    "synthetic-uniform",
    "synthetic-skewed",
    "conversation",
    "code-completion",
    "long-context",
)
"""Names of the five reference workloads of the draft, which no other workload may have."""

RESERVED_NAMES: Final = (*STANDARD_NAMES, "long-context-uniform")
"""The standard names and the variant of Long Context in the body of the draft (AMB-03)."""

NO_SYSTEM_PROMPT: Final[Mapping[str, Any]] = {"present": False, "typical_tokens": 0}
NO_SHARING: Final[Mapping[str, Any]] = {
    "fraction": 0.0,
    "length": {"type": "fixed", "params": {"tokens": 0}},
}
NOTHING_MORE: Final[Mapping[str, Any]] = MappingProxyType({})

_REFERENCE_LAWS: Final[Mapping[str, tuple[LengthLaw, LengthLaw]]] = {
    "synthetic-uniform": (Uniform(128, 512), Uniform(64, 256)),
    "synthetic-skewed": (LogNormal(5.5, 1.0, 32, 4096), LogNormal(4.5, 1.2, 16, 2048)),
}


def specified(
    input_length: Mapping[str, Any],
    output_length: Mapping[str, Any],
    *,
    domain: str,
    order: Sequence[str],
    language: str = "English",
    system_prompt: Mapping[str, Any] = NO_SYSTEM_PROMPT,
    sharing: Mapping[str, Any] = NO_SHARING,
    temperature: float = 0.0,
    content: Mapping[str, Any] = NOTHING_MORE,
    generation: Mapping[str, Any] = NOTHING_MORE,
    **items: Any,
) -> dict[str, Any]:
    """The specification of a workload of ours, with all that section 4.3.1 wants stated. ``content`` and
    ``generation``: what these items say beside the rest; ``items``: further ones, left out where they are
    None."""
    return {
        "input_length": dict(input_length),
        "output_length": {**output_length, "control": "max_tokens"},
        "content": {
            "domain": domain,
            "language": language,
            "system_prompt": dict(system_prompt),
            **content,
        },
        "prefix_sharing": dict(sharing),
        "temperature": temperature,
        "stop": [],
        **{name: item for name, item in items.items() if item is not None},
        "generation": {"generator": "Python random.Random(seed)", "order": list(order), **generation},
    }


def name_mistakes(name: str) -> list[str]:
    """Mistakes in the name of a custom workload, in words."""
    if not name:
        return ["it has no name: give one, reports show it"]
    if name in RESERVED_NAMES:
        return [f"{name!r} is the name of a reference workload: choose another name"]
    return []


@dataclass(frozen=True, slots=True)
class SyntheticWorkload(StreamedWorkload):
    """Requests of random token ids, drawn in the order of appendix A.1.4.

    One generator ``random.Random(seed)`` that nothing else draws from; per request the input length, then the
    output limit, then input-length times ``randint(0, highest_token_id)``. A shorter sequence is the
    beginning of a longer one.
    """

    draws_anew = True

    name: str
    input_tokens: LengthLaw
    output_tokens: LengthLaw
    highest_token_id: int = HIGHEST_CL100K_ID
    tokenizer: str = "cl100k_base"
    """The tokenizer that the ids belong to. Another tokenizer or upper id makes the workload a custom one
    (AMB-32)."""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        mistakes = _mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    @property
    def standard(self) -> bool:
        return self.name in STANDARD_NAMES

    def rewording(self) -> Rewording:
        return lambda generator, _, tokens: generator.randints(0, self.highest_token_id, tokens)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        for index in count():
            input_tokens = self.input_tokens.draw(generator)
            max_tokens = self.output_tokens.draw(generator)
            yield self.request(generator, index, input_tokens, max_tokens)

    def request(
        self, generator: BulkRandom, index: int, input_tokens: int, max_tokens: int, class_label: str = ""
    ) -> PlannedRequest:
        """A request whose lengths have been drawn; its ids are drawn here."""
        return PlannedRequest(
            index=index,
            max_tokens=max_tokens,
            input_tokens=input_tokens,
            token_ids=generator.randints(0, self.highest_token_id, input_tokens),
            temperature=self.temperature,
            class_label=class_label,
        )

    def specification(self) -> Mapping[str, Any]:
        return specified(
            specification_of(self.input_tokens, self.tokenizer),
            specification_of(self.output_tokens, self.tokenizer),
            domain="random",
            language="none",
            temperature=self.temperature,
            order=("input length", "output limit", "token ids"),
            generation={"token_ids": {"min": 0, "max": self.highest_token_id}},
        )


def _mistakes(workload: SyntheticWorkload) -> list[str]:
    found = []
    if not workload.name:
        found.append("it has no name: give one, reports show it")
    laws = (workload.input_tokens, workload.output_tokens)
    details = (workload.highest_token_id, workload.tokenizer, workload.temperature)
    named_by_the_draft = _REFERENCE_LAWS.get(workload.name) == laws
    if workload.name in RESERVED_NAMES and not (
        named_by_the_draft and details == (HIGHEST_CL100K_ID, "cl100k_base", 0.0)
    ):
        found.append("the name belongs to a reference workload with other parameters: choose another name")
    if not 0 <= workload.highest_token_id < 2**32 - 1:
        found.append(f"highest_token_id is {workload.highest_token_id}: ids run from 0 to below 2**32 - 1")
    return found + temperature_mistakes(workload.temperature)


def temperature_mistakes(temperature: float) -> list[str]:
    """Mistakes in a sampling temperature, in words."""
    if math.isfinite(temperature) and temperature >= 0:
        return []
    return [f"temperature is {temperature}: give a number, not negative"]


SYNTHETIC_UNIFORM: Final = SyntheticWorkload("synthetic-uniform", *_REFERENCE_LAWS["synthetic-uniform"])
"""The reference workload Synthetic-Uniform, exactly as the draft generates it (appendix A.1.4)."""

SYNTHETIC_SKEWED: Final = SyntheticWorkload("synthetic-skewed", *_REFERENCE_LAWS["synthetic-skewed"])
"""The reference workload Synthetic-Skewed (appendix A.2), in the project's draw order (AMB-36)."""


ARITHMETIC_NAME: Final = "arithmetic"
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

    draws_anew = True

    name: str = ARITHMETIC_NAME
    max_tokens: int = _OUTPUT_TOKENS

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator, tokens_of = BulkRandom(seed), reference_tokenizer().count
        for index in count():
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
                input_tokens=tokens_of(text),
                text=text,
                class_label=label,
                expected=ExpectedAnswer(str(answer), "number"),
            )

    def specification(self) -> Mapping[str, Any]:
        # Each number is one token, so all questions are of one length.
        length = Fixed(reference_tokenizer().count(_asked(_LEAST, "+", _MOST)))
        return specified(
            specification_of(length, "cl100k_base"),
            specification_of(Fixed(self.max_tokens), "cl100k_base"),
            domain="arithmetic",
            order=("operation by index modulo 3", "left number", "right number"),
            scorer="number",
        )


def _asked(left: int, sign: str, right: int) -> str:
    return f"What is {left} {sign} {right}? End your reply with the number."


ARITHMETIC = ArithmeticWorkload()
