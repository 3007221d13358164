"""The run of one plan in virtual time: arrivals, steps, faults, deadlines and gauges in the order in which
they come."""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, TIME_IS_UP
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, of_planned_cut
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.model.reply_checks import FINGERPRINT
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.engine.config import EngineConfig, shown
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.engine import Engine, QueueFullError
from pytest_llmbench.simulator.engine.faults import (
    FROM_MEMORY_NS,
    STRIKES,
    FaultSchedule,
    input_refused,
    queue_full,
)
from pytest_llmbench.simulator.engine.kv_cache import chained_hashes
from pytest_llmbench.simulator.engine.loop import EngineLoop
from pytest_llmbench.simulator.engine.media import encoder_ns, ids_of, tokens_of
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.load import DELAYS, Arrivals, ClientDeadlines, Delays, delayed
from pytest_llmbench.simulator.replay.records import InFlight, Steps
from pytest_llmbench.simulator.replay.replica import ReplayReplica, slots_of, steps_of
from pytest_llmbench.stats.failing import STREAK, FailureWatch, look_taker
from pytest_llmbench.tokens import reference_tokenizer

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.cheats import Conduct
    from pytest_llmbench.simulator.engine.power import PowerMeter
    from pytest_llmbench.simulator.replay.replica import AdapterCalls

_ENDS = {
    "content_filter": (Outcome.REFUSED, "the output filter broke the answer off"),
    "error": (Outcome.IN_BAND_ERROR, "the engine ran out of memory"),
}
"""Outcome and error that the client records for finish reasons that are not normal ones."""
_OK = Outcome.OK  # looked up for every request otherwise
_WELL = (_OK, None)
_THOUGHTS_ALONE = (Outcome.EMPTY, "the reply held reasoning but no visible content")


class TurnHashes:
    """The block hashes of session turns: those that a turn shares with the one it continues are known, so a
    session costs what its longest prompts cost, not what all of them do."""

    _MOST_SESSIONS = 1024
    """Maximum number of sessions remembered. The one that began first is forgotten first; its next turn is
    hashed whole."""

    def __init__(self, config: EngineConfig) -> None:
        self._block_tokens = config.kv_block_tokens if config.prefix_caching else 0
        self._by_session: OrderedDict[int, dict[int, tuple[int, ...]]] = OrderedDict()

    def of(self, planned: PlannedRequest) -> tuple[int, ...] | None:
        """The block hashes of a turn's prompt; None where nothing is shared, or its ids are not known."""
        turn, ids = planned.turn, planned.token_ids
        if turn is None or ids is None or not self._block_tokens:
            return None
        session = self._by_session.setdefault(turn.session, {})
        before = session.get(turn.wait_for[0], ()) if turn.kept_tokens else ()
        known = before[: turn.kept_tokens // self._block_tokens]
        hashes = session[turn.number] = chained_hashes(ids, self._block_tokens, known)
        if turn.number == turn.turns:
            del self._by_session[turn.session]
        elif len(self._by_session) > self._MOST_SESSIONS:
            self._by_session.popitem(last=False)
        return hashes


BATCH = 8192
"""Number of ended flights at which they are handed over."""
_HEARD_PER_LOOK = 10
"""Hand-overs between two looks of a load that may end early, which thus hears of them sooner."""


class ReplayRun:
    """The run of one plan. The work of a step does not grow with its tokens: only first tokens and ends are
    looked at.

    Events are processed in the order of time, at one instant in this order: steps end, transfers end, users
    go, requests arrive, deadlines run out, steps begin. A request is routed at the instant at which it joins
    a queue, by what is in the engines then. An engine by itself goes from step to step: what happens during
    one is looked at when it is over, and changes nothing before.

    What has ended is given to ``keep`` with the steps that made its tokens, and forgotten, so memory follows
    the requests in flight.
    """

    peak_in_flight = 0
    left_in_flight = 0
    stopped: str | None = None
    """Why nothing more was sent, if the plan's own rule ended it; None otherwise."""
    interrupted: str | None = None
    """Why the plan was cut short; None if it was not."""

    def __init__(
        self,
        engines: Sequence[Engine],
        arrivals: Arrivals,
        plan: LoadPlan,
        *,
        faults: FaultSchedule,
        delays: Delays,
        start_ns: int,
        keep: Callable[[Sequence[InFlight], Steps], Records],
        generates: bool = True,
        any_model: bool = False,
        deployment: Deployment = Deployment(),  # noqa: B008 - never changed
        meters: Sequence[PowerMeter] = (),
    ) -> None:
        """``meters``: one for each engine; none where nothing is known of power."""
        self.replicas = tuple(ReplayReplica(n, engine, start_ns) for n, engine in enumerate(engines))
        for replica, meter in zip(self.replicas, meters, strict=bool(meters)):
            replica.power = meter
        self._loop: EngineLoop[InFlight, ReplayReplica] = deployment.loop(self.replicas, self._at)
        self.alone = len(engines) == 1
        """Whether there is one engine, which goes from step to step."""
        self.calls: AdapterCalls | None = None
        """Adapters that come and go meanwhile; None: there are none."""
        self._any_model = any_model
        if plan.beside is not None and not any_model:
            from pytest_llmbench.simulator.replay.replica import AdapterCalls

            self.calls = AdapterCalls(plan.beside, engines, start_ns)
        self._in_flight = [replica.in_flight for replica in self.replicas]
        self._acts: list[tuple[int, int, Callable[[int], None]]] = []
        """Heap of what the loop has done later, such as the end of a transfer: (instant, number, act)."""
        self._acts_made = count()
        self._config, self._guardrails = engines[0].config, engines[0].guardrails
        self._keep = keep
        self._arrivals = arrivals
        self._ignore_eos = plan.ignore_eos
        self._generates = generates
        self._faults = faults
        self._to_client_ns = delays.to_client_ns
        self._screened: list[tuple[int, int, InFlight]] = []
        """Heap of the requests in the input filter: (instant at which they join the queue, number,
        flight)."""
        self._cuts: list[tuple[int, int, InFlight]] = []
        """Heap of the requests that their users are to cut: (instant at which the engine hears of it, number,
        flight)."""
        self._held_until_ns: list[int] = []  # a heap: ends of replies that the engine alone is through with
        self._stops_when_failing = plan.stop_when_failing
        self._watch = FailureWatch.of(plan)
        self._deadline_ns = 2**63 - 1 if plan.most_s is None else start_ns + round(plan.most_s * 1e9)
        self._looks = look_taker(plan, slots_of(self.replicas))
        self._batch = BATCH if plan.looks is None else max(1, plan.looks.every // _HEARD_PER_LOOK)
        self._patience, self._hashes = ClientDeadlines(plan.deadlines, delays), TurnHashes(self._config)
        self.now_ns = start_ns
        self._flights: dict[InFlight, None] = {}
        """Flights not handed over yet, in order of arrival; ``_ended`` of them have ended."""
        self._ended = self._received = 0
        self._last_ns = start_ns
        """Submission of the last flight."""

    def play(self) -> None:
        """Play until every request has ended; Ctrl-C cuts it short."""
        if self._watch is not None:
            self._watch.begin(self.now_ns)
        try:
            self._play()
        except KeyboardInterrupt:
            self._cancel(INTERRUPTED_BY_CTRL_C)
            self.interrupted = INTERRUPTED_BY_CTRL_C
        finally:
            if self.calls is not None:
                self.calls.end()
            self._hand_over(list(self._flights))

    def _play(self) -> None:
        first, arrivals, screened, calls = self.replicas[0], self._arrivals, self._screened, self.calls
        faulty = bool(self._faults.options.fault)  # a fault may happen at any token
        while True:
            if self._ended >= self._batch:
                self._hand_over([flight for flight in self._flights if flight.ended])
            arrives_ns = arrivals.next_ns()
            if not (self.alone and first.in_flight):
                due_ns = self._next_ns(arrives_ns)
                if due_ns is None:
                    self._loop.settle(self.now_ns)
                    return
                self.now_ns = max(self.now_ns, due_ns)
                if self._end_what_is_due():
                    arrives_ns = arrivals.next_ns()
            elif not faulty and self._glide(first, arrives_ns):
                continue
            if self.now_ns >= self._deadline_ns and self.interrupted is None:
                self.interrupted = TIME_IS_UP
                arrivals.stop()
                self._loop.abort_all()
                self._cancel(TIME_IS_UP)
                continue
            while self._cuts and self._cuts[0][0] <= self.now_ns:
                self._cut(heapq.heappop(self._cuts)[2])
                arrives_ns = arrivals.next_ns()
            while arrives_ns is not None and arrives_ns <= self.now_ns:
                if calls is not None and arrives_ns >= calls.due_ns:
                    calls.make_due(arrives_ns)
                self._receive(arrivals.take())
                arrives_ns = arrivals.next_ns()
            if calls is not None and self.now_ns >= calls.due_ns:
                calls.make_due(self.now_ns)
            while screened and screened[0][0] <= self.now_ns:
                self._queue(heapq.heappop(screened)[2])
            if self.now_ns >= self._patience.look_ns:
                self._end_overdue()
            if self._loop.stages == 2:
                self._loop.settle(self.now_ns)
            if not self.alone:
                for replica in self.replicas:
                    if replica.step is None and not replica.engine.idle:
                        replica.step = replica.engine.step()
                        replica.ends_ns = self._begin(replica, replica.step)
            elif first.in_flight:
                step = first.engine.step()
                self.now_ns = self._begin(first, step)
                self._complete(first, step)

    def _next_ns(self, arrives_ns: int | None) -> int | None:
        due = [replica.ends_ns for replica in self.replicas if replica.step is not None]
        if arrives_ns is not None:
            due.append(arrives_ns)
        for heap in (self._screened, self._acts):
            if heap:
                due.append(heap[0][0])
        if self.calls is not None and due:
            due.append(self.calls.due_ns)
        if self._cuts and due:
            due.append(self._cuts[0][0])
        return min(due, default=None)

    def _end_what_is_due(self) -> bool:
        """Sample engines without a step, before anything about them changes, and end steps and transfers.
        Returns whether a step has ended."""
        due = []
        for replica in self.replicas:
            if replica.step is None:
                if replica.gauges.due_ns < self.now_ns:
                    replica.gauges.note(self.now_ns)
            elif replica.ends_ns <= self.now_ns:
                due.append((replica, replica.step))
        for replica, step in due:
            replica.step = None
            self._complete(replica, step)
        while self._acts and self._acts[0][0] <= self.now_ns:
            at_ns, _, act = heapq.heappop(self._acts)
            act(at_ns)
        return bool(due)

    def _at(self, at_ns: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._acts, (at_ns, next(self._acts_made), act))

    def _hand_over(self, flights: Sequence[InFlight]) -> None:
        """Hand over flights that have ended, and drop the data that only they needed."""
        for flight in flights:
            del self._flights[flight]
        self._ended = 0
        kept = self._keep(flights, steps_of(self.replicas, self._to_client_ns))
        looks = self._looks
        if looks is not None and self.stopped is None and not self._arrivals.all_sent(self.now_ns):
            verdict = looks.add_all(kept)
            if verdict is not None:
                self._arrivals.stop()
                self.stopped = looks.reason(verdict)
        for replica in self.replicas:
            replica.forget_needless()

    # Coming in.

    def _receive(self, flight: InFlight) -> None:
        self._flights[flight] = None
        self._received += 1
        self._last_ns = flight.submitted_ns
        planned, config = flight.planned, self._config
        if planned.cut_after_ns is not None:
            heapq.heappush(self._cuts, (flight.received_ns + planned.cut_after_ns, self._received, flight))
        try:
            if flight.received_ns < self._loop.down_until_ns:
                raise RefusalError(503, "the engine has crashed and is being started again")
            model = planned.model
            if model is not None and not self._any_model:
                away = self.calls is not None and model in self.calls.absent
                if away or model not in config.adapter_names:
                    raise RefusalError(404, f"the model {model!r} does not exist", "model")
            most = planned.max_tokens if self._generates else 1
            asked = _as_asked(most, self._ignore_eos, self._generates, model or "")
            if planned.media:
                flight.media_tokens = tokens_of(planned.media)
            prompt_tokens = planned.input_tokens + flight.media_tokens
            expected = planned.expected
            read = expected is not None and expected.scorer == FINGERPRINT
            prompt: str | Sequence[int] | None = None
            if read or not self._faults.honest:
                prompt = (planned.text if planned.token_ids is None else planned.token_ids) or ""
            admitted = self._faults.admit(
                asked,
                prompt_tokens,
                config,
                self._running,
                prompt=prompt,
                question=None if expected is None or read else expected.answer,
                structured=planned.structured,
            )
        except RefusalError as refusal:
            self._refuse(flight, refusal, flight.received_ns)
            return
        flight.fate, flight.conduct, flight.answer = admitted.fault, admitted.conduct, admitted.answer
        flight.sequence = admitted.sequence(
            asked,
            prompt_tokens,
            token_ids=_ids_of(planned, config),
            prefix_hashes=None if planned.turn is None else self._hashes.of(planned),
        )
        if admitted.conduct is not None and admitted.conduct.from_memory:
            self._recall(flight, admitted.conduct)
            return
        delay_ns, refused = encoder_ns(flight.media_tokens, config) if flight.media_tokens else 0, False
        if self._guardrails.screens:
            screening = self._guardrails.screen(prompt_tokens)
            delay_ns, refused = delay_ns + screening.delay_ns, screening.refused
        joins_ns = flight.accepted_ns = flight.received_ns + delay_ns
        if refused:
            self._refuse(flight, input_refused(), joins_ns)
        elif delay_ns == 0:
            self._queue(flight)
        else:
            heapq.heappush(self._screened, (joins_ns, self._received, flight))
            self._note_peak()

    def _recall(self, flight: InFlight, conduct: Conduct) -> None:
        """Answer from memory: no step of the engine makes these tokens."""
        assert flight.sequence is not None
        tokens = flight.sequence.max_tokens
        flight.accepted_ns, flight.http_status = flight.received_ns, 200
        flight.read_ns = flight.received_ns + self._to_client_ns + FROM_MEMORY_NS * np.arange(tokens)
        if flight.planned.expected is not None:
            flight.answer_check = flight.planned.expected.check(conduct.text(tokens), cut=True)
        self._end(flight, _OK, int(flight.read_ns[-1]), None, "length")

    def _queue(self, flight: InFlight) -> None:
        try:
            self._loop.submit(flight, self.now_ns)
        except QueueFullError:
            self._refuse(flight, queue_full(self._config, self._faults.options), self.now_ns)
            return
        flight.http_status = 200
        self._patience.watch(flight)
        self._note_peak()

    def _running(self) -> int:
        return sum(map(len, self._in_flight))

    def _note_peak(self) -> None:
        """Note the peak of requests in flight for the client.

        A reply that is held back is still in flight when the engine is through with it.
        """
        held = self._held_until_ns
        while held and held[0] <= self.now_ns:
            heapq.heappop(held)
        in_flight = self._running() + len(self._screened) + len(held)
        if in_flight > self.peak_in_flight:
            self.peak_in_flight = in_flight

    def _refuse(self, flight: InFlight, refusal: RefusalError, at_ns: int) -> None:
        """Record the refusal of a request as a client sees it, by the same rules as on a real wire."""
        flight.sequence, flight.http_status = None, refusal.status
        from pytest_llmbench.wire.error_replies import classify_status  # most replays refuse nobody

        headers = {} if refusal.retry_after_s is None else {"retry-after": shown(refusal.retry_after_s)}
        outcome, error = classify_status(refusal.status, headers, json.dumps(refusal.body()).encode())
        self._end(flight, outcome, at_ns + self._to_client_ns, error)

    # Working.

    def _glide(self, replica: ReplayReplica, arrives_ns: int | None) -> bool:
        """Let the engine work until something may happen: an arrival, a deadline, an end. Returns whether
        some requests have ended."""
        until_ns = min(self._patience.look_ns, self._deadline_ns)
        if self.calls is not None:
            until_ns = min(until_ns, self.calls.due_ns)
        if arrives_ns is not None:
            until_ns = min(until_ns, arrives_ns)
        for heap in (self._screened, self._cuts):
            if heap:
                until_ns = min(until_ns, heap[0][0])
        engine, gauges, ends_ns = replica.engine, replica.gauges, replica.step_ends_ns
        while self.now_ns < until_ns:
            begun_ns, decoding, before = self.now_ns, engine.running, len(ends_ns)
            self.now_ns, finished = engine.glide(begun_ns, until_ns, gauges.due_ns, ends_ns)
            if replica.power is not None:
                for end_ns in ends_ns[before:]:
                    replica.power.note_step(begun_ns, end_ns, 0, decoding)
                    begun_ns = end_ns
            sampled = gauges.due_ns < self.now_ns
            if sampled:
                gauges.note(self.now_ns, finished)
            for sequence in finished:
                self._finish(replica.in_flight.pop(sequence), sequence)
            if finished or not sampled:
                return bool(finished)
        return False

    def _begin(self, replica: ReplayReplica, step: StepResult) -> int:
        for sequence in step.admitted:
            replica.in_flight[sequence].admitted_ns = self.now_ns
        if step.failed:  # memory ran out: the clients hear of it at once
            self._loop.note_failed(replica, step, self.now_ns)
            for sequence in step.failed:
                self._finish(replica.in_flight.pop(sequence), sequence)
        ends_ns = self.now_ns + step.duration_ns
        replica.step_ends_ns.append(ends_ns)
        if replica.power is not None and not step.crashed:
            replica.power.note_step(self.now_ns, ends_ns, step.prefill_tokens, step.generated)
        if replica.gauges.due_ns < ends_ns:
            replica.gauges.note(ends_ns, step.finished)
        return ends_ns

    def _complete(self, replica: ReplayReplica, step: StepResult) -> None:
        if self._faults.options.fault:
            self._strike(replica, step)
        if self._loop.stages == 2:
            self._loop.pass_on(replica, step, self.now_ns)
        for sequence in step.finished:
            flight = replica.in_flight.pop(sequence, None)
            if flight is not None:  # a fault of this very step may have ended it
                self._finish(flight, sequence)

    def _finish(self, flight: InFlight, sequence: EngineSequence) -> None:
        """Finish a flight that the engine has completed; what is held back is read later than that."""
        at_ns = self.now_ns + self._to_client_ns
        if flight.conduct is not None and flight.conduct.canned and len(made_ns := self._token_ns(flight)):
            flight.read_ns = self._to_client_ns + np.concatenate([[flight.accepted_ns], made_ns[1:]])
        elif (self._guardrails.holds and self._generates) or flight.fate in DELAYS:
            at_ns = self._hold_back(flight, sequence)
            given_up_ns = self._patience.given_up_ns(flight)
            until_ns = (at_ns if given_up_ns is None else given_up_ns, flight.cut_ns)
            heapq.heappush(self._held_until_ns, min(ns for ns in until_ns if ns is not None))
            if given_up_ns is not None:
                assert flight.read_ns is not None
                flight.read_ns = flight.read_ns[flight.read_ns <= given_up_ns]
                self._end(flight, Outcome.TIMEOUT, given_up_ns, self._patience.silence_text)
                return
        if flight.fate in STRIKES:  # a fault that has not happened yet happens at the end
            self._hit(flight)
            return
        outcome, error = _ENDS.get(sequence.finish_reason, _WELL)
        if outcome is _OK and 0 < sequence.think_tokens == sequence.output_tokens:
            outcome, error = _THOUGHTS_ALONE
        reason: str | None = sequence.finish_reason if self._generates else None
        if flight.answer is not None and reason is not None and outcome is _OK:
            visible = sequence.output_tokens - sequence.think_tokens
            said = flight.answer.reply(visible, limited=reason == "length")
            expected, cut = flight.planned.expected, not said.whole
            reason = said.finish_reason(reason)
            if expected is None:
                flight.schema_check = said.check
            else:
                flight.answer_check = expected.check("".join(said.pieces), cut=cut)
        elif flight.conduct is not None and flight.planned.expected is not None and outcome is _OK:
            words = flight.conduct.text(sequence.output_tokens - sequence.think_tokens)
            flight.answer_check = flight.planned.expected.check(words, cut=reason == "length")
        self._end(flight, outcome, at_ns, error, reason)

    def _hold_back(self, flight: InFlight, sequence: EngineSequence) -> int:
        """Hold a reply back, because of the output filter or a fault.

        Notes when each token is read; returns when the reply ends.
        """
        ns = self._token_ns(flight)
        if len(ns):
            ns = self._guardrails.released_ns(ns)
        end_ns = max(self.now_ns, int(ns[-1]) if len(ns) else 0) + self._to_client_ns
        ns = ns[: len(ns) - sequence.withheld_tokens] + self._to_client_ns
        if flight.fate in DELAYS and len(ns):
            assert flight.fate is not None
            ns = delayed(ns, flight.fate, self._faults.options)
        flight.read_ns = ns
        return max(end_ns, int(ns[-1])) if len(ns) else end_ns

    def _token_ns(self, flight: InFlight) -> IntColumn:
        replica = self.replicas[flight.replica]
        made_ns = [replica.step_ends_ns[first : last + 1] for first, last in flight.spans(replica.first_step)]
        return np.concatenate([np.frombuffer(own, np.int64) for own in made_ns] or [np.empty(0, np.int64)])

    def _end(
        self, flight: InFlight, outcome: Outcome, at_ns: int, error: str | None, reason: str | None = None
    ) -> None:
        cut_ns = flight.cut_ns
        if cut_ns is not None and at_ns >= cut_ns:  # what was on its way, nobody reads
            outcome, at_ns, error, reason = Outcome.CUT_BY_USER, cut_ns, None, None
            self._leave_unread(flight, at_ns)
        flight.end(outcome, at_ns, error=error, finish_reason=reason)
        self._ended += 1
        if self._watch is not None:
            told = outcome if cut_ns is None else of_planned_cut(outcome)[0]
            self._watch.ended(told, flight.http_status, error, at_ns)
            self._check_engine(self._watch, at_ns)
        self._arrivals.ended(flight)

    def _check_engine(self, watch: FailureWatch, at_ns: int) -> None:
        """Check as the load generator does, which hears nothing of the engine's health, whether the engine
        answers.

        Here an engine that is down (it recovers from a crash) has stopped answering as soon as so many
        requests in a row say so.
        """
        if watch.is_calm:
            return
        if self._stops_when_failing:
            if watch.streak >= STREAK and at_ns < self._loop.down_until_ns:
                self._arrivals.stop()
                self.stopped = self.stopped or (
                    f"the engine is down, and the last {watch.streak} requests that ended were not answered"
                )
            return
        if self.stopped is not None or self.interrupted is not None or self._arrivals.all_sent(self.now_ns):
            return
        running = self._running()
        cut = watch.judge(running, self.now_ns if running else None, at_ns)
        if cut is None:
            return
        self._arrivals.stop()
        if cut.is_result:
            self.stopped = cut.reason
        else:
            self.interrupted = cut.reason

    # Faults in mid-stream.

    def _strike(self, replica: ReplayReplica, step: StepResult) -> None:
        after = self._faults.options.fault_after_tokens
        in_flight, strikes = replica.in_flight, replica.strikes
        for sequence in step.first_tokens:
            flight = in_flight.get(sequence)
            if flight is not None and flight.fate in STRIKES and not sequence.hands_over:
                wait = max(after - 1, 0)
                due = step.index + (wait if sequence.made is None else min(wait, 1))
                strikes.setdefault(due, []).append(flight)
        for flight in strikes.pop(step.index, ()):
            struck = flight.sequence
            if struck is None or struck not in in_flight:
                continue
            short = after - struck.given_tokens(step.index + 1)
            if short > 0:  # it was preempted in between, or its steps give several
                strikes.setdefault(step.index + (short if struck.made is None else 1), []).append(flight)
            elif struck not in step.finished:
                self._loop.drop(flight)
                self._hit(flight)

    def _hit(self, flight: InFlight) -> None:
        assert flight.fate is not None
        outcome, error = STRIKES[flight.fate]
        if self._faults.options.fault_after_tokens == 0:
            flight.read_ns = np.empty(0, dtype=np.int64)
        self._end(flight, outcome, self.now_ns + self._to_client_ns, error)
        if flight.fate == "crash":
            replica = self.replicas[flight.replica]
            self._loop.crash(replica, self.now_ns)
            for other in list(replica.in_flight.values()):
                self._loop.drop(other)
                self._end(other, outcome, self.now_ns + self._to_client_ns, error)

    # Users who go away.

    def _cut(self, flight: InFlight) -> None:
        """Abort a request whose user has gone: the engine does not work on it any more."""
        if not flight.ended:
            assert flight.cut_ns is not None
            if not self._loop.drop(flight):  # still with the input filter
                self._screened[:] = [entry for entry in self._screened if entry[2] is not flight]
                heapq.heapify(self._screened)
            self._end(flight, Outcome.CUT_BY_USER, flight.cut_ns, None)

    def _leave_unread(self, flight: InFlight, at_ns: int) -> None:
        read_ns = self._so_far_ns(flight) if flight.read_ns is None else flight.read_ns
        flight.read_ns = read_ns[read_ns <= at_ns]
        flight.schema_check = flight.answer_check = None
        if flight.http_status != 200 or flight.accepted_ns + self._to_client_ns > at_ns:
            flight.http_status = MISSING

    def _so_far_ns(self, flight: InFlight) -> IntColumn:
        """Instants at which the client reads the tokens of a reply that does not come to its end."""
        ns = self._token_ns(flight)
        whole = len(ns) - len(ns) % self._guardrails.window_tokens  # an open window is held back
        if not whole or flight.fate == "buffering":
            return ns[:0]
        ns = self._guardrails.released_ns(ns[:whole]) + self._to_client_ns
        return delayed(ns, flight.fate, self._faults.options) if flight.fate in DELAYS else ns

    # Deadlines: a client that gives up.

    def _end_overdue(self) -> None:
        for flight, at_ns, why in self._patience.overdue(self.now_ns):
            self._loop.drop(flight)
            self._leave_unread(flight, at_ns)  # the rest came when nobody read any more
            self._end(flight, Outcome.TIMEOUT, at_ns, why)
        if self._arrivals.all_sent(self.now_ns) and self._patience.drain_is_over(self.now_ns, self._last_ns):
            self.left_in_flight = self._running()
            self._loop.abort_all()
            self._cancel(self._patience.drain_text)

    def _cancel(self, why: str) -> None:
        """Cancel the plan: steps under way no longer come to their end, so neither do their tokens."""
        at_ns = self.now_ns + self._to_client_ns
        flights = [flight for replica in self.replicas for flight in replica.in_flight.values()]
        for flight in (*flights, *(entry[2] for entry in self._screened)):
            if flight.sequence is not None:
                self._leave_unread(flight, at_ns)
            flight.end(Outcome.CANCELLED, at_ns, error=why)
        for replica in self.replicas:
            replica.in_flight.clear()
        self._screened.clear()


def _ids_of(planned: PlannedRequest, config: EngineConfig) -> Sequence[int] | None:
    """The prompt's token ids that the prefix cache goes by; for text the ids that a real engine would make of
    it."""
    ids: Sequence[int] | None = planned.token_ids
    if not config.prefix_caching:
        return ids
    if ids is None and planned.text is not None:
        ids = reference_tokenizer().encode(planned.text)[: planned.input_tokens]
    return [*ids, *ids_of(planned.media)] if planned.media and ids is not None else ids


@lru_cache(maxsize=1024)
def _as_asked(max_tokens: int, ignore_eos: bool, generates: bool, adapter: str) -> GenerationRequest:
    """The request as the engine's HTTP server would have read it."""
    return GenerationRequest(
        max_tokens=max_tokens, ignore_eos=ignore_eos, generates=generates, adapter=adapter
    )
