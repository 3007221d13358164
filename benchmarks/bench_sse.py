"""Speed of reading replies: our decode path against a plain ``json.loads`` loop over ``splitlines``.

Run ``python benchmarks/bench_sse.py``. Both sides take turns on the same bytes in one process, so that
the ratio holds on a busy machine; read the ratios, not the absolutes. The plain loop does less: it has no
stamps, no rules of the event-stream format, and no care for a line that a read cut in two.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.reply import read_stream
from pytest_llmbench.wire.stream import chunks_of, events_of

CHUNKS = 256
REPLIES = 60
TURNS = 7

Reads = Sequence[tuple[bytes, int]]


def event(at: int, running_usage: bool) -> bytes:
    choice = {"index": 0, "delta": {"content": f" word{at}"}, "logprobs": None, "finish_reason": None}
    payload = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1763700000}
    payload |= {"model": "small", "choices": [choice]}
    if running_usage:
        payload["usage"] = {"prompt_tokens": 300, "completion_tokens": at + 1, "total_tokens": 301 + at}
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def reply(running_usage: bool = False) -> list[bytes]:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 300, "completion_tokens": CHUNKS}}
    closing = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in (end, usage)]
    return [event(at, running_usage) for at in range(CHUNKS)] + closing + [b"data: [DONE]\n\n"]


def apart(events: Sequence[bytes]) -> Reads:
    """Each event in a read of its own, as a slow model sends them."""
    return [(each, 1000 * at) for at, each in enumerate(events)]


def together(events: Sequence[bytes], size: int = 65536) -> Reads:
    """Full buffers, as a flood of tokens arrives."""
    body = b"".join(events)
    return [(body[at : at + size], at) for at in range(0, len(body), size)]


def plain_loop(reads: Reads) -> int:
    read = 0
    for line in b"".join(data for data, _ in reads).decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            json.loads(line[6:])
            read += 1
    return read


def summary(reads: Reads) -> int:
    return len(read_stream(list(chunks_of(reads, dialect("openai-chat")))).chunk_ns)


def chunks(reads: Reads) -> int:
    return sum(1 for _ in chunks_of(reads, dialect("openai-chat")))


def events_only(reads: Reads) -> int:
    return sum(1 for _ in events_of(reads))


def seconds(side: Callable[[Reads], int], reads: Reads) -> float:
    start = time.perf_counter()
    for _ in range(REPLIES):
        side(reads)
    return time.perf_counter() - start


def compare(label: str, reads: Reads) -> None:
    sides = {
        "events": events_only,
        "events + chunks": chunks,
        "whole summary": summary,
        "plain loop": plain_loop,
    }
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, side in sides.items():
            taken[name].append(seconds(side, reads))
    count = (CHUNKS + 3) * REPLIES
    print(f"\n{label}: {CHUNKS} content events a reply, {len(reads)} reads")
    for name, times in taken.items():
        ratios = [base / own for base, own in zip(taken["plain loop"], times, strict=True)]
        rate = count / statistics.median(times)
        print(f"  {name:16} {rate:12,.0f} events/s   {statistics.median(ratios):5.2f} x plain loop")


def main() -> None:
    compare("one event per read", apart(reply()))
    compare("full buffers", together(reply()))
    compare("usage on every event, one per read", apart(reply(running_usage=True)))


if __name__ == "__main__":
    main()
