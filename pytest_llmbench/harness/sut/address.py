"""A server at an address as an endpoint: it is examined, a generator is made, facts are collected.

Of a measured load is found out beside its replies: the serving engine's own metrics, read around and during
it; the round trips before and after it; and how the server counts prompts, against the tokenizer that the SUT
file names as its own. What sends and what probes is imported when an endpoint is reached: a replay needs none
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_llmbench.errors import SUTError
from pytest_llmbench.harness.execution import Around, Stoppable, with_facts
from pytest_llmbench.harness.sut.access import SUTAccess, worker_notes
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened, launched_at
from pytest_llmbench.http_client import OF_HTTP, http_beside, is_grpc
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.facts import (
    ClockFact,
    EndpointFact,
    Facts,
    GeneratorFact,
    NetworkFact,
    Origin,
    TokenizerFact,
    WireFact,
)
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.probes.engine_metrics import EngineMetricsProbe, page_urls
from pytest_llmbench.registry import load, required, transport_for
from pytest_llmbench.workloads.sequence import passing, text_of

if TYPE_CHECKING:
    from pytest_llmbench.generator.http.target import Target
    from pytest_llmbench.generator.workers.pool import WorkerPool
    from pytest_llmbench.harness.sut.launched import LaunchedServer
    from pytest_llmbench.probes.endpoint import EndpointReport
    from pytest_llmbench.tokens import HuggingFaceTokenizer


def with_engine_metrics(
    inner: Stoppable, make: Callable[[], EngineMetricsProbe], absent: str | None = None
) -> Around:
    """``inner``, with ``Observation.engine`` of measured loads filled from the server's metrics page.

    ``make`` makes the probe at the first measured load. If there is no page, it is not asked again.
    ``absent``: why there is none, where that is known.
    """
    probe: EngineMetricsProbe | None = None

    def around(plan: LoadPlan) -> Procedure[Observation]:
        nonlocal probe, absent
        if plan.phase is not Phase.MEASURE:
            return (yield plan)
        readings: EngineReadings | None = None
        if absent is None:
            probe = probe or make()
            absent = probe.before()
        if probe is None or absent is not None:
            seen = yield plan
        else:
            probe.start()
            try:
                seen = yield plan
            finally:
                readings = probe.stop()
        said = readings.source if readings is not None else f"not measurable: {absent}"
        facts = Facts.of(Origin.DETECTED, {GeneratorFact.ENGINE_METRICS: said}, "metrics page of the engine")
        return replace(seen, engine=readings, facts=seen.facts | facts)

    return Around(inner, around, lambda: None if probe is None else probe.close())


AGREEMENT: Final = TokenizerFact.AGREEMENT
"""Name of the fact: a mapping with ``prompts``, the number that was counted again, their mean ``tokens`` by
the tokenizer, and ``least`` and ``most``, by how much the server counts more. If both are equal, that is what
it adds."""
PROMPTS: Final = 32
"""How many of the first prompts of a load are counted again, after the load, when nothing is being
measured."""


def with_counted_prompts(inner: Stoppable, tokenizer: HuggingFaceTokenizer) -> Around:
    """A load generator whose measured loads carry the fact :data:`AGREEMENT`."""

    def facts(plan: LoadPlan, seen: Observation) -> Facts:
        measured = plan.phase is Phase.MEASURE
        return agreement(plan, seen.records, tokenizer.count) if measured else Facts()

    return with_facts(inner, facts)


def agreement(plan: LoadPlan, records: Records, count: Callable[[str], int]) -> Facts:
    """The fact :data:`AGREEMENT`; none if the server counted none of the prompts. Turns of sessions are left
    out: a server counts the template of each of their messages."""
    server = TOKEN_SOURCES.index(TokenSource.SERVER_USAGE)
    told = records.ok & (records.token_source == server) & (records.input_tokens != MISSING)
    told &= records.index < plan.first + PROMPTS
    theirs = dict(zip(records.index[told].tolist(), records.input_tokens[told].tolist(), strict=True))
    ours: dict[int, int] = {}
    for request in passing(plan.workload, plan.first, min(PROMPTS, plan.requests), plan.seed):
        text = text_of(request) if request.index in theirs and request.turn is None else None
        if text is not None:
            ours[request.index] = count(text)
    if not ours:
        return Facts()
    beyond = [theirs[index] - tokens for index, tokens in ours.items()]
    told_of = {
        "prompts": len(ours),
        "tokens": float(np.mean(list(ours.values()))),
        "least": min(beyond),
        "most": max(beyond),
    }
    return Facts.of(Origin.MEASURED, {AGREEMENT: told_of}, "usage of the server against the tokenizer file")


@dataclass
class Address(Endpoint):
    """A server at an address: nobody starts it, and nobody ends it."""

    url: str = field(kw_only=True)
    access: SUTAccess = field(kw_only=True)
    known: Facts = field(default_factory=Facts)
    """What was found out of the SUT itself, where this is the address of a variant."""
    launched: LaunchedServer | None = None

    def open(self) -> Opened:
        if self.launched is not None and (ended := self.launched.ended) is not None:
            raise self.launched.failure(ended)
        opened = reach(self.url, self.access)
        self.launched = launched = launched_at(opened.base_url)
        if launched is None:
            return opened
        facts = opened.facts | launched.facts
        return replace(opened, launched=launched, facts=facts, ended=lambda: launched.ended)

    def told(self, opened: Opened) -> Facts:
        """Those of the variant, and what its own server showed and the SUT's did not."""
        return differing(self.known, opened.facts) | self.facts


def differing(base: Facts, own: Facts) -> Facts:
    """The facts of ``own`` that ``base`` states otherwise, or not at all."""
    changed = {key: fact for key, fact in own.items() if key not in base or base[key].value != fact.value}
    return Facts(changed)


@contextmanager
def workers_coming_up(sut_access: SUTAccess) -> Generator[WorkerPool | None, None, None]:
    """The measuring processes of this machine, being started: this takes as long as to examine an endpoint or
    to start an engine, which is done meanwhile. They are ended if the block fails. None where no load comes
    first: then its generator starts them."""
    if sut_access.ray is not None or not sut_access.workers:
        yield None
        return
    from pytest_llmbench.generator.workers.pool import WorkerPool

    workers, cpus = sut_access.workers, sut_access.settings.cpus
    early = None if sut_access.early is None else sut_access.early.take(workers, cpus)
    if early is None and not sut_access.for_load:
        yield None
        return
    pool = WorkerPool(cpus=cpus) if early is None else early
    try:
        pool.call(workers)
        yield pool
    except BaseException:
        pool.kill()
        pool.close()
        raise


def reach(url: str, sut_access: SUTAccess) -> Opened:
    """Examine the endpoint and make a generator for it. SuiteError or SUTError say what is wrong."""
    sut_access.address(url).target()  # what we cannot speak to is said before any traffic
    with workers_coming_up(sut_access) as pool:
        return reach_with(pool, url, sut_access)


def reach_with(pool: WorkerPool | None, url: str, sut_access: SUTAccess) -> Opened:
    """:func:`reach` with measuring processes that are being started; None where others send the load."""
    from pytest_llmbench.harness.sut.adapter_calls import with_churn

    seen = _examined(url, sut_access)
    if seen.proxy is not None and not sut_access.settings.proxy:
        # Connections are direct unless asked otherwise: through a proxy we would measure something else.
        raise SUTError(
            f"the environment routes {seen.base_url} through the proxy {seen.proxy}, "
            "but measured connections use a proxy only on request",
            remedy="add the host to NO_PROXY if it can be reached directly, measure from behind the proxy, "
            "or give --llm-proxy=env, which adds its time to every figure",
        )
    told, scheme = Facts(), seen.base_url.partition("://")[0]
    spoken = None if scheme in OF_HTTP else transport_for(scheme)
    if sut_access.http2:
        spoken = required("http/2", "--llm-http")
        load(spoken.preflight["agree"])(seen.base_url, sut_access.access)  # SUTError: the server does not
        told = Facts.of(Origin.DETECTED, {WireFact.HTTP_VERSION: "2"}, "--llm-http")
    if seen.changed:
        sut_access = sut_access.with_fields(seen.changed)
    target = sut_access.address(seen.base_url).target()
    if sut_access.workers:
        from pytest_llmbench.harness.sut.workers import distributed

        generator: Stoppable = distributed(sut_access, seen, pool)
    else:
        from pytest_llmbench.generator.run import LoadGenerator
        from pytest_llmbench.wire.catalogue import dialect_at

        spoken_dialect, own = dialect_at(seen.base_url, seen.api), sut_access.own_counts
        of_requests = sut_access.of_requests
        generator = LoadGenerator(target, spoken_dialect, model=seen.model, **of_requests, **own)
    generator = with_churn(generator, seen.base_url, sut_access.access)
    if sut_access.tokenizer is not None and sut_access.asking.prompt_form == "text":
        generator = with_counted_prompts(generator, sut_access.tokenizer)
    whereabouts = _whereabouts(target, holds_key=bool(sut_access.credentials.headers))
    pages, series = page_urls(seen.base_url), sut_access.series
    executor: Stoppable = with_engine_metrics(
        generator,
        lambda: EngineMetricsProbe(pages, sut_access.access, declared=series),
        "a gRPC server has no metrics page" if is_grpc(seen.base_url) else None,
    )
    executor = _with_round_trips(executor, target, seen.base_url, sut_access, whereabouts)
    launched = launched_at(seen.base_url)
    pid = launched.pid if launched is not None else sut_access.pid
    here = pid is not None or whereabouts.value(ClockFact.TOPOLOGY) == "single_machine"
    return Opened(
        base_url=seen.base_url,
        model=seen.model,
        api=seen.api,
        facts=seen.facts | told | whereabouts,
        executor=sut_access.sampled(executor, here=here, pid=pid),
        changed=seen.changed,
        notes=(
            *found_notes(sut_access.api, seen),
            *((Note.of(spoken.note),) if spoken is not None and spoken.note else ()),
            *worker_notes(sut_access.ray or sut_access.workers),
        ),
    )


def _with_round_trips(
    inner: Stoppable, target: Target, base_url: str, sut_access: SUTAccess, whereabouts: Facts
) -> Stoppable:
    """``inner``, with the round trips around each load where the system is on another machine. They are taken
    off ``ttft_adjusted`` unless the SUT file says what is."""
    known = sut_access.told(whereabouts, {})
    if target.unix_path or known.value(ClockFact.TOPOLOGY) != "distributed":
        return inner
    from pytest_llmbench.probes.model_list import below
    from pytest_llmbench.probes.rtt import RoundTripProbe, facts_around

    url = None if is_grpc(base_url) else below(http_beside(base_url), "/models")
    probe = RoundTripProbe(target.peer, url, sut_access.access)
    adjusts = NetworkFact.TTFT_ADJUSTMENT not in known

    def around(plan: LoadPlan) -> Procedure[Observation]:
        if plan.phase is not Phase.MEASURE:
            return (yield plan)
        before = probe.take()
        seen = yield plan
        return replace(seen, facts=seen.facts | facts_around(before, probe.take(), adjusts=adjusts))

    return Around(inner, around, lambda: probe.__exit__(None, None, None))


def found_notes(asked: str, seen: EndpointReport) -> tuple[Note, ...]:
    """Notes on a dialect other than the usual one that ``auto`` found, on a model that is not listed, and on
    fields that the endpoint refuses."""
    notes = [Note.of("api_found", api=seen.api)] if asked == "auto" and seen.api != "openai-chat" else []
    if seen.models and seen.model not in seen.models:
        notes.append(Note.of("model_not_listed", model=seen.model))
    unsent = [name for name, value in seen.changed.items() if value is None]
    sent = [name for name, value in seen.changed.items() if value is not None]
    if unsent:
        own, fields = "temperature" in unsent, tuple(unsent)
        notes.append(Note.of("fields_refused", fields=fields, sent=tuple(sent), temperature=own))
    return tuple(notes)


def _whereabouts(target: Target, *, holds_key: bool) -> Facts:
    """Facts about where the endpoint lies, seen from here. Through a Unix socket there is no network.
    ``holds_key``: a header of each request does."""
    from pytest_llmbench.probes.host import host_facts, is_public
    from pytest_llmbench.probes.rtt import probe_rtt

    found = host_facts(target.host)
    if target.unix_path:
        return found
    in_clear = target.ssl_context is None and bool(holds_key or target.query)
    if in_clear and (is_public(target.host) or is_public(target.peer[0])):
        found |= Facts.of(Origin.DETECTED, {EndpointFact.KEY_IN_CLEAR: True}, f"addresses of {target.host}")
    return found | probe_rtt(*target.peer)


def _examined(url: str, sut_access: SUTAccess) -> EndpointReport:
    """The report on the endpoint, once it is ready; at once without ``--llm-wait``."""
    from pytest_llmbench.probes.endpoint import Patience, examine, refuse_while_loading, when_ready

    def attempt() -> EndpointReport:
        if sut_access.settings.wait:
            refuse_while_loading(url, sut_access.access)
        return examine(
            url,
            model=sut_access.model,
            api=sut_access.api,
            access=sut_access.access,
            asking=sut_access.asking,
        )

    return when_ready(attempt, Patience(sut_access.settings.wait, sut_access.on_progress))
