"""Workloads from a data set: prompts as text, and where they are from (section 4.3.3).

Nothing is read here. Whoever has the file parses it and hands over values; no data set is bundled.

Two are reference workloads. Conversation: first turns of real conversations (section 4.3.2, A.3, AMB-35).
Code Completion: functions to finish, most of them inside a repository context (section 4.3.2, A.4, AMB-34).
"""

from __future__ import annotations

import hashlib
import json
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, cycle
from typing import Any, Final

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.draft import CONTEXTS, ZIPF_EXPONENT
from pytest_llmbench.model.messages import Piece, media_json, modalities_of
from pytest_llmbench.model.reply_checks import ExpectedAnswer
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import FLAG_BLOCK, sharing_flags
from pytest_llmbench.workloads.lengths import LogNormal, Uniform, specification_of
from pytest_llmbench.workloads.readable import cut_to
from pytest_llmbench.workloads.stream import BulkRandom, StreamedWorkload
from pytest_llmbench.workloads.synthetic import NO_SHARING, name_mistakes, specified, temperature_mistakes

NOT_STORED: Final = {"stored": False}
"""Metadata of fields with users' texts, which no report stores."""


@dataclass(frozen=True, slots=True)
class DatasetIdentity:
    """The identity of a data set, as the draft requires: name, version, subset, processing."""

    name: str
    version: str
    subset_method: str
    """How the subset was chosen; ``all`` for the whole."""
    preprocessing: tuple[str, ...] = ()
    """Every processing step, in order; empty: none."""
    subset: str = ""
    """Name of the subset; empty if it has none."""
    file_sha256: str = ""
    """Digest of the file that was read; empty if it is not known."""

    def mistakes(self) -> list[str]:
        """Required statements that are missing, in words."""
        needed = {"name": self.name, "version": self.version, "subset_method": self.subset_method}
        return [f"the data set has no {key}" for key, value in needed.items() if not value]

    def specification(self) -> dict[str, Any]:
        """The facts under ``workload.dataset``."""
        return {
            "name": self.name,
            "version": self.version,
            "subset": self.subset,
            "subset_method": self.subset_method,
            "preprocessing": list(self.preprocessing),
            "file_sha256": self.file_sha256,
        }


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a data set, with the output limit it is sent with."""

    text: str
    max_tokens: int
    input_tokens: int | None = None
    """Length in tokens of cl100k_base; None: it is counted."""
    expected: ExpectedAnswer | None = None
    """The answer that the reply is scored by; None: it is not scored."""
    media: tuple[Piece, ...] = ()
    """Images, audio and videos next to the text."""


@dataclass(frozen=True, slots=True)
class DatasetWorkload(StreamedWorkload):
    """Prompts of a data set such as MATH-500 or HumanEval, as a custom workload.

    Draw order: the list of indices is shuffled once (``shuffle``), unless ``shuffled`` is False; request i is
    prompt i of that order, beginning again after the last. Two such workloads are equal when their settings
    and the digest of their prompts are.
    """

    name: str
    prompts: tuple[Prompt, ...] = field(compare=False, repr=False, metadata=NOT_STORED)
    dataset: DatasetIdentity
    domain: str = "general"
    language: str = "English"
    shuffled: bool = True
    temperature: float = 0.0
    digest: str = field(init=False, repr=False)
    """SHA-256 of the prompts, their output limits and expected answers."""

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + temperature_mistakes(self.temperature)
        mistakes += name_mistakes(self.name) + text_mistakes(prompt.text for prompt in self.prompts)
        limits = [prompt.max_tokens for prompt in self.prompts if prompt.max_tokens < 1]
        if limits:
            mistakes.append(f"{len(limits)} prompts have an output limit below 1, the first {limits[0]}")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        rows = (_row(prompt) for prompt in self.prompts)
        object.__setattr__(self, "digest", texts_digest(rows))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        order = list(range(len(self.prompts)))
        if self.shuffled:
            BulkRandom(seed).shuffle(order)
        labelled = bool(self._modalities)
        for index, place in enumerate(cycle(order)):
            prompt = self.prompts[place]
            yield PlannedRequest(
                index=index,
                max_tokens=prompt.max_tokens,
                input_tokens=_tokens(prompt),
                text=prompt.text,
                temperature=self.temperature,
                expected=prompt.expected,
                media=prompt.media,
                class_label=modalities_of(prompt.media) if labelled else "",
            )

    @property
    def _modalities(self) -> dict[str, Any]:
        """Modality → how many pieces its prompts have."""
        return dict(Counter(piece.modality for prompt in self.prompts for piece in prompt.media))

    def specification(self) -> Mapping[str, Any]:
        lengths, pieces = _lengths(self), self._modalities
        return specified(
            lengths["input"],
            lengths["output"],
            domain=self.domain,
            language=self.language,
            sharing={**NO_SHARING, **lengths["sharing"]},
            temperature=self.temperature,
            dataset=self.dataset.specification() | {"content_sha256": self.digest},
            order=["shuffled indices" if self.shuffled else "file order"],
            media={name: {"files": count} for name, count in pieces.items()} or None,
        )


def text_mistakes(texts: Iterable[str]) -> list[str]:
    """Mistakes in a list of prompts, in words."""
    listed = list(texts)
    if not listed:
        return ["there are no prompts"]
    empty = sum(not text.strip() for text in listed)
    return [f"{empty} prompts are empty: leave them out"] if empty else []


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 of texts, each preceded by its length, so that no two lists have the same."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", errors="surrogatepass")
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.hexdigest()


def observed_lengths(tokens: Sequence[int]) -> dict[str, Any]:
    """The lengths found in a data set as section 4.3.1 requires: a histogram of the data set."""
    p50, p95, p99 = (float(value) for value in np.percentile(tokens, (50, 95, 99)))
    params = {
        "source": "the data set, each entry once",
        "entries": len(tokens),
        "min": int(min(tokens)),
        "max": int(max(tokens)),
        "mean": statistics.fmean(tokens),
        "p50": p50,
        "p95": p95,
        "p99": p99,
    }
    return {"type": "empirical", "params": params, "unit": "tokens", "tokenizer": "cl100k_base"}


def _row(prompt: Prompt) -> str:
    expected = prompt.expected
    asked = "" if expected is None else f"{expected.scorer} {expected.answer} "
    beside = json.dumps(media_json(prompt.media)) if prompt.media else ""
    return f"{prompt.max_tokens} {asked}{prompt.text}{beside}"


def _tokens(prompt: Prompt) -> int:
    return reference_tokenizer().count(prompt.text) if prompt.input_tokens is None else prompt.input_tokens


@lru_cache(maxsize=8)
def _lengths(workload: DatasetWorkload) -> dict[str, dict[str, Any]]:
    # Counting a whole data set takes seconds, and every plan's key asks for the specification.
    texts = [prompt.text for prompt in workload.prompts]
    beginnings = Counter(text[:BEGINNING_CHARS] for text in texts)
    alike = sum(times for times in beginnings.values() if times > 1)
    return {
        "input": observed_lengths([_tokens(prompt) for prompt in workload.prompts]),
        "output": observed_lengths([prompt.max_tokens for prompt in workload.prompts]),
        "sharing": {"distinct_prompts": len(set(texts)), "alike_fraction": alike / len(texts)},
    }


BEGINNING_CHARS = 64
"""Characters of a beginning that two prompts have in common by more than chance: some 16 tokens, the block in
which engines cache."""


CONVERSATION: Final = "conversation"
SHAREGPT: Final = ("ShareGPT", "vicuna_cleaned", "2023-04-12")
"""Name, subset and version of the data set that the draft names."""

SYSTEM_PROMPT_TOKENS: Final = 200
SYSTEM_PROMPT: Final = (
    "You are a helpful, careful and honest assistant. Read the whole message before you answer, and"
    " answer the question that was asked. Begin with the answer itself, then give the reasons for it in as"
    " few words as they need. Write in plain language, in the language of the user, and explain a"
    " technical term where it first appears. If a question has several parts, take them one after the"
    " other and keep their order. If something is unclear, say which reading you chose and why. When you"
    " do not know something, say so; never invent facts, names, numbers, quotations or sources. Keep code"
    " complete and ready to run, with comments only where a reader would stumble. Use lists and tables"
    " where they help and paragraphs where they do not. Be polite without flattery, and do not repeat the"
    " question. Decline a request that would hurt somebody, say briefly why, and offer what you can do"
    " instead. Before you finish, check every calculation and make sure nothing is missing."
)
"""The system prompt that half of the requests share: 200 tokens of cl100k_base (a test counts them)."""

_CONVERSATION_FRACTION: Final = 0.5
_JOINT = "\n\n"
_COUNTED: Final = 16_384
"""Number of conversations whose tokens are counted once, however often a seed draws them."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The first human turn of a conversation and the first assistant turn that answers it."""

    human: str
    assistant: str


@dataclass(frozen=True, slots=True)
class ConversationWorkload(StreamedWorkload):
    """Conversations, in file order and already filtered to those with an assistant turn.

    Draw order (AMB-35): the list of indices is shuffled once, then the flags that say who carries the system
    prompt (``sharing_flags``); request i is conversation i of the shuffled list, beginning again after the
    last. The prompt is the first human turn, with the system prompt ahead of it for carriers and counted as
    input; the output limit is the length of the first assistant turn, at least 1.

    Only ShareGPT, vicuna_cleaned, 2023-04-12 makes it the reference workload; conversations from elsewhere
    need a name of their own.
    """

    conversations: tuple[Conversation, ...] = field(compare=False, repr=False, metadata=NOT_STORED)
    dataset: DatasetIdentity
    name: str = CONVERSATION
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + text_mistakes(c.human for c in self.conversations)
        own = self.dataset.name, self.dataset.subset, self.dataset.version
        if self.name == CONVERSATION and own != SHAREGPT:
            mistakes.append(
                f"{CONVERSATION!r} is made of {', '.join(SHAREGPT)}, this data set is {self.dataset.name}, "
                f"{self.dataset.subset or 'no subset'}, {self.dataset.version}: choose another name"
            )
        elif self.name != CONVERSATION:
            mistakes += name_mistakes(self.name)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        texts = (text for c in self.conversations for text in (c.human, c.assistant))
        object.__setattr__(self, "digest", texts_digest(texts))

    @property
    def standard(self) -> bool:
        return self.name == CONVERSATION

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - it is the same for every seed
        return (SYSTEM_PROMPT_TOKENS,)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        order = list(range(len(self.conversations)))
        generator.shuffle(order)
        for index, carrier in enumerate(sharing_flags(generator, _CONVERSATION_FRACTION)):
            yield _request(index, self.conversations[order[index % len(order)]], carrier)

    def specification(self) -> Mapping[str, Any]:
        lengths = _conversation_lengths(self)
        length = {"type": "fixed", "params": {"tokens": SYSTEM_PROMPT_TOKENS}}
        return specified(
            lengths["input"],
            lengths["output"],
            domain="conversation",
            system_prompt={"present": True, "typical_tokens": SYSTEM_PROMPT_TOKENS, "counted_as": "input"},
            sharing={"fraction": _CONVERSATION_FRACTION, "length": length},
            dataset=self.dataset.specification() | {"content_sha256": self.digest},
            order=["shuffled indices", f"shuffled flags of every {FLAG_BLOCK} requests"],
            generation={"input_length": "human turn, without the system prompt"},
        )


def _request(index: int, conversation: Conversation, carrier: bool) -> PlannedRequest:
    text = _carried(conversation) if carrier else conversation.human
    return PlannedRequest(
        index=index,
        max_tokens=_answer_tokens(conversation),
        input_tokens=_carried_tokens(conversation) if carrier else _human_tokens(conversation),
        text=text,
        prefix_id=0 if carrier else None,
        shared_prefix_tokens=SYSTEM_PROMPT_TOKENS if carrier else 0,
    )


def _carried(conversation: Conversation) -> str:
    return f"{SYSTEM_PROMPT}{_JOINT}{conversation.human}"


@lru_cache(maxsize=_COUNTED)
def _carried_tokens(conversation: Conversation) -> int:
    return reference_tokenizer().count(_carried(conversation))


@lru_cache(maxsize=_COUNTED)
def _human_tokens(conversation: Conversation) -> int:
    return reference_tokenizer().count(conversation.human)


@lru_cache(maxsize=_COUNTED)
def _answer_tokens(conversation: Conversation) -> int:
    return max(1, reference_tokenizer().count(conversation.assistant))


@lru_cache(maxsize=4)
def _conversation_lengths(workload: ConversationWorkload) -> dict[str, dict[str, Any]]:
    return {
        "input": observed_lengths([_human_tokens(c) for c in workload.conversations]),
        "output": observed_lengths([_answer_tokens(c) for c in workload.conversations]),
    }


CODE_COMPLETION: Final = "code-completion"
THE_STACK: Final = "The Stack"
"""The data set that the draft names; its version is for the tester to declare."""
LANGUAGES: Final = ("Python", "JavaScript", "TypeScript")
CONTEXT_LENGTH: Final = Uniform(512, 1024)
OUTPUT: Final = LogNormal(4.0, 1.5, 1, 2048)

_CODE_FRACTION: Final = 0.8


@dataclass(frozen=True, slots=True)
class CodeFunction:
    """The text of a function up to the point where it is to be completed."""

    prompt: str
    language: str = "Python"


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
    name: str = CODE_COMPLETION
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + text_mistakes(f.prompt for f in self.functions)
        mistakes += _context_mistakes(self.contexts)
        if self.name != CODE_COMPLETION:
            mistakes += name_mistakes(self.name)
        else:
            mistakes += _stack_mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        texts = (*self.contexts[:CONTEXTS], *(f.prompt for f in self.functions))
        object.__setattr__(self, "digest", texts_digest(texts))

    @property
    def standard(self) -> bool:
        return self.name == CODE_COMPLETION

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        generator = BulkRandom(seed)
        return tuple(CONTEXT_LENGTH.draw(generator) for _ in range(CONTEXTS))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        lengths = [CONTEXT_LENGTH.draw(generator) for _ in range(CONTEXTS)]
        contexts = [cut_to(text, length) for text, length in zip(self.contexts, lengths, strict=False)]
        for index, flagged in enumerate(sharing_flags(generator, _CODE_FRACTION)):
            function = self.functions[index % len(self.functions)]
            rank = _zipf_rank(generator.random()) if flagged else None
            text = function.prompt if rank is None else f"{contexts[rank]}{_JOINT}{function.prompt}"
            yield PlannedRequest(
                index=index,
                max_tokens=OUTPUT.draw(generator),
                input_tokens=reference_tokenizer().count(text),
                text=text,
                prefix_id=rank,
                shared_prefix_tokens=0 if rank is None else lengths[rank],
            )

    def specification(self) -> Mapping[str, Any]:
        sharing = {
            "fraction": _CODE_FRACTION,
            "length": {"type": CONTEXT_LENGTH.type, "params": dict(CONTEXT_LENGTH.params)},
            "prefixes": CONTEXTS,
            "choice": f"Zipf, exponent {ZIPF_EXPONENT}",
        }
        flags = f"shuffled flags of every {FLAG_BLOCK} requests, when they are needed"
        return specified(
            _input_length(self),
            specification_of(OUTPUT, "cl100k_base"),
            domain="code",
            language=", ".join(sorted({function.language for function in self.functions})),
            sharing=sharing,
            dataset=self.dataset.specification() | {"content_sha256": self.digest},
            order=["context lengths", flags, "context of a flagged request", "output limit"],
            generation={"input_length": "function, without the repository context"},
        )


def contexts_from(texts: Sequence[str]) -> tuple[str, ...]:
    """Repository contexts for data that has none: the texts concatenated, in as many pieces as are needed.

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
        if len(pieces) == CONTEXTS:
            return tuple(pieces)
    raise SuiteError(
        f"the texts make {len(pieces)} repository contexts of {needed} tokens: {CONTEXTS} are needed",
        where="workload 'code-completion'",
        remedy="give more functions, or texts of repositories as contexts",
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
            f"{CODE_COMPLETION!r} is made of {THE_STACK}, not of {workload.dataset.name!r}: "
            "choose another name"
        )
    others = sorted({function.language for function in workload.functions} - set(LANGUAGES))
    if others:
        found.append(
            f"{CODE_COMPLETION!r} has {', '.join(LANGUAGES)}, not {', '.join(others)}: choose another name"
        )
    return found


@lru_cache(maxsize=4)
def _input_length(workload: CodeCompletionWorkload) -> dict[str, Any]:
    return observed_lengths([reference_tokenizer().count(each.prompt) for each in workload.functions])
