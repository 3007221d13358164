"""The interface to one request on a protocol of the engine other than HTTP (a face), and the faults that it
can suffer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from pytest_llmbench.simulator.engine.faults import REFUSALS, FaultKind
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import Reply

FACE_FAULTS: frozenset[FaultKind] = REFUSALS | {"in_band_error", "reset", "half_close", "truncate", "crash"}
"""Faults that can be injected without the bytes of server-sent events."""

_FAULT = "the engine encountered an issue (a fault of the scenario)"


class Face(Protocol):
    """One request on a protocol: it makes the reply, and knows when the reply is over."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        """The reply that the tokens go to. ``chunk_tokens``: number of tokens of each chunk."""

    async def until_over(self) -> None:
        """Wait until the reply is complete or the client has gone."""

    def end(self) -> None:
        """End the reply in an orderly way, but without its last words."""

    def reset(self) -> None:
        """End the connection at once."""


def strike_on(
    kind: FaultKind, face: Face, reply: Reply, crash: Callable[[], None]
) -> Callable[[], Awaitable[bool]]:
    """The function that carries out ``kind``, one of :data:`FACE_FAULTS` that is not a refusal; all end the
    reply."""

    async def strike() -> bool:
        if kind == "in_band_error":
            await reply.fail(_FAULT)
        elif kind == "crash":
            crash()
        else:
            (face.end if kind == "truncate" else face.reset)()
        return True

    return strike
