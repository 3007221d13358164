"""From a SUT to one that can be measured: endpoint examined and generator ready, or an engine to replay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.generator.clock import MonotonicClock, anchor
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.target import Target
from pytest_llmbench.harness.executor import Executor
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut import SUT
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.probes.control_plane import Access
from pytest_llmbench.probes.credentials import Credentials, read_credentials
from pytest_llmbench.probes.disclosure import SUTFile, read_sut_file
from pytest_llmbench.probes.endpoint import Asking, EndpointReport, examine
from pytest_llmbench.probes.host import host_facts
from pytest_llmbench.probes.rtt import probe_rtt
from pytest_llmbench.simulator.process import EmbeddedEngine
from pytest_llmbench.simulator.replay import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.store.redaction import Redactor
from pytest_llmbench.tokens.reference import reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect


class RecordSink:
    """Where the generator's records go just now: the records file of the test that is running, if any."""

    def __init__(self) -> None:
        self.write: Callable[[RequestRecord], None] | None = None

    def __call__(self, record: RequestRecord) -> None:
        if self.write is not None:
            self.write(record)


@dataclass(frozen=True)
class OpenSUT:
    """A system under test that answered, with everything needed to load it."""

    endpoint: str
    """As the user gave it."""
    base_url: str
    model: str
    api: str
    facts: Facts
    executor: Executor
    sink: RecordSink
    redactor: Redactor
    ignore_eos: bool
    engine: EmbeddedEngine | None = None
    now_ns: Callable[[], int] = time.monotonic_ns
    """The clock of the records."""
    anchor: Callable[[], ClockAnchor] = partial(anchor, MonotonicClock())
    notes: tuple[str, ...] = ()
    """What has to be said with every result."""
    virtual: bool = False
    """Several processes may replay at once: they cannot disturb each other's measurements."""

    def close(self) -> None:
        self.executor.close()
        if self.engine is not None:
            self.engine.stop()


@dataclass(frozen=True)
class _Approach:
    """How to reach a SUT and what to ask of it: ``llm_sut`` stands before the SUT file."""

    sut: SUT
    file: SUTFile | None
    credentials: Credentials

    @property
    def access(self) -> Access:
        if self.file is None:
            return Access(self.credentials)
        return Access(self.credentials, ca_file=self.file.ca_file, insecure=self.file.endpoint.insecure)

    @property
    def asking(self) -> Asking:
        if self.file is None:
            return Asking("text", self.sut.ignore_eos, dict(self.sut.extra_body))
        request = self.file.request
        body = {**request.extra_body, **self.sut.extra_body}
        return Asking(request.prompt, self.sut.ignore_eos or request.ignore_eos, body)

    @property
    def model(self) -> str | None:
        return self.sut.model or (self.file.endpoint.model if self.file is not None else None)

    @property
    def api(self) -> str:
        return self.file.endpoint.api if self.file is not None and self.sut.api == "auto" else self.sut.api

    def target(self, url: str) -> Target:
        access = self.access
        headers = self.credentials.headers
        return Target.parse(url, headers=headers, ca_file=access.ca_file, insecure=access.insecure)


def open_sut(
    sut: SUT,
    settings: Settings,
    *,
    on_progress: Callable[[Any], None],
    disclosed: Mapping[str, Any],
) -> OpenSUT:
    """Examine ``sut`` and make a generator for it. SuiteError or SUTError say what is wrong, once."""
    file = read_sut_file(settings.sut) if settings.sut is not None else None
    approach = _Approach(sut, file, _credentials(settings, file))
    if sut.is_replay:
        return _replayed(approach, disclosed)
    if not sut.is_embedded:
        return _opened(approach, sut.endpoint, on_progress, disclosed)
    engine = EmbeddedEngine.start(sut.preset)
    try:
        return _opened(approach, engine.url, on_progress, disclosed, engine)
    except BaseException:
        engine.stop()
        raise


def _credentials(settings: Settings, file: SUTFile | None) -> Credentials:
    key_file = settings.api_key_file or (file.api_key_file if file is not None else None)
    return read_credentials(
        os.environ,
        key_env=file.endpoint.api_key_env if file is not None and settings.api_key_file is None else None,
        key_file=key_file,
        header_env=file.header_env if file is not None else None,
    )


def _opened(
    approach: _Approach,
    url: str,
    on_progress: Callable[[Any], None],
    disclosed: Mapping[str, Any],
    engine: EmbeddedEngine | None = None,
) -> OpenSUT:
    approach.target(url)  # what we cannot speak to is said before any traffic
    asking = approach.asking
    seen = examine(url, model=approach.model, api=approach.api, access=approach.access, asking=asking)
    _refuse_proxy(seen)
    target = approach.target(seen.base_url)
    sink = RecordSink()
    generator = LoadGenerator(
        target,
        dialect(seen.api),
        model=seen.model,
        prompt_form=asking.prompt_form,
        extra_body=asking.extra_body,
        on_record=sink,
        on_progress=on_progress,
        count_text=reference_tokenizer().count,
    )
    return OpenSUT(
        endpoint=approach.sut.endpoint,
        base_url=seen.base_url,
        model=seen.model,
        api=seen.api,
        facts=_told(seen.facts | _facts(target, engine), approach, disclosed),
        executor=generator,
        sink=sink,
        redactor=Redactor(approach.credentials.secrets),
        ignore_eos=asking.ignore_eos,
        engine=engine,
    )


def _refuse_proxy(seen: EndpointReport) -> None:
    """The measured connections are our own and direct: through a proxy we would measure something else."""
    if seen.proxy is not None:
        raise SUTError(
            f"the environment routes {seen.base_url} through the proxy {seen.proxy}, "
            "and the measured connections do not go through proxies",
            remedy="add the host to NO_PROXY if it can be reached directly, or measure from behind the proxy",
        )


def _facts(target: Target, engine: EmbeddedEngine | None) -> Facts:
    """What can be found out, and the embedded engine about itself."""
    facts = host_facts(target.host) | probe_rtt(target.host, target.port)
    return facts if engine is None else facts | engine.disclosure()


def _told(facts: Facts, approach: _Approach, disclosed: Mapping[str, Any]) -> Facts:
    """``facts``, and over them what is declared: the stronger the later."""
    if approach.file is not None:
        facts = facts | approach.file.facts
    facts = facts | Facts.of(Origin.DECLARED, approach.sut.disclosure, "llm_sut")
    return facts | Facts.of(Origin.DECLARED, disclosed, "pytest_llmbench_disclosure")


def _replayed(approach: _Approach, disclosed: Mapping[str, Any]) -> OpenSUT:
    """The embedded engine in virtual time: nothing to start, to reach or to examine."""
    sut, asking = approach.sut, approach.asking
    if asking.extra_body:
        names = ", ".join(asking.extra_body)
        raise SuiteError(
            f"a replay sends no request bodies, so extra_body ({names}) would have no effect",
            where=sut.endpoint,
            remedy="leave it out, or measure sim in its place",
        )
    sink = RecordSink()
    engine = ReplayEngine(parse_scenario(sut.preset), on_record=sink)
    if approach.model not in (None, engine.config.model):
        raise SUTError(
            f"the replayed engine serves {engine.config.model}, not {approach.model}",
            where=sut.endpoint,
            remedy="leave out --llm-model",
        )
    api = dialect("openai-completions" if approach.api == "auto" else approach.api).name
    own = Facts.of(Origin.SIMULATED, {"endpoint.url": sut.endpoint, "endpoint.api": api}, "replay")
    return OpenSUT(
        endpoint=sut.endpoint,
        base_url=sut.endpoint,
        model=engine.config.model,
        api=api,
        facts=_told(own | engine.disclosure(), approach, disclosed),
        executor=engine,
        sink=sink,
        redactor=Redactor(approach.credentials.secrets),
        ignore_eos=asking.ignore_eos,
        now_ns=engine.clock.monotonic_ns,
        anchor=engine.clock.anchor,
        notes=(engine.note,),
        virtual=True,
    )


__all__ = ["OpenSUT", "RecordSink", "open_sut"]
