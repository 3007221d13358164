"""The door to a system under test: its endpoint is opened, and its variants stand ready.

What only one kind of SUT needs is imported where that is opened: the first request waits for all the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.declared import Variant, declared_variants, sut_file_of
from pytest_llmbench.harness.sut.endpoint import Endpoint, OnProgress, Opened, launched_at
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.harness.sut.variant_executor import VariantExecutor
from pytest_llmbench.methodology.procedure import VariantInfo
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.redaction import keep_secret

if TYPE_CHECKING:
    from pytest_llmbench.harness.client import LLMClient
    from pytest_llmbench.harness.sut.early_workers import EarlyWorkers
    from pytest_llmbench.harness.sut.embedded import Preset
    from pytest_llmbench.harness.sut.launched import LaunchedServer
    from pytest_llmbench.harness.workloads.exact_lengths import TokenCounter
    from pytest_llmbench.probes.token_count import ServerTokenCount
    from pytest_llmbench.tokens import HuggingFaceTokenizer


@dataclass(frozen=True)
class OpenSUT:
    """A system under test that answered, with everything needed to load it and its variants."""

    access: SUTAccess
    executor: VariantExecutor
    opened: Opened
    """What answered first."""
    facts: Facts
    """What was found out of it, and what is declared."""
    key: str = ""
    """A key that tells the SUTs of a session apart, those that are opened at one address too."""

    @property
    def endpoint(self) -> str:
        """The endpoint as the user gave it."""
        return self.access.sut.endpoint

    @property
    def base_url(self) -> str:
        return self.opened.base_url

    @property
    def api(self) -> str:
        return self.opened.api

    @property
    def launched(self) -> LaunchedServer | None:
        """The server of a ``with launched_server(…)`` block that answered; None where it is none of ours."""
        return self.opened.launched

    @property
    def virtual(self) -> bool:
        """Whether it runs in virtual time. Several processes may replay at once without disturbing each
        other's measurements."""
        return self.access.sut.is_replay

    @property
    def over_http(self) -> bool:
        """Whether there is a server, which other requests can be sent to."""
        return not (self.virtual or self.access.sut.is_in_process)

    @property
    def variants(self) -> dict[str, VariantInfo]:
        """Variants that procedures may name, by name; the SUT itself has the empty name."""
        return {
            name: VariantInfo(name, endpoint.facts, endpoint.can_be_fresh)
            for name, endpoint in self.executor.servers.items()
        }

    def now_ns(self) -> int:
        """The clock that the stamps of records are read from."""
        return self.executor.servers[""].now_ns()

    def anchor(self) -> ClockAnchor:
        return self.executor.servers[""].anchor()

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
        return self.launched is launched_at(self.base_url)

    @cached_property
    def counter(self) -> TokenCounter | None:
        """Counts tokens as the SUT does; None where prompts are ids, which need no counting, and where there
        is no server."""
        asking = self.access.asking
        if asking.prompt_form == "token_ids" or not self.over_http:
            return None
        from pytest_llmbench.harness.workloads.exact_lengths import MOST_CALLS, TokenCounter

        at, access, body = self.opened, self.access.access, asking.extra_body

        def make() -> ServerTokenCount:
            from pytest_llmbench.probes.token_count import ServerTokenCount

            return ServerTokenCount(
                at.base_url, at.model, at.api, access, extra_body=body, most_calls=MOST_CALLS
            )

        return TokenCounter(make, at.base_url, self.access.tokenizer)

    @property
    def vocabulary(self) -> HuggingFaceTokenizer | None:
        """The SUT's own vocabulary, if prompts are sent as token ids."""
        by_ids = self.over_http and self.access.asking.prompt_form == "token_ids"
        return self.access.tokenizer if by_ids else None

    def client(self) -> LLMClient:
        """A client for single requests to its server."""
        from pytest_llmbench.harness.client import LLMClient

        access, opened = self.access, self.opened
        return LLMClient(
            lambda: self.executor.base.base_url,  # an engine that was started anew has another one
            opened.model,
            opened.api,
            access.access,
            access.asking,
            access.tokenizer,
        )

    def close(self) -> None:
        try:
            self.executor.close()
        finally:
            if "counter" in self.__dict__ and self.counter is not None:
                self.counter.close()


def open_sut(
    sut: SUT,
    settings: Settings,
    *,
    on_progress: OnProgress,
    disclosed: Mapping[str, Any] | None = None,
    variants: Mapping[str, Any] | None = None,
    early: EarlyWorkers | None = None,
    for_load: bool = True,
) -> OpenSUT:
    """Open the endpoint of ``sut``. Raises SuiteError or SUTError, once, with what is wrong.

    Of its variants nothing is opened yet; that happens when a plan names one. ``disclosed`` and ``variants``:
    what hooks declare. ``early``: measuring processes that it may take. ``for_load``: whether a load comes
    first, rather than single requests.
    """
    file = sut_file_of(settings)
    sut_access = SUTAccess.to(sut, settings, file)
    sut_access = replace(sut_access, on_progress=on_progress, early=early, for_load=for_load)
    sut_access.refuse_what_is_not_http()
    declared = declared_variants(sut, file, variants or {})
    names = {
        reference.env
        for variant in declared.values()
        if variant.way == "request" and variant.table.request is not None
        for reference in variant.table.request.headers.values()
    }
    secrets = {os.environ[name].strip() for name in names if os.environ.get(name, "").strip()}
    keep_secret(*secrets, *(value.rpartition(" ")[2] for value in secrets))
    executor = VariantExecutor(_endpoint(sut_access, declared))
    opened = executor.base
    sut_access = sut_access.with_fields(opened.changed)
    try:
        _add_variants(executor, sut_access, declared)
    except BaseException:
        executor.close()
        raise
    return OpenSUT(sut_access, executor, opened, sut_access.told(opened.facts, disclosed or {}))


def _endpoint(sut_access: SUTAccess, variants: Mapping[str, Variant]) -> Endpoint:
    sut = sut_access.sut
    if sut.is_in_process:
        from pytest_llmbench.harness.sut.in_process import InProcess

        if variants:
            raise SuiteError(
                f"it has no variants, and {', '.join(variants)} are declared",
                where=sut.endpoint,
                remedy="leave them out, or compare two endpoints (--llm-endpoint NAME=python:…)",
            )
        return InProcess(access=sut_access)
    if sut.is_replay or sut.is_embedded:
        from pytest_llmbench.harness.sut.embedded import Replayed, Served

        if sut.is_replay:
            return Replayed.of(sut_access)
        return Served(scenario=sut.preset, access=sut_access)
    from pytest_llmbench.harness.sut.address import Address  # no replay needs it

    return Address(url=sut.endpoint, access=sut_access)


def _add_variants(executor: VariantExecutor, sut_access: SUTAccess, variants: Mapping[str, Variant]) -> None:
    base, file = executor.servers[""], sut_access.file
    if file is not None and file.tables.endpoint.reset.path is not None and sut_access.sut.was_there_before:
        from pytest_llmbench.harness.sut.variant_servers import reset_of

        base.reset = reset_of(
            file.tables.endpoint.reset, lambda: executor.base.base_url, sut_access, "the SUT"
        )
    for variant in variants.values():
        if variant.way == "preset":  # declared of the embedded engine alone
            executor.add(cast("Preset", base).variant(variant))
        else:
            from pytest_llmbench.harness.sut.variant_servers import server_of

            executor.add(server_of(variant, executor, sut_access))
