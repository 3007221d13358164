"""A request as planned, before anything has been sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_llmbench.model.session import Turn
from pytest_llmbench.model.structured import StructuredOutput

if TYPE_CHECKING:  # few loads have messages
    from pytest_llmbench.model.messages import MessageArray


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a workload: what is to be asked, and for how many tokens.

    ``token_ids`` are ids of the workload's tokenizer (cl100k_base for the synthetic ones), ``text`` the
    prompt as text; a workload gives at least one of the two, and ``text`` may be decoded from the ids later.
    """

    index: int
    """Position in the workload's sequence, from 0."""
    max_tokens: int
    """Ceiling of the output (``max_tokens``); the realised length is the server's business."""
    input_tokens: int
    """Length asked for, in tokens of the workload's tokenizer."""
    token_ids: Sequence[int] | None = None
    text: str | None = None
    temperature: float = 0.0
    class_label: str = ""
    prefix_id: int | None = None
    """The workload's shared prefix that the prompt begins with; None without one."""
    shared_prefix_tokens: int = 0
    """Length of that prefix, in tokens of the workload's tokenizer."""
    turn: Turn | None = None
    """Its place in a session; None: it belongs to none."""
    structured: StructuredOutput | None = None
    """The form that its reply is to have; None: words. Its tools are the beginning of the prompt."""
    messages: MessageArray | None = None
    """The prompt as messages with roles, which stand before ``text``; ``token_ids`` are those of its texts,
    one after the other. None: the prompt is one text."""
    cut_after_ns: int | None = None
    """The time from its submission after which its user cuts it, if the reply is not complete by then. None:
    the user waits."""

    @property
    def reads_answers(self) -> bool:
        """Whether its prompt holds live answers: what an earlier prompt shares with it is then not known."""
        return self.turn is not None and bool(self.turn.reads)


@runtime_checkable
class Workload(Protocol):
    """A seeded stream of requests (METHODOLOGY §4). Pure: the same seed gives the same sequence.

    A shorter sequence is a prefix of a longer one with the same seed.
    """

    @property
    def name(self) -> str:
        """The name of the workload, as reports show it."""

    @property
    def standard(self) -> bool:
        """True only for the reference workloads, generated exactly as the draft says."""

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        """The first ``count`` requests of the sequence of ``seed``."""

    def specification(self) -> Mapping[str, Any]:
        """All that METHODOLOGY §4.1 asks to be stated, as JSON values.

        Keys: ``input_length`` and ``output_length`` (``type``, ``params``, ``unit``, ``tokenizer``, the
        second also ``control``), ``content`` (``domain``, ``language``, ``system_prompt``: ``present``,
        ``typical_tokens``), ``prefix_sharing`` (``fraction``, ``length``), ``temperature``, ``stop``.
        """
