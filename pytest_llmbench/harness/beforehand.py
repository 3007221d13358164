"""What can be said of the options without asking the system under test anything."""

from __future__ import annotations

from pytest_llmbench.endpoint_urls import is_grpc, is_websocket
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.settings import VARIANT, Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.probes.disclosure import read_sut_file
from pytest_llmbench.simulator.scenario.scenario import parse_scenario


def mistakes_of(settings: Settings) -> list[str]:
    """Endpoints that cannot be one, presets, a dialect, a SUT file, a key: every mistake, none twice."""
    found = [] if settings.urls else _of_the_file(settings)
    for url in settings.urls:
        if url.startswith(VARIANT):
            continue
        sut = SUT(url, model=settings.model, api=settings.api)
        # A file beside several systems goes by name; it is read when its system is opened.
        own = settings if url == settings.endpoint else settings.model_copy(update={"sut": None})
        try:
            _check(sut, own)
        except LLMBenchError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _of_the_file(settings: Settings) -> list[str]:
    """The mistakes of a file whose system a fixture of the suite names."""
    try:
        if settings.sut is not None:
            read_sut_file(settings.sut)
    except LLMBenchError as error:
        return [str(error)]
    return []


def _check(sut: SUT, settings: Settings) -> None:
    file = read_sut_file(settings.sut) if settings.sut is not None else None
    approach = SUTAccess.to(sut, settings, file)
    approach.refuse_what_is_not_http()
    if sut.is_embedded or sut.is_replay:
        parse_scenario(sut.preset)
    elif sut.is_in_process:
        from pytest_llmbench.harness.sut.in_process import refuse_what_is_not_in_process

        refuse_what_is_not_in_process(approach)  # it is imported when it is measured
    else:
        from pytest_llmbench.probes.model_list import base_candidates

        approach.target(sut.endpoint)
        base_candidates(sut.endpoint)
    if approach.api != "auto" or is_websocket(sut.endpoint) or is_grpc(sut.endpoint):
        from pytest_llmbench.wire.catalogue import dialect_at

        dialect_at(sut.endpoint, approach.api, approach.messages)
