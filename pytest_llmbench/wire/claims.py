"""Checks the numbers that a server states against what its reply can be.

A count is only taken as far as its request can give it: output tokens by the limit asked for and the bytes
received, input tokens by the bytes sent, times by the time the request took. What goes beyond is no figure:
no memory is reserved for it, no sum sees it, and the reply counts as one that cannot be read.
"""

from __future__ import annotations

from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource

TIMES_THE_LIMIT = 4
"""Most output tokens for each one that was asked for: there may be several choices, and hidden reasoning."""
TEMPLATE_TOKENS = 100_000
"""Most tokens that a server may add before and around the prompt: instructions, tools."""
MOST_PREEMPTIONS = 1_000_000
MOST_DRAFTED = 1000
"""Most tokens that speculative decoding may guess for each token of the reply."""
CLOCKS_NS = 1_000_000_000
"""Nanoseconds by which a time reported by the server may exceed the duration of the request."""

_TIMES = (
    ("queue_wait_ns", "a queue wait"), ("prefill_ns", "a prefill"),
    ("generation_ns", "a generation"), ("model_load_ns", "a loading of the model"),
)  # fmt: skip


def is_modest(record: RequestRecord) -> bool:
    """Whether all counts are within any bounds, as in nearly every reply.

    This is asked of each reply while load is running.
    """
    return (
        (record.output_tokens or 0) <= (record.requested_max_tokens or 0)
        and (record.reasoning_tokens or 0) <= (record.requested_max_tokens or 0)
        and (record.input_tokens or 0) <= TEMPLATE_TOKENS
        and (record.cached_tokens or 0) <= TEMPLATE_TOKENS
        and not record.server_timings
        and not record.critical_evictions
    )


def refuse_impossible(record: RequestRecord, sent_bytes: int, received_bytes: int) -> None:
    """Remove from the record the numbers that a reply of so many bytes to so many bytes cannot have; an
    ``ok`` one then becomes ``undecodable``. A token is at least a byte, on its way to the server and from
    it."""
    outputs = max(TIMES_THE_LIMIT * (record.requested_max_tokens or 0), received_bytes)
    inputs = sent_bytes + TEMPLATE_TOKENS
    claims = [*_of_output(record, outputs), *_of_input(record, inputs), *_of_times(record)]
    claims += [*_of_preemptions(record, inputs + outputs), *_of_drafts(record, outputs)]
    if not claims:
        return
    text = f"the server claims {', '.join(claims)}"
    if record.outcome is Outcome.OK:
        record.outcome, record.error = Outcome.UNDECODABLE, text
    else:
        record.error = f"{record.error}; {text}" if record.error else text


def _of_output(record: RequestRecord, most: int) -> list[str]:
    found = []
    if (record.output_tokens or 0) > most:
        chunks = len(record.chunk_ns)
        found.append(f"{short_count(record.output_tokens)} output tokens where {chunks} chunks came")
        record.output_tokens, record.token_source = None, TokenSource.NONE
        record.chunk_tokens, record.attribution, record.unshown_tokens = (), "none", 0
    if (record.reasoning_tokens or 0) > most:
        found.append(f"{short_count(record.reasoning_tokens)} tokens of reasoning")
        record.reasoning_tokens, record.reasoning_token_source = None, TokenSource.NONE
    return found


def _of_input(record: RequestRecord, most: int) -> list[str]:
    found = []
    for name, word in (("input_tokens", "input"), ("cached_tokens", "cached")):
        value = getattr(record, name)
        if value is not None and value > most:
            found.append(
                f"{short_count(value)} {word} tokens of a request of {record.requested_input_tokens}"
            )
            setattr(record, name, None)
    return found


def _of_times(record: RequestRecord) -> list[str]:
    begun, ended = record.dispatched_ns, record.finished_ns
    if begun is None or ended is None:
        return []
    found, lasted_ns = [], ended - begun
    for name, word in _TIMES:
        value = getattr(record, name)
        if value is not None and value > lasted_ns + CLOCKS_NS:
            found.append(f"{word} of {value / 1e9:.3g} s in a request of {lasted_ns / 1e9:.3g} s")
            setattr(record, name, None)
    return found


def _of_preemptions(record: RequestRecord, tokens: int) -> list[str]:
    found = []
    if (record.preemptions or 0) > MOST_PREEMPTIONS:
        found.append(f"{short_count(record.preemptions)} preemptions")
        record.preemptions = None
    if (record.critical_evictions or 0) > MOST_PREEMPTIONS:
        found.append(f"{short_count(record.critical_evictions)} critical evictions")
        record.critical_evictions = None
    if (record.preempted_tokens or 0) > MOST_PREEMPTIONS * tokens:
        found.append(f"{short_count(record.preempted_tokens)} tokens lost to preemption")
        record.preempted_tokens = None
    return found


def _of_drafts(record: RequestRecord, outputs: int) -> list[str]:
    """A step gives at least a token, so there are no more drafts than tokens."""
    drafted, accepted = record.draft_tokens, record.accepted_draft_tokens
    if (drafted or 0) <= MOST_DRAFTED * outputs and (drafted is None or (accepted or 0) <= drafted):
        return []
    record.draft_tokens = record.accepted_draft_tokens = None
    return [f"{short_count(accepted)} accepted of {short_count(drafted)} guessed tokens"]


def short_count(value: int | None) -> str:
    """A count as text; of a very long one its magnitude."""
    digits = str(value)
    return digits if len(digits) <= 15 else f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"
