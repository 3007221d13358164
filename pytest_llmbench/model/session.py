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
"""The usual header with the session that a turn belongs to."""

Answers = Literal["recorded", "live", "live-compared"]
"""Which answers enter the history: those of the workload, or what the server said. Systems are compared on
live answers only where that is asked for: they do not read the same input."""
ANSWERS: Final[tuple[Answers, ...]] = get_args(Answers)
LIVE_ANSWERS: Final = (
    "the history holds what the server answered, not recorded answers: no seed gives the same prompts again, "
    "and their lengths vary"
)


def answers_of(workload: Any) -> Answers:
    """Which answers enter the history of a workload; recorded ones where it does not say."""
    told = getattr(workload, "answers", None)
    return told if told in ANSWERS else "recorded"


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
    """A workload whose requests are turns; those of a session come one after the other, by number."""

    @property
    def shared_tokens(self) -> int:
        """Length of the beginning that every prompt has, in tokens."""

    def shapes(self, seed: int) -> Iterator[Session]:
        """The sessions of the sequence of ``seed``, in order, without their content."""
