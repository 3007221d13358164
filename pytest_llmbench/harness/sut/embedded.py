"""The embedded engine as a SUT with variants: served over loopback, or replayed in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.declared import Variant
from pytest_llmbench.harness.sut.variant_executor import RunningVariant, VariantServer
from pytest_llmbench.model.facts import Fact, Facts
from pytest_llmbench.simulator.scenario.scenario import parse_scenario
from pytest_llmbench.simulator.scenario.variants import variant_facts, with_overrides

if TYPE_CHECKING:
    from pytest_llmbench.harness.sut.endpoint import OnProgress, ReachedEndpoint


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


def preset_server(
    variant: Variant, base: str, make: Callable[[str, str], RunningVariant], *, restarts_itself: bool = False
) -> VariantServer:
    """A variant of the embedded engine: an engine of its own, with its own figures.

    ``make`` takes a name and a scenario. ``restarts_itself``: the engine looks at ``fresh_state`` (a replay).
    """
    try:
        scenario = overridden(base, str(variant.preset))
    except SuiteError as error:
        raise SuiteError(error.what, where=variant.where, remedy=error.remedy) from error
    facts = variant_facts(scenario) | variant.facts
    return VariantServer(
        variant.name,
        lambda: make(variant.name, scenario),
        facts,
        server=variant.name,
        restarts=not restarts_itself,
        reset=_nothing_to_do if restarts_itself else None,
    )


def _nothing_to_do() -> None:
    return


class Server:
    """Starts embedded engines. It knows the address of the SUT's own, which changes with a restart."""

    def __init__(self, scenario: str, sut_access: SUTAccess, on_progress: OnProgress) -> None:
        """Start the engine of the SUT itself. Raises SuiteError or SUTError."""
        self._scenario = scenario
        self._sut_access = sut_access
        self._on_progress = on_progress
        self._waiting: RunningVariant | None
        self._waiting, self.reached, self.facts = self._start(scenario)

    def open(self) -> RunningVariant:
        """The SUT itself: at first the engine that is running, at every later call a new one."""
        up, self._waiting = self._waiting, None
        if up is None:
            up, self.reached, _ = self._start(self._scenario)
        return up

    def make(self, name: str, scenario: str) -> RunningVariant:  # noqa: ARG002 - a replay's engines have names
        """Start a further engine, for a variant."""
        return self._start(scenario)[0]

    def url(self) -> str:
        return self.reached.base_url

    def _start(self, scenario: str) -> tuple[RunningVariant, ReachedEndpoint, Facts]:
        # No replay needs these.
        from pytest_llmbench.harness.sut.endpoint import reach_with, workers_coming_up
        from pytest_llmbench.simulator.serving.process import EmbeddedEngine

        with workers_coming_up(self._sut_access) as pool:
            engine = EmbeddedEngine.start(scenario)
            try:
                reached = reach_with(pool, engine.url, self._sut_access, self._on_progress)
            except BaseException:
                engine.stop()
                raise
        return (
            RunningVariant(reached.executor, close=engine.stop),
            reached,
            reached.facts | engine.disclosure(),
        )


class Replayer:
    """Makes engines that share one virtual clock, so that the loads of a session never overlap in time."""

    def __init__(self, *, generates: bool = True) -> None:
        """``generates=False``: the API is one of embeddings or scores."""
        # Not before: whoever measures an endpoint does not pay for the simulator.
        from pytest_llmbench.simulator.replay.engine import ReplayEngine, VirtualClock

        self._engine = ReplayEngine
        self._generates = generates
        self.clock = VirtualClock()

    def make(self, name: str, scenario: str) -> RunningVariant:
        """The engine of a variant; with an empty name, that of the SUT itself."""
        scene = parse_scenario(scenario)
        return RunningVariant(self._engine(scene, clock=self.clock, name=name, generates=self._generates))

    def base(self, scenario: str) -> VariantServer:
        """The SUT itself as a variant server. The engine makes its own fresh state, so there is nothing else
        to reset."""
        return VariantServer("", lambda: self.make("", scenario), reset=_nothing_to_do)


def refuse_what_replays_cannot(sut_access: SUTAccess) -> None:
    """Raise SuiteError for settings that have no effect in a replay.

    Nothing is encoded in a replay, so what would stand in a request body has no effect.
    """
    sut, asking = sut_access.sut, sut_access.asking
    if asking.extra_body:
        names = ", ".join(asking.extra_body)
        raise SuiteError(
            f"a replay sends no request bodies, so extra_body ({names}) would have no effect",
            where=sut.endpoint,
            remedy="leave it out, or measure sim in its place",
        )
    model = parse_scenario(sut.preset).engine.model
    if sut_access.model not in (None, model):
        raise SUTError(
            f"the replayed engine serves {model}, not {sut_access.model}",
            where=sut.endpoint,
            remedy="leave out --llm-model",
        )


def differing(base: Facts, own: Facts) -> Facts:
    """The facts of ``own`` that ``base`` states otherwise, or not at all."""
    changed: dict[str, Fact] = {
        key: fact for key, fact in own.items() if key not in base or base[key].value != fact.value
    }
    return Facts(changed)
