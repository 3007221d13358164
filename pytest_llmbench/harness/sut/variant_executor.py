"""Sends each plan to the SUT variant that it names; a variant is brought up when it is first needed.

Several variants may share one server: the SUT itself, those that only ask it differently, and those that a
control call switches it to. The others have a server of their own.

A load may have an event: a command that happens to the system meanwhile, a restart, a scale-out, a fail-over.
"""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pytest_llmbench.errors import GeneratorError, SuiteError, SUTError, shown
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened, never_ends
from pytest_llmbench.model.facts import Facts, LoadFact, Origin
from pytest_llmbench.model.numbers import quantity, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Outcome

_AFTER_LOAD_S = 60.0
_MOST_TOLD = 500
_WATCH_S = 0.2


@dataclass
class Event:
    """What became of it."""

    begun_ns: int | None = None
    process: subprocess.Popen[bytes] | None = None


@contextmanager
def event_command(plan: LoadPlan, now_ns: Callable[[], int]) -> Generator[Event, None, None]:
    """Run the command of the plan by the shell so long after the load was begun, and wait for its end.

    Raises SuiteError where the load ended first, SUTError where the command failed, or did not end within a
    minute after the load.
    """
    event, over = Event(), threading.Event()
    with tempfile.TemporaryFile() as output:

        def act() -> None:
            if over.wait(plan.event_at_s):
                return
            event.begun_ns = now_ns()
            event.process = subprocess.Popen(
                ["/bin/sh", "-c", plan.event],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        thread = threading.Thread(target=act, name="llmbench-event", daemon=True)
        thread.start()
        status = None
        try:
            yield event
        finally:
            over.set()
            thread.join()
            if event.process is not None:
                try:
                    status = event.process.wait(timeout=_AFTER_LOAD_S)
                except subprocess.TimeoutExpired:
                    os.killpg(event.process.pid, signal.SIGKILL)
                    event.process.wait()
        output.seek(0)
        said = output.read()[-_MOST_TOLD:].decode(errors="replace").strip()
    where = f"event {shown(plan.event)}"
    if event.begun_ns is None:
        raise SuiteError(
            f"the load ended before second {trimmed(plan.event_at_s)}, so nothing happened in it",
            where=where,
            remedy="lower event_at_s, or make the load longer",
        )
    if status is None:
        patience = quantity(_AFTER_LOAD_S, "s")
        raise SUTError(f"the command did not end within {patience} after the load", where=where)
    if status:
        raise SUTError(f"the command ended with status {status}: {said or 'it said nothing'}", where=where)


class VariantExecutor:
    """An executor over all variants of one SUT, which is up from the start."""

    def __init__(self, base: Endpoint) -> None:
        """Bring up the SUT itself. SuiteError or SUTError: it cannot be."""
        self._servers = {"": base}
        self._up: dict[str, Opened] = {}
        self._switched_to = ""
        self._restarts: Counter[str] = Counter()
        self._brought_up(base)

    @property
    def servers(self) -> Mapping[str, Endpoint]:
        return self._servers

    def add(self, variant: Endpoint) -> None:
        """Add a variant; nothing is opened."""
        self._servers[variant.name] = variant

    @property
    def base(self) -> Opened:
        """The SUT itself, brought up."""
        return self._brought_up(self._servers[""])

    def endpoint(self, name: str, where: str | None = None) -> Endpoint:
        """The variant ``name``, or the SUT itself, which has none. SuiteError, naming the declared ones, if
        nobody declared it. ``where``: the option that names a variant."""
        if name in self._servers and (name or where is None):
            return self._servers[name]
        known = [known for known in self._servers if known]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise SuiteError(
            f"the SUT has no variant {name!r}; it has {', '.join(known) or 'none'}",
            where=where,
            remedy=f"{hint}declare [variants.{name}] in the SUT file, or in pytest_llmbench_variants",
        )

    def state(self, name: str) -> str:
        """A key that changes when the server behind a variant is restarted or emptied: an earlier warm-up is
        then lost."""
        server = self.endpoint(name).server
        self._bury(server)
        return f"{server}#{self._restarts[server]}"

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        """Execute the plan on its variant, whose facts are then among those of the Observation.

        Raises SuiteError for a variant that nobody declared, SUTError for one that does not come up.
        """
        served = self.endpoint(plan.variant)
        if plan.fresh_state:
            self._freshen(served)
        up = self._brought_up(served)
        self._switch(served)
        with _watched(up, plan):
            if plan.event and not served.virtual:
                with event_command(plan, served.now_ns) as event:
                    seen = up.executor.run(plan, on_record)
                assert event.begun_ns is not None
                begun = {LoadFact.EVENT_AT_S: (event.begun_ns - seen.started_ns) / 1e9}
                seen = replace(seen, facts=seen.facts | Facts.of(Origin.MEASURED, begun))
            else:
                seen = up.executor.run(plan, on_record)
        ended = _ended(up, seen)
        if ended is not None:
            reason = f"{ended} while load was running"
            if plan.stop_when_failing:
                seen = replace(seen, stopped=seen.stopped or reason)
            else:
                seen = replace(seen, interrupted=seen.interrupted or reason)
        return replace(seen, facts=seen.facts | served.told(up)) if served.name else seen

    def close(self) -> None:
        """Switch the server back and end everything; the first failure is raised after all was tried."""
        failures: list[Exception] = []
        try:
            if self._switched_to and self._servers[self._switched_to].leave is not None:
                self._switch(self._servers[""])
        except Exception as error:  # noqa: BLE001  # everything has to be closed all the same
            failures.append(error)
        while self._up:
            try:
                self._take_down(next(reversed(self._up)))
            except Exception as error:  # noqa: BLE001  # the others have to be closed all the same
                failures.append(error)
        if failures:
            raise GeneratorError(f"closing failed: {failures[0]}") from failures[0]

    def _brought_up(self, served: Endpoint) -> Opened:
        if served.enter is not None:  # it is the SUT itself, once that was switched over
            return self.base
        self._bury(served.name)
        up = self._up.get(served.name)
        if up is None:
            if served.exclusive:
                for other in list(self._up):
                    if self._servers[other].exclusive:
                        self._take_down(other)
            up = self._up[served.name] = served.open()
        return up

    def _bury(self, name: str) -> None:
        """Take down a variant whose process has ended. That was reported at the time; it is started anew when
        needed."""
        up = self._up.get(name)
        if up is not None and up.ended() is not None:
            self._take_down(name)

    def _take_down(self, name: str) -> None:
        """End a variant, and with a server also every variant that uses it."""
        own_server = self._servers[name].server == name
        for other in list(self._up) if own_server else ():
            if other != name and self._servers[other].server == name:
                self._take_down(other)
        up = self._up.pop(name)
        if own_server:
            self._restarts[name] += 1
            self._switched_to = self._switched_to if name else ""
        try:
            up.executor.close()
        finally:
            up.close()

    def _freshen(self, served: Endpoint) -> None:
        if served.restarts:
            if served.server in self._up:
                self._take_down(served.server)
            return
        if served.reset is None:
            name = f"variant {served.name}" if served.name else "the SUT"
            raise SuiteError(
                f"{name} cannot be put into a fresh state",
                remedy="declare the call that empties its caches (endpoint.reset, variants.NAME.reset)",
            )
        self._brought_up(served)
        self._switch(served)
        served.reset()
        self._restarts[served.server] += 1

    def _switch(self, served: Endpoint) -> None:
        """Bring the shared server into the state of ``served``."""
        wanted = served.name if served.enter is not None else ""
        if served.server or self._switched_to == wanted:
            return
        before = self._servers[self._switched_to]
        if before.leave is not None:
            before.leave()
            self._switched_to = ""
        elif self._switched_to and served.enter is None:
            raise SUTError(
                f"the server was switched to variant {before.name}, and nothing says how to switch it back",
                where=f"variant {before.name}",
                remedy="add restore = { path = … } to its table",
            )
        if served.enter is not None:
            served.enter()
            self._switched_to = served.name


@contextmanager
def _watched(up: Opened, plan: LoadPlan) -> Generator[None, None, None]:
    """End the load soon after the process behind it has ended, unless its end is what the plan waits for."""
    stop: Callable[[str], None] | None = getattr(up.executor, "stop", None)
    if up.ended is never_ends or stop is None or plan.stop_when_failing:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_WATCH_S):
            ended = up.ended()
            if ended is not None:
                stop(f"{ended} while load was running")
                return

    thread = threading.Thread(target=watch, name="llmbench-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ended(up: Opened, seen: Observation) -> str | None:
    """How the process behind the variant ended, in words; None if it runs. Its sockets close a moment before
    its parent sees that it is gone."""
    if up.ended is never_ends:
        return None
    patience = 20 if seen.records.has_outcome(Outcome.DISCONNECTED).any() else 0
    while (ended := up.ended()) is None and patience > 0:
        time.sleep(0.02)
        patience -= 1
    return ended
