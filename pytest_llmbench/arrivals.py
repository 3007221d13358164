"""Arrivals: when the requests of an open loop are sent, and which turns of sessions are due.

The schedule is one array of offsets, drawn in one place before the run. Everyone who sends takes its instants
from this array; nobody draws again (several generators that each draw a Poisson stream from one seed are not
Poisson together). The first request comes one gap after the start, and the array is never rescaled to end at
count/rate: both would change the law of the process. Only a load of stages with an end has so many requests
within it, where it is the law given their number.

The arrivals of a load whose rate changes are those of a process of rate 1, on the time that the shape has. A
process of rate 1 that is read on the clock Λ(t), the requests due until t on average, has the rate Λ'(t)
(Çınlar 1975, *Introduction to Stochastic Processes*, 4.7): of a Poisson process that is exactly the Poisson
process of this rate. Λ is made of lines and parabolas, so its inverse is exact too.

Which turns of sessions are due is one rule, by which load generator and replay go. A turn is due when the
last of the turns that it waits for has ended, after its pause; one that waits for none after the start of its
session. A session whose turn did not end well is **cut off**: nothing more of it is sent, since what follows
would rest on an answer that nobody got; what is in flight goes on to its end.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import number, quantity, trimmed
from pytest_llmbench.model.plan import ARRIVALS, LoadPlan, OpenLoop, requests_of
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.registry import named, names


def gamma_gaps_s(rate: float, burstiness: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, gamma with shape k = ``burstiness`` and mean 1/``rate``.

    Coefficient of variation 1/√k: 1 is Poisson, below 1 is burstier (the draft's bursty arrivals), above 1
    is more regular. Exactly the first results of ``random.Random(seed).gammavariate(k, 1 / (k * rate))``.
    """
    draw = random.Random(seed).gammavariate
    scale = 1.0 / (burstiness * rate)
    return np.fromiter((draw(burstiness, scale) for _ in range(count)), dtype=np.float64, count=count)


def poisson_gaps_s(rate: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, exponential with mean 1/``rate`` (section 4.2).

    Exactly the first ``count`` results of ``random.Random(seed).expovariate(rate)``, so that anybody can
    rebuild the schedule with a Python interpreter alone.
    """
    draw = random.Random(seed).expovariate
    return np.fromiter((draw(rate) for _ in range(count)), dtype=np.float64, count=count)


ArrivalProcess = Callable[[float, int, int], "npt.ArrayLike | Iterator[float]"]
"""Rate in requests per second, number of requests and seed → the offset of each arrival from the start in
seconds, never decreasing, those of fewer requests first. An iterator may go on for ever."""
_LONGEST_S = 2**63 / 1e9
MOST_ARRIVALS = 100_000_000
"""The most arrivals of one schedule; its offsets take 800 MB."""


def schedule_ns(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Offsets of ``count`` arrivals from the start of the run, integer nanoseconds, never decreasing.

    ``seed`` is the seed of the schedule itself, see :func:`arrival_seed`. A shorter schedule of the same
    seed is the beginning of a longer one. Read-only. Raises SuiteError for values that define no schedule.
    """
    mistakes = _mistakes(load, count)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="arrival schedule")
    offsets_s = _offsets_s(load, count, seed)
    if count and not offsets_s[-1] < _LONGEST_S:
        raise SuiteError(
            f"{count} requests at {trimmed(load.rate)} req/s would take {quantity(offsets_s[-1], 's')}",
            where="arrival schedule",
            remedy="raise the rate or lower the number of requests",
        )
    offsets_ns = np.rint(offsets_s * 1e9).astype(np.int64)
    offsets_ns.setflags(write=False)
    return offsets_ns


def arrival_seed(workload_seed: int) -> int:
    """The seed of the schedule that goes with a workload seed.

    The first 48 bits of the SHA-256 of ``"arrivals:<workload seed>"``. The generator of the workload
    (appendix A.1.4) must not be drawn from by anything else, and two generators with the same seed would
    repeat each other's numbers, so that gaps and lengths were correlated.
    """
    digest = hashlib.sha256(f"arrivals:{workload_seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def schedule_sha256(offsets_ns: npt.NDArray[np.int64]) -> str:
    """Digest of a schedule: SHA-256 of its offsets as decimal nanoseconds, one to a line."""
    return hashlib.sha256("".join(f"{offset}\n" for offset in offsets_ns.tolist()).encode()).hexdigest()


def _offsets_s(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.float64]:
    if load.arrival == "trace":
        return np.asarray(load.offsets_ns[:count], dtype=np.float64) / 1e9
    if load.arrival == "uniform":
        # Arrival i comes (i + 1)/rate seconds after the start. Computed by division, so nothing adds up.
        return np.arange(1, count + 1, dtype=np.float64) / load.rate
    if load.stages:
        return _stage_offsets_s(load, count, seed)
    if load.arrival == "gamma":
        return np.cumsum(gamma_gaps_s(load.rate, load.burstiness, count, seed))
    if load.arrival != "poisson":
        return _offsets_of_extra(load, count, seed)
    return np.cumsum(poisson_gaps_s(load.rate, count, seed))


def _offsets_of_extra(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.float64]:
    process: ArrivalProcess | None = named("arrivals", load.arrival)
    assert process is not None
    given = process(load.rate, count, seed)
    try:
        offsets_s = np.array(
            [*islice(given, count)] if isinstance(given, Iterator) else given, dtype=np.float64
        )
    except (TypeError, ValueError):
        offsets_s = np.empty(0)
    if offsets_s.shape != (count,) or not (np.diff(offsets_s, prepend=0.0) >= 0).all():
        raise SuiteError(
            f"{load.arrival} gives no {count} offsets that never decrease, none negative",
            where="arrival schedule",
            remedy="correct this arrival process, which is the suite's or an extra's",
        )
    return offsets_s


def _mistakes(load: OpenLoop, count: int) -> list[str]:
    found = []
    if not _is_positive(load.rate):
        found.append(f"rate is {load.rate!r}: give a positive number of requests per second")
    if load.arrival == "trace":
        offsets_ns = load.offsets_ns
        if isinstance(count, int) and len(offsets_ns) < count:
            found.append(f"the trace has {len(offsets_ns)} arrivals, {count} are asked for")
        ascending = all(earlier <= later for earlier, later in pairwise((0, *offsets_ns)))
        if not ascending:
            found.append("the arrivals of a trace are ascending offsets from its start, none negative")
    elif load.stages:
        whole = requests_of(load.stages)
        if whole is not None and isinstance(count, int) and count > whole:
            found.append(f"the stages end after {whole} requests, {count} are asked for")
    elif load.arrival not in ARRIVALS and load.arrival not in names("arrivals"):
        known = ", ".join((*ARRIVALS, *names("arrivals")))
        found.append(f"arrival is {load.arrival!r}: choose one of {known}")
    if (load.arrival == "gamma" or load.stages) and not _is_positive(load.burstiness):
        found.append(f"burstiness is {load.burstiness!r}: give a positive number, 1 is Poisson")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        found.append(f"the number of requests is {count!r}: give a whole number, not negative")
    return found


def count_within(load: OpenLoop, duration_s: float, seed: int, first: int = 0) -> int:
    """Arrivals within ``duration_s`` of a load that takes up the schedule after its first ``first`` arrivals.

    ``seed`` as for :func:`schedule_ns`. Of a trace: as many as it has.
    """
    if load.arrival == "trace":
        offsets_ns = np.asarray(load.offsets_ns, dtype=np.int64)
        return _count_after(offsets_ns, duration_s, first)
    # Rates differ from their mean: draw some more than expected, and go on until the last one lies beyond.
    expected = load.rate * duration_s
    if not expected <= MOST_ARRIVALS:
        raise SuiteError(
            f"{trimmed(load.rate)} req/s for {trimmed(duration_s)} s are {number(expected)} requests",
            where="arrival schedule",
            remedy=f"lower the rate or the duration: at most {MOST_ARRIVALS:,} requests are drawn",
        )
    more = max(16, math.ceil(expected * 1.1))
    while True:
        offsets_ns = schedule_ns(load, first + more, seed)
        count = _count_after(offsets_ns, duration_s, first)
        if count < more:
            return count
        more *= 2


def _count_after(offsets_ns: npt.NDArray[np.int64], duration_s: float, first: int) -> int:
    base_ns = int(offsets_ns[first - 1]) if first else 0
    return int(np.searchsorted(offsets_ns, base_ns + duration_s * 1e9, side="right")) - first


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def _stage_offsets_s(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.float64]:
    """The first ``count`` arrivals of a load of stages.

    A load with an end has the number of its requests. Given their number the arrivals of a Poisson process
    are independent draws, in order; these are the sums of its gaps as shares of the sum of one more.
    """
    stages, whole = load.stages, requests_of(load.stages)
    needed, even = count if whole is None else whole + 1, load.burstiness == 1.0
    gaps = poisson_gaps_s(1.0, needed, seed) if even else gamma_gaps_s(1.0, load.burstiness, needed, seed)
    sums = np.cumsum(gaps)
    exact = sum(stage.requests or 0.0 for stage in stages)
    due = (sums if whole is None else exact * sums / sums[-1])[:count]
    # When so many requests are due on average, in seconds: the inverse of Λ.
    begun = np.cumsum([0.0, *(stage.requests or 0.0 for stage in stages[:-1])])
    which = np.searchsorted(begun, due, side="right") - 1
    at_s, rate = (np.array([getattr(each, name) for each in stages])[which] for name in ("at_s", "rate"))
    slopes = [
        0.0 if each.end_s is None else (each.to_rate - each.rate) / (each.end_s - each.at_s)
        for each in stages
    ]
    own = due - begun[which]
    root = np.sqrt(np.maximum(rate**2 + 2.0 * np.array(slopes)[which] * own, 0.0))
    # rate · x + slope / 2 · x² = own, solved without a difference of near numbers.
    after = np.divide(2.0 * own, rate + root, out=np.zeros_like(own), where=rate + root > 0)
    return np.asarray(at_s + after, dtype=np.float64)


class Due(NamedTuple):
    """A turn that waits for nothing but time. Sorted by instant, then by place in the sequence."""

    at_ns: int
    place: int
    request: PlannedRequest
    session: int


class After(NamedTuple):
    """The consequences of a turn's end."""

    due: list[Due]
    over: bool
    """Whether the session is over: nothing of it is in flight, and nothing more will be sent."""
    cut: bool
    """Whether it was cut off: nothing more of it will be sent."""


@dataclass(slots=True)
class _Open:
    waiting: dict[int, PlannedRequest] = field(default_factory=dict)
    """Turns that are not due yet, by turn number."""
    missing: dict[int, int] = field(default_factory=dict)
    """Number of turns that a turn still waits for, by its number, where that is more than one."""
    waiters: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the turns that wait for a turn, by its number."""
    next_in_chain: dict[int, int] = field(default_factory=dict)
    """Number of the turn that follows a turn at once, by the latter's: the only one to wait for it, for it
    alone and without a pause."""
    pending: int = 0
    """Number of turns that are due, now or after a pause, and have not been taken."""
    in_flight: int = 0
    cut: bool = False

    @property
    def over(self) -> bool:
        return self.in_flight == 0 and (self.cut or not (self.pending or self.waiting))


class SessionFlow:
    """The sessions under way. It is told of starts and ends, and says which turns are due. It has no
    clock."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self.unsent = 0
        """Number of turns still to be sent, due or not; those of cut sessions are not counted."""

    def begin(self, session: Sequence[PlannedRequest], at_ns: int) -> list[Due]:
        """Start a session; returns its turns that wait for no other. ``session``: one item of
        :func:`sessions_of`."""
        opened = _Open()
        waiting, waiters, chain = opened.waiting, opened.waiters, opened.next_in_chain
        first = []
        for request in session:
            turn = turn_of(request)
            number = turn.number
            waiting[number] = request
            if not turn.wait_for:
                first.append(number)
            elif len(turn.wait_for) > 1:
                opened.missing[number] = len(turn.wait_for)
            for before in turn.wait_for:
                if before in waiters:
                    waiters[before].append(number)
                    chain.pop(before, None)
                else:
                    waiters[before] = [number]
                    if len(turn.wait_for) == 1 and not turn.pause_ns:
                        chain[before] = number
        self._open[turn_of(session[0]).session] = opened
        self.unsent += len(session)
        return [_due(opened, number, at_ns) for number in first]

    def take(self, session: int) -> bool:
        """Note that a due turn is sent now. False if its session was cut off in the meantime: then it is not
        sent."""
        opened = self._open.get(session)
        if opened is None or opened.cut:
            return False
        opened.pending -= 1
        opened.in_flight += 1
        self.unsent -= 1
        return True

    def take_next(self, turn: Turn) -> PlannedRequest | None:
        """The turn that follows at once a turn that was taken and has ended well; it counts as sent now.

        Most turns of most sessions are such, and this is all that is done for them. None where it is not so
        simple: tell :meth:`ended` of the end then.
        """
        opened = self._open[turn.session]
        number = opened.next_in_chain.get(turn.number)
        if number is None or opened.cut:
            return None
        self.unsent -= 1
        return opened.waiting.pop(number)

    def is_cut(self, session: int) -> bool:
        """Whether a session was cut off, so that :meth:`take` would return False."""
        opened = self._open.get(session)
        return opened is None or opened.cut

    def followers(self, request: PlannedRequest) -> list[PlannedRequest]:
        """The turns that wait for this one, and for none after it."""
        turn = turn_of(request)
        opened = self._open.get(turn.session)
        if opened is None:
            return []
        waiting = opened.waiting
        found = (waiting[number] for number in opened.waiters.get(turn.number, ()) if number in waiting)
        return [each for each in found if max(turn_of(each).wait_for) == turn.number]

    def cut(self, session: int) -> bool:
        """Cut off a session whose last reply turned out to be bad. True if that ends the session."""
        opened = self._open.get(session)
        if opened is None or opened.cut:
            return False
        self._cut(opened)
        if opened.over:
            del self._open[session]
        return opened.over

    def ended(self, turn: Turn, at_ns: int, *, ok: bool) -> After:
        """Note the end of a turn that was taken. Ends have to be told in their order."""
        opened = self._open[turn.session]
        opened.in_flight -= 1
        if not ok and not opened.cut:
            self._cut(opened)
        due = []
        if not opened.cut:
            missing = opened.missing
            for number in opened.waiters.get(turn.number, ()):
                left = missing.pop(number, 1) - 1
                if left:
                    missing[number] = left
                else:
                    due.append(_due(opened, number, at_ns))
        over = opened.over
        if over:
            del self._open[turn.session]
        return After(due, over, opened.cut)

    def _cut(self, opened: _Open) -> None:
        opened.cut = True
        self.unsent -= opened.pending + len(opened.waiting)


class _Answer(NamedTuple):
    """The server's answer to a turn."""

    text: str
    tokens: int


class LiveAnswers:
    """The server's answers in the sessions under way, for later turns whose prompts contain them."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, _Answer]] = {}
        """Answers by session number and turn number."""
        self._texts: dict[int, tuple[str, float]] = {}
        """Text and share of each reply that is not noted yet, by request index."""

    def keep_text(self, index: int, text: str, share: float = 1.0) -> None:
        """Keep the text of the answer to request ``index`` until its record is there. ``share``: the text's
        part of the output tokens that the server will report; the rest belongs to tool calls, for example."""
        self._texts[index] = text, share

    def note_kept(self, request: PlannedRequest, tokens: int) -> None:
        """:meth:`note` the text of a reply that was kept, if any, now that its record is there. ``tokens``:
        those of the whole reply."""
        text, share = self._texts.pop(request.index, ("", 0.0))
        self.note(turn_of(request), text, round(share * max(0, tokens)))

    def note(self, turn: Turn, text: str, tokens: int) -> None:
        """Keep the answer to a turn. ``tokens``: those of ``text``, as the server counts them."""
        try:
            text.encode()
            said = text
        except (
            UnicodeEncodeError
        ):  # half of a surrogate pair: one that came apart is joined, else it is a "?"
            joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            said = joined.encode(errors="replace").decode()
        answer = _Answer(said, tokens) if said.strip() else _Answer("", 0)
        self._of.setdefault(turn.session, {})[turn.number] = answer

    def asked(self, request: PlannedRequest) -> PlannedRequest:
        """The request with the live answers filled in and its input length adjusted; the request itself if it
        reads none.

        ``token_ids`` are still those with recorded answers. Of a turn that was not noted nothing was said.
        """
        turn, said = turn_of(request), request.messages
        if not turn.reads or said is None:
            return request
        own = self._of.get(turn.session, {})
        places = [message.live for message in said.messages if message.live is not None]
        recorded = sum(place.tokens for place in places)
        live = sum(own[number].tokens for number in turn.reads if number in own)
        answered = said.answered({number: answer.text for number, answer in own.items()})
        return replace(request, messages=answered, input_tokens=request.input_tokens - recorded + live)

    def forget(self, session: int) -> None:
        """Drop the answers of a session of which nothing more will be sent."""
        self._of.pop(session, None)


def _due(opened: _Open, number: int, at_ns: int) -> Due:
    """A turn that waits for no other any more, with the instant at which it is due."""
    request = opened.waiting.pop(number)
    opened.pending += 1
    turn = turn_of(request)
    return Due(at_ns + turn.pause_ns, request.index, request, turn.session)


def turn_of(request: PlannedRequest) -> Turn:
    """The place of a request in its session. Raises SuiteError for one that has none."""
    if request.turn is None:
        raise SuiteError(
            f"request {request.index} belongs to no session",
            where="load of sessions",
            remedy="name a workload of sessions, for example workload='session:chat'",
        )
    return request.turn


_STARTS_AT_ONCE = 256
_NUMBERS_AT_ONCE = 512
"""How many instants become Python integers together while load is running: some microseconds."""


def starts_ns(plan: LoadPlan, first_session: int) -> Iterator[int]:
    """The starts of the plan's jobs, in nanoseconds from the start of the load; of a closed loop none.

    A plan that takes up a sequence in the middle takes up its schedule there too. ``first_session``: the
    number of its first session; only read where jobs are sessions. The starts of requests are drawn now, so
    that nothing is drawn while load is running; those of sessions, whose number nobody knows, as they are
    needed. A trace has as many as it has.
    """
    load, seed = plan.load, arrival_seed(plan.schedule_seed)
    if not isinstance(load, OpenLoop):
        return iter(())
    if load.of_sessions:
        return _session_starts_ns(load, first_session, seed)
    whole = schedule_ns(load, plan.first + plan.requests, seed)
    return _numbers(whole[plan.first :], int(whole[plan.first - 1]) if plan.first else 0)


def _session_starts_ns(load: OpenLoop, first: int, seed: int) -> Iterator[int]:
    given, base_ns = first, 0
    trace = load.arrival == "trace"
    while True:
        upto = len(load.offsets_ns) if trace else max(2 * given, given + _STARTS_AT_ONCE)
        whole = schedule_ns(load, upto, seed)
        if given == first and first:
            base_ns = int(whole[first - 1])
        yield from (whole[given:] - base_ns).tolist()
        if trace:
            return
        given = upto


def _numbers(instants_ns: npt.NDArray[np.int64], base_ns: int) -> Iterator[int]:
    """The numbers of an array, less ``base_ns``, as Python integers, without a list of all of them."""
    for first in range(0, len(instants_ns), _NUMBERS_AT_ONCE):
        yield from (instants_ns[first : first + _NUMBERS_AT_ONCE] - base_ns).tolist()


def sessions_of(requests: Iterable[PlannedRequest]) -> Iterator[tuple[PlannedRequest, ...]]:
    """The requests of a sequence, grouped by session. The last group may be short, where a budget cut the
    sequence.

    Raises SuiteError for a request of no session, and for a turn that waits for one that is not before it.
    """
    session: list[PlannedRequest] = []
    before: set[int] = set()
    for request in requests:
        turn = turn_of(request)
        if session and turn_of(session[0]).session != turn.session:
            yield tuple(session)
            session, before = [], set()
        if not before.issuperset(turn.wait_for):
            raise SuiteError(
                f"turn {turn.number} of session {turn.session} waits for a turn that does not come before it",
                where="load of sessions",
                remedy="begin with the first turn of a session; let turns come after those they wait for",
            )
        session.append(request)
        before.add(turn.number)
    if session:
        yield tuple(session)
