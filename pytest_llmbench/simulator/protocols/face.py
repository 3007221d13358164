"""One request on a face of the engine other than HTTP, and the faults that such a face can suffer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from pytest_llmbench.simulator.engine.faults import REFUSALS, FaultKind
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import Reply

FACE_FAULTS: frozenset[FaultKind] = REFUSALS | {"in_band_error", "reset", "half_close", "truncate", "crash"}
"""The faults that mean something without the bytes of server-sent events."""

_FAULT = "the engine encountered an issue (a fault of the scenario)"


class Face(Protocol):
    """One request on its way: it makes the reply, and knows when the reply is over."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        """What takes the tokens. ``chunk_tokens`` are the tokens of each chunk."""

    async def until_over(self) -> None:
        """Return when the reply is complete or the client has gone."""

    def end(self) -> None:
        """End the reply in good order, but without its last words."""

    def reset(self) -> None:
        """End the connection at once."""


def strike_on(
    kind: FaultKind, face: Face, reply: Reply, crash: Callable[[], None]
) -> Callable[[], Awaitable[bool]]:
    """How ``kind``, one of :data:`FACE_FAULTS` that is not a refusal, is carried out; all end the reply."""

    async def strike() -> bool:
        if kind == "in_band_error":
            await reply.fail(_FAULT)
        elif kind == "crash":
            crash()
        else:
            (face.end if kind == "truncate" else face.reset)()
        return True

    return strike
