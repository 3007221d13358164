"""The reference workload Conversation: first turns of real conversations (section 4.3.2, A.3, AMB-35)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
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
from pytest_llmbench.workloads.sharing import FLAG_BLOCK, sharing_flags
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.synthetic import name_mistakes

NAME: Final = "conversation"
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

_FRACTION: Final = 0.5
_JOINT = "\n\n"
_COUNTED: Final = 16_384
"""Number of conversations whose tokens are counted once, however often a seed draws them."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The first human turn of a conversation and the first assistant turn that answers it."""

    human: str
    assistant: str
    human_tokens: int | None = None
    """Length in tokens of cl100k_base, as is the next field; None: it is counted."""
    assistant_tokens: int | None = None


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
    name: str = NAME
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = self.dataset.mistakes() + text_mistakes(c.human for c in self.conversations)
        if self.name == NAME and not self._is_sharegpt:
            mistakes.append(
                f"{NAME!r} is made of {', '.join(SHAREGPT)}, this data set is {self.dataset.name}, "
                f"{self.dataset.subset or 'no subset'}, {self.dataset.version}: choose another name"
            )
        elif self.name != NAME:
            mistakes += name_mistakes(self.name)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        texts = (text for c in self.conversations for text in (c.human, c.assistant))
        object.__setattr__(self, "digest", texts_digest(texts))

    @property
    def _is_sharegpt(self) -> bool:
        return (self.dataset.name, self.dataset.subset, self.dataset.version) == SHAREGPT

    @property
    def standard(self) -> bool:
        return self.name == NAME

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - it is the same for every seed
        return (SYSTEM_PROMPT_TOKENS,)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        order = list(range(len(self.conversations)))
        generator.shuffle(order)
        for index, carrier in enumerate(sharing_flags(generator, _FRACTION)):
            yield _request(index, self.conversations[order[index % len(order)]], carrier)

    def specification(self) -> Mapping[str, Any]:
        lengths = _lengths(self)
        system_prompt = {"present": True, "typical_tokens": SYSTEM_PROMPT_TOKENS, "counted_as": "input"}
        return {
            "input_length": dict(lengths["input"]),
            "output_length": lengths["output"] | {"control": "max_tokens"},
            "content": {"domain": "conversation", "language": "English", "system_prompt": system_prompt},
            "prefix_sharing": {
                "fraction": _FRACTION,
                "length": {"type": "fixed", "params": {"tokens": SYSTEM_PROMPT_TOKENS}},
            },
            "temperature": 0.0,
            "stop": [],
            "dataset": self.dataset.specification() | {"content_sha256": self.digest},
            "generation": {
                "generator": "Python random.Random(seed)",
                "order": ["shuffled indices", f"shuffled flags of every {FLAG_BLOCK} requests"],
                "input_length": "human turn, without the system prompt",
            },
        }


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
    known = conversation.human_tokens
    return reference_tokenizer().count(conversation.human) if known is None else known


@lru_cache(maxsize=_COUNTED)
def _answer_tokens(conversation: Conversation) -> int:
    known = conversation.assistant_tokens
    return max(1, reference_tokenizer().count(conversation.assistant) if known is None else known)


@lru_cache(maxsize=4)
def _lengths(workload: ConversationWorkload) -> dict[str, dict[str, Any]]:
    return {
        "input": observed_lengths([_human_tokens(c) for c in workload.conversations]),
        "output": observed_lengths([_answer_tokens(c) for c in workload.conversations]),
    }
