"""The preparation of a SUT for measuring: its endpoint is examined and a generator made, or an engine for a
replay.

What only one kind of SUT needs is imported where that is opened: the first request waits for all the rest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.declared import Variant, declared_variants, sut_file_of
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.harness.sut.variant_executor import RunningVariant, VariantExecutor, VariantServer
from pytest_llmbench.methodology.procedure import VariantInfo
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.redaction import keep_secret

if TYPE_CHECKING:
    from pytest_llmbench.generator.workers.placement import RaySpec
    from pytest_llmbench.harness.client import LLMClient
    from pytest_llmbench.harness.sut.early_workers import EarlyWorkers
    from pytest_llmbench.harness.sut.endpoint import OnProgress, ReachedEndpoint
    from pytest_llmbench.harness.sut.launched import LaunchedServer
    from pytest_llmbench.harness.workloads.exact_lengths import TokenCounter
    from pytest_llmbench.tokens.hugging_face import HuggingFaceTokenizer


OVER_HTTP2 = (
    "the load was measured over HTTP/2 (--llm-http=2): replies that share a connection wait for the bytes of "
    "one another, and what is lost or read late is so for all of them"
)
"""Note that goes with every result of a load over HTTP/2."""


def _anchor_here() -> ClockAnchor:
    """One instant on the clocks of this machine."""
    from pytest_llmbench.timing.clock import MonotonicClock, anchor  # a replay has a clock of its own

    return anchor(MonotonicClock())


@dataclass(frozen=True)
class OpenSUT:
    """A system under test that answered, with everything needed to load it and its variants."""

    endpoint: str
    """The endpoint as the user gave it."""
    base_url: str
    model: str
    api: str
    facts: Facts
    executor: VariantExecutor
    ignore_eos: bool
    variants: Mapping[str, VariantInfo] = field(default_factory=dict)
    """Variants that procedures may name, by name; the SUT itself has the empty name."""
    now_ns: Callable[[], int] = time.monotonic_ns
    """The clock that the stamps of records are read from."""
    anchor: Callable[[], ClockAnchor] = _anchor_here
    notes: tuple[str, ...] = ()
    """Notes that go with every result."""
    key: str = ""
    """A key that tells the SUTs of a session apart, those that are opened at one address too."""
    launched: LaunchedServer | None = None
    """The server of a ``with launched_server(…)`` block that answered; None where it is none of ours."""
    virtual: bool = False
    """Whether it runs in virtual time. Several processes may replay at once without disturbing each other's
    measurements."""

    counter: TokenCounter | None = None
    """Counts tokens as the SUT does; None where prompts are ids, which need no counting."""
    vocabulary: HuggingFaceTokenizer | None = None
    """The SUT's own vocabulary, if prompts are sent as token ids."""
    client: Callable[[], LLMClient] | None = None
    """Makes a client for single requests; None where there is no server to send them to."""

    @property
    def server(self) -> str:
        """A key of the server: SUTs with equal keys ask the same one, as far as can be told."""
        if self.virtual:
            return self.key
        place = urlsplit(self.base_url).netloc or self.base_url
        return place if self.launched is None else f"{place} process {self.launched.pid}"

    @property
    def is_served(self) -> bool:
        """Whether what answered is still there: not if a fixture has stopped it since, whatever answers at
        its address now."""
        return self.launched is _launched_at(self.base_url)

    def variant(self, name: str, where: str) -> VariantInfo:
        """The variant ``name``. SuiteError, naming the declared ones, if nobody declared it."""
        if name not in self.variants or not name:
            known = ", ".join(known for known in self.variants if known) or "none"
            raise SuiteError(
                f"the SUT has no variant {name!r}; it has {known}",
                where=where,
                remedy="declare it in the SUT file, or in pytest_llmbench_variants",
            )
        return self.variants[name]

    def close(self) -> None:
        try:
            self.executor.close()
        finally:
            if self.counter is not None:
                self.counter.close()


@dataclass(frozen=True)
class Offered:
    """Declarations about a SUT that hooks offer."""

    disclosed: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Any] = field(default_factory=dict)


def open_sut(
    sut: SUT,
    settings: Settings,
    *,
    on_progress: OnProgress,
    offered: Offered | None = None,
    early: EarlyWorkers | None = None,
    for_load: bool = True,
) -> OpenSUT:
    """Examine ``sut`` and make a generator for it. Raises SuiteError or SUTError, once, with what is
    wrong.

    Of its variants nothing is opened yet; that happens when a plan names one. ``early``: measuring processes
    that it may take. ``for_load``: whether a load comes first, rather than single requests.
    """
    offered = offered or Offered()
    file = sut_file_of(settings)
    sut_access = replace(SUTAccess.to(sut, settings, file), early=early, for_load=for_load)
    sut_access.refuse_what_is_not_http()
    variants = declared_variants(sut, file, offered.variants)
    _keep_secrets(variants)
    if sut.is_replay:
        return _replayed(sut_access, variants, offered.disclosed)
    if sut.is_in_process:
        return _in_process(sut_access, variants, on_progress, offered.disclosed)
    if sut.is_embedded:
        return _embedded(sut_access, variants, on_progress, offered.disclosed)
    return _real(sut_access, variants, on_progress, offered.disclosed)


def _real(
    sut_access: SUTAccess,
    variants: Mapping[str, Variant],
    on_progress: OnProgress,
    disclosed: Mapping[str, Any],
) -> OpenSUT:
    from pytest_llmbench.harness.sut.endpoint import reach  # no replay needs it

    reached = reach(sut_access.sut.endpoint, sut_access, on_progress)
    try:
        return _with_variants(reached, sut_access, variants, on_progress, disclosed)
    except BaseException:
        reached.executor.close()
        raise


def _with_variants(
    reached: ReachedEndpoint,
    sut_access: SUTAccess,
    variants: Mapping[str, Variant],
    on_progress: OnProgress,
    disclosed: Mapping[str, Any],
) -> OpenSUT:
    def url() -> str:
        return reached.base_url

    sut_access = sut_access.with_fields(reached.changed)
    launched = _launched_at(reached.base_url)
    executor = _variants_executor(reached, launched, sut_access, variants, on_progress)
    return OpenSUT(
        endpoint=sut_access.sut.endpoint,
        base_url=reached.base_url,
        model=reached.model,
        api=reached.api,
        facts=sut_access.told(reached.facts, disclosed),
        executor=executor,
        ignore_eos=sut_access.asking.ignore_eos,
        variants=_infos(executor.servers),
        notes=(
            *api_notes(sut_access.api, reached.api),
            *reached.notes,
            *((OVER_HTTP2,) if sut_access.http2 else ()),
            *worker_notes(sut_access.ray or sut_access.workers),
        ),
        counter=_counter(sut_access, reached),
        vocabulary=_vocabulary(sut_access),
        client=lambda: _client(sut_access, reached, url),
        launched=launched,
    )


def _variants_executor(
    reached: ReachedEndpoint,
    launched: LaunchedServer | None,
    sut_access: SUTAccess,
    variants: Mapping[str, Variant],
    on_progress: OnProgress,
) -> VariantExecutor:
    opener = _opener(reached, launched)
    if sut_access.file is None and not variants:
        return VariantExecutor({"": VariantServer("", opener)})
    from pytest_llmbench.harness.sut.variant_servers import VariantContext, reset_of, server_of

    def url() -> str:
        return reached.base_url

    empties = None
    if sut_access.file is not None:
        empties = reset_of(sut_access.file.endpoint.reset, url, sut_access, "the SUT")
    base = VariantServer("", opener, reset=empties)
    around = VariantContext(sut_access, url, reached.facts, base, on_progress)
    executor = VariantExecutor({"": base})
    for name, variant in variants.items():
        executor.add(name, server_of(variant, around))
    return executor


def _launched_at(url: str) -> LaunchedServer | None:
    launching = sys.modules.get("pytest_llmbench.harness.sut.launched")  # who launches it has imported that
    return None if launching is None else launching.launched_at(url)


def _opener(reached: ReachedEndpoint, launched: LaunchedServer | None) -> Callable[[], RunningVariant]:
    """A function that brings up the SUT itself. It runs already, unless a fixture launched it and it has
    ended."""

    def open_() -> RunningVariant:
        if launched is None:
            return RunningVariant(reached.executor)
        if (ended := launched.ended) is not None:
            raise launched.failure(ended)
        return RunningVariant(reached.executor, ended=lambda: launched.ended)

    return open_


def _embedded(
    sut_access: SUTAccess,
    variants: Mapping[str, Variant],
    on_progress: OnProgress,
    disclosed: Mapping[str, Any],
) -> OpenSUT:
    from pytest_llmbench.harness.sut.embedded import Server, preset_server
    from pytest_llmbench.harness.sut.variant_servers import VariantContext, server_of

    scenario = sut_access.sut.preset
    server = Server(scenario, sut_access, on_progress)
    base = VariantServer("", server.open, restarts=True)
    around = VariantContext(sut_access, server.url, server.facts, base, on_progress)
    executor = VariantExecutor({"": base})
    try:
        for name, variant in variants.items():
            preset = variant.way == "preset"
            made = preset_server(variant, scenario, server.make) if preset else server_of(variant, around)
            executor.add(name, made)
    except BaseException:
        executor.close()
        raise
    return OpenSUT(
        endpoint=sut_access.sut.endpoint,
        base_url=server.url(),
        model=server.reached.model,
        api=server.reached.api,
        facts=sut_access.told(server.facts, disclosed),
        executor=executor,
        ignore_eos=sut_access.asking.ignore_eos,
        variants=_infos(executor.servers),
        notes=worker_notes(sut_access.ray or sut_access.workers),
        counter=_counter(sut_access, server.reached),
        vocabulary=_vocabulary(sut_access),
        client=lambda: _client(sut_access, server.reached, server.url),
    )


def _replayed(
    sut_access: SUTAccess, variants: Mapping[str, Variant], disclosed: Mapping[str, Any]
) -> OpenSUT:
    """The embedded engine in virtual time: nothing has to be started, reached or examined."""
    from pytest_llmbench.harness.sut.embedded import Replayer, preset_server, refuse_what_replays_cannot
    from pytest_llmbench.wire.catalogue import dialect, generates

    refuse_what_replays_cannot(sut_access)
    sut = sut_access.sut

    api = "openai-completions" if sut_access.api == "auto" else dialect(sut_access.api).name
    replayer = Replayer(generates=generates(api))
    executor = VariantExecutor({"": replayer.base(sut.preset)})
    for name, variant in variants.items():
        executor.add(name, preset_server(variant, sut.preset, replayer.make, restarts_itself=True))
    engine: Any = executor.base.executor
    own = Facts.of(Origin.SIMULATED, {"endpoint.url": sut.endpoint, "endpoint.api": api}, "replay")
    return OpenSUT(
        endpoint=sut.endpoint,
        base_url=sut.endpoint,
        model=engine.config.model,
        api=api,
        facts=sut_access.told(own | engine.disclosure(), disclosed),
        executor=executor,
        ignore_eos=sut_access.asking.ignore_eos,
        variants=_infos(executor.servers),
        now_ns=replayer.clock.monotonic_ns,
        anchor=replayer.clock.anchor,
        notes=(engine.note, *worker_notes(sut_access.ray or sut_access.workers, replay=True)),
        virtual=True,
    )


def _in_process(
    sut_access: SUTAccess,
    variants: Mapping[str, Variant],
    on_progress: OnProgress,
    disclosed: Mapping[str, Any],
) -> OpenSUT:
    """A callable in this process: no server has to be examined or switched, and no client can ask it by
    hand."""
    from pytest_llmbench.harness.sut.in_process import NOTE, open_in_process

    if variants:
        raise SuiteError(
            f"it has no variants, and {', '.join(variants)} are declared",
            where=sut_access.sut.endpoint,
            remedy="leave them out, or compare two endpoints (--llm-endpoint NAME=python:…)",
        )
    reached = open_in_process(sut_access, on_progress)
    executor = VariantExecutor({"": VariantServer("", lambda: RunningVariant(reached.executor))})
    return OpenSUT(
        endpoint=sut_access.sut.endpoint,
        base_url=reached.base_url,
        model=reached.model,
        api=reached.api,
        facts=sut_access.told(reached.facts, disclosed),
        executor=executor,
        ignore_eos=sut_access.asking.ignore_eos,
        variants=_infos(executor.servers),
        notes=(NOTE,),
    )


def _counter(sut_access: SUTAccess, reached: ReachedEndpoint) -> TokenCounter | None:
    asking = sut_access.asking
    if asking.prompt_form == "token_ids":  # as long as their lists of ids
        return None
    from pytest_llmbench.harness.workloads.exact_lengths import TokenCounter

    extra = asking.extra_body
    own = sut_access.tokenizer
    return TokenCounter.of(reached.base_url, reached.model, reached.api, sut_access.access, extra, own)


def _vocabulary(sut_access: SUTAccess) -> HuggingFaceTokenizer | None:
    return sut_access.tokenizer if sut_access.asking.prompt_form == "token_ids" else None


def _client(sut_access: SUTAccess, reached: ReachedEndpoint, url: Callable[[], str]) -> LLMClient:
    from pytest_llmbench.harness.client import Destination, LLMClient

    to = Destination(url, reached.model, reached.api)
    return LLMClient(to, sut_access.access, sut_access.asking, sut_access.tokenizer)


def api_notes(asked: str, found: str) -> tuple[str, ...]:
    """Notes for the case that ``auto`` found another dialect than the usual one."""
    if asked != "auto" or found == "openai-chat":
        return ()
    return (f"the endpoint is asked by {found}, which --llm-api=auto found; --llm-api=NAME chooses another",)


def worker_notes(
    workers: int | RaySpec, *, replay: bool = False, cores: int | None = None
) -> tuple[str, ...]:
    """Notes that go with every result of a session with ``workers``."""
    if workers == 1 or (replay and workers == 0):
        return ()
    if replay:
        return (f"--llm-workers {workers} has no effect on a replay: in virtual time nothing is sent",)
    if workers == 0:
        return (
            "the load was measured within pytest's own process (--llm-workers 0): its plugins, coverage, the "
            "suite's threads and garbage share a core with the measuring loop",
        )
    if not isinstance(workers, int):
        return ()
    from pytest_llmbench.generator.workers.placement import allowed_cpus

    there = len(allowed_cpus()) if cores is None else cores
    if workers <= there:
        return ()
    return (
        f"{workers} worker processes share {there} core{'' if there == 1 else 's'}: they delay one another "
        "and what else runs on this host, see send lag and loop lag in the self-check",
    )


def _infos(servers: Mapping[str, VariantServer]) -> dict[str, VariantInfo]:
    return {name: VariantInfo(name, served.facts, served.can_be_fresh) for name, served in servers.items()}


def _keep_secrets(variants: Mapping[str, Variant]) -> None:
    """Register the secrets of the variants, as far as they are set, so that reports do not show them."""
    names = {
        reference.env
        for variant in variants.values()
        if variant.way == "request" and variant.table.request is not None
        for reference in variant.table.request.headers.values()
    }
    values = {os.environ[name].strip() for name in names if os.environ.get(name, "").strip()}
    keep_secret(*values, *(value.rpartition(" ")[2] for value in values))
