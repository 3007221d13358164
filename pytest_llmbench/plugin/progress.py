"""What is shown while a test measures: a live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_llmbench.redaction import outward, terminal_text

if TYPE_CHECKING:
    from pytest_llmbench.model.plan import LoadPlan

_ERASE_LINE = "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class Output:
    """The output that pytest writes to, through a descriptor of our own: during a test its standard output is
    a file."""

    descriptor: int
    is_live: bool
    """Whether a line can be overwritten: it is a terminal that somebody looks at, not a log or a CI
    system."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the reader is gone: nobody to tell
            os.write(self.descriptor, text.encode("utf-8", "replace"))

    @property
    def columns(self) -> int:
        try:
            return os.get_terminal_size(self.descriptor).columns or 80
        except OSError:
            return 80


def own_output(*, of_worker: bool = False) -> Output | None:
    """The output of pytest, to be taken while it does not capture. None where there is no descriptor.

    The standard output of a worker of pytest-xdist leads nowhere; its standard error is that of the
    controller.
    """
    stream = sys.stderr if of_worker else sys.stdout
    try:
        descriptor, is_terminal = os.dup(stream.fileno()), stream.isatty()
    except (AttributeError, OSError, ValueError):
        return None
    return Output(descriptor, is_terminal and not os.environ.get("CI"))


def announce(output: Output, line_below: str, text: str) -> None:
    """Write a line that stays, and again what pytest had written on its own line."""
    begin = "\n" if line_below else ""
    output.write(f"{begin}llmbench: {terminal_text(outward(text))}\n{line_below}")


# Neither of the two ways to show progress waits or reads a clock. ``draw`` shows the latest state; ``plan``
# is None, and ``progress`` in words or None, while nothing has been sent. ``end`` leaves the output as it was
# found.


class LiveLine:
    """A line on a terminal, overwritten in place; at the end, what was there before is restored."""

    interval_s = 0.25

    def __init__(self, output: Output, test: str, line_below: str) -> None:
        """``test``: the number of the test among all; ``line_below``: what pytest has written on its line so
        far."""
        self._output, self._test, self._line_below = output, test, line_below
        self._shown = False

    def draw(self, plan: LoadPlan | None, progress: Any) -> None:
        if progress is None:
            return
        self._shown = True
        text = f"  {self._test}, {progress_text(plan, progress)}"
        # A line that wraps cannot be erased.
        self._output.write(_ERASE_LINE + text[: self._output.columns - 1])

    def end(self) -> None:
        if self._shown:
            self._output.write(_ERASE_LINE + self._line_below)


class Heartbeat:
    """A line in a log every half a minute, which shows that the session is alive and how far it has got."""

    interval_s = 30.0

    def __init__(self, output: Output, test: str, line_below: str, *, of_worker: bool = False) -> None:
        """``of_worker``: of pytest-xdist, on the terminal or in the log of its controller. What is written
        there already is not known; workers that wait for their turn are silent. The other arguments are those
        of :class:`LiveLine`."""
        self._output, self._test, self._line_below, self._of_worker = output, test, line_below, of_worker
        self._beats = self._drawn = 0

    def draw(self, plan: LoadPlan | None, progress: Any) -> None:
        self._beats += 1
        if self._of_worker and progress is None:
            return
        from pytest_llmbench.model.numbers import rough_duration  # who measures nothing needs no words

        begin = "\n" if (self._line_below or self._of_worker) and not self._drawn else ""
        self._drawn += 1
        now = progress_text(plan, progress) if progress is not None else "nothing is sent yet"
        lasted = rough_duration(self._beats * self.interval_s)
        self._output.write(f"{begin}llmbench: {self._test}, for {lasted}: {terminal_text(now)}\n")

    def end(self) -> None:
        if self._drawn:
            self._output.write(self._line_below)


def display_for(
    output: Output | None,
    verbosity: int,
    nodeid: str,
    place: tuple[int, int],
    line_below: str,
    worker: str | None = None,
) -> LiveLine | Heartbeat | None:
    """The display for the progress of a test: a live line on a terminal, else a heartbeat, but none of those
    with ``-q``.

    ``place``: the number of the test, from 1, and how many there are. ``worker``: of pytest-xdist, which has
    a heartbeat everywhere.
    """
    if output is None:
        return None
    number = f"test {place[0]} of {place[1]}"
    if worker is not None:
        told = outward(f"{worker}, {number} ({nodeid})")
        return Heartbeat(output, told, "", of_worker=True) if verbosity >= 0 else None
    if output.is_live:
        return LiveLine(output, number, line_below)
    return Heartbeat(output, outward(f"{number} ({nodeid})"), line_below) if verbosity >= 0 else None


class ProgressReporter:
    """Takes the latest progress from the generator and shows it from a thread of its own.

    An output can block (Ctrl-S, a slow link), and the measuring loop must never wait for one.
    """

    def __init__(self, display: LiveLine | Heartbeat, wait: Callable[[float], bool] | None = None) -> None:
        """``wait`` waits so many seconds and returns whether the progress is to end."""
        self._display = display
        self._latest: tuple[LoadPlan | None, Any] = (None, None)
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._thread = threading.Thread(target=self._show, name="llmbench-progress", daemon=True)
        self._thread.start()

    def __call__(self, plan: LoadPlan | None, progress: Any) -> None:
        self._latest = (plan, progress)

    def _show(self) -> None:
        while not self._wait(self._display.interval_s):
            self._display.draw(*self._latest)

    def end(self) -> None:
        """End the display. Returns soon, even if the output is blocked."""
        self._ended.set()
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._display.end()


def progress_text(plan: LoadPlan | None, progress: Any) -> str:
    """The progress in words: ``measure: 116 of 1000 done, 2 failed, 4 in flight, 19.3 req/s, 6 s, about 46 s
    left``.

    The rate is that of replies, failed ones included, since the load began.
    """
    from pytest_llmbench.model.numbers import quantity, rough_duration

    label = f"{plan.title}: " if plan is not None else ""
    if isinstance(progress, str):
        return f"{label}{progress}"
    done, elapsed_s = progress.ok + progress.failed, progress.elapsed_s
    told = (
        f"{label}{done} of {progress.planned} done, {progress.failed} failed, {progress.in_flight} in flight"
    )
    if elapsed_s > 0:
        told += f", {quantity(done / elapsed_s, 'req/s')}, {rough_duration(elapsed_s)}"
    # A timed load does not end before its time. How many are to come in one that is closed nobody knows.
    timed_s = 0.0 if plan is None or plan.duration_s is None else plan.duration_s - elapsed_s
    by_count_s = 0.0
    if done and elapsed_s > 0 and progress.submitted != progress.planned:
        by_count_s = (progress.planned - done) * elapsed_s / done
    left_s = max(by_count_s, timed_s)
    if left_s <= 0:
        return told
    # A load that ends when its limits are decided may end at every look.
    how = "about" if plan is None or plan.looks is None else "at most"
    return f"{told}, {how} {rough_duration(left_s)} left"
