"""A planned request, before anything has been sent; and which headers and body fields change what a request
asks for.

The workload says what a request asks for. A further field that changes it makes another request of it, so it
is refused, or stands in the manifest and is held against the workload (AMB-33).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from pytest_llmbench.model.reply_checks import ExpectedAnswer, StructuredOutput
from pytest_llmbench.model.session import Turn

if TYPE_CHECKING:  # few loads have messages or pieces
    from pytest_llmbench.model.messages import MessageArray, Piece


@dataclass(slots=True)  # not frozen: one is made of every request, and that would take three times as long
class PlannedRequest:
    """One request of a workload: what to ask, and for how many tokens.

    ``token_ids`` are ids of the workload's tokenizer (cl100k_base for the synthetic ones), ``text`` the
    prompt as text. A workload gives at least one of the two, and ``text`` may be decoded from the ids later;
    of one that gives both the ids have to spell the text: the digest is of the ids, most endpoints get the
    text.
    """

    index: int
    """Position in the workload's sequence, from 0."""
    max_tokens: int
    """Upper limit of the output (``max_tokens``); the server decides on the real length."""
    input_tokens: int
    """Requested input length, in tokens of the workload's tokenizer."""
    token_ids: Sequence[int] | None = None
    text: str | None = None
    temperature: float = 0.0
    class_label: str = ""
    prefix_id: int | None = None
    """Number of the workload's shared prefix with which the prompt begins; None without one."""
    shared_prefix_tokens: int = 0
    """Length of that prefix, in tokens of the workload's tokenizer."""
    turn: Turn | None = None
    """The request's place in a session; None: it belongs to no session."""
    structured: StructuredOutput | None = None
    """The structure that the reply is to have; None: free text. Its tools are the beginning of the prompt."""
    messages: MessageArray | None = None
    """The prompt as messages with roles, used in place of ``text``; ``token_ids`` are those of its texts, one
    after the other. None: the prompt is one text."""
    cut_after_ns: int | None = None
    """Time from submission after which the user cuts the request, if the reply is not complete by then. None:
    the user waits."""
    expected: ExpectedAnswer | None = None
    """The answer that the reply is scored by; None: nobody knows one."""
    media: tuple[Piece, ...] = ()
    """Images, sounds and videos beside the text. Their tokens, which every engine counts its own way, are not
    in ``input_tokens``."""
    model: str | None = None
    """The model, or adapter, that the request names; None: the one that is measured."""

    @property
    def reads_answers(self) -> bool:
        """Whether the prompt contains live answers: what an earlier prompt shares with it is then not
        known."""
        return self.turn is not None and bool(self.turn.reads)


@runtime_checkable
class Workload(Protocol):
    """A seeded stream of requests (section 4.3). Pure: the same seed gives the same sequence.

    A shorter sequence is a prefix of a longer one with the same seed.
    """

    @property
    def name(self) -> str:
        """The name of the workload, as reports show it."""

    @property
    def standard(self) -> bool:
        """True only for the reference workloads, generated exactly as the draft says."""

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests of the sequence of ``seed``."""

    def specification(self) -> Mapping[str, Any]:
        """The specification that section 4.3.1 asks for, as JSON values.

        Keys: ``input_length`` and ``output_length`` (``type``, ``params``, ``unit``, ``tokenizer``, the
        second also ``control``), ``content`` (``domain``, ``language``, ``system_prompt``: ``present``,
        ``typical_tokens``), ``prefix_sharing`` (``fraction``, ``length``), ``temperature``, ``stop``.
        """


OWN_HEADERS = frozenset(
    {
        "host",
        "connection",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "transfer-encoding",
        "x-request-id",
    }
)
"""Headers that the load generator writes itself, in lower case."""
OUTPUT_LIMITS = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "max_tokens_to_sample",
        "max_length",
        "n_predict",
        "num_predict",
    }
)
"""Body fields, by the names of several servers, for the output limit that the workload sets."""
OUTPUT_FIELDS = OUTPUT_LIMITS | {
    "min_tokens",
    "min_new_tokens",
    "min_length",
    "stop",
    "stop_token_ids",
    "stop_sequences",
    "stop_strings",
    "stop_regex",
    "ignore_eos",
    "ignore_eos_token",
    "bad_words",
    "thinking_token_budget",
    "max_thinking_tokens",
    "response_format",
    "output_config",
    "tool_choice",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
}
"""Body fields that decide how long a reply becomes and what ends it."""
INPUT_FIELDS = frozenset(
    {
        "prompt",
        "messages",
        "input",
        "inputs",
        "input_ids",
        "text_input",
        "system",
        "instructions",
        "suffix",
        "tools",
        "documents",
        "echo",
        "truncate",
        "truncate_prompt_tokens",
        "chat_template",
    }
)
"""Body fields that are, or change, the prompt."""
_PENALTY = "penalty"
SAMPLING_FIELDS = frozenset(
    {"temperature", "n", "best_of", "use_beam_search", "beam_width", "logit_bias", _PENALTY}
)
"""Body fields that decide how tokens are chosen, and how many replies there are."""
MEANING_FIELDS = OUTPUT_FIELDS | INPUT_FIELDS | SAMPLING_FIELDS

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ENDING = frozenset(
    {
        *("stop", "stops", "stopping", "eos", "eot", "eog", "predict", "timeout", "deadline"),
        *("effort", "verbosity", "grammar", "guided"),
    }
)
"""Words in the names of fields that end replies or shorten them, as ``stop_words_list``, ``end_id`` and
``t_max_predict_ms`` do: every server has names of its own."""
_BOUND = frozenset({"max", "maximum", "min", "minimum", "limit", "budget", "end"})
_BOUNDED = frozenset({"token", "tokens", "length", "len", "output", "words", "time", "seconds", "id", "ids"})
_CUTTING = frozenset({"truncate", "truncation", "trim", "transforms"})
"""Words in the names of fields that shorten prompts, as ``truncation_strategy`` and ``transforms`` do."""
_ABOUT_OTHERS = frozenset({"include_stop_str_in_output", "no_stop_trim", "max_time_in_queue"})


@cache
def _known_as(name: str) -> str:
    """The name among ``MEANING_FIELDS`` that stands for a field: for one that is written otherwise
    (``maxOutputTokens``), and for one whose words say that it ends replies or shortens prompts.
    Else the name itself."""
    if name in MEANING_FIELDS or name in _ABOUT_OTHERS:
        return name
    plain = _plain(name)
    alike = next((each for each in sorted(MEANING_FIELDS) if _plain(each) == plain), None)
    words = {word.lower() for word in _WORD.findall(name)}
    if alike is None and (words & _ENDING or (words & _BOUND and words & _BOUNDED)):
        return "stop"
    if alike is None and words & _CUTTING:
        return "truncate"
    return alike or (_PENALTY if _PENALTY in words else name)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


ASKED_LIMIT: Final = "{max_tokens}"
"""Value of an extra field that stands for the most output tokens of each request."""
CHUNK_TOKEN_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "usage": {"stream_options": {"continuous_usage_stats": True}},
    "ids": {"return_token_ids": True},
    "timings": {"timings_per_token": True},
}
"""``request.chunk_tokens`` of the SUT file → the body fields that ask a server of the OpenAI dialects to
report the number of tokens with each chunk."""


def present(body: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Dotted names of the fields of ``body``, at any depth, that are among ``names`` and set to something
    else than the workload says. Without a temperature the model has one of its own."""
    return [
        dotted
        for dotted, name, value in _fields(body, "")
        if name in names and not _is_neutral(dotted, name, value)
    ]


def _is_neutral(dotted: str, name: str, value: Any) -> bool:
    """Whether the value is that of the workload, or what a server does without the field: penalties of
    repetition and length are factors."""
    if name == _PENALTY and value == (1 if re.search("repe|length", dotted) else 0):
        return True
    if name == "truncate" and value in (False, "disabled"):
        return True
    return bool(value == ASKED_LIMIT or (value is None and name != "temperature"))


def meaning(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``body`` that change what a request asks for, with their values."""
    return {dotted: value for dotted, name, value in _fields(body, "") if name in MEANING_FIELDS}


def _fields(body: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    for name, value in body.items():
        known = _known_as(name)
        yield prefix + name, known, value
        if isinstance(value, Mapping) and known not in MEANING_FIELDS:
            yield from _fields(value, f"{prefix}{name}.")
