"""A planned request, before anything has been sent; which headers and body fields change what a request asks
for; and sessions: requests that follow one another by cause, as pure values.

The workload says what a request asks for. A further field that changes it makes another request of it, so
it is refused, or stands in the manifest and is held against the workload (AMB-33).

A session is one job of one user or agent: a conversation that grows, or calls that fan out and join. A
turn is one request of it. It is due when the last of the turns that it waits for has ended, after a pause:
the user thinks, or a tool works. What is asked, and how the prompt grows, is settled before anything is
sent: the answers that enter the history are recorded ones, so every run, and both arms of a comparison,
read the same input. Only a workload that is asked for live answers sends back what the server said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.reply_checks import ExpectedAnswer, StructuredOutput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    """The expected answer, by which the reply is scored; None: the reply is not scored."""
    media: tuple[Piece, ...] = ()
    """Images, audio and videos next to the text. ``input_tokens`` does not include their tokens, because
    every engine counts those differently."""
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


SESSION_HEADER = "x-session-id"
"""The usual header with the session that a turn belongs to."""

Answers = Literal["recorded", "live", "live-compared"]
"""Which answers enter the history: those of the workload, or what the server said. Systems are compared on
live answers only where that is asked for: they do not read the same input."""
ANSWERS: Final[tuple[Answers, ...]] = get_args(Answers)
LIVE_ANSWERS: Final = (
    "the history holds what the server answered, not recorded answers: no seed gives the same prompts again, "
    "and their lengths vary"
)


def stated_answers(answers: Answers) -> dict[str, Any]:
    """The part of a specification about live answers; empty for recorded ones."""
    if answers == "recorded":
        return {}
    return {"answers": answers, "deviations": [{"what": "context", "rule": LIVE_ANSWERS}]}


@dataclass(frozen=True, slots=True, order=True)
class TurnClass:
    """A class of turns: turn number ``first`` of sessions; with ``onwards`` all turns from there on."""

    first: int
    onwards: bool = False

    @classmethod
    def parse(cls, text: int | str) -> TurnClass:
        """The class written as ``1``, ``"3"`` or ``"2+"``. Raises ValueError for anything else."""
        told = str(text)
        number = int(told.removesuffix("+"))
        if isinstance(text, bool) or number < 1 or str(number) != told.removesuffix("+"):
            raise ValueError(f"{text!r} is no number of a turn")
        return cls(number, told.endswith("+"))

    def __str__(self) -> str:
        return f"{self.first}{'+' if self.onwards else ''}"

    def holds(self, turn: npt.NDArray[np.int64]) -> npt.NDArray[np.bool]:
        return (turn >= self.first) if self.onwards else (turn == self.first)


USUAL = (TurnClass(1), TurnClass(2, onwards=True))
"""The classes that are always reported: the first turn finds no history in the cache, later ones may."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a request in its session."""

    session: int
    """Number of the session in the sequence of its workload, from 0."""
    number: int
    """Number of the turn in its session, from 1."""
    turns: int
    """Number of turns of the session."""
    wait_for: tuple[int, ...] = ()
    """Numbers of the turns that have to end before it; empty: it waits for the start of the session."""
    pause_ns: int = 0
    """Time from the last of these ends, or from the start of the session, to the instant at which it is
    due."""
    kept_tokens: int = 0
    """How many of its first input tokens are the beginning of the prompt of the first turn that it waits for:
    in a context that only grows, that whole prompt. 0 where live answers are among them, since it is not
    known beforehand."""
    live: bool = False
    """Whether turns of its session read what the server answers."""
    reads: tuple[int, ...] = ()
    """Numbers of the turns whose live answers are part of its prompt, whose length is not known until
    then."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """What a turn adds to its session; lengths are in tokens."""

    input_tokens: int
    """Length of the new input: the question, or the result of a tool."""
    output_tokens: int
    """Upper limit of the reply, and length of the recorded answer that later turns read."""
    wait_for: tuple[int, ...] = ()
    """Numbers of the turns that have to end before it, as in :attr:`Turn.wait_for`. Its history is that of
    the first of them, with the answers of all."""
    pause_ns: int = 0
    reset: bool = False
    """Whether the turn drops the history: its prompt is the shared beginning and the new input."""
    cut_after_ns: int | None = None
    """Time from submission after which the user cuts the turn, as in ``PlannedRequest.cut_after_ns``; None:
    the user waits."""


@dataclass(frozen=True, slots=True)
class Session:
    """The turns of a session, in an order in which each comes after those that it waits for."""

    turns: tuple[SessionTurn, ...]
    own_tokens: int = 0
    """How many tokens all its prompts have in common after the shared beginning: a document, say."""
    group: int = 0
    """The number of the group of sessions whose shared beginning it has."""


def in_a_row(turns: Sequence[tuple[int, int]], pauses_ns: Sequence[int] = ()) -> tuple[SessionTurn, ...]:
    """Turns of these lengths (input, output), each waiting for the one before it.

    ``pauses_ns[i]`` comes before turn i + 2; none where it is shorter.
    """
    pauses = (0, *pauses_ns)
    return tuple(
        SessionTurn(
            asked, answered, (number,) if number else (), pauses[number] if number < len(pauses) else 0
        )
        for number, (asked, answered) in enumerate(turns)
    )


def prompt_lengths(session: Session, shared_tokens: int) -> list[tuple[int, int]]:
    """The length of each turn's prompt, and how much of it is the prompt of the first turn that it waits for:
    the closed form of what a prefix cache that forgets nothing can have of its own session.

    ``shared_tokens``: length of the beginning of every prompt. Only for a session without
    :func:`session_mistakes`.
    """
    found: list[tuple[int, int]] = []
    for turn in session.turns:
        kept = 0 if turn.reset or not turn.wait_for else found[turn.wait_for[0] - 1][0]
        answers = 0 if turn.reset else sum(session.turns[n - 1].output_tokens for n in turn.wait_for)
        before = kept + answers if kept else shared_tokens + session.own_tokens
        found.append((before + turn.input_tokens, kept))
    return found


def session_mistakes(
    session: Session, *, shared_tokens: int = 0, context_tokens: int | None = None
) -> list[str]:
    """All reasons why a session cannot be sent, in words. ``context_tokens``: how much the model can read and
    write in one request."""
    found = [] if session.turns else ["it has no turns"]
    if session.own_tokens < 0:
        found.append(f"its own tokens are {session.own_tokens}: give a number, not negative")
    for number, turn in enumerate(session.turns, start=1):
        found += [f"turn {number} {mistake}" for mistake in _turn_mistakes(number, turn, len(session.turns))]
    if not found and context_tokens is not None:
        found = _too_long(session, shared_tokens, context_tokens)
    return found


def _turn_mistakes(number: int, turn: SessionTurn, turns: int) -> Iterator[str]:
    for name in ("input_tokens", "output_tokens"):
        if getattr(turn, name) < 1:
            yield f"has {name} {getattr(turn, name)}: give a whole number, at least 1"
    if turn.pause_ns < 0:
        yield f"has a negative pause ({quantity(turn.pause_ns / 1e9, 's')})"
    if len(set(turn.wait_for)) < len(turn.wait_for):
        yield "waits for a turn twice"
    for other in turn.wait_for:
        if not 1 <= other <= turns:
            yield f"waits for turn {other}, which does not exist"
        elif other == number:
            yield "waits for itself"
        elif other > number:
            yield f"waits for turn {other}, which comes after it: turns that wait in a circle never start"


def _too_long(session: Session, shared_tokens: int, context_tokens: int) -> list[str]:
    lengths = prompt_lengths(session, shared_tokens)
    needs = [total + turn.output_tokens for (total, _), turn in zip(lengths, session.turns, strict=True)]
    over = [number for number, tokens in enumerate(needs, start=1) if tokens > context_tokens]
    if not over:
        return []
    which = f"turn {over[0]}" if len(over) == 1 else f"{len(over)} turns, the first of them turn {over[0]},"
    return [
        f"{which} need up to {max(needs)} tokens of context with the reply, the model has {context_tokens}"
        if len(over) > 1
        else f"{which} needs {max(needs)} tokens of context with the reply, the model has {context_tokens}"
    ]
