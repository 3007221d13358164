"""Workloads of sessions: turns, pauses and lengths from seeded distributions, prompts that grow turn by
turn.

Every prompt is readable text of an exact length: the beginning that all sessions share (``system_tokens``),
that of its group, the session's own document, then the history: questions and recorded answers of the turns
before, and the new question. Nothing of it depends on what the server answers, so two runs of one seed read
the same, token by token. The prompt goes out whole, as one text: its tokens are those of a conversation, its
roles are not.

With live answers what the server said stands in the place of the recorded answers, and the prompt goes out as
messages with roles, since a server finds its own answer in its cache only where its template puts it.

They are asked for by name, ``session:chat``, or as described: ``{"sessions": {"turns": 5, …}}``. The shapes
with a name follow interactive-chat and deep-research of inference-perf's catalogue of workloads, as far as
their figures are known: means and ranges. Spreads were not known and are ours: a log-normal law has a
standard deviation as large as its mean, a normal one a third of it. Replies of deep-research are bimodal
there; its modes were not known, so they are log-normal here.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.messages import LivePlace, Message, MessageArray
from pytest_llmbench.model.request import (
    ANSWERS,
    Answers,
    PlannedRequest,
    Session,
    SessionTurn,
    Turn,
    Workload,
    prompt_lengths,
    session_mistakes,
    stated_answers,
)
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Cuts, cuts_of, seconds_law
from pytest_llmbench.workloads.lengths import LengthLaw, LogNormal, Normal, law_of, specification_of
from pytest_llmbench.workloads.readable import readable_ids, starting_with_a_word
from pytest_llmbench.workloads.stream import BulkRandom, StreamedWorkload, Unit, derived_seed, streamed
from pytest_llmbench.workloads.synthetic import (
    NO_SYSTEM_PROMPT,
    RESERVED_NAMES,
    specified,
    temperature_mistakes,
)

Ids = npt.NDArray[np.uint32]

MOST_TURNS: Final = 10_000
"""Most turns of a session."""
_TOKENIZER: Final = "cl100k_base"
_NS_PER_MS: Final = 1_000_000


class SessionStream(StreamedWorkload):
    """Base of the workloads of sessions."""

    __slots__ = ()
    unit: Unit = "session"


class OwnSessions(SessionStream):
    """Base of sessions whose cuts and answers can be others, and which can have other words."""

    __slots__ = ()
    rewords_sessions = True
    cuts: Cuts | None

    def replaced(self, **fields: Any) -> OwnSessions:
        """The workload with other values of these fields."""
        return replace(self, **fields)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class SessionWorkload(OwnSessions):
    """Sessions whose turns, pauses and lengths are drawn from distributions.

    Draw order: per session, from ``random.Random`` of a seed of its own, the number of turns and the length
    of its own document; per turn its pause (not of the first), new input and output. The words come from
    another generator, so shapes can be drawn without them. Groups take turns: session i is of group
    i modulo ``groups``.
    """

    draws_anew = True

    name: str
    turns: LengthLaw
    input_tokens: LengthLaw
    """Distribution of the new input of a turn, in tokens."""
    output_tokens: LengthLaw
    """Distribution of the output limit of a turn, which is also the length of the recorded answer."""
    pause_ms: LengthLaw | None = None
    """Distribution of the pause between the end of what a turn waits for and the instant at which it is due,
    in milliseconds; None: no pause."""
    system_tokens: int = 0
    """Length of the beginning of every prompt."""
    group_tokens: int = 0
    """Length of the beginning that the sessions of a group share, after ``system_tokens``."""
    groups: int = 1
    own_tokens: LengthLaw | None = None
    """Length of the session's own document, after the shared beginning; None: there is none."""
    fan_out: int = 1
    """How many turns start together after one turn; the next turn waits for all of them. 1: one turn after
    the other."""
    reset_every: int = 0
    """Number of turns after which the history is dropped; 0: never."""
    context_tokens: int | None = None
    """Largest context of the model: a session ends before the first turn that, with its reply, needs more.
    None: no limit."""
    temperature: float = 0.0
    cuts: Cuts | None = None
    """Cuts of turns by the user; the session goes on after them, with the recorded answers, or with as much
    of the live one as had come. None: no cuts."""
    answers: Answers = "recorded"

    def __post_init__(self) -> None:
        mistakes = temperature_mistakes(self.temperature) + answers_mistakes(self.answers)
        if not self.name or self.name in RESERVED_NAMES:
            mistakes.append(f"the name {self.name!r} is taken: choose another name")
        for name, least in (
            ("system_tokens", 0), ("group_tokens", 0), ("groups", 1), ("fan_out", 1), ("reset_every", 0)
        ):  # fmt: skip
            if getattr(self, name) < least:
                mistakes.append(f"{name} is {getattr(self, name)}: give a whole number, at least {least}")
        if self.turns.bounds[1] > MOST_TURNS:
            mistakes.append(f"turns may be {self.turns.bounds[1]}: at most {MOST_TURNS:,}")
        own = 0 if self.own_tokens is None else self.own_tokens.bounds[1]
        longest = self.shared_tokens + own + self.input_tokens.bounds[1] + self.output_tokens.bounds[1]
        if self.context_tokens is not None and not mistakes and longest > self.context_tokens:
            mistakes.append(
                f"context_tokens is {self.context_tokens}: the longest first turn, with its reply, needs more"
            )
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    @property
    def shared_tokens(self) -> int:
        return self.system_tokens + self.group_tokens

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - they are as long for every seed
        # By group.
        return (self.shared_tokens,) * self.groups if self.shared_tokens else ()

    def shapes(self, seed: int) -> Iterator[Session]:
        generator = random.Random(derived_seed(seed, "session shapes"))
        cuts = repeat(None) if self.cuts is None else self.cuts.times_ns(seed)
        for number in count():
            yield self._shape(generator, cuts, number % self.groups)

    def _shape(self, generator: random.Random, cuts: Iterator[int | None], group: int) -> Session:
        several = self.turns.draw(generator)
        own = 0 if self.own_tokens is None else self.own_tokens.draw(generator)
        turns = []
        for number in range(1, several + 1):
            paused = self.pause_ms is not None and number > 1
            pause_ms = self.pause_ms.draw(generator) if self.pause_ms is not None and paused else 0
            turns.append(
                SessionTurn(
                    self.input_tokens.draw(generator),
                    self.output_tokens.draw(generator),
                    _wait_for(number, self.fan_out),
                    pause_ms * _NS_PER_MS,
                    reset=number > 1 and self.reset_every > 0 and (number - 1) % self.reset_every == 0,
                    cut_after_ns=next(cuts),
                )
            )
        session = Session(tuple(turns), own, group)
        if self.context_tokens is not None:
            lengths = prompt_lengths(session, self.shared_tokens)
            for place, ((total, _), turn) in enumerate(zip(lengths, turns, strict=True)):
                if total + turn.output_tokens > self.context_tokens:
                    return Session(session.turns[:place], own, group)
        return session

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        return self._worded(self.shapes(seed), seed)

    def reworded(self, numbers: Sequence[int], seed: int, words_seed: int) -> Iterator[PlannedRequest]:
        return self._worded(_chosen(self.shapes(seed), numbers), words_seed)

    def _worded(self, sessions: Iterable[Session], seed: int) -> Iterator[PlannedRequest]:
        heads = _heads(self, seed)
        content = BulkRandom(derived_seed(seed, "session content"))
        first = 0
        for number, session in enumerate(sessions):
            made = requests_of(
                session,
                heads[session.group],
                content,
                number=number,
                first=first,
                temperature=self.temperature,
                grouped=bool(self.shared_tokens),
            )
            yield from made if self.answers == "recorded" else _with_live_answers(session, made)
            first += len(session.turns)

    def specification(self) -> Mapping[str, Any]:
        system = NO_SYSTEM_PROMPT
        if self.system_tokens:
            system = {"present": True, "typical_tokens": self.system_tokens, "counted_as": "input"}
        shared = {"type": "fixed", "params": {"tokens": self.shared_tokens}}
        generator = "Python random.Random, a seed each for shapes, shared beginnings and words"
        return specified(
            specification_of(self.input_tokens, _TOKENIZER) | {"of": "new input of a turn"},
            specification_of(self.output_tokens, _TOKENIZER),
            domain="readable random words",
            system_prompt=system,
            content={
                "context": f"deltas with {'recorded' if self.answers == 'recorded' else 'live'} answers"
            },
            sharing={"fraction": float(self.shared_tokens > 0), "length": shared},
            temperature=self.temperature,
            sessions=self._layers(),
            cuts=self.cuts and self.cuts.specification(),
            **stated_answers(self.answers),
            order=("turns", "own document", "per turn: pause, input, output"),
            generation={"generator": generator},
        )

    def _layers(self) -> dict[str, Any]:
        pause = None if self.pause_ms is None else _law(self.pause_ms, "ms")
        return {
            "turns": _law(self.turns, "turns"),
            "pause": pause,
            "system_tokens": self.system_tokens,
            "group_tokens": self.group_tokens,
            "groups": self.groups,
            "own_tokens": None if self.own_tokens is None else _law(self.own_tokens, "tokens"),
            "fan_out": self.fan_out,
            "reset_every": self.reset_every,
            "context_tokens": self.context_tokens,
        }


@dataclass(frozen=True, slots=True)
class ProbeSessions(SessionStream):
    """Some sessions of another workload in other words, with which a load of that is compared."""

    draws_anew = True

    base: StreamedWorkload
    shapes_seed: int
    """Seed of the sequence of ``base`` that the sessions are taken from."""
    numbers: tuple[int, ...]
    """Numbers of the sessions in that sequence, ascending."""

    @property
    def name(self) -> str:
        return f"{self.base.name} (probes)"

    @property
    def shared_tokens(self) -> int:
        return self.base.shared_tokens

    def shapes(self, seed: int) -> Iterator[Session]:  # noqa: ARG002 - they are the same for every seed
        return _chosen(self.base.shapes(self.shapes_seed), self.numbers)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        return self.base.reworded(self.numbers, self.shapes_seed, seed)

    def specification(self) -> Mapping[str, Any]:
        base = dict(self.base.specification())
        probes = {"numbers": list(self.numbers), "of_seed": self.shapes_seed}
        return base | {"sessions": {**base.get("sessions", {}), "probes": probes}}


def _chosen(shapes: Iterator[Session], numbers: Sequence[int]) -> Iterator[Session]:
    chosen = set(numbers)
    of_them = islice(shapes, max(chosen, default=-1) + 1)
    return (session for number, session in enumerate(of_them) if number in chosen)


def _law(law: LengthLaw, unit: str) -> dict[str, Any]:
    return {"type": law.type, "params": dict(law.params), "unit": unit}


def _wait_for(number: int, fan_out: int) -> tuple[int, ...]:
    """The turns that a turn waits for. With a fan-out of k: one turn, k that wait for it, one that waits for
    these, and so on."""
    if number == 1:
        return ()
    place = (number - 1) % (fan_out + 1)
    if fan_out == 1 or place == 1:
        return (number - 1,)
    if place == 0:
        return tuple(range(number - fan_out, number))
    return (number - place,)


def _heads(workload: SessionWorkload, seed: int) -> list[Ids]:
    """The ids of the shared beginning of each group."""
    generator = BulkRandom(derived_seed(seed, "session beginnings"))
    system = readable_ids(generator, workload.system_tokens)
    groups = [
        starting_with_a_word(readable_ids(generator, workload.group_tokens)) for _ in range(workload.groups)
    ]
    return [np.concatenate((system, group)) for group in groups]


def requests_of(
    session: Session,
    head: Ids,
    generator: BulkRandom,
    *,
    number: int,
    first: int,
    temperature: float = 0.0,
    grouped: bool = True,
) -> list[PlannedRequest]:
    """The turns of session ``number`` as requests ``first`` and following; their words are drawn here.

    ``head``: ids of the beginning that it shares. Raises SuiteError with all mistakes of the session.
    """
    if mistakes := session_mistakes(session):
        raise SuiteError.from_mistakes(mistakes, where=f"session {number}")
    lengths = prompt_lengths(session, len(head))
    prompts = _prompts(session, lengths, head, generator)
    found = []
    for place, (turn, (total, kept), ids) in enumerate(zip(session.turns, lengths, prompts, strict=True)):
        again = len(head) + (session.own_tokens if place else 0)
        found.append(
            PlannedRequest(
                index=first + place,
                max_tokens=turn.output_tokens,
                input_tokens=total,
                token_ids=ids,
                temperature=temperature,
                prefix_id=session.group if grouped else None,
                shared_prefix_tokens=kept or again,
                turn=Turn(number, place + 1, len(session.turns), turn.wait_for, turn.pause_ns, kept),
                cut_after_ns=turn.cut_after_ns,
            )
        )
    return found


def _with_live_answers(session: Session, requests: Sequence[PlannedRequest]) -> list[PlannedRequest]:
    """The turns with messages in which recorded answers will be replaced by live ones."""
    decode = reference_tokenizer().decode
    found: list[PlannedRequest] = []
    for turn, request in zip(session.turns, requests, strict=True):
        place, ids = _place_of(request), request.token_ids or ()
        asked, answers = request.input_tokens - turn.input_tokens, 0
        if place.kept_tokens:
            before = found[turn.wait_for[0] - 1].messages
            answers = asked - place.kept_tokens
            recorded = decode(ids[place.kept_tokens : asked])
            said = (
                *(() if before is None else before.messages),
                Message("assistant", recorded, live=LivePlace(turn.wait_for, answers)),
                Message("user", decode(ids[asked:])),
            )
        else:
            head = asked - session.own_tokens
            system = (Message("system", decode(ids[:head])),) if head else ()
            said = (*system, Message("user", decode(ids[head:])))
        found.append(live_turn(request, MessageArray(said)))
    return found


def live_turn(request: PlannedRequest, said: MessageArray) -> PlannedRequest:
    """A turn of a session with live answers, with these messages."""
    place = replace(_place_of(request), live=True, reads=said.reads)
    kept = 0 if said.reads else place.kept_tokens
    return replace(request, messages=said, turn=replace(place, kept_tokens=kept))


def _place_of(request: PlannedRequest) -> Turn:
    assert request.turn is not None
    return request.turn


def answers_mistakes(answers: str) -> list[str]:
    """Mistakes in a choice of answers, in words."""
    return [] if answers in ANSWERS else [f"answers is {answers!r}: give one of {', '.join(ANSWERS)}"]


def _prompts(
    session: Session, lengths: Sequence[tuple[int, int]], head: Ids, generator: BulkRandom
) -> list[memoryview[int]]:
    """The prompts of a session. Turns that follow one another in a line share one array, of which each is a
    beginning: a session takes the memory of its longest prompts, not of all."""
    own, asked, answered = _pieces(session, generator)
    line_of, ends = _lines(session, lengths)
    lines = [np.empty(end, dtype=np.uint32) for end in ends]
    found = []
    for place, (turn, (total, kept)) in enumerate(zip(session.turns, lengths, strict=True)):
        line = lines[line_of[place]]
        if kept:
            before = lines[line_of[turn.wait_for[0] - 1]]
            if before is not line:
                line[:kept] = before[:kept]
            parts = [answered[number - 1] for number in turn.wait_for]
        else:
            parts = [head, own]
        line[kept:total] = np.concatenate((*parts, asked[place]))
        found.append(line[:total].data)
    return found


def _lines(session: Session, lengths: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The line of each turn, and the final length of each line. A turn that several turns continue is
    continued in its own line by the first of them."""
    line_of: list[int] = []
    ends: list[int] = []
    continued: set[int] = set()
    for turn, (total, kept) in zip(session.turns, lengths, strict=True):
        parent = turn.wait_for[0] - 1 if kept else -1
        if parent < 0 or parent in continued:
            line_of.append(len(ends))
            ends.append(total)
        else:
            continued.add(parent)
            line_of.append(line_of[parent])
            ends[line_of[parent]] = total
    return line_of, ends


def _pieces(session: Session, generator: BulkRandom) -> tuple[Ids, list[Ids], list[Ids]]:
    """The words of a session: its own document, the questions and the answers of its turns."""
    sizes = [session.own_tokens]
    for turn in session.turns:
        sizes += [turn.input_tokens, turn.output_tokens]
    bounds = np.cumsum(sizes)
    words = readable_ids(generator, int(bounds[-1]))
    pieces = [starting_with_a_word(piece) for piece in np.split(words, bounds[:-1])]
    return pieces[0], pieces[1::2], pieces[2::2]


def turns_of(workload: Workload, sessions: int, seed: int, first: int = 0) -> int:
    """Number of turns of ``sessions`` sessions, from number ``first`` on."""
    return streamed(workload).request_count(sessions, seed, first)


SESSION: Final = "session:"
_KEY: Final = "sessions"
_LAWS: Final = ("turns", "input_tokens", "output_tokens", "own_tokens")
_NUMBERS: Final = ("system_tokens", "group_tokens", "groups", "fan_out", "reset_every", "context_tokens")
_NEEDED: Final = ("turns", "input_tokens", "output_tokens")
_CUTS: Final = ("cut_share", "cut_after_s")
_TEXTS: Final = ("name", "answers")
_KNOWN: Final = (*_TEXTS, *_LAWS, "pause_s", *_NUMBERS, *_CUTS)


def _lognormal(mean: float, low: int, high: int) -> LogNormal:
    variance = math.log(2.0)  # of a standard deviation as large as the mean
    return LogNormal(round(math.log(mean) - variance / 2, 6), round(math.sqrt(variance), 6), low, high)


def _normal(mean: float, low: int, high: int) -> Normal:
    return Normal(mean, round(mean / 3, 6), low, high)


_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": {
        "turns": _lognormal(4, 1, 15),
        "pause_ms": _lognormal(45_000, 5_000, 300_000),
        "system_tokens": 1_000,
        "input_tokens": _lognormal(50, 10, 1_000),
        "output_tokens": _normal(300, 10, 1_000),
    },
    "deep-research": {
        "turns": _normal(15, 2, 50),
        "pause_ms": _normal(25_000, 5_000, 60_000),
        "system_tokens": 2_000,
        "input_tokens": _lognormal(3_000, 500, 15_000),
        "output_tokens": _lognormal(300, 50, 4_000),
    },
}
NAMES: Final = tuple(f"{SESSION}{name}" for name in _SHAPES)


@cache
def named_sessions(name: str) -> SessionWorkload:
    """The workload of sessions called ``session:NAME``. SuiteError, with the known names, for any other."""
    shape = _SHAPES.get(name.removeprefix(SESSION))
    if shape is None:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise SuiteError(f"unknown workload {shown(name)}", remedy=f"{hint}sessions: {', '.join(NAMES)}")
    return SessionWorkload(name, **shape)


def described_sessions(described: Mapping[str, Any]) -> SessionWorkload:
    """The workload described by ``{"sessions": {…}}``. Lengths are a number, a pair (uniform), a list, a
    histogram or a distribution; ``pause_s`` is a number of seconds, a pair or a list. Raises SuiteError with
    all mistakes."""
    keys = described.get(_KEY) if set(described) == {_KEY} else None
    if not isinstance(keys, Mapping):
        raise SuiteError(f"{shown(described)} is not a workload", remedy='write {"sessions": {…}}')
    mistakes = []
    for key in (key for key in keys if key not in _KNOWN):
        close = difflib.get_close_matches(str(key), _KNOWN, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(_KNOWN)}"
        mistakes.append(f"unknown key {shown(str(key))}; {hint}")
    mistakes += [f"{key} is missing" for key in _NEEDED if key not in keys]
    given: dict[str, Any] = {"name": "sessions"}
    for key in (key for key in _KNOWN if key in keys and key not in _CUTS):
        try:
            given |= _given(key, keys[key])
        except SuiteError as error:
            mistakes.append(error.what)
    try:
        given["cuts"] = cuts_of(keys.get("cut_share"), keys.get("cut_after_s"))
    except SuiteError as error:
        mistakes.append(error.what)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="workload of sessions")
    return SessionWorkload(**given)


def _given(key: str, value: Any) -> dict[str, Any]:
    if key in _LAWS:
        return {key: law_of(value, key)}
    if key == "pause_s":
        none = value == 0 and not isinstance(value, bool)
        return {"pause_ms": None if none else seconds_law(value, "pause_s")}
    kind = str if key in _TEXTS else int
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SuiteError(f"{key} is {shown(value)}: give a {'name' if kind is str else 'whole number'}")
    if key == "answers" and (wrong := answers_mistakes(str(value))):
        raise SuiteError(wrong[0])
    return {key: value}
