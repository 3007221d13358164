"""Prompts on their way from the engines that have computed them to those that decode. Pure: no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.router import RouterOptions
from pytest_llmbench.simulator.engine.sequence import EngineSequence


class Worker(Protocol):
    """Whatever drives an engine."""

    @property
    def engine(self) -> Engine: ...


W = TypeVar("W", bound=Worker)


@dataclass(slots=True, eq=False)
class Handover(Generic[W]):
    """One of them. Instants are of whoever drives the engines."""

    prompt: EngineSequence
    decode: EngineSequence
    source: W
    target: W
    begun_ns: int = 0
    """The transfer begins: the target has blocks for it."""
    ends_ns: int = 0
    """The transfer is due to end."""


class Handovers(Generic[W]):
    """All of a scenario. A prompt waits for blocks of its target, then for the transfer into them.

    The source holds the blocks of a prompt until its transfer has ended, also if nobody waits for it any
    more; a prompt whose request is gone before its transfer has begun is not sent.
    """

    def __init__(self, options: RouterOptions) -> None:
        self._options = options
        self._waiting: dict[EngineSequence, Handover[W]] = {}
        """Those whose target has no blocks for them yet, by the sequence that decodes."""

    def pass_on(self, prompt: EngineSequence, decode: EngineSequence, source: W, target: W) -> None:
        """A prompt has been computed: let ``target`` expect what it is to decode."""
        target.engine.expect(decode)
        self._waiting[decode] = Handover(prompt, decode, source, target)

    def begin(self, target: W, now_ns: int) -> list[Handover[W]]:
        """The transfers that begin now: those for which ``target`` has blocks by now."""
        begun = [self._waiting.pop(decode) for decode in target.engine.reserve()]
        for handover in begun:
            took_ns = self._options.transfer_ns(target.engine.config, handover.decode.received_blocks)
            handover.begun_ns, handover.ends_ns = now_ns, now_ns + took_ns
        return begun

    def end(self, handover: Handover[W], now_ns: int) -> bool:
        """A transfer has ended. False: the request is gone meanwhile."""
        handover.source.engine.release(handover.prompt)
        return handover.target.engine.receive(handover.decode, now_ns - handover.begun_ns)

    def drop_gone(self) -> None:
        """Free the blocks of prompts that will not be sent, since their target expects them no more."""
        for decode, handover in list(self._waiting.items()):
            if not handover.target.engine.expects(decode):
                del self._waiting[decode]
                handover.source.engine.release(handover.prompt)
