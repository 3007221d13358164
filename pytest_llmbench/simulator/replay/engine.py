"""The engine in virtual time: from a LoadPlan straight to Records, without sockets, event loop or waiting.

The same engine that :mod:`~pytest_llmbench.simulator.serving.server` serves in real time. Here a step costs
what it takes to work it out, so a run of hours is over in seconds, and the same seed gives the same bytes.
Between client and engine lie two constants (:class:`~pytest_llmbench.simulator.replay.load.Delays`); the
generator is never late. What such a run says about the methodology and about a suite is as good as a real
one's; about a real engine it says what its figures say.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.facts import (
    ClockFact,
    EndpointFact,
    Facts,
    Origin,
    StreamingFact,
    SUTFact,
    TimingFact,
    WireFact,
)
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import (
    ACCEPTED_AT,
    INTERRUPTED_BY_CTRL_C,
    ClockAnchor,
    Observation,
    SelfCheck,
    of_label,
)
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.faults import REFUSALS, STRIKES, FaultSchedule, StreamOptions
from pytest_llmbench.simulator.engine.scheduling import EngineTotals
from pytest_llmbench.simulator.replay.load import DELAYS, Arrivals, Delays, PlannedJobs
from pytest_llmbench.simulator.replay.records import RecordOptions, ReplayLog
from pytest_llmbench.simulator.replay.replica import readings_of, sampled
from pytest_llmbench.simulator.replay.run import ReplayRun
from pytest_llmbench.simulator.scenario import (
    Scenario,
    disclosure,
    standard_overrides,
    variant_facts,
    with_overrides,
)
from pytest_llmbench.timing import quiet_gc

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.power import PowerMeter

_SOURCE = "replay in virtual time"

_SHOWN = {*REFUSALS, *STRIKES, *DELAYS}

_TIMELESS = {
    "tokens_per_chunk", "done_marker", "line_end",
    "writes_per_event", "reasoning_place", "token_times", "server_timings",
    "server_timestamps", "trace", "metrics",
}  # fmt: skip
"""Options of the stream that a replay carries out, or that change nothing in the records."""


def require_replayable(scenario: Scenario) -> None:
    """Raise SuiteError, naming them all, for options that a replay would silently leave out."""
    asked, plain = scenario.stream, StreamOptions()
    names = [
        each.name
        for each in fields(StreamOptions)
        if each.name not in _TIMELESS and getattr(asked, each.name) != getattr(plain, each.name)
    ]
    mistakes = [f"{name} changes the bytes of the stream, and a replay sends no bytes" for name in names]
    mistakes += [
        f"the fault {kind} changes the bytes of the stream, and a replay sends no bytes"
        for kind in scenario.faults.fault
        if kind not in _SHOWN
    ]
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes, where="replay", remedy="measure sim:… with these options, or leave them out"
        )


def protocol(scenario: Scenario, *, generates: bool = True) -> str:
    """Name of the protocol that the replay stands for: an engine by itself streams a gRPC message per token,
    a gateway with filters or a router before it server-sent events (the draft's advice for either, section
    4.6.1). Requests that generate nothing are answered with one JSON document."""
    if not generates:
        return "json"
    filters = (scenario.engine.input_filter, scenario.engine.output_filter)
    alone = filters == ("absent", "absent") and scenario.deployment.engines == 1
    return "grpc" if alone else "sse"


def run_facts(scenario: Scenario, *, generates: bool = True) -> Facts:
    """The facts that a load generator would state about the wire and its timestamps."""
    spoken = protocol(scenario, generates=generates)
    grpc = spoken == "grpc"
    first: dict[str, Any] = {
        TimingFact.FIRST_POINT: "first_token_message" if grpc else "parsed_data_event",
        TimingFact.FIRST_TOKEN_KIND: "content",
    }
    return Facts.of(
        Origin.SIMULATED,
        {
            SUTFact.SIMULATED: "replay",
            StreamingFact.PROTOCOL: spoken,
            WireFact.PROMPT_FORM: "token_ids",
            TimingFact.SUBMIT_POINT: "message_sent" if grpc else "last_request_byte",
            **(first if generates else {}),
            TimingFact.CLOCK_RESOLUTION_NS: 1,
            TimingFact.TIMESTAMP_FORMAT: "epoch_ms",
        },
        _SOURCE,
    )


_WAITS = ("queue_wait", "prefill")


class ReplayTotals:
    """The counters that the served engine's metrics page has, since the engine of the replay began.

    ``requests_finished``: whatever became of them, if they were accepted. Waits and prefills are those of the
    requests that were answered, as on the page.
    """

    def __init__(self) -> None:
        waits = (f"{name}_{told}" for name in _WAITS for told in ("s", "count"))
        self._found = dict.fromkeys(("requests_finished", *waits), 0.0)

    def note(self, records: Records) -> None:
        """Count the requests of a plan that has ended."""
        for block in records.blocks():
            self._found["requests_finished"] += int((block.http_status == 200).sum())
            for name in _WAITS:
                ns = getattr(block, f"{name}_ns")[block.ok]
                known = ns[ns != MISSING]
                self._found[f"{name}_s"] += float(known.sum()) / 1e9
                self._found[f"{name}_count"] += len(known)

    def read(self, engine: EngineTotals, config: EngineConfig, *, transfers: bool) -> dict[str, float]:
        """The current value of each counter. ``transfers``: prefill and decode are apart."""
        found = {name: float(count) for name, count in engine.counted(config).items()}
        if transfers:
            found |= {"kv_transfer_s": engine.transfer_ns / 1e9, "kv_transfer_count": float(engine.transfers)}
        accepted = engine.accepted_at(config.speculative_tokens)
        found |= {of_label(ACCEPTED_AT, str(n)): float(own) for n, own in enumerate(accepted)}
        return found | self._found


_FIRST_NS = 1_000_000_000
_PAUSE_NS = 1_000_000
"""Nanoseconds between two plans, so that the end of one and the start of the next never share an instant."""


class VirtualClock:
    """A clock that moves only when a replay moves it. Its wall clock is the same count: it began in 1970."""

    name = "virtual"

    def __init__(self) -> None:
        self.now_ns = _FIRST_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def anchor(self) -> ClockAnchor:
        return ClockAnchor(self.now_ns, self.now_ns)


class ReplayEngine:
    """Runs one LoadPlan after another on one virtual clock and one engine, or replicas of it behind a router:
    warm-up, probes, measured load.

    A plan with ``fresh_state`` gets a new engine, as after a restart: cache, counters and the laws drawn from
    the seed begin anew. ``plan.variant`` is not looked at: :meth:`variant` gives an engine for each.

    Stands where a load generator and its server stand otherwise. A long plan needs no more memory than its
    requests in flight: what has ended goes to a file. The prompt of a request is taken to be as long as the
    workload asked, as if it were sent as token ids.
    """

    def __init__(
        self,
        scenario: Scenario | EngineConfig,
        *,
        delays: Delays | None = None,
        clock: VirtualClock | None = None,
        name: str = "",
        generates: bool = True,
        any_model: bool = False,
    ) -> None:
        """``generates=False``: requests are prefill alone, as those for embeddings and scores are.
        ``any_model``: they may name any model, and no adapters come and go."""
        self.scenario = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
        self.generates = generates
        self._any_model = any_model
        self.name = name
        """Name of the variant; part of the request ids."""
        require_replayable(self.scenario)
        self.config = self.scenario.engine
        self.delays = delays or Delays()
        self.clock = clock or VirtualClock()
        self._engines, self._totals = self._started(), ReplayTotals()
        self.meters: tuple[PowerMeter, ...] = ()
        """The power meter of each engine since this one was made, restarts or not: its true energy. Empty
        where nothing is known of power."""
        if self.scenario.power.idle_w is not None:
            from pytest_llmbench.simulator.engine.power import power_meters

            self.meters = power_meters(self.scenario.power, self._engines, self.clock.now_ns)
        self._faults = FaultSchedule(self.scenario.faults, self.config.seed, self.scenario.cheats)
        self._plans = 0
        self._busy = threading.Lock()

    def variant(self, name: str, overrides: Mapping[str, str] | None = None) -> ReplayEngine:
        """An engine on the same clock with the options of this one and ``overrides``.

        Without any, ``name`` is one of
        :data:`~pytest_llmbench.simulator.scenario.STANDARD_VARIANTS`.

        Raises SuiteError for a name that is none of them, and for impossible overrides.
        """
        if overrides is None:
            overrides = standard_overrides(name)
        scenario = with_overrides(self.scenario, overrides)
        return ReplayEngine(
            scenario,
            delays=self.delays,
            clock=self.clock,
            name=name,
            generates=self.generates,
            any_model=self._any_model,
        )

    def disclosure(self) -> Facts:
        """What the engine states about itself, and that it is a replay. All facts have the origin
        ``simulated``: none was observed on a wire."""
        own = {
            SUTFact.SIMULATED: "replay",
            "replay.submit_to_received_us": self.delays.submit_to_received_us,
            "replay.write_to_read_us": self.delays.write_to_read_us,
            ClockFact.TOPOLOGY: "single_machine",
            ClockFact.METHOD: "one virtual clock",
            StreamingFact.PROTOCOL: protocol(self.scenario, generates=self.generates),
            EndpointFact.SERVER: "none: virtual time",
        }
        return disclosure(self.config, self.scenario.deployment) | Facts.of(Origin.SIMULATED, own, _SOURCE)

    @property
    def note(self) -> Note:
        """The note for everyone who reads a result."""
        return Note.of(
            "replay",
            preset=self.config.name,
            behind=tuple(self.scenario.deployment.in_words()),
            there=Amount(self.delays.submit_to_received_us, "µs"),
            back=Amount(self.delays.write_to_read_us, "µs"),
        )

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        """Run a plan and return what was observed. Deadlines hold as on a real wire; Ctrl-C ends the plan,
        and the observation says so.

        ``on_record`` is called once for each request, in the order in which they ended; some thousand at a
        time, so of a short plan when it is through.

        Raises :class:`SuiteError` for a plan that cannot be run, GeneratorError while another one runs.
        """
        if not self._busy.acquire(blocking=False):
            raise GeneratorError(
                "a plan is already running", where=plan.label, remedy="one replay runs one plan at a time"
            )
        try:
            with quiet_gc():
                return self._run(plan, on_record)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        if mistakes := plan.mistakes():
            raise SuiteError.from_mistakes(mistakes, where=plan.label)
        jobs = PlannedJobs(plan)
        self.clock.now_ns += _PAUSE_NS
        started_ns, taken_at = self.clock.now_ns, self.clock.anchor()
        arrivals = Arrivals(plan, jobs, started_ns, self.delays.to_engine_ns)
        if plan.fresh_state:
            self._restart()
        before = self._read_totals()
        self._plans += 1
        name = "-".join(filter(None, ("replay", self.name, str(self._plans))))
        log = ReplayLog(RecordOptions(plan.phase, name, self.scenario, self.generates), on_record)
        run = ReplayRun(
            self._engines,
            arrivals,
            plan,
            faults=self._faults,
            delays=self.delays,
            start_ns=started_ns,
            keep=log.keep,
            generates=self.generates,
            any_model=self._any_model,
            deployment=self.scenario.deployment,
            meters=self.meters,
        )
        run.play()
        interrupted = run.interrupted
        records = log.records()
        self._totals.note(records)
        readings = readings_of(run.replicas, before, self._read_totals())
        if interrupted == INTERRUPTED_BY_CTRL_C:
            self._restart()  # Ctrl-C may have come in the middle of a step
        ended_ns = int(records.finished_ns.max()) if len(records) else started_ns
        self.clock.now_ns = max(run.now_ns, ended_ns)
        cut_short = interrupted is not None or run.stopped is not None
        return Observation(
            plan=plan,
            records=records,
            started_ns=started_ns,
            ended_ns=ended_ns,
            anchor=taken_at,
            selfcheck=_self_check(plan, records, run.peak_in_flight),
            in_flight_at_end=run.left_in_flight,
            interrupted=interrupted,
            sequence_sha256=jobs.sha256(),
            facts=run_facts(self.scenario, generates=self.generates)
            | (variant_facts(self.scenario) if self.name else Facts()),
            engine=readings,
            telemetry=sampled(self.meters, started_ns, self.clock.now_ns) if self.meters else None,
            load_ended_ns=_load_ended_ns(plan, records, started_ns, cut_short=cut_short),
            stopped=run.stopped,
            adapter_calls=() if run.calls is None else tuple(run.calls.done),
        )

    def _restart(self) -> None:
        self._engines, self._totals = self._started(), ReplayTotals()

    def _started(self) -> tuple[Engine, ...]:
        return self.scenario.deployment.started(self.config)

    def _read_totals(self) -> dict[str, float]:
        whole = EngineTotals.summed(engine.totals for engine in self._engines)
        return self._totals.read(whole, self.config, transfers=self.scenario.deployment.disaggregated)


def _load_ended_ns(plan: LoadPlan, records: Records, started_ns: int, cut_short: bool) -> int | None:
    """The instant up to which the load was kept up: the end of the duration, or the last submission if that
    had to come later, or where the load ended before: there was nothing left to send, or it was cut short."""
    if plan.duration_s is None:
        return None
    last_ns = int(records.submitted_ns.max()) if len(records) else started_ns
    ran_out = plan.load.request_rate is None and len(records) >= plan.ceiling
    if ran_out or cut_short:
        return last_ns
    return max(last_ns, started_ns + round(plan.duration_s * 1e9))


def _self_check(plan: LoadPlan, records: Records, peak_in_flight: int) -> SelfCheck:
    """The self-check of a replay, in which nothing can be late.

    The lags of an open loop are exactly 0, and there is no loop and no process.
    """
    lag_ns = 0 if plan.load.requests_in_flight is None and len(records) else None
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
