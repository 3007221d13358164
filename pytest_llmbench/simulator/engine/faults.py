"""Named options for injected faults (what goes wrong with a reply, how often and when) and for the stream
quirks of real servers. Pure: it only decides, the server carries the faults out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, get_args

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.reply_checks import StructuredOutput
from pytest_llmbench.simulator.engine.config import (
    SHARE,
    CheatOptions,
    EngineConfig,
    Range,
    out_of_range,
    ranges_of,
)
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.engine.sequence import EngineSequence

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.answers import QuestionAnswer, StructuredAnswer
    from pytest_llmbench.simulator.engine.cheats import Conduct, Conducts


FaultKind = Literal[
    "http_error",
    "rate_limit",
    "overloaded",
    "in_band_error",
    "reset",
    "half_close",
    "truncate",
    "stall",
    "drip",
    "malformed_json",
    "invalid_utf8",
    "huge_line",
    "crash",
    "buffering",
]

ProfilerState = Literal["works", "absent", "fails", "hangs"]

ALL_FAULTS: frozenset[FaultKind] = frozenset(get_args(FaultKind))
REFUSALS: frozenset[FaultKind] = frozenset({"http_error", "rate_limit", "overloaded"})
"""Faults that answer with an HTTP error status instead of a reply."""
STRIKES: Mapping[FaultKind, tuple[Outcome, str]] = {
    "in_band_error": (Outcome.IN_BAND_ERROR, "an error inside the stream (a fault of the scenario)"),
    "reset": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario)"),
    "half_close": (Outcome.DISCONNECTED, "the connection was closed (a fault of the scenario)"),
    "crash": (Outcome.DISCONNECTED, "the connection was reset (a fault of the scenario: crash)"),
    "truncate": (Outcome.TRUNCATED, "the stream ended without a terminal event (a fault of the scenario)"),
}
"""Faults that end a reply in mid-stream, whatever its bytes look like, with the outcome and the error that a
client records."""
TRANSPORT_FAULTS: frozenset[FaultKind] = frozenset({"reset", "half_close", "crash"})
"""Faults that act on the connection itself."""
WHOLE_REPLY_FAULTS: frozenset[FaultKind] = frozenset({"drip", "buffering"})
"""Faults that change how the whole reply is delivered, from its first byte."""

FROM_MEMORY_NS = 20_000
"""Nanoseconds from one token to the next of a reply from memory."""
_PER_REQUEST = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Options that choose which requests suffer a fault, and which one.

    Deterministic by seed and the request's number of arrival.
    """

    fault: tuple[FaultKind, ...] = ()
    """What goes wrong: http_error, rate_limit (429), overloaded (503), in_band_error, reset, half_close,
    truncate, stall, drip, malformed_json, invalid_utf8, huge_line, crash, buffering; several, separated by
    commas, are drawn in turn."""
    fault_rate: float = 1.0
    """Share of the requests that suffer, 0 to 1."""
    fault_from: int = 0
    """Requests that are spared at first."""
    fault_count: int = 0
    """Faults after which all is well again; 0: no end."""
    fault_after_tokens: int = 2
    """Tokens that are given before a fault in mid-stream."""
    fault_status: int = 500
    """Status of http_error, 400 to 599."""
    retry_after_s: float = 1.0
    """Retry-After of rate_limit and overloaded, and of a full queue (max_waiting)."""
    full_status: int = 503
    """Status of what a full queue turns away, 429 or 503."""
    stall_ms: float = 60_000.0
    """How long a stall lasts before the reply goes on."""
    drip_ms: float = 5.0
    """Pause of drip between two pieces of 16 bytes."""
    huge_line_mib: float = 17.0
    """Length of the line of huge_line."""
    schema_fault_rate: float = 0.0
    """Share of the replies to requests for structured output that break their schema, 0 to 1."""
    wrong_answer_rate: float = 0.0
    """Share of the questions that are answered wrongly, 0 to 1. Served, it answers sums; in replay whatever
    answer is expected."""
    wrong_answers_above: int = 0
    """Requests in flight up to which no question is answered wrongly."""
    profiler: ProfilerState = "works"
    """What start_profile and stop_profile do: works, absent (404), fails (500), hangs (no answer)."""

    def mistakes(self) -> list[str]:
        """The mistakes in these values; empty if there are none."""
        others: dict[str, Range | None] = {
            **dict.fromkeys(("fault_rate", "schema_fault_rate", "wrong_answer_rate"), SHARE),
            "fault_status": Range(400, 599),
            "full_status": None,  # looked at below
            "huge_line_mib": Range(0, 256, above=True),
        }
        found = out_of_range(self, ranges_of(FaultOptions, others))
        if self.full_status not in (429, 503):
            found.append(f"full_status is {self.full_status}; it must be 429 or 503")
        return found


@dataclass(slots=True)  # not frozen: one is made for each request, and freezing would double its cost
class Admitted:
    """What becomes of a request that is admitted."""

    fault: FaultKind | None
    ceiling: int
    """Most tokens of its reply."""
    conduct: Conduct | None
    """How the engine deals with it; None where nobody asks for its words and the engine is honest."""
    answer: StructuredAnswer | QuestionAnswer | None
    """The answer to a request for structured output, or to a question; None for any other."""

    def sequence(
        self,
        asked: GenerationRequest,
        prompt_tokens: int,
        *,
        request_id: str = "",
        token_ids: Sequence[int] | None,
        prefix_hashes: tuple[int, ...] | None = None,
    ) -> EngineSequence:
        """The engine's sequence for the request."""
        least = asked.min_tokens
        if self.answer is not None:
            least = max(least, min(self.answer.least_tokens, self.ceiling))
        # fmt: off
        # By place: by name it takes half as long again.
        return EngineSequence(
            request_id, prompt_tokens, self.ceiling, least, asked.ignore_eos, asked.priority, asked.thinks,
            asked.generates, None, asked.adapter, token_ids, prefix_hashes,
        )
        # fmt: on


class FaultSchedule:
    """Admits requests, served and in replay alike: draws, for each in order of arrival, the fault that
    happens to it, and how it is answered."""

    def __init__(
        self,
        options: FaultOptions,
        seed: int,
        cheats: CheatOptions = CheatOptions(),  # noqa: B008 - never changed
    ) -> None:
        self.options = options
        self._cheats = cheats
        self._conducts: Conducts | None = None
        self.honest = cheats == CheatOptions()
        """Whether no cheat is asked for."""
        self._seed = seed
        self._asked = self._structured = self._questions = 0
        self.given = 0
        """Number of faults injected so far."""

    def admit(
        self,
        asked: GenerationRequest,
        prompt_tokens: int,
        config: EngineConfig,
        running: Callable[[], int],
        *,
        prompt: str | Sequence[int] | None,
        question: str | None = None,
        structured: StructuredOutput | None = None,
        possible: frozenset[FaultKind] = ALL_FAULTS,
    ) -> Admitted:
        """Admit the next request. RefusalError if it is refused: it does not fit, by its fault, or with 501
        where that is none of the ``possible`` ones.

        ``running``: gives the number of other requests in flight. ``prompt``: None where an honest engine's
        words do not matter. ``question``: the right answer to the question that it asks; None: it asks none.
        """
        ceiling = asked.ceiling(prompt_tokens, config)
        fault = self.next()
        if fault is not None and fault not in possible:
            raise RefusalError(501, f"the fault {fault!r} of the scenario cannot be given on this connection")
        if fault in REFUSALS:
            raise refusal_of(fault, self.options)
        conduct: Conduct | None = None
        answer: StructuredAnswer | QuestionAnswer | None = None
        if prompt is not None:
            if self._conducts is None:
                from pytest_llmbench.simulator.engine.cheats import Conducts  # few replays need words

                self._conducts = Conducts(self._cheats)
            conduct = self._conducts.of(prompt, ceiling, 1 + running())
            ceiling = conduct.ceiling
        if question is not None:
            answer = self._answer_question(question, 1 + running())
            ceiling = min(ceiling, answer.least_tokens)
        if structured is not None:
            answer = self._answer_in_form(structured)
        return Admitted(fault, ceiling, conduct, answer)

    def next(self) -> FaultKind | None:
        """The fault of the next request; None: none. The draw does not depend on the faults of earlier
        requests."""
        number = self._asked
        self._asked += 1
        options = self.options
        if not options.fault or number < options.fault_from:
            return None
        if options.fault_count and self.given >= options.fault_count:
            return None
        draw = random.Random(self._seed * _PER_REQUEST + number)
        if draw.random() >= options.fault_rate:
            return None
        self.given += 1
        return draw.choice(options.fault)

    def _answer_in_form(self, asked: StructuredOutput) -> StructuredAnswer:
        # Imported here: few loads ask for a form.
        from pytest_llmbench.simulator.engine.answers import StructuredAnswer, breaks_of

        number = self._structured
        self._structured += 1
        draw = random.Random(f"schemas {self._seed} {number}")
        possible = breaks_of(asked, number) if draw.random() < self.options.schema_fault_rate else []
        return StructuredAnswer(asked, number, draw.choice(possible) if possible else "")

    def _answer_question(self, answer: str, in_flight: int) -> QuestionAnswer:
        from pytest_llmbench.simulator.engine.answers import QuestionAnswer, wrong_answer

        draw = random.Random(f"answers {self._seed} {self._questions}")
        self._questions += 1
        options = self.options
        wrong = in_flight > options.wrong_answers_above and draw.random() < options.wrong_answer_rate
        text = wrong_answer(answer, draw.randint(1, 9)) if wrong else answer
        return QuestionAnswer(text, right=not wrong)


def refusal_of(kind: FaultKind, options: FaultOptions) -> RefusalError:
    """The error response of a fault that refuses the request."""
    if kind == "http_error":
        return RefusalError(options.fault_status, f"a fault of the scenario: {kind}")
    status, why = (429, "rate limit exceeded") if kind == "rate_limit" else (503, "the server is overloaded")
    return RefusalError(status, f"{why} (a fault of the scenario)", None, options.retry_after_s)


def queue_full(config: EngineConfig, options: FaultOptions) -> RefusalError:
    """The error response of an engine whose queue is full."""
    why = f"the queue is full: {config.max_waiting} requests wait already"
    return RefusalError(options.full_status, why, None, options.retry_after_s)


def input_refused() -> RefusalError:
    """The error response to a prompt that the input filter refuses."""
    why = "the prompt was refused by the input filter"
    return RefusalError(400, why, "prompt", code="content_filter")


RoleChunk = Literal["at_start", "at_first_token", "in_first_chunk", "never"]
FirstChunk = Literal["text", "empty", "whitespace"]
UsagePlace = Literal["asked", "separate", "finish", "every_chunk", "empty_delta", "never"]
LineEnd = Literal["lf", "crlf", "cr"]
MetricsForm = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp"]
ReasoningPlace = Literal["reasoning_content", "reasoning", "inline", "inline_split"]

LINE_ENDS: dict[LineEnd, bytes] = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of how the tokens of a streamed reply become events and writes. The defaults are those of
    vLLM."""

    role_chunk: RoleChunk = "at_first_token"
    """Chat's chunk with the role: at_start (before the prefill), at_first_token, in_first_chunk, never."""
    first_chunk: FirstChunk = "text"
    """Text of the first visible token: text, empty (it comes with the next one), whitespace."""
    blank_every: int = 0
    """Every n-th visible token is an empty string, its text coming with the next; 0: none."""
    tokens_per_chunk: int = 1
    """Tokens of each chunk after the first, which goes out at once with one."""
    usage: UsagePlace = "asked"
    """Token counts: asked (as stream_options says), separate, finish, every_chunk, empty_delta
    (in a chunk with an empty delta), never."""
    done_marker: bool = True
    """Whether the stream ends with [DONE]."""
    line_end: LineEnd = "lf"
    """Line ends of the events: lf, crlf, cr."""
    comment_ms: float = 0.0
    """A comment line as keep-alive whenever nothing has been written for so long; 0: never."""
    events_per_write: int = 1
    """Events that are gathered into one write."""
    writes_per_event: int = 1
    """Writes over which each event is spread."""
    lead_reasoning_tokens: int = 0
    """Leading tokens that are reasoning, for an engine without a think phase."""
    reasoning_place: ReasoningPlace = "reasoning_content"
    """Where chat's reasoning goes: reasoning_content, reasoning, inline (think tags), inline_split
    (tags cut over several tokens); text completions always have it inline."""
    token_times: bool = False
    """Each chunk carries the exit times of its tokens at the server (metrics.token_ns, monotonic)."""
    server_timings: bool = True
    """The last event (or the body, unstreamed) has the engine's own figures of the request: timings.
    Their names: ``queue_ms`` (accepted until first scheduled), ``prompt_ms`` (from there to the first
    token), ``preemptions`` and ``preempted_tokens`` (whose cached state these discarded)."""
    server_timestamps: bool = False
    """Each content chunk carries the engine's instants of its tokens (token_times_ns, monotonic)."""
    metrics: MetricsForm = "vllm"
    """Whose series the metrics page has: vllm (all of them), sglang, tensorrt-llm (at
    /prometheus/metrics), llama.cpp."""
    trace: bool = False
    """The ground truth lists every token's exit and every write."""

    def mistakes(self) -> list[str]:
        """The mistakes in these values; empty if there are none."""
        others = dict.fromkeys(("tokens_per_chunk", "events_per_write", "writes_per_event"), Range(1))
        found = out_of_range(self, ranges_of(StreamOptions, others))
        if self.events_per_write > 1 and self.writes_per_event > 1:
            found.append("events_per_write and writes_per_event contradict each other; choose one")
        return found

    def chunk_tokens(self, sequence: EngineSequence) -> Iterator[int]:
        """Number of tokens in each chunk of one reply, for whom it is asked when the chunk begins; the first
        is always one. With speculative decoding what a step gives goes out together."""
        yield 1
        for step in count(1):
            made = sequence.made
            yield self.tokens_per_chunk if made is None else made[step] - made[step - 1]
