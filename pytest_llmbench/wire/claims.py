"""Numbers that a server states, held against what its reply can be.

A count is only taken as far as its request can give it: output tokens by the limit asked for and the bytes
received, input tokens by the bytes sent, times by the time the request took. What goes beyond is no figure:
no memory is reserved for it, no sum sees it, and the reply counts as one that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.model.outcome import Outcome, TokenSource
from pytest_llmbench.model.record import RequestRecord

TIMES_THE_LIMIT = 4
"""Output tokens that a reply may have for each that was asked for: several choices, hidden reasoning."""
TEMPLATE_TOKENS = 100_000
"""That a server may put before and around the prompt: instructions, tools."""
MOST_PREEMPTIONS = 1_000_000
CLOCKS_NS = 1_000_000_000
"""By which a time that the server tells of a request may be longer than the request was."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what a server can say of one reply."""

    output_tokens: int
    input_tokens: int
    lasted_ns: int | None = None
    """From dispatch to the end; None: not known."""

    @classmethod
    def of(cls, record: RequestRecord, sent_bytes: int, received_bytes: int) -> Bounds:
        """A token is at least a byte, both on its way to the server and from it."""
        asked = TIMES_THE_LIMIT * (record.requested_max_tokens or 0)
        begun, ended = record.dispatched_ns, record.finished_ns
        lasted = None if begun is None or ended is None else ended - begun
        return cls(max(asked, received_bytes), sent_bytes + TEMPLATE_TOKENS, lasted)


def refuse_impossible(record: RequestRecord, bounds: Bounds) -> None:
    """Takes out of the record what is beyond the bounds; a reply that was ``ok`` is ``undecodable`` then."""
    claims = [*_of_output(record, bounds), *_of_input(record, bounds), *_of_times(record, bounds)]
    if not claims:
        return
    text = f"the server claims {', '.join(claims)}"
    if record.outcome is Outcome.OK:
        record.outcome, record.error = Outcome.UNDECODABLE, text
    else:
        record.error = f"{record.error}; {text}" if record.error else text


def _of_output(record: RequestRecord, bounds: Bounds) -> list[str]:
    found, most = [], bounds.output_tokens
    if (record.output_tokens or 0) > most:
        chunks = len(record.chunk_ns)
        found.append(f"{_short(record.output_tokens)} output tokens where {chunks} chunks came")
        record.output_tokens, record.token_source = None, TokenSource.NONE
        record.chunk_tokens, record.attribution = (), "none"
    if (record.reasoning_tokens or 0) > most:
        found.append(f"{_short(record.reasoning_tokens)} tokens of reasoning")
        record.reasoning_tokens = None
    return found


def _of_input(record: RequestRecord, bounds: Bounds) -> list[str]:
    found = []
    for name, word in (("input_tokens", "input"), ("cached_tokens", "cached")):
        value = getattr(record, name)
        if value is not None and value > bounds.input_tokens:
            found.append(f"{_short(value)} {word} tokens of a request of {record.requested_input_tokens}")
            setattr(record, name, None)
    return found


def _of_times(record: RequestRecord, bounds: Bounds) -> list[str]:
    found = []
    most = None if bounds.lasted_ns is None else bounds.lasted_ns + CLOCKS_NS
    for name, word in (("queue_wait_ns", "a queue wait"), ("prefill_ns", "a prefill")):
        value = getattr(record, name)
        if value is not None and most is not None and value > most:
            found.append(f"{word} of {value / 1e9:.3g} s in a request of {(most - CLOCKS_NS) / 1e9:.3g} s")
            setattr(record, name, None)
    if (record.preemptions or 0) > MOST_PREEMPTIONS:
        found.append(f"{_short(record.preemptions)} preemptions")
        record.preemptions = None
    if (record.preempted_tokens or 0) > MOST_PREEMPTIONS * (bounds.input_tokens + bounds.output_tokens):
        found.append(f"{_short(record.preempted_tokens)} tokens lost to preemption")
        record.preempted_tokens = None
    return found


def _short(value: int | None) -> str:
    digits = str(value)
    return digits if len(digits) <= 15 else f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"


__all__ = ["Bounds", "refuse_impossible"]
