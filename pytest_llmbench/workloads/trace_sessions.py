"""Workloads of recorded sessions: the turns of a trace, with its causes, pauses, lengths and shared
blocks.

What is sent is readable text of exactly the recorded length. Where the trace names the blocks of a prompt,
equal names are equal words, so prompts begin alike where they did; else a prompt goes on from that of the
turn before it. Turns with messages send these, roles and all, in place of words. Answers are recorded ones:
nothing of a prompt depends on what the server answers, but for messages with live answers in their place.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import cycle, takewhile
from typing import Any, Final, NamedTuple

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import LivePlace, Message, MessageArray
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.request import (
    Answers,
    PlannedRequest,
    Session,
    SessionTurn,
    Turn,
    session_mistakes,
    stated_answers,
)
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.dataset import NOT_STORED, DatasetIdentity, observed_lengths, texts_digest
from pytest_llmbench.workloads.lengths import MOST_TOKENS
from pytest_llmbench.workloads.readable import as_ids, readable_ids, starting_with_a_word, word_ids
from pytest_llmbench.workloads.sessions import MOST_TURNS, OwnSessions, answers_mistakes, live_turn
from pytest_llmbench.workloads.stream import BulkRandom, derived_seed
from pytest_llmbench.workloads.synthetic import NO_SYSTEM_PROMPT, name_mistakes, specified
from pytest_llmbench.workloads.trace import (
    LONGEST_MS,
    MOONCAKE_BLOCK,
    BlockContents,
    stated_sharing,
)

_MOST_MISTAKES: Final = 12
_CONTEXT: Final = "recorded blocks where the trace names them, else deltas with recorded answers"
_IN_WORDS: Final[Mapping[str, Any]] = {"domain": "readable random words", "content": {"context": _CONTEXT}}
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """A turn as it was recorded; lengths are in tokens."""

    input_tokens: int
    """Length of its whole prompt."""
    output_tokens: int
    """Length of its recorded reply, which is also the output limit."""
    wait_for: tuple[int, ...] = ()
    """Numbers of the turns that must end before it, from 1; empty: it waits for the start of the session."""
    pause_ms: float = 0.0
    """Time from the last of these ends, or from the start of the session, to the instant at which it is due,
    in milliseconds."""
    hash_ids: tuple[int, ...] = ()
    """Ids of the blocks of its prompt, in order; equal ids are equal content. Empty if they are not known:
    its prompt then begins with that of the first turn that it waits for, if it is longer than that."""
    reset: bool = False
    """Whether it drops the history: without hash ids its prompt is all new."""
    messages: MessageArray | None = field(default=None, repr=False, metadata=NOT_STORED)
    """The messages of the prompt, sent as they are; their texts have ``input_tokens`` tokens of cl100k_base.
    None: words are sent."""
    kept_tokens: int | None = None
    """How many of the first tokens of its messages are those of the first turn that it waits for. Counted by
    the workload; where a report left the messages out, the count stands for them."""

    @property
    def pause_ns(self) -> int:
        return round(self.pause_ms * _NS_PER_MS)


@dataclass(frozen=True, slots=True)
class TracedSession:
    """The turns of a session, in an order in which each comes after those that it waits for."""

    turns: tuple[TracedTurn, ...]
    offset_ms: float = 0.0
    """Time from the start of the trace to that of the session, in milliseconds."""


class _Beginning(NamedTuple):
    """How much of a prompt's beginning is known from earlier prompts, in tokens."""

    kept: int
    """Tokens in common with the prompt of the first turn that it waits for."""
    shared: int
    """Tokens in common with any earlier prompt of the trace."""


@dataclass(frozen=True, slots=True)
class TraceSessionWorkload(OwnSessions):
    """The sessions of a trace, in its order. The workload starts over after the last session, with other
    words.

    Readable words, exactly as many tokens of cl100k_base as recorded. A turn with hash ids is made of blocks
    of ``block_tokens`` words, ``random.Random(own seed).choices`` of the list of words, cut to the input
    length; the seed of a block is made of the seed, the repetition of the trace and the hash id. A turn
    without them is the prompt of the first turn it waits for and new sentences, from one generator for each
    repetition; all of it is new where that prompt is not shorter, and after a reset. Raises SuiteError with
    the mistakes of all sessions.

    Turns with messages send those, the same in every repetition; all turns have them, or none. Reports hold
    their digest and nothing of their texts.
    """

    name: str
    sessions: tuple[TracedSession, ...] = field(compare=False, repr=False)
    dataset: DatasetIdentity
    block_tokens: int = MOONCAKE_BLOCK
    timed: bool = True
    """Whether the trace says when sessions start; if not, ``arrival="trace"`` cannot be used."""
    shuffled: bool = False
    """Whether the order of the sessions is drawn from the seed: ``random.Random(own seed).shuffle``."""
    cuts: Cuts | None = None
    """Cuts of turns by the user; the session goes on after them, with the recorded answers, or with as much
    of the live one as had come. None: no cuts."""
    answers: Answers = "recorded"
    """Which answers enter the history. Live ones are possible where the messages of a turn continue those of
    the first turn that it waits for."""
    messages_sha256: str = ""
    """Digest of the messages that are sent, computed where there are any. Empty: words are sent."""
    system_tokens: int = 0
    """Typical length of a system prompt in the messages, computed likewise."""
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = name_mistakes(self.name) + self.dataset.mistakes()
        mistakes += _mistakes(self.sessions, self.block_tokens) + answers_mistakes(self.answers)
        if self.answers != "recorded" and not mistakes:
            mistakes += _not_live(self.sessions)
        if self.shuffled and self.timed:
            mistakes.append("a trace that says when its sessions start has an order: leave out shuffled")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)
        if self.sessions[0].turns[0].messages is not None:
            object.__setattr__(
                self,
                "messages_sha256",
                texts_digest(
                    turn.messages.as_json()
                    for session in self.sessions
                    for turn in session.turns
                    if turn.messages is not None
                ),
            )
            object.__setattr__(self, "system_tokens", _system_tokens(self.sessions))
            object.__setattr__(self, "sessions", tuple(map(_with_kept_tokens, self.sessions)))
        rows = (
            f"{each.offset_ms} {[(t.input_tokens, t.output_tokens, t.wait_for) for t in each.turns]} "
            f"{[(t.pause_ms, t.hash_ids, t.reset) for t in each.turns]}"
            for each in self.sessions
        )
        object.__setattr__(self, "digest", texts_digest((*rows, self.messages_sha256)))

    @property
    def offsets_ns(self) -> tuple[int, ...]:
        if not self.timed:
            return ()
        return tuple(round(session.offset_ms * _NS_PER_MS) for session in self.sessions)

    @property
    def draws_anew(self) -> bool:
        """Whether another seed gives other prompts; False with messages, which are always the same."""
        return not self.messages_sha256

    def shapes(self, seed: int) -> Iterator[Session]:
        """The sessions without their content, endless. A turn whose prompt is not that of the turn before it
        with the answers and something new is a reset to its whole prompt."""
        told = cycle(_shapes(_in_order(self, seed)))
        if self.cuts is None:
            return told
        times_ns = self.cuts.times_ns(seed)
        return (
            replace(each, turns=tuple(replace(turn, cut_after_ns=next(times_ns)) for turn in each.turns))
            for each in told
        )

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        requests = _in_order(self, seed)._worded(seed)
        return requests if self.cuts is None else self.cuts.applied(requests, seed)

    def _worded(self, seed: int) -> Iterator[PlannedRequest]:
        """The sessions in the order of this workload, without end, in the words of a seed."""
        index = number = repetition = 0
        while True:
            blocks = BlockContents(seed, repetition, self.block_tokens, _block)
            generator = BulkRandom(derived_seed(seed, f"trace {repetition} words"))
            for session, beginnings in zip(self.sessions, _beginnings(self), strict=True):
                prompts = _prompts(session, beginnings, blocks, generator)
                recorded = zip(session.turns, beginnings, prompts, strict=True)
                live = None if self.answers == "recorded" else _live_arrays(session)
                for place, (turn, begins, ids) in enumerate(recorded, start=1):
                    request = PlannedRequest(
                        index=index,
                        max_tokens=turn.output_tokens,
                        input_tokens=turn.input_tokens,
                        token_ids=ids,
                        shared_prefix_tokens=begins.shared,
                        turn=Turn(
                            number, place, len(session.turns), turn.wait_for, turn.pause_ns, begins.kept
                        ),
                        messages=turn.messages,
                    )
                    yield request if live is None else live_turn(request, live[place - 1])
                    index += 1
                number += 1
            repetition += 1

    def reworded(self, numbers: Sequence[int], seed: int, words_seed: int) -> Iterator[PlannedRequest]:
        """The sessions ``numbers`` (ascending), in the words of another seed, numbered from 0. What their
        prompts share is that of the whole trace, also with sessions that are not among them. The contents of
        messages are replaced by random words of the same length, equal where they were equal; tools and calls
        stay."""
        places = {number: place for place, number in enumerate(numbers)}
        index = 0
        worded = _in_other_words(_in_order(self, seed), words_seed)._worded(words_seed)
        for request in worded if self.cuts is None else self.cuts.applied(worded, seed):
            turn = request.turn
            if turn is None or turn.session > numbers[-1]:
                return
            if turn.session in places:
                yield replace(request, index=index, turn=replace(turn, session=places[turn.session]))
                index += 1

    def specification(self) -> Mapping[str, Any]:
        return dict(_specification(self))


@lru_cache(maxsize=8)
def _in_other_words(workload: TraceSessionWorkload, seed: int) -> TraceSessionWorkload:
    """The workload with random words in place of the contents of its messages; equal contents get equal
    words."""
    generator = BulkRandom(derived_seed(seed, "messages in other words"))
    made: dict[Message, Message] = {}

    def message(said: Message) -> Message:
        if said.content and said not in made:
            words = _words(generator, len(encoded_text(said.content)))
            made[said] = replace(said, content=reference_tokenizer().decode(words))
        return made.get(said, said)

    def turn(told: TracedTurn) -> TracedTurn:
        if told.messages is None:
            return told
        messages = tuple(map(message, told.messages.messages))
        return replace(told, messages=replace(told.messages, messages=messages))

    if not workload.messages_sha256:
        return workload
    sessions = [replace(each, turns=tuple(map(turn, each.turns))) for each in workload.sessions]
    return replace(workload, sessions=tuple(sessions))


@lru_cache(maxsize=4096)
def encoded_text(text: str) -> array[int]:
    """Ids of a text in cl100k_base; remembered, since each turn repeats the messages of those before it."""
    return array("I", reference_tokenizer().encode(text))


def ids_of(said: MessageArray) -> array[int]:
    """Ids of the texts of an array, one after the other, as they are counted."""
    found = array("I")
    for text in said.texts:
        found += encoded_text(text)
    return found


def _live_arrays(session: TracedSession) -> list[MessageArray]:
    """The messages of each turn, in which recorded answers will be replaced by live ones."""
    found: list[MessageArray] = []
    for turn in session.turns:
        said = turn.messages
        assert said is not None
        before = session.turns[turn.wait_for[0] - 1].messages if turn.wait_for else None
        if before is not None and _answers(said, before):
            end = len(before.messages)
            recorded = said.messages[end]
            place = LivePlace(turn.wait_for[:1], len(encoded_text(recorded.content)))
            history = found[turn.wait_for[0] - 1].messages
            live = (*history, replace(recorded, live=place), *said.messages[end + 1 :])
            said = replace(said, messages=live)
        found.append(said)
    return found


def _answers(said: MessageArray, before: MessageArray) -> bool:
    """Whether the messages are those before them, an answer and more."""
    end = len(before.messages)
    goes_on = len(said.messages) > end + 1 and said.messages[:end] == before.messages
    return goes_on and said.messages[end].role == "assistant"


def _not_live(sessions: Sequence[TracedSession]) -> list[str]:
    """Why the server's own answers cannot be used in the history of a trace."""
    said = [turn.messages for session in sessions for turn in session.turns]
    if any(each is None for each in said):
        return ["live answers need a trace with messages: lengths alone do not show where answers are"]
    for number, session in enumerate(sessions):
        for place, turn in enumerate(session.turns, start=1):
            told = () if turn.messages is None else turn.messages.messages
            tools = turn.messages is not None and bool(turn.messages.tools)
            if tools or any(message.role == "tool" or message.calls for message in told):
                return [
                    f"session {number}, turn {place} has tools: their results for a live call are not "
                    "recorded, so leave out such sessions, or use recorded answers"
                ]
    return []


def _system_tokens(sessions: Sequence[TracedSession]) -> int:
    """The median over sessions of the length of what the system says before the first turn."""
    first = [session.turns[0].messages for session in sessions]
    said = [
        sum(len(encoded_text(message.content)) for message in each.messages if message.role == "system")
        for each in first
        if each is not None
    ]
    return round(statistics.median(said))


@lru_cache(maxsize=8)
def _in_order(workload: TraceSessionWorkload, seed: int) -> TraceSessionWorkload:
    """The workload with its sessions in the order of the seed."""
    if not workload.shuffled:
        return workload
    sessions = list(workload.sessions)
    random.Random(derived_seed(seed, "order of sessions")).shuffle(sessions)
    return replace(workload, sessions=tuple(sessions), shuffled=False)


def _block(seed: int, tokens: int) -> array[int]:
    """The ids of a block: words alone, since blocks of 16 tokens are many, and a generator that can draw
    sentences is slow to make."""
    return array("I", random.Random(seed).choices(_word_list(), k=tokens))


@cache
def _word_list() -> list[int]:
    found: list[int] = word_ids().tolist()
    return found


def _words(generator: BulkRandom, tokens: int) -> array[int]:
    return as_ids(starting_with_a_word(readable_ids(generator, tokens)))


def _prompts(
    session: TracedSession, beginnings: Sequence[_Beginning], blocks: BlockContents, generator: BulkRandom
) -> Iterator[array[int]]:
    """The prompts of a session, in the order of its turns."""
    made: list[array[int]] = []
    for turn, begins in zip(session.turns, beginnings, strict=True):
        if turn.messages is not None:
            made.append(ids_of(turn.messages))
        elif turn.hash_ids:
            made.append(blocks.prompt(turn.hash_ids, turn.input_tokens))
        else:
            history = made[turn.wait_for[0] - 1][: begins.kept] if begins.kept else array("I")
            made.append(history + _words(generator, turn.input_tokens - begins.kept))
        yield made[-1]


@lru_cache(maxsize=8)
def _beginnings(workload: TraceSessionWorkload) -> tuple[tuple[_Beginning, ...], ...]:
    """For each turn of each session what is known of its prompt's beginning: the closed form of what a prefix
    cache that forgets nothing can have of it."""
    size = workload.block_tokens
    seen: dict[int, int] = {}
    found = []
    for session in workload.sessions:
        own = []
        for turn in session.turns:
            kept = _kept(turn, session, size)
            own.append(_Beginning(kept, max(kept, _sent_before(turn, size, seen))))
        found.append(tuple(own))
    return tuple(found)


def _sent_before(turn: TracedTurn, block_tokens: int, seen: dict[int, int]) -> int:
    """How many tokens the first blocks of a prompt have in common with earlier prompts. ``seen``: for each
    block how many of its tokens were in a prompt, which may have cut it; the blocks of this one are added."""
    shared, all_of_it = 0, True
    for place, block in enumerate(turn.hash_ids):
        own = min(block_tokens, max(0, turn.input_tokens - place * block_tokens))
        known = seen.get(block, 0)
        if all_of_it:
            shared += min(known, own)
            all_of_it = known >= own
        seen[block] = max(known, own)
    return shared


def _kept(turn: TracedTurn, session: TracedSession, block_tokens: int) -> int:
    if not turn.wait_for:
        return 0
    before = session.turns[turn.wait_for[0] - 1]
    if turn.kept_tokens is not None:
        return turn.kept_tokens
    if turn.hash_ids:
        return min(common_blocks(turn, before) * block_tokens, turn.input_tokens, before.input_tokens)
    goes_on = not turn.reset and turn.input_tokens > before.input_tokens
    return before.input_tokens if goes_on else 0


def _with_kept_tokens(session: TracedSession) -> TracedSession:
    turns = []
    for turn in session.turns:
        before = session.turns[turn.wait_for[0] - 1].messages if turn.wait_for else None
        if turn.messages is not None and before is not None:
            turn = replace(turn, kept_tokens=_common_tokens(turn.messages, before))
        turns.append(turn)
    return replace(session, turns=tuple(turns))


def _common_tokens(said: MessageArray, before: MessageArray) -> int:
    """How many of the first tokens of two arrays are the same."""
    found = 0
    for own, other in zip(said.texts, before.texts, strict=False):
        pairs = zip(encoded_text(own), encoded_text(other), strict=False)
        if own != other:
            return found + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        found += len(encoded_text(own))
    return found


def common_blocks(turn: TracedTurn, other: TracedTurn) -> int:
    """How many of the first blocks of two prompts are the same."""
    pairs = zip(turn.hash_ids, other.hash_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@lru_cache(maxsize=8)
def _shapes(workload: TraceSessionWorkload) -> tuple[Session, ...]:
    return tuple(
        Session(tuple(_shape(turn, session, begins) for turn, begins in zip(session.turns, own, strict=True)))
        for session, own in zip(workload.sessions, _beginnings(workload), strict=True)
    )


def _shape(turn: TracedTurn, session: TracedSession, begins: _Beginning) -> SessionTurn:
    waits = [session.turns[number - 1] for number in turn.wait_for]
    before = waits[0].input_tokens if waits else 0
    new = turn.input_tokens - before - sum(each.output_tokens for each in waits)
    goes_on = begins.kept == before and new > 0
    return SessionTurn(
        new if goes_on else turn.input_tokens,
        turn.output_tokens,
        turn.wait_for,
        turn.pause_ns,
        reset=not goes_on,
    )


@lru_cache(maxsize=8)
def _specification(workload: TraceSessionWorkload) -> Mapping[str, Any]:
    """The specification of the workload; remembered, since every plan's key asks for it."""
    turns = [turn for session in workload.sessions for turn in session.turns]
    pauses = [round(turn.pause_ms) for turn in turns if turn.wait_for]
    shared = [begins.shared for own in _beginnings(workload) for begins in own]
    inputs = observed_lengths([turn.input_tokens for turn in turns])
    order = "sessions of the trace, shuffled" if workload.shuffled else "sessions of the trace"
    generator = "Python random.Random, a seed for each block, and one for the words of a repetition"
    return specified(
        inputs | {"of": "whole prompt of a turn"},
        observed_lengths([turn.output_tokens for turn in turns]),
        **(_as_recorded(workload) if workload.messages_sha256 else _IN_WORDS),
        sharing=stated_sharing(shared),
        sessions={
            "count": len(workload.sessions),
            "turns": _observed([len(session.turns) for session in workload.sessions], "turns"),
            "pause": _observed(pauses, "ms") if pauses else None,
        },
        cuts=workload.cuts and workload.cuts.specification(),
        **stated_answers(workload.answers),
        dataset=workload.dataset.specification() | {"content_sha256": workload.digest},
        order=(order, "turns", "choices of words for each block, or new sentences"),
        generation={"generator": generator, "block_tokens": workload.block_tokens},
    )


def _as_recorded(workload: TraceSessionWorkload) -> dict[str, Any]:
    system_tokens, answers = workload.system_tokens, workload.answers
    prompt = {"present": True, "typical_tokens": system_tokens, "counted_as": "input"}
    context = f"full message arrays with {'recorded' if answers == 'recorded' else 'live'} answers"
    return {
        "domain": "messages of the data set, with their roles",
        "language": "that of the data set",
        "system_prompt": prompt if system_tokens else NO_SYSTEM_PROMPT,
        "content": {"context": context},
    }


def _observed(values: Sequence[int], unit: str) -> dict[str, Any]:
    stated = observed_lengths(values)
    return {"type": stated["type"], "params": stated["params"], "unit": unit}


def _mistakes(sessions: Sequence[TracedSession], block_tokens: int) -> list[str]:
    if block_tokens < 1:
        return [f"block_tokens is {block_tokens}: give a whole number, at least 1"]
    if not sessions:
        return ["the trace has no sessions"]
    found: list[str] = []
    before = 0.0
    for number, session in enumerate(sessions):
        told = list(_session_mistakes(session, block_tokens))
        if not session.offset_ms >= before:
            told.append("it starts before the session ahead of it, or before 0")
        elif session.offset_ms > LONGEST_MS:
            told.append("it starts more than a year after the first")
        before = max(before, session.offset_ms)
        found += [f"session {number}: {mistake}" for mistake in told]
    having = [turn.messages is not None for session in sessions for turn in session.turns]
    if any(having) and not all(having):
        found.append("some of its turns have messages: give them to all turns, or to none")
    more = len(found) - _MOST_MISTAKES
    return [*found[:_MOST_MISTAKES], f"and {more} more"] if more > 0 else found


def _message_mistakes(turn: TracedTurn, said: MessageArray) -> Iterator[str]:
    """Mistakes in the messages of a turn; its length is checked only if there are no others."""
    found = said.mistakes()
    yield from found
    tokens = len(ids_of(said))
    if not found and tokens != turn.input_tokens:
        yield f"its messages have {tokens:,} tokens, not {turn.input_tokens:,}"


def _session_mistakes(session: TracedSession, block_tokens: int) -> Iterator[str]:
    if len(session.turns) > MOST_TURNS:
        yield f"it has {len(session.turns):,} turns: at most {MOST_TURNS:,}"
        return
    plain = []
    for number, turn in enumerate(session.turns, start=1):
        if turn.messages is not None:
            yield from (f"turn {number}: {mistake}" for mistake in _message_mistakes(turn, turn.messages))
        finite = abs(turn.pause_ms) <= LONGEST_MS
        if not finite:
            yield f"turn {number} pauses for {quantity(turn.pause_ms, 'ms')}: give a number, at most a year"
        if max(turn.input_tokens, turn.output_tokens) > MOST_TOKENS:
            yield f"turn {number} has more than {MOST_TOKENS:,} tokens"
        if turn.hash_ids and len(turn.hash_ids) * block_tokens < turn.input_tokens:
            yield f"turn {number}: {len(turn.hash_ids)} hash ids are too few for {turn.input_tokens} tokens"
        pause_ns = turn.pause_ns if finite else 0
        plain.append(SessionTurn(turn.input_tokens, turn.output_tokens, turn.wait_for, pause_ns))
    yield from session_mistakes(Session(tuple(plain)))
