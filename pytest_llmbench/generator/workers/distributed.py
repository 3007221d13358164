"""The load generator of several processes: the same public surface as the one of a single process.

The measurements of several workers, merged into one Observation.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.columns import together
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.limits import (
    Limits,
    give_back_unused_memory,
    own_limits,
    peak_connections,
    refuse_too_much,
)
from pytest_llmbench.generator.loop_thread import PlanRunner, Progress, broken_off, result_of
from pytest_llmbench.generator.selfcheck import of_records
from pytest_llmbench.generator.workers.coordinator import MARGIN_NS, Coordinator, WorkerPatience, WorkerPool
from pytest_llmbench.generator.workers.pool import WorkerPool as LocalCrew
from pytest_llmbench.generator.workers.protocol import Address, Setup
from pytest_llmbench.generator.workers.sharding import Deal, active_workers
from pytest_llmbench.model.facts import Facts, GeneratorFact, Origin
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.model.records import BLOCK, MISSING, Records
from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.stats.failing import FailureWatch
from pytest_llmbench.timing import MonotonicClock, anchor, quiet_gc
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import PromptForm
from pytest_llmbench.wire.server_figures import Declared
from pytest_llmbench.workloads.sequence import drawn_sha256, slices_sha256

if TYPE_CHECKING:
    from pytest_llmbench.tokens import TokenizerFile

_AHEAD = 16
"""Blocks of requests that are drawn while the workers come up: about as many as there is time for."""
_CLOSE_S = 10.0
_NICE = 19
"""The priority of the thread: it leaves about a tenth of a core when all are wanted, enough to hear a worker
and to stop it."""
_GIVE_UP_S = 3.0


class DistributedLoadGenerator(PlanRunner):
    """Runs one LoadPlan after another in ``workers`` processes, each with its own loop and connections.

    Stands in for :class:`~pytest_llmbench.generator.run.LoadGenerator`. The processes start with the first
    plan, or are taken over from who has started them before, and are kept. ``on_progress`` is called in a
    thread of this process. A worker that dies voids the run: ``Observation.interrupted`` says which, how it
    ended and what it printed last; what it had written down and what the others measured is in the records.
    The ``on_record`` of :meth:`run` is called in a thread of this process about half a second after a request
    has ended, so a killed run keeps all but its last second.

    Requests are drawn before the load and handed to the workers while they are drawn, so that no process
    holds them all; after the first megabyte in a thread of its own, which Ctrl-C and :meth:`stop` end.

    ``count_text``: count what the server does not count, with the reference tokenizer or with that of a file;
    ``counts_early``: which is to be expected, so that it is loaded before the first plan. ``cpus``: cores to
    put the workers on, in turn; none of them is asked for by default. ``host``: limits of this
    host, in place of those that it has when a plan begins.
    """

    margin_ns = MARGIN_NS
    """The time from the word to the start."""
    decoded_ns: int | None = None
    """The instant by which all records of the last plan had been made."""
    _coordinator: Coordinator | None = None

    def __init__(
        self,
        address: Address,
        dialect: str,
        *,
        workers: int,
        model: str,
        prompt_form: PromptForm = "text",
        extra_body: Mapping[str, Any] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        count_text: bool | TokenizerFile = False,
        counts_early: bool = True,
        session_deadline_ns: int | None = None,
        cpus: Sequence[int] = (),
        declared: Declared | None = None,
        session_header: str = SESSION_HEADER,
        host: Limits | None = None,
        patience: WorkerPatience | None = None,
    ) -> None:
        super().__init__()
        if workers < 1:
            raise SuiteError(f"{workers} workers", remedy="give at least 1")
        address.target()  # what is wrong with it is said here, not in a worker
        try:  # as it will stand in the request, without types that only this process knows
            plain: dict[str, Any] = json.loads(json.dumps(dict(extra_body or {})))
        except (TypeError, ValueError) as error:
            raise SuiteError(f"extra_body is not JSON: {error}", remedy="give plain values") from error
        self._setup = Setup(
            address=address,
            dialect=dialect_at(address.url, dialect).name,
            model=model,
            prompt_form=prompt_form,
            extra_body=plain,
            count_text=count_text,
            counts_early=counts_early,
            session_deadline_ns=session_deadline_ns,
            declared=declared or Declared(),
            session_header=session_header,
        )
        self.workers, self._cpus, self._on_progress = workers, tuple(cpus), on_progress
        self._host, self._patience = host, patience or WorkerPatience()
        self._pool: WorkerPool | None = None

    def take_over(self, pool: LocalCrew) -> None:
        """Let workers that are coming up already send the plans."""
        pool.set_up(self._setup)
        self._pool = pool

    def aim(self, address: Address) -> None:
        """Send the next plan to ``address``; the processes are kept. Not while one is running."""
        address.target()
        self._setup = replace(self._setup, address=address)
        if isinstance(self._pool, LocalCrew):
            self._pool.set_up(self._setup)

    def stop(self, reason: str) -> None:
        """End the running plan early, from any thread; without one this does nothing."""
        self._stop_reason = reason
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.stop(reason)

    def close(self) -> None:
        """End the workers and remove their files; a plan that is running is stopped. Safe to call twice."""
        self.stop("the load generator is being closed")
        # The plan that is running needs its workers until it has been brought to its end.
        idle = self._busy.acquire(timeout=_CLOSE_S)
        try:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.close()
        finally:
            if idle:
                self._busy.release()

    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        try:
            return self._conducted(plan, on_record)
        finally:
            self._coordinator = None
            give_back_unused_memory()

    def _conducted(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        if plan.looks is not None and active_workers(plan, self.workers) > 1:
            raise SuiteError(
                f"a load that ends when its limits are decided needs one process, not {self.workers}",
                where=plan.label,
                remedy="give --llm-workers=1, or a number of requests instead of requests='auto'",
            )
        pool = self._pool = self._pool or self._new_pool()
        pool.call(active_workers(plan, self.workers))  # they come up while requests are drawn
        deal = Deal(plan, self.workers, as_text=self._setup.prompt_form == "text")
        self._refuse_too_much(plan, 0.0)  # what can be known before all are drawn
        dealt = deal.blocks(self._goes_on)
        blocks = chain(list(islice(dealt, max(_AHEAD, deal.workers))), dealt)
        coordinator = Coordinator(pool.members(deal.workers), on_record, self._on_progress, self._patience)
        self._coordinator = coordinator
        coordinator.margin_ns = self.margin_ns
        coordinator.watch = FailureWatch.of(plan) if deal.workers > 1 else None
        if self._stop_reason is not None:  # asked for while requests were being drawn
            coordinator.cause = self._stop_reason
        taken_at = anchor(MonotonicClock())

        def plans() -> list[LoadPlan]:
            nonlocal taken_at
            self._refuse_too_much(plan, deal.mean_tokens)
            _step_back()
            taken_at = anchor(MonotonicClock())
            return deal.plans()

        self._play(lambda: coordinator.play(blocks, plans), coordinator, pool)
        ends = [part.done.decoded_ns for part in coordinator.parts if part.done is not None]
        self.decoded_ns = max((end for end in ends if end is not None), default=None)
        if (failure := coordinator.failure) is not None:
            raise broken_off(failure) from failure
        if coordinator.mistake is not None:
            raise coordinator.mistake
        return merged_observation(plan, coordinator, taken_at)

    def _goes_on(self) -> bool:
        """Whether requests go on being drawn. Where they do not, the coordinator knows why before that."""
        coordinator = self._coordinator
        if coordinator is not None and self._stop_reason is not None:
            coordinator.stop(self._stop_reason)
        return self._stop_reason is None and (coordinator is None or coordinator.cause is None)

    def _refuse_too_much(self, plan: LoadPlan, mean_tokens: float) -> None:
        """Local ports are of the host, whatever the number of workers; descriptors each sees to itself."""
        ports = (self._host or own_limits()).ports
        refuse_too_much(peak_connections(plan, mean_tokens), Limits(ports=ports), plan.label)

    def _new_pool(self) -> WorkerPool:
        return LocalCrew(self._setup, self._cpus, end_s=self._patience.end_s)

    def _play(self, play: Callable[[], None], coordinator: Coordinator, pool: WorkerPool) -> None:
        """Play the plan in a thread of its own, so that Ctrl-C cannot tear a message in two."""
        played: Future[None] = Future()

        def execute() -> None:
            try:
                with quiet_gc():
                    play()
            except BaseException as error:  # noqa: BLE001 - it is raised where the plan was asked for
                played.set_exception(error)
            else:
                played.set_result(None)

        thread = threading.Thread(target=execute, name="llmbench-workers", daemon=True)
        thread.start()
        try:
            try:
                result_of(played)
            except KeyboardInterrupt:
                coordinator.stop(INTERRUPTED_BY_CTRL_C)
                result_of(played)
            thread.join()  # it has nothing left to do, and nothing of ours outlives a plan
        except BaseException:  # a second Ctrl-C, a test's time limit, a fault of ours: load must end
            try:
                coordinator.stop("the caller gave up waiting")
                wait([played], timeout=_GIVE_UP_S)
            finally:
                if not played.done() or played.exception() is not None:
                    pool.kill()
            raise


def _step_back() -> None:
    """Lower the priority of this thread, which keeps the records, below those that measure: on a host with as
    many cores as there are servers and workers it takes one of them every now and then. The thread ends with
    the plan, and a new one has the usual priority again."""
    give_back_unused_memory()  # of the requests that have been drawn
    if sys.platform == "linux":  # elsewhere priorities are those of processes
        with suppress(OSError):  # a sandbox may refuse
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


_NEVER_NS = 2**63 - 1


def merged_observation(plan: LoadPlan, coordinator: Coordinator, anchor: ClockAnchor) -> Observation:
    """Records by submission; the self-check as :func:`merged_selfcheck` says; the rest of the whole load."""
    done = [part.done for part in coordinator.parts if part.done is not None]
    checks = [
        replace(part.done.selfcheck, **of_records(plan.load, part.records))
        for part in coordinator.parts
        if part.done is not None
    ]
    records = together([part.records for part in coordinator.parts])
    start_ns = coordinator.start_ns
    if start_ns is None:  # it was over before it began
        start_ns = min((each.started_ns for each in done), default=time.monotonic_ns())
    own: dict[str, Any] = {GeneratorFact.GENERATOR_WORKERS: len(coordinator.parts)}
    facts = Facts(done[0].facts) if done else Facts()
    ends = [each.load_ended_ns for each in done if each.load_ended_ns is not None]
    # What a worker says of itself, such as the session deadline; not what its coordinator told it.
    told = [each.interrupted for each in done if each.interrupted != coordinator.stopped]
    last_ns = int(records.finished_ns.max(initial=start_ns))
    return Observation(
        plan=plan,
        records=records,
        started_ns=start_ns,
        ended_ns=max((last_ns, *(each.ended_ns for each in done))),
        anchor=anchor,
        selfcheck=checks[0] if done and len(coordinator.parts) == 1 else merged_selfcheck(checks, records),
        in_flight_at_end=sum(each.in_flight_at_end for each in done),
        interrupted=coordinator.cause or next(filter(None, told), None),
        sequence_sha256=_digest(plan, records),
        facts=facts | Facts.of(Origin.GENERATOR, own, "load generator"),
        load_ended_ns=max(ends, default=start_ns) if plan.duration_s is not None else None,
        stopped=coordinator.stopped,
    )


def merged_selfcheck(checks: Sequence[SelfCheck], records: Records) -> SelfCheck:
    """The self-checks of the workers together. The trend of the send lag is that of the worker whose lag grew
    most; requests in flight are counted in the merged records; all workers see the steps of one clock."""
    peak = peak_in_flight(records)
    if not checks:
        return SelfCheck(peak_in_flight=peak)
    worst = max(checks, key=_growth)
    return replace(
        SelfCheck.together(checks),
        send_lag_first_tenth_p50_ns=worst.send_lag_first_tenth_p50_ns,
        send_lag_last_tenth_p50_ns=worst.send_lag_last_tenth_p50_ns,
        peak_in_flight=peak,
        clock_steps=max(check.clock_steps for check in checks),
    )


def _growth(check: SelfCheck) -> float:
    first, last = check.send_lag_first_tenth_p50_ns, check.send_lag_last_tenth_p50_ns
    return -np.inf if first is None or last is None else last - first


def peak_in_flight(records: Records, block_rows: int = BLOCK) -> int:
    """The most requests that had been dispatched and had not ended, at any one instant."""
    peak = running = 0
    firsts = []
    for block in records.blocks(block_rows):
        known = (block.dispatched_ns != MISSING) & (block.finished_ns != MISSING)
        firsts.append(int(block.dispatched_ns[known].min(initial=_NEVER_NS)))
    later_ns = [*np.minimum.accumulate(firsts[::-1])[::-1].tolist()[1:], _NEVER_NS]
    instants, steps = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for block, next_ns in zip(records.blocks(block_rows), later_ns, strict=True):
        known = (block.dispatched_ns != MISSING) & (block.finished_ns != MISSING)
        count = int(np.count_nonzero(known))
        instants = np.concatenate((instants, block.finished_ns[known], block.dispatched_ns[known]))
        steps = np.concatenate((steps, np.repeat([-1, 1], count)))
        # Of an end and a dispatch at the same instant the end comes first, as in a slot.
        order = np.lexsort((steps, instants))
        instants, steps = instants[order], steps[order]
        # What no dispatch of a later block comes before is settled.
        settled = int(np.searchsorted(instants, next_ns, side="left"))
        level = running + np.cumsum(steps[:settled])
        if settled:
            peak, running = max(peak, int(level.max())), int(level[-1])
        instants, steps = instants[settled:], steps[settled:]
    return peak


def _digest(plan: LoadPlan, records: Records) -> str:
    """The digest of the requests that were sent, in the order of the sequence; of sessions those of all turns
    of each that was begun.

    They have gaps where a load ended early or by its time, and one worker had gone further than another.
    """
    sent = np.unique(records.index)
    if plan.load.of_sessions and len(records):
        firsts, rows = np.unique(records.index - (records.turn - 1), return_index=True)
        turns = records.session_turns[rows]
        every = [np.arange(first, first + count) for first, count in zip(firsts, turns, strict=True)]
        sent = np.unique(np.concatenate(every))
        sent = sent[sent < plan.first + plan.requests]
    if not len(sent) or int(sent[-1]) == plan.first + len(sent) - 1:
        return drawn_sha256(plan.workload, plan.first, len(sent), plan.seed)
    stretches = np.split(sent, np.flatnonzero(np.diff(sent) > 1) + 1)
    return slices_sha256(plan.workload, [(int(each[0]), len(each)) for each in stretches], plan.seed)
