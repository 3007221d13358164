"""Sessions: turns that follow one another by cause, as pure values.

A session is one job of one user or agent: a conversation that grows, or calls that fan out and join. A turn
is one request of it. It is due when the last of the turns that it waits for has ended, after a pause: the
user thinks, or a tool works. What is asked, and how the prompt grows, is settled before anything is sent:
the answers that enter the history are recorded ones, so every run, and both arms of a comparison, read the
same input. Only a workload that is asked for live answers sends back what the server said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SESSION_HEADER = "x-session-id"
"""The header that says which session a turn is of, if nothing else is asked for."""

Answers = Literal["recorded", "live", "live-compared"]
"""The answers that enter the history: those of the workload, or what the server said. Systems are compared
on what it said only where that is asked for: they do not read the same."""
ANSWERS: Final[tuple[Answers, ...]] = get_args(Answers)
LIVE_ANSWERS: Final = (
    "the history holds what the server answered, not recorded answers: no seed gives the same prompts again, "
    "and their lengths vary"
)


def answers_of(workload: Any) -> Answers:
    """Which answers enter the history of a workload; recorded ones where it says nothing of it."""
    told = getattr(workload, "answers", None)
    return told if told in ANSWERS else "recorded"


def stated_answers(answers: Answers) -> dict[str, Any]:
    """What a specification says of live answers; nothing of recorded ones."""
    if answers == "recorded":
        return {}
    return {"answers": answers, "deviations": [{"what": "context", "rule": LIVE_ANSWERS}]}


@dataclass(frozen=True, slots=True, order=True)
class TurnClass:
    """Turn ``first`` of sessions; with ``onwards`` all turns from there on."""

    first: int
    onwards: bool = False

    @classmethod
    def parse(cls, text: int | str) -> TurnClass:
        """``1``, ``"3"`` or ``"2+"``. Raises ValueError for anything else."""
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
"""The classes that are always reported: the first turn finds no history in the cache, the others may."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a request in its session."""

    session: int
    """The number of the session in the sequence of its workload, from 0."""
    number: int
    """The number of the turn in its session, from 1."""
    turns: int
    """The turns of the session."""
    wait_for: tuple[int, ...] = ()
    """Numbers of the turns that have to end before it; none: it waits for the start of the session."""
    pause_ns: int = 0
    """The time from the last of these ends, or from the start of the session, to the instant it is due."""
    kept_tokens: int = 0
    """The number of its first input tokens that are the first of the prompt of the first turn it waits for:
    in a context that only grows, all of that. 0 where live answers are among them: not known beforehand."""
    live: bool = False
    """Whether turns of its session read what the server answers."""
    reads: tuple[int, ...] = ()
    """Numbers of the turns whose live answers stand in its prompt, whose length is not known until then."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """What a turn adds to its session. Lengths in tokens."""

    input_tokens: int
    """New input: the question, or what a tool gave."""
    output_tokens: int
    """Ceiling of the reply, and length of the recorded answer that later turns read."""
    wait_for: tuple[int, ...] = ()
    """As :attr:`Turn.wait_for`. Its history is that of the first of them, with the answers of all."""
    pause_ns: int = 0
    reset: bool = False
    """Whether it forgets the history: its prompt is the shared beginning and the new input."""
    cut_after_ns: int | None = None
    """As ``PlannedRequest.cut_after_ns``."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in an order in which each comes after those that it waits for."""

    turns: tuple[SessionTurn, ...]
    own_tokens: int = 0
    """Tokens that all its prompts have after the shared beginning: a document, say."""
    group: int = 0
    """The group of sessions whose shared beginning it has."""


def in_a_row(turns: Sequence[tuple[int, int]], pauses_ns: Sequence[int] = ()) -> tuple[SessionTurn, ...]:
    """Turns of these lengths (input, output), each of which waits for the one before it.

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
    """For each turn the length of its prompt, and how much of that is the prompt of the first turn it waits
    for: the closed form of what a prefix cache that forgets nothing can have of its own session.

    ``shared_tokens``: the beginning that every prompt has. Of a session without :func:`session_mistakes`.
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
    """What keeps a session from being sent, in words: all of it. ``context_tokens``: what the model reads and
    writes at most in one request."""
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
        yield f"has a negative pause ({turn.pause_ns / 1e9:g} s)"
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


@runtime_checkable
class OfSessions(Protocol):
    """A workload whose requests are turns: those of a session come one after the other, by number."""

    @property
    def shared_tokens(self) -> int:
        """Tokens at the beginning of every prompt."""

    def shapes(self, seed: int) -> Iterator[Session]:
        """The sessions of the sequence of ``seed``, in order, without their content."""
