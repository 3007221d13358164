"""The handover of prompts from prefill engines to decode engines (disaggregated serving). Pure: no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.router import RouterOptions
from pytest_llmbench.simulator.engine.sequence import EngineSequence


class Worker(Protocol):
    """An engine as this module sees it, whatever drives it."""

    @property
    def engine(self) -> Engine: ...


W = TypeVar("W", bound=Worker)


@dataclass(slots=True, eq=False)
class Handover(Generic[W]):
    """The handover of one prompt. Instants are those of whoever drives the engines."""

    prompt: EngineSequence
    decode: EngineSequence
    source: W
    target: W
    begun_ns: int = 0
    """Instant at which the transfer begins, once the target has blocks for it."""
    ends_ns: int = 0
    """Instant at which the transfer is due to end."""


class Handovers(Generic[W]):
    """All handovers of a scenario. A prompt waits for blocks of its target, then for the transfer into
    them.

    The source holds the blocks of a prompt until its transfer has ended, also if nobody waits for it any
    more; a prompt whose request is gone before its transfer has begun is not sent.
    """

    def __init__(self, options: RouterOptions) -> None:
        self._options = options
        self._waiting: dict[EngineSequence, Handover[W]] = {}
        """Handovers whose target has no blocks for them yet, by the sequence that decodes."""

    def pass_on(self, prompt: EngineSequence, decode: EngineSequence, source: W, target: W) -> None:
        """Note that a prompt has been computed, and make ``target`` expect the sequence that it is to
        decode."""
        target.engine.expect(decode)
        self._waiting[decode] = Handover(prompt, decode, source, target)

    def begin(self, target: W, now_ns: int) -> list[Handover[W]]:
        """Begin the transfers for which ``target`` now has blocks; returns them."""
        begun = [self._waiting.pop(decode) for decode in target.engine.reserve()]
        for handover in begun:
            took_ns = self._options.transfer_ns(target.engine.config, handover.decode.received_blocks)
            handover.begun_ns, handover.ends_ns = now_ns, now_ns + took_ns
        return begun

    def end(self, handover: Handover[W], now_ns: int) -> bool:
        """Note that a transfer has ended. Returns False if the request has gone meanwhile."""
        handover.source.engine.release(handover.prompt)
        return handover.target.engine.receive(handover.decode, now_ns - handover.begun_ns)

    def drop_gone(self) -> None:
        """Free the blocks of prompts that will not be sent, because their target no longer expects them."""
        for decode, handover in list(self._waiting.items()):
            if not handover.target.engine.expects(decode):
                del self._waiting[decode]
                handover.source.engine.release(handover.prompt)
