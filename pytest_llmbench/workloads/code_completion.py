"""The reference workload Code Completion: functions to finish, most of them inside a repository context
(section 4.3.2, A.4, AMB-34)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.draft import CONTEXTS, ZIPF_EXPONENT
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.dataset import (
    NOT_STORED,
    DatasetIdentity,
    observed_lengths,
    text_mistakes,
    texts_digest,
)
from pytest_llmbench.workloads.exact_length import cut_to
from pytest_llmbench.workloads.lengths import LogNormal, Uniform, specification_of
from pytest_llmbench.workloads.sharing import FLAG_BLOCK, sharing_flags
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import name_mistakes

NAME: Final = "code-completion"
THE_STACK: Final = "The Stack"
"""The data set that the draft names; its version is for the tester to declare."""
LANGUAGES: Final = ("Python", "JavaScript", "TypeScript")
CONTEXT_LENGTH: Final = Uniform(512, 1024)
OUTPUT: Final = LogNormal(4.0, 1.5, 1, 2048)

_FRACTION: Final = 0.8
_JOINT = "\n\n"


@dataclass(frozen=True, slots=True)
class CodeFunction:
    """The text of a function up to the point where it is to be completed."""

    prompt: str
    language: str = "Python"
    tokens: int | None = None
    """Length in tokens of cl100k_base; None: it is counted."""


@dataclass(frozen=True, slots=True)
class CodeCompletionWorkload(StreamedWorkload):
    """Functions in file order, and at least ten texts from which repository contexts are cut.

    Draw order (AMB-34): ten context lengths ``randint(512, 1024)``; then the flags that say who begins with a
    context (``sharing_flags``, 80 %); per request, if flagged, the context by the inverse Zipf CDF from one
    ``random()``, then the output limit. Request i is function i, beginning again after the last. Context k is
    the beginning of the k-th text, cut to its length; see :func:`contexts_from` where the data has none.

    Only The Stack in the draft's three languages makes it the reference workload; code from elsewhere needs
    a name of its own.
    """

    functions: tuple[CodeFunction, ...] = field(compare=False, repr=False, metadata=NOT_STORED)
    contexts: tuple[str, ...] = field(compare=False, repr=False, metadata=NOT_STORED)
    dataset: DatasetIdentity
    name: str = NAME
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + text_mistakes(f.prompt for f in self.functions)
        mistakes += _context_mistakes(self.contexts)
        if self.name != NAME:
            mistakes += name_mistakes(self.name)
        else:
            mistakes += _stack_mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        texts = (*self.contexts[:CONTEXTS], *(f.prompt for f in self.functions))
        object.__setattr__(self, "digest", texts_digest(texts))

    @property
    def standard(self) -> bool:
        return self.name == NAME

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        generator = BulkRandom(seed)
        return tuple(CONTEXT_LENGTH.draw(generator) for _ in range(CONTEXTS))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        lengths = [CONTEXT_LENGTH.draw(generator) for _ in range(CONTEXTS)]
        contexts = [cut_to(text, length) for text, length in zip(self.contexts, lengths, strict=False)]
        for index, flagged in enumerate(sharing_flags(generator, _FRACTION)):
            function = self.functions[index % len(self.functions)]
            rank = _zipf_rank(generator.random()) if flagged else None
            text = function.prompt if rank is None else f"{contexts[rank]}{_JOINT}{function.prompt}"
            yield PlannedRequest(
                index=index,
                max_tokens=OUTPUT.draw(generator),
                input_tokens=_function_tokens(function)
                if rank is None
                else reference_tokenizer().count(text),
                text=text,
                prefix_id=rank,
                shared_prefix_tokens=0 if rank is None else lengths[rank],
            )

    def specification(self) -> Mapping[str, Any]:
        return {
            "input_length": dict(_input_length(self)),
            "output_length": specification_of(OUTPUT, "cl100k_base") | {"control": "max_tokens"},
            "content": {
                "domain": "code",
                "language": ", ".join(sorted({function.language for function in self.functions})),
                "system_prompt": {"present": False, "typical_tokens": 0},
            },
            "prefix_sharing": {
                "fraction": _FRACTION,
                "length": {"type": CONTEXT_LENGTH.type, "params": dict(CONTEXT_LENGTH.params)},
                "prefixes": CONTEXTS,
                "choice": f"Zipf, exponent {ZIPF_EXPONENT}",
            },
            "temperature": 0.0,
            "stop": [],
            "dataset": self.dataset.specification() | {"content_sha256": self.digest},
            "generation": {
                "generator": "Python random.Random(seed)",
                "order": [
                    "context lengths",
                    f"shuffled flags of every {FLAG_BLOCK} requests, when they are needed",
                    "context of a flagged request",
                    "output limit",
                ],
                "input_length": "function, without the repository context",
            },
        }


def contexts_from(texts: Sequence[str], count: int = CONTEXTS) -> tuple[str, ...]:
    """Repository contexts for data that has none: the texts concatenated, in ``count`` pieces.

    Each piece ends with the text that brings it to the longest context length. Raises SuiteError when the
    texts are not enough.
    """
    needed, counter = CONTEXT_LENGTH.bounds[1], reference_tokenizer().count
    pieces: list[str] = []
    piece: list[str] = []
    tokens = 0
    for text in texts:
        piece.append(text)
        tokens += counter(text)
        # The estimate may be a little high, since tokens can merge where texts meet.
        if tokens >= needed and counter(_JOINT.join(piece)) >= needed:
            pieces.append(_JOINT.join(piece))
            piece, tokens = [], 0
        if len(pieces) == count:
            return tuple(pieces)
    raise SuiteError(
        f"the texts make {len(pieces)} repository contexts of {needed} tokens: {count} are needed",
        where="workload 'code-completion'",
        remedy="hand over more functions, or texts of repositories as contexts",
    )


def _zipf_rank(point: float) -> int:
    """The rank, from 0, whose step of the cumulative Zipf distribution contains ``point``."""
    return min(bisect_right(_ZIPF, point), CONTEXTS - 1)


_WEIGHTS = [rank**-ZIPF_EXPONENT for rank in range(1, CONTEXTS + 1)]
_ZIPF = [total / sum(_WEIGHTS) for total in accumulate(_WEIGHTS)]


def _context_mistakes(contexts: Sequence[str]) -> list[str]:
    needed = CONTEXT_LENGTH.bounds[1]
    if len(contexts) < CONTEXTS:
        return [f"there are {len(contexts)} repository contexts: {CONTEXTS} are needed"]
    counter = reference_tokenizer().count
    short = [place for place, text in enumerate(contexts[:CONTEXTS]) if counter(text) < needed]
    return [f"repository contexts {short} have fewer than {needed} tokens"] if short else []


def _stack_mistakes(workload: CodeCompletionWorkload) -> list[str]:
    found = []
    if workload.dataset.name != THE_STACK:
        found.append(
            f"{NAME!r} is made of {THE_STACK}, not of {workload.dataset.name!r}: choose another name"
        )
    others = sorted({function.language for function in workload.functions} - set(LANGUAGES))
    if others:
        found.append(f"{NAME!r} has {', '.join(LANGUAGES)}, not {', '.join(others)}: choose another name")
    return found


def _function_tokens(function: CodeFunction) -> int:
    return reference_tokenizer().count(function.prompt) if function.tokens is None else function.tokens


@lru_cache(maxsize=4)
def _input_length(workload: CodeCompletionWorkload) -> dict[str, Any]:
    return observed_lengths([_function_tokens(function) for function in workload.functions])
