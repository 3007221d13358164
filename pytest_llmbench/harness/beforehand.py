"""Checks of options and markers before anything is sent: endpoints that cannot be one, and APIs whose kind,
generative or not, does not fit a marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.harness.settings import BASE_MODEL, VARIANT, Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.declared import sut_file_of
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.http_client import is_grpc, is_websocket
from pytest_llmbench.methodology.procedure import TestDefinition
from pytest_llmbench.registry import names
from pytest_llmbench.wire.catalogue import generates


def mistakes_of(settings: Settings) -> list[str]:
    """The mistakes in the options: endpoints, presets, a dialect, a SUT file, a key. Each mistake is there
    once."""
    found: list[str] = []
    if not settings.urls:  # a fixture of the suite names the endpoint
        try:
            sut_file_of(settings)
        except LLMBenchError as error:
            found.append(str(error))
    for sut, own in _systems(settings):
        try:
            _check(sut, own)
        except LLMBenchError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _systems(settings: Settings) -> Iterator[tuple[SUT, Settings]]:
    """The systems that the options name, each with its settings. A file beside several of them goes by name;
    it is read when its system is opened."""
    for url in settings.urls:
        if url != BASE_MODEL and not url.startswith(VARIANT):
            own = settings if url == settings.endpoint else settings.model_copy(update={"sut": None})
            yield SUT(url, model=settings.model, api=settings.api), own


def _check(sut: SUT, settings: Settings) -> None:
    file = sut_file_of(settings)
    sut_access = SUTAccess.to(sut, settings, file)
    sut_access.refuse_what_is_not_http()
    if sut.is_embedded or sut.is_replay:
        from pytest_llmbench.simulator.scenario import parse_scenario

        parse_scenario(sut.preset)
    elif sut.is_in_process:
        from pytest_llmbench.harness.sut.in_process import refuse_what_is_not_in_process

        refuse_what_is_not_in_process(sut_access)  # it is imported when it is measured
    else:
        from pytest_llmbench.probes.model_list import base_candidates

        sut_access.address(sut.endpoint).target()
        base_candidates(sut.endpoint)
    if sut_access.api != "auto" or is_websocket(sut.endpoint) or is_grpc(sut.endpoint):
        from pytest_llmbench.wire.catalogue import dialect_at

        dialect_at(sut.endpoint, sut_access.api)


def mismatches(settings: Settings, tests: Iterable[tuple[str, TestDefinition]]) -> list[str]:
    """The tests, given with where they stand, that do not fit the APIs of the options; one line each."""
    apis = []  # those that cannot be read are reported elsewhere
    for sut, own in _systems(settings):
        with suppress(LLMBenchError):
            apis.append(SUTAccess.to(sut, own, sut_file_of(own)).api)
    found = []
    for where, definition in tests:
        wrong = (_mistake(definition, api, where) for api in dict.fromkeys(apis))
        found += [str(mistake) for mistake in wrong if mistake is not None]
    return list(dict.fromkeys(found))


def refuse_other_kind(definition: TestDefinition, api: str) -> None:
    """Raise SuiteError, before anything is sent, if the API that a fixture chose is of another kind than the
    test."""
    mistake = _mistake(definition, api, definition.title)
    if mistake is not None:
        raise mistake


def refuse_client(api: str) -> None:
    """Raise SuiteError if ``llm_client``, which reads streams, is used with an API that has none."""
    if not generates(api):
        raise SuiteError(
            f"llm_client reads streams, but {api} answers in one document",
            where="llm_client",
            remedy="use a client of that API, or measure with @llmbench.non_generative",
        )


def _mistake(definition: TestDefinition, api: str, where: str) -> SuiteError | None:
    if definition.parameters.generates == generates(api):
        return None
    if definition.parameters.generates:
        return SuiteError(
            f"@llmbench.{definition.name} measures generated tokens, but {api} generates none",
            where=where,
            remedy="choose an API that generates tokens (--llm-api), or measure with "
            "@llmbench.non_generative",
        )
    known = names("document_dialects")
    spoken = f"{api} takes what generates text" if api == "auto" else f"{api} generates text"
    return SuiteError(
        f"@llmbench.{definition.name} measures requests that generate nothing, but {spoken}",
        where=where,
        remedy=f"choose --llm-api={', '.join(known[:-1])} or {known[-1]}",
    )
