"""One request on its way through the virtual engine."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import MISSING, IntColumn
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.faults import FaultKind
from pytest_llmbench.simulator.sequence import EngineSequence


@dataclass(slots=True, eq=False)
class Flight:
    """A request from its submission to its end. Instants are of the virtual clock."""

    planned: PlannedRequest
    submitted_ns: int
    """Also its scheduled and its dispatched instant: nobody is late in virtual time."""
    received_ns: int
    """The engine has read it."""
    accepted_ns: int = MISSING
    """The engine sends the headers of the response."""
    admitted_ns: int = MISSING
    """The step begins that takes it into the batch for the first time."""
    sequence: EngineSequence | None = None
    """What the engine made of it; ``None`` if it was turned away."""
    read_ns: IntColumn | None = None
    """When the client reads each token, where that is not just after the step that made it."""
    reply_number: int = 0
    """Among the replies of this engine."""
    fate: FaultKind | None = None
    """What goes wrong with it."""
    outcome: Outcome = Outcome.CANCELLED
    http_status: int = MISSING
    """200 as soon as the request is accepted."""
    error: str | None = None
    finish_reason: str | None = None
    finished_ns: int = MISSING
    """The client has read the end of the response, or has given up."""

    @property
    def ended(self) -> bool:
        return self.finished_ns != MISSING

    def end(
        self, outcome: Outcome, at_ns: int, *, error: str | None = None, finish_reason: str | None = None
    ) -> None:
        self.outcome, self.finished_ns, self.error, self.finish_reason = outcome, at_ns, error, finish_reason

    def spans(self, first_step: int) -> list[tuple[int, int]]:
        """First and last step of each row of its tokens, counted from ``first_step``.

        Rows are complete once the engine has nothing more to do with the sequence.
        """
        if self.sequence is None:
            return []
        return [(run.start - first_step, run.stop - 1 - first_step) for run in self.sequence.spans]


__all__ = ["Flight"]
