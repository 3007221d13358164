"""The embedded engine as an endpoint: served over loopback, or replayed in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut.access import SUTAccess, worker_notes
from pytest_llmbench.harness.sut.declared import Variant
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened, nothing
from pytest_llmbench.model.facts import EndpointFact, Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.simulator.scenario import parse_scenario, variant_facts, with_overrides
from pytest_llmbench.wire.catalogue import dialect, generates

if TYPE_CHECKING:
    from pytest_llmbench.simulator.replay.engine import VirtualClock


def overridden(scenario: str, overrides: str) -> str:
    """A scenario with overrides: ``fast?seed=1`` with ``prefix_caching=on`` is
    ``fast?seed=1&prefix_caching=on``.

    Overrides that name a preset (``h100-8b?seed=1``) replace the scenario. Raises SuiteError for invalid
    ones.
    """
    if "?" in overrides or "=" not in overrides:
        parse_scenario(overrides)
        return overrides
    return with_overrides(scenario, dict(part.partition("=")[::2] for part in overrides.split("&") if part))


@dataclass
class Preset(Endpoint):
    """An engine of ours, which begins anew whenever it is opened."""

    scenario: str = field(kw_only=True)

    def variant(self, declared: Variant) -> Endpoint:
        """A variant by a preset: an engine of its own, with its own figures."""
        try:
            scenario = overridden(self.scenario, str(declared.preset))
        except SuiteError as error:
            raise SuiteError(error.what, where=declared.where, remedy=error.remedy) from error
        facts = variant_facts(scenario) | declared.facts
        return replace(self, name=declared.name, server=declared.name, facts=facts, scenario=scenario)


@dataclass
class Served(Preset):
    """The engine over loopback. Each start has another address."""

    access: SUTAccess = field(kw_only=True)
    restarts: bool = True

    def open(self) -> Opened:
        # No replay needs these.
        from pytest_llmbench.harness.sut.address import reach_with, workers_coming_up
        from pytest_llmbench.probes.engine_metrics import server_root
        from pytest_llmbench.probes.model_list import below
        from pytest_llmbench.simulator.serving.metrics_page import PATH as DCGM
        from pytest_llmbench.simulator.serving.process import EmbeddedEngine

        with workers_coming_up(self.access) as pool:
            engine = EmbeddedEngine.start(self.scenario)
            told = parse_scenario(self.scenario).power.idle_w is not None
            pages = (below(server_root(engine.url), DCGM),) if told else ()
            access = replace(self.access, machine_pages=pages, pid=engine.pid)
            try:
                reached = reach_with(pool, engine.url, access)
            except BaseException:
                engine.stop()
                raise
        return replace(reached, facts=reached.facts | engine.disclosure(), close=engine.stop)


def _virtual_clock() -> VirtualClock:
    from pytest_llmbench.simulator.replay.engine import VirtualClock  # who measures a server needs none

    return VirtualClock()


@dataclass
class Replayed(Preset):
    """The engine in virtual time: nothing has to be started, reached or examined. It makes its own fresh
    state, so that there is nothing else to reset. A SUT and its variants share a clock: their loads never
    overlap in time."""

    virtual: ClassVar[bool] = True

    api: str = "openai-completions"
    generates: bool = True
    """False: requests are prefill alone, as those of embeddings and scores are."""
    any_model: bool = False
    """Whether it stands for a server whose models are not known, so that requests may name any."""
    url: str = "replay"
    notes: tuple[Note, ...] = ()
    clock: VirtualClock = field(default_factory=_virtual_clock)
    reset: Callable[[], None] | None = nothing

    @classmethod
    def of(cls, sut_access: SUTAccess) -> Replayed:
        """The SUT itself. Raises SuiteError or SUTError for settings that have no effect in a replay."""
        sut, extra = sut_access.sut, sut_access.asking.extra_body
        if extra:
            raise SuiteError(
                f"a replay sends no request bodies, so extra_body ({', '.join(extra)}) would have no effect",
                where=sut.endpoint,
                remedy="leave it out, or measure sim instead",
            )
        scene = parse_scenario(sut.preset)
        model = scene.engine.model
        if sut_access.model not in (None, model):
            raise SUTError(
                f"the replayed engine serves {model}, not {sut_access.model}",
                where=sut.endpoint,
                remedy="leave out --llm-model",
            )
        api = "openai-completions" if sut_access.api == "auto" else dialect(sut_access.api).name
        notes = worker_notes(sut_access.ray or sut_access.workers, replay=True)
        asked = sut_access.file is not None and sut_access.file.tables.telemetry is not None
        if asked and scene.power.idle_w is None:
            notes = (*notes, Note.of("machine_of_replay"))
        return cls(scenario=sut.preset, api=api, generates=generates(api), url=sut.endpoint, notes=notes)

    def open(self) -> Opened:
        from pytest_llmbench.simulator.replay.engine import ReplayEngine

        scene = parse_scenario(self.scenario)
        engine = ReplayEngine(
            scene,
            clock=self.clock,
            name=self.name,
            generates=self.generates,
            any_model=self.any_model,
        )
        own = Facts.of(Origin.SIMULATED, {EndpointFact.URL: self.url, EndpointFact.API: self.api}, "replay")
        return Opened(
            engine,
            self.url,
            engine.config.model,
            self.api,
            facts=own | engine.disclosure(),
            notes=(engine.note, *self.notes),
        )

    def now_ns(self) -> int:
        return self.clock.monotonic_ns()

    def anchor(self) -> ClockAnchor:
        return self.clock.anchor()
