"""What the engine says in virtual time, where later turns of a session read it.

It generates lengths and has no words, so these are random ones, the same each time.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.session import Turn
from pytest_llmbench.simulator.replay.records import Flight
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.readable import readable_ids, starting_with_a_word
from pytest_llmbench.workloads.stream import derived_seed
from pytest_llmbench.workloads.trace_sessions import ids_of


def said(flight: Flight) -> tuple[str, int]:
    """The visible answer to a turn that has ended, as far as its client had read it, and its tokens."""
    turn, tokens = flight.planned.turn, _visible_tokens(flight)
    assert turn is not None
    return _in_words(turn, tokens), tokens


def with_ids(request: PlannedRequest) -> PlannedRequest:
    """A request whose messages have live answers, with the ids of its texts as an engine would make them."""
    assert request.messages is not None
    ids = ids_of(request.messages)
    return replace(request, token_ids=ids, input_tokens=len(ids))


def _visible_tokens(flight: Flight) -> int:
    sequence = flight.sequence
    if sequence is None:
        return 0
    read = flight.read_ns
    every = sequence.output_tokens - sequence.withheld_tokens if read is None else len(read)
    return max(0, every - sequence.think_tokens)


def _in_words(turn: Turn, tokens: int) -> str:
    if not tokens:
        return ""
    generator = BulkRandom(derived_seed(turn.session, f"answer to turn {turn.number}"))
    return reference_tokenizer().decode(starting_with_a_word(readable_ids(generator, tokens)).tolist())
