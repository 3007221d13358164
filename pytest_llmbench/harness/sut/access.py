"""How to reach a SUT and what to ask of it: ``llm_sut`` takes precedence over the SUT file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.endpoint import OnProgress, SampledMachine
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.http_client import not_over_http2, not_through_a_proxy
from pytest_llmbench.model.facts import Facts, Origin, RequestFact, declared_beside
from pytest_llmbench.model.observation import THINKING_ENDED
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.request import CHUNK_TOKEN_FIELDS, SESSION_HEADER
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.probes.access import Access, Credentials, RequestForm, read_credentials
from pytest_llmbench.registry import named, required
from pytest_llmbench.tokens import reference_tokenizer

if TYPE_CHECKING:  # what sends is imported where something is sent: a replay needs none of it
    from pytest_llmbench.generator.workers.placement import RaySpec
    from pytest_llmbench.generator.workers.protocol import Address
    from pytest_llmbench.harness.execution import Stoppable
    from pytest_llmbench.harness.sut.early_workers import EarlyWorkers
    from pytest_llmbench.http_client import HttpProxy
    from pytest_llmbench.probes.disclosure import SUTFile
    from pytest_llmbench.tokens import HuggingFaceTokenizer
    from pytest_llmbench.wire.server_figures import Declared


@dataclass(frozen=True)
class SUTAccess:
    """A SUT together with the file about it and the credentials for it."""

    sut: SUT
    settings: Settings
    file: SUTFile | None
    credentials: Credentials
    on_progress: OnProgress = lambda _: None
    early: EarlyWorkers | None = None
    """Measuring processes that were started already, for the first SUT that is opened; None: there are
    none."""
    for_load: bool = True
    """Whether a load comes first. False: single requests do, which no measuring process sends; these start
    with a load."""

    machine_pages: tuple[str, ...] = ()
    """Prometheus pages about its machine, beside those of the file."""
    pid: int | None = None
    """The process of a system that was launched for it; None: nobody knows."""

    @classmethod
    def to(cls, sut: SUT, settings: Settings, file: SUTFile | None) -> SUTAccess:
        """The access to a SUT. Raises SuiteError where a required key or header is not set."""
        key_env, key_file = None, settings.api_key_file
        if file is not None and key_file is None:
            key_env, key_file = file.tables.endpoint.api_key_env, file.api_key_file
        headers = None if file is None else file.header_env
        own = read_credentials(os.environ, key_env=key_env, key_file=key_file, header_env=headers)
        return cls(sut, settings, file, own)

    @property
    def http2(self) -> bool:
        """Whether measured requests go over HTTP/2."""
        return self.settings.http == "2"

    @property
    def workers(self) -> int:
        """How many processes of this machine send the load; 0: pytest's own process does."""
        return self.settings.workers if isinstance(self.settings.workers, int) else 1

    @property
    def ray(self) -> RaySpec | None:
        """The cluster on which the load is sent; None: on this machine."""
        if isinstance(self.settings.workers, int):
            return None
        from pytest_llmbench.generator.workers.placement import RaySpec

        return RaySpec.parse(self.settings.workers)

    @property
    def access(self) -> Access:
        insecure = self.settings.insecure
        usual = Access(self.credentials, insecure=insecure, proxy=self._named_proxy, http2=self.http2)
        if self.file is None:
            return usual
        insecure = insecure or self.file.tables.endpoint.insecure
        return replace(usual, ca_file=self.file.ca_file, insecure=insecure, client=self.file.client)

    @property
    def _named_proxy(self) -> HttpProxy | None:
        """The proxy that ``--llm-proxy`` names itself; None if there is none. Raises SuiteError if it is no
        proxy."""
        if not self.settings.proxy:
            return None
        from pytest_llmbench.http_client import OF_ENVIRONMENT, HttpProxy  # what few ask for

        proxy = self.settings.proxy
        return None if proxy == OF_ENVIRONMENT else HttpProxy.without_credentials(proxy)

    @property
    def asking(self) -> RequestForm:
        if self.file is None:
            return RequestForm("text", self.sut.ignore_eos, dict(self.sut.extra_body))
        request = self.file.tables.request
        # null: encoding takes it for a field that is not sent
        own: dict[str, Any] = {**dict.fromkeys(request.omit), **CHUNK_TOKEN_FIELDS[request.chunk_tokens]}
        body: dict[str, Any] = {**own, **request.extra_body, **self.sut.extra_body}
        return RequestForm(request.prompt, self.sut.ignore_eos or request.ignore_eos, body)

    @property
    def tokenizer(self) -> HuggingFaceTokenizer | None:
        """The model's own tokenizer, if the file names one."""
        return None if self.file is None else self.file.tokenizer

    @property
    def of_requests(self) -> dict[str, Any]:
        """Arguments of every load generator: how requests are made, and what replies say."""
        return {
            "prompt_form": self.asking.prompt_form,
            "extra_body": self.asking.extra_body,
            "on_progress": self.on_progress,
            "declared": self.declared,
            "session_header": self.session_header,
        }

    @property
    def own_counts(self) -> dict[str, Any]:
        """Arguments of a load generator for counting tokens where the server counts none."""
        if self.tokenizer is None:
            return {"count_text": reference_tokenizer().count}
        return {"count_text": self.tokenizer.count, "counted_by": TokenSource.TOKENIZER_FILE}

    @property
    def declared(self) -> Declared:
        """What the file declares about replies."""
        from pytest_llmbench.wire.inline_reasoning import InlineReasoning
        from pytest_llmbench.wire.server_figures import Declared

        if self.file is None:
            return Declared()
        table, times = self.file.tables.reasoning, self.file.tables.server_times
        return Declared(
            InlineReasoning(table.tags, table.starts_thinking),
            table.end_reason or "",
            table.critical_evictions or "",
            times.queue_wait or "",
            times.prefill or "",
            times.unit,
        )

    @property
    def session_header(self) -> str:
        """The name of the header with the session of a turn. Empty: none is sent, also if a header of the
        author with that name goes with every request."""
        name = self.file.tables.request.session_header if self.file is not None else SESSION_HEADER
        return "" if name.lower() in map(str.lower, self.credentials.headers) else name

    @property
    def series(self) -> dict[str, str]:
        """Our name → series of the metrics page, as the file declares them."""
        told = self.declared
        places = {"critical_evictions": told.critical_evictions, THINKING_ENDED: told.end_reason}
        return {
            name: place.removeprefix("metric:")
            for name, place in places.items()
            if place.startswith("metric:")
        }

    def sampled(self, executor: Stoppable, *, here: bool, pid: int | None) -> Stoppable:
        """The executor, with the telemetry of the machine where it is asked for. ``here``: whether the SUT
        runs on this host."""
        table = None if self.file is None else self.file.tables.telemetry
        wanted = SampledMachine(self.machine_pages)
        if self.file is not None and table is not None:
            urls = [table.url] if isinstance(table.url, str) else table.url or []
            prices = self.file.tables.prices
            wanted = SampledMachine(
                (*self.machine_pages, *urls),
                tuple(table.command or ()),
                here if table.this_host is None else table.this_host,
                pid,
                table.interval_s,
                prices.per_hour,
                prices.currency,
            )
        elif not self.machine_pages:
            return executor
        make = named("machine", "sampled")
        return executor if make is None else make(executor, wanted)

    @property
    def model(self) -> str | None:
        return self.sut.model or (self.file.tables.endpoint.model if self.file is not None else None)

    @property
    def api(self) -> str:
        if self.file is not None and self.sut.api == "auto":
            return self.file.tables.endpoint.api
        return self.sut.api

    def address(self, url: str) -> Address:
        """The address that requests to a URL go to: through a proxy, or directly."""
        from pytest_llmbench.generator.workers.protocol import Address

        access, headers, proxy = self.access, dict(self.credentials.headers), None
        if self.settings.proxy:
            from pytest_llmbench.probes.control_plane import proxy_to

            proxy = proxy_to(url, access)
        return Address(url, headers, access.ca_file, access.insecure, access.client, self.http2, proxy)

    def refuse_what_is_not_http(self) -> None:
        """Raise SuiteError where HTTP/2 or a proxy is asked for and the SUT is not reached over HTTP, the
        proxy is not valid, or the packages for HTTP/2 are not installed."""
        mistakes = not_over_http2(self.sut.endpoint) if self.http2 else []
        mistakes += not_through_a_proxy(self.sut.endpoint) if self.settings.proxy else []
        if mistakes:
            raise SuiteError.from_mistakes(mistakes)
        _ = self._named_proxy
        if self.http2:
            required("http/2", "--llm-http")

    def told(self, facts: Facts, disclosed: Mapping[str, Any]) -> Facts:
        """``facts`` with what is declared; a later source overrides an earlier one, and none what was
        observed."""
        declared = Facts() if self.file is None else self.file.facts
        declared = declared | Facts.of(Origin.DECLARED, self.sut.disclosure, "llm_sut")
        declared = declared | Facts.of(Origin.DECLARED, disclosed, "pytest_llmbench_disclosure")
        facts = declared_beside(facts, declared)
        # Nobody can declare it away.
        sent: dict[str, Any] = {RequestFact.EXTRA_BODY: self.asking.extra_body or None}
        return facts | Facts.of(Origin.DECLARED, sent, RequestFact.EXTRA_BODY)

    def with_fields(self, extra_body: Mapping[str, Any]) -> SUTAccess:
        """The same SUT with further fields."""
        return replace(self, sut=replace(self.sut, extra_body={**self.sut.extra_body, **extra_body}))

    def asked_differently(self, extra_body: Mapping[str, Any], header_env: Mapping[str, str]) -> SUTAccess:
        """The same SUT with further fields and headers. Raises SuiteError for a variable that is not set."""
        # A variable without a key is named, so that only the further headers are read here.
        given = read_credentials(
            {**os.environ, "LLM_API_KEY": "", "OPENAI_API_KEY": ""}, header_env=header_env
        )
        own = self.credentials
        taken = {name.lower() for name in given.headers}
        kept = {name: value for name, value in own.headers.items() if name.lower() not in taken}
        secrets, source = own.secrets | given.secrets, own.source or given.source
        credentials = Credentials({**kept, **given.headers}, secrets, source)
        return replace(self.with_fields(extra_body), credentials=credentials)


def worker_notes(
    workers: int | RaySpec, *, replay: bool = False, cores: int | None = None
) -> tuple[Note, ...]:
    """Notes that go with every result of a session with ``workers``."""
    if workers == 1 or (replay and workers == 0):
        return ()
    if replay:
        return (Note.of("workers_of_replay", workers=str(workers)),)
    if workers == 0:
        return (Note.of("workers_none"),)
    if not isinstance(workers, int):
        return ()
    from pytest_llmbench.generator.workers.placement import allowed_cpus

    there = len(allowed_cpus()) if cores is None else cores
    if workers <= there:
        return ()
    return (Note.of("workers_share_cores", workers=workers, cores=there, several=there > 1),)
