"""What a test with adapters needs of the system that it measures, asked before any load."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut.adapter_calls import calls_of
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.probes.api_detection import small_body
from pytest_llmbench.probes.control_plane import ControlPlane
from pytest_llmbench.probes.model_list import below, enumerated, read_model_list
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import EncodeOptions


def require_adapters(opened: OpenSUT, adapters: Iterable[str], churned: Churn | None = None) -> None:
    """Raise SuiteError where the API names no model in its requests, SUTError where the endpoint lists its
    models and some of these are not among them. A server without a list answers 404 to the first request.

    ``churned``: those that come and go while load is running. SUTError where no call of the endpoint does
    that.
    """
    named = tuple(adapters)
    spoken = dialect_at(opened.endpoint if opened.over_http else opened.base_url, opened.api)
    if named and small_body(spoken, EncodeOptions("a")) == small_body(spoken, EncodeOptions("b")):
        raise SuiteError(
            f"requests of {opened.api} name no model, so they cannot name an adapter",
            where="adapters",
            remedy="measure over --llm-api=openai-chat or openai-completions",
        )
    if churned is not None:
        named = (*named, *(name for name, _ in churned.adapters))
        if not opened.over_http and not opened.virtual:
            raise SuiteError(
                "adapters are loaded by calls over HTTP, but there is no server",
                where=f"beside=churn on {opened.endpoint}",
                remedy="measure a server, or leave out beside",
            )
        if opened.over_http:
            with ControlPlane(opened.base_url, opened.access.access) as control:
                calls_of(control, opened.base_url)
    listed = _listed(opened)
    if listed is None:
        return
    absent = [name for name in dict.fromkeys(named) if name not in listed]
    if absent:
        close = difflib.get_close_matches(absent[0], listed, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise SUTError(
            f"the endpoint has no adapter {enumerated(absent)}",
            where=opened.base_url,
            remedy=f"{hint}load it before the test; the endpoint lists {enumerated(listed)}",
        )


def _listed(opened: OpenSUT) -> Sequence[str] | None:
    """The names that may be asked for; None where nobody tells."""
    if opened.virtual:
        engine = parse_scenario(opened.access.sut.preset).engine
        return engine.model, *engine.adapter_names
    if not opened.over_http:
        return None
    with ControlPlane(opened.base_url, opened.access.access) as control:
        answer = control.get_or_failure(below(opened.base_url, "/models"))
    listed = None if isinstance(answer, SUTError) else read_model_list(opened.base_url, answer)
    return listed.names if listed is not None and listed.entries else None
