"""The engine in virtual time: from a LoadPlan straight to Records, without sockets, event loop or waiting.

The same engine that :mod:`~pytest_llmbench.simulator.server` serves in real time. Here a step costs what it
takes to work it out, so a run of hours is over in seconds, and the same seed gives the same bytes. Between
client and engine lie two constants (:class:`~pytest_llmbench.simulator.replay_load.Delays`); the generator
is never late. What such a run says about the methodology and about a suite is as good as a real one's; about
a real engine it says what its figures say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.engine import Engine
from pytest_llmbench.simulator.engine_config import EngineConfig
from pytest_llmbench.simulator.faults import FaultSchedule
from pytest_llmbench.simulator.replay_chunks import Steps
from pytest_llmbench.simulator.replay_facts import replay_facts, replay_note, run_facts
from pytest_llmbench.simulator.replay_faults import require_replayable
from pytest_llmbench.simulator.replay_load import Delays, arrivals_of
from pytest_llmbench.simulator.replay_records import Recording, records_of, rows_of
from pytest_llmbench.simulator.replay_run import ReplayRun
from pytest_llmbench.simulator.scenario import Scenario
from pytest_llmbench.workloads.sequence import sequence_sha256

_FIRST_NS = 1_000_000_000
_PAUSE_NS = 1_000_000
"""Between two plans, so that the end of one and the start of the next never share an instant."""


class VirtualClock:
    """Moves only when a replay moves it. Its wall clock is the same count: it began in 1970."""

    name = "virtual"

    def __init__(self) -> None:
        self.now_ns = _FIRST_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def anchor(self) -> ClockAnchor:
        return ClockAnchor(self.now_ns, self.now_ns)


class ReplayEngine:
    """Runs one LoadPlan after another on one engine and one virtual clock: warm-up, probes, measured load.

    Stands where a load generator and its server stand otherwise. ``on_record`` is called once for each
    request, in the order in which they ended, when the plan is through. The prompt of a request is taken to
    be as long as the workload asked, as if it were sent as token ids.
    """

    def __init__(
        self,
        scenario: Scenario | EngineConfig,
        *,
        delays: Delays | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.scenario = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
        require_replayable(self.scenario)
        self.config = self.scenario.engine
        self.delays = delays or Delays()
        self.clock = VirtualClock()
        self._on_record = on_record
        self._engine = Engine(self.config)
        self._faults = FaultSchedule(self.scenario.faults, self.config.seed)
        self._plans = 0
        self._busy = threading.Lock()

    def disclosure(self) -> Facts:
        """What the engine states about itself, and that it is a replay."""
        return replay_facts(self.config, self.delays)

    @property
    def note(self) -> str:
        """For everyone who reads a result."""
        return replay_note(self.config, self.delays)

    def run(self, plan: LoadPlan) -> Observation:
        """What came of the plan. Deadlines hold as on a real wire; Ctrl-C ends the plan, which then says so.

        Raises :class:`SuiteError` for a plan that cannot be run, GeneratorError while another one runs.
        """
        if not self._busy.acquire(blocking=False):
            raise GeneratorError(
                "a plan is already running", where=plan.label, remedy="one replay runs one plan at a time"
            )
        try:
            return self._run(plan)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, plan: LoadPlan) -> Observation:
        if plan.first < 0 or plan.requests < 0:
            raise SuiteError(
                f"a plan of {plan.requests} requests from number {plan.first} on", where=plan.label
            )
        planned = plan.workload.requests(plan.first + plan.requests, plan.seed)[plan.first :]
        self.clock.now_ns += _PAUSE_NS
        started_ns, taken_at = self.clock.now_ns, self.clock.anchor()
        arrivals = arrivals_of(plan, planned, started_ns, self.delays)
        run = ReplayRun(
            self._engine, arrivals, plan, faults=self._faults, delays=self.delays, start_ns=started_ns
        )
        interrupted = run.play()
        if interrupted is not None:
            self._engine = Engine(self.config)  # Ctrl-C may have come in the middle of a step
        records = self._records(plan, run)
        ended_ns = int(records.finished_ns.max()) if len(records) else started_ns
        self.clock.now_ns = max(run.now_ns, ended_ns)
        return Observation(
            plan=plan,
            records=records,
            started_ns=started_ns,
            ended_ns=ended_ns,
            anchor=taken_at,
            selfcheck=_self_check(plan, records, run.peak_in_flight),
            in_flight_at_end=run.left_in_flight,
            interrupted=interrupted,
            sequence_sha256=sequence_sha256(planned),
            facts=run_facts(),
        )

    def _records(self, plan: LoadPlan, run: ReplayRun) -> Records:
        self._plans += 1
        to_client_ns = self.delays.to_client_ns
        steps = Steps(run.first_step, np.frombuffer(run.step_ends_ns, dtype=np.int64) + to_client_ns)
        name, stream = f"replay-{self._plans}", self.scenario.stream
        recording = Recording(plan.phase, name, stream, self.config.seed, to_client_ns)
        records = records_of(run.flights, steps, recording)
        if self._on_record is not None:
            for row in rows_of(records):
                self._on_record(row)
        return records


def _self_check(plan: LoadPlan, records: Records, peak_in_flight: int) -> SelfCheck:
    """Nothing can be late: the lags of an open loop are exactly 0, and there is no loop and no process."""
    lag_ns = 0 if isinstance(plan.load, OpenLoop) and len(records) else None
    return SelfCheck(
        send_lag_p50_ns=lag_ns,
        send_lag_p99_ns=lag_ns,
        send_lag_max_ns=lag_ns,
        send_lag_first_tenth_p50_ns=lag_ns,
        send_lag_last_tenth_p50_ns=lag_ns,
        reads=len(records.chunk_ns),
        content_chunks=len(records.chunk_ns),
        peak_in_flight=peak_in_flight,
        clock=VirtualClock.name,
        clock_resolution_ns=1,
        stamp_source="the virtual clock",
        event_loop="none",
        transport="none (virtual time)",
    )


__all__ = ["ReplayEngine", "VirtualClock"]
