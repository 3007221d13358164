"""An endpoint: where the SUT, or a variant of it, is brought up.

Each way has a class of its own: an address, a launched server, the embedded engine served or in virtual time,
a callable in this process, and what shares the server of the SUT itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_llmbench.harness.execution import Executor
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.sentences import Note

if TYPE_CHECKING:
    from pytest_llmbench.harness.sut.launched import LaunchedServer

OnProgress = Callable[[Any], None]
"""Called with the progress of a load, or of the start of a server: a
:class:`~pytest_llmbench.generator.loop_thread.Progress`, or words."""


def nothing() -> None:
    return


def never_ends() -> str | None:
    return None


@dataclass(frozen=True)
class SampledMachine:
    """What is sampled of the machine of a system during its loads."""

    urls: tuple[str, ...] = ()
    """Prometheus pages about it."""
    command: tuple[str, ...] = ()
    """A command that writes a JSON object a line; empty: none."""
    this_host: bool = False
    """Whether the devices of this host are its own."""
    pid: int | None = None
    """The process of the system, which was launched here; None: nobody knows."""
    interval_s: float = 0.5
    price_per_hour: float | None = None
    currency: str = ""


@dataclass(frozen=True)
class Opened:
    """An endpoint that was brought up: it can be loaded now."""

    executor: Executor
    base_url: str = ""
    model: str = ""
    api: str = ""
    facts: Facts = field(default_factory=Facts)
    """Facts that were found out; none of them is declared."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Extra fields without which it refuses requests, and which all of its requests have."""
    notes: tuple[Note, ...] = ()
    """Notes that go with every result."""
    close: Callable[[], None] = nothing
    """Ends what was started for it; the executor itself is closed separately."""
    ended: Callable[[], str | None] = never_ends
    """How its process ended, in words; None while it runs."""
    launched: LaunchedServer | None = None
    """The server of a ``with launched_server(…)`` block that answered; None where it is none of ours."""


@dataclass
class Endpoint:
    """Where the SUT, which has no name, or a variant of it is brought up. Making one opens nothing."""

    name: str = ""
    facts: Facts = field(default_factory=Facts)
    """Facts that the variant declares; they override those of the SUT."""
    server: str = ""
    """Name of the variant whose server it uses; empty for the server of the SUT itself."""
    restarts: bool = False
    """Whether closing and reopening it gives a fresh state."""
    exclusive: bool = False
    """Whether no other exclusive one may be up at the same time, since they want the same accelerators."""
    reset: Callable[[], None] | None = None
    """A call that gives a fresh state; None where there is none."""
    enter: Callable[[], None] | None = None
    """Switches the server of the SUT to this variant, which is then asked as the SUT itself."""
    leave: Callable[[], None] | None = None
    """Switches it back."""

    virtual: ClassVar[bool] = False
    """Whether it runs in virtual time."""

    @property
    def can_be_fresh(self) -> bool:
        return self.restarts or self.reset is not None

    def open(self) -> Opened:
        """Bring it up. Raises SuiteError or SUTError, once, with what is wrong."""
        raise NotImplementedError(type(self).__name__)

    def told(self, opened: Opened) -> Facts:  # noqa: ARG002 - an address looks at what answered
        """The facts that its Observations carry, over those of the SUT."""
        return self.facts

    def now_ns(self) -> int:
        """The clock that the stamps of records are read from."""
        return time.monotonic_ns()

    def anchor(self) -> ClockAnchor:
        """One instant on that clock and on the wall clock."""
        from pytest_llmbench.timing import MonotonicClock, anchor  # a replay has a clock of its own

        return anchor(MonotonicClock())


def launched_at(url: str) -> LaunchedServer | None:
    """The server of a ``with launched_server(…)`` block that answers at ``url``; None if there is none."""
    launching = sys.modules.get("pytest_llmbench.harness.sut.launched")  # who launches it has imported that
    return None if launching is None else launching.launched_at(url)
