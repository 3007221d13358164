"""The preflight: is there an endpoint, is it still starting, does it have the model, does it stream? Nothing
here is measured.

Each way in which the answer can be no is one SUTError that names the URL, the cause and the remedy.

What serving software answers is taken from what it says itself: a hint, never a guess. One that is still
starting is waited for: its health page if it has one, its models, one token.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.errors import NotReadyError, SUTError
from pytest_llmbench.http_client import is_grpc, is_websocket
from pytest_llmbench.model.facts import EndpointFact, Facts, Origin, StreamingFact, SUTFact
from pytest_llmbench.model.numbers import quantity, trimmed
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.probes import api_detection as detection
from pytest_llmbench.probes import endpoint_errors as errors
from pytest_llmbench.probes.access import Access, RequestForm
from pytest_llmbench.probes.control_plane import Answer, ControlPlane, without_query
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import (
    ModelList,
    base_candidates,
    below,
    choose_model,
    read_model_list,
    suggested_bases,
    unknown_model,
)
from pytest_llmbench.registry import load, required
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import Dialect, EncodeOptions, NonGenerativeDialect, headers_for
from pytest_llmbench.wire.error_replies import is_stream, json_object
from pytest_llmbench.wire.reply import counted_at_its_end
from pytest_llmbench.wire.server_figures import named_model
from pytest_llmbench.wire.stream import events_of

_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "TensorRT-LLM",
    "library": "Ollama",
}
"""``owned_by`` in a model list → engine."""

_VLLM_FINGERPRINT = re.compile(r"vllm-(\d[\w.+]*)-")
_LLAMA_CPP_FINGERPRINT = re.compile(r"(b\d+)-[0-9a-f]+")


def engine_facts(entry: Mapping[str, Any], server: str, fingerprint: str) -> dict[str, Any]:
    """The facts about the engine, by their dotted names.

    ``entry`` is the model's entry in the model list (may be empty), ``server`` the header of that name,
    ``fingerprint`` the ``system_fingerprint`` of a chunk. vLLM and llama.cpp write their version into it.
    """
    facts: dict[str, Any] = {}
    engine = _OWNERS.get(str(entry.get("owned_by", "")).lower())
    if engine is None and server.lower().startswith("llama.cpp"):
        engine = "llama.cpp"
    if engine is not None:
        facts[SUTFact.SOFTWARE_ENGINE] = engine
    pattern = {"vLLM": _VLLM_FINGERPRINT, "llama.cpp": _LLAMA_CPP_FINGERPRINT}.get(engine or "")
    if pattern is not None and (match := pattern.match(fingerprint)):
        facts[SUTFact.SOFTWARE_VERSION] = match[1]
    limit = entry.get("max_model_len")
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        facts[SUTFact.CONTEXT_LIMIT_TOKENS] = limit
    return facts


@dataclass(frozen=True, slots=True)
class _Page:
    """A page beside the API on which an engine states its version."""

    engine: str
    path: str
    key: str
    marks: tuple[str, ...] = ()
    """Keys that no other engine has there; empty: the page does not prove who answers."""


_PAGES = (
    _Page("vLLM", "/version", "version"),
    _Page("TensorRT-LLM", "/version", "version"),
    _Page("Ollama", "/api/version", "version"),
    _Page("llama.cpp", "/props", "build_info", ("build_info", "default_generation_settings")),
    _Page("SGLang", "/get_server_info", "version", ("version", "tp_size", "mem_fraction_static")),
    _Page("SGLang", "/server_info", "version", ("version", "tp_size", "mem_fraction_static")),
    _Page("TGI", "/info", "version", ("version", "model_id", "max_total_tokens")),
)
_LONGEST_VERSION = 80


def told_by_pages(get: Callable[[str], Answer | SUTError], base_url: str, known: Mapping[str, Any]) -> Facts:
    """Engine and version as stated on a page of the engine, with the URL of that page as their source.

    Asked is only what ``known`` lacks: of an engine that is known, its own page; of one that is not, those
    pages that prove whose they are. Five requests at most; a server that fails is asked no more.
    """
    if SUTFact.SOFTWARE_VERSION in known:
        return Facts()
    engine = known.get(SUTFact.SOFTWARE_ENGINE)
    for page in _PAGES:
        if page.engine != engine if engine is not None else not page.marks:
            continue
        url = below(server_root(base_url), page.path)
        try:
            answer = get(url)
        except SUTError as error:
            answer = error
        if isinstance(answer, SUTError):
            break
        said = (json_object(answer.body) if answer.status == 200 else None) or {}
        version = said.get(page.key)
        proper = isinstance(version, str) and version.isprintable() and 0 < len(version) <= _LONGEST_VERSION
        if set(page.marks) <= set(said) and proper:
            values = {SUTFact.SOFTWARE_ENGINE: page.engine, SUTFact.SOFTWARE_VERSION: version}
            return Facts.of(Origin.DETECTED, values, url)
    return Facts()


_IDENTITY_S = 5.0
"""Time limit in seconds for each page that tells who answers: nothing depends on them."""


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The result of the preflight: an endpoint that answers as it should."""

    base_url: str
    """The URL at which the API begins, such as ``http://host:8000/v1``, without a trailing slash."""
    model: str
    models: tuple[str, ...]
    """All models that it lists; empty if it has no list."""
    api: str
    """Name of the dialect, such as ``openai-chat``."""
    proxy: str | None
    """Proxy of the environment that the preflight used, without credentials; None: none."""
    facts: Facts
    counts_tokens: bool = False
    """Whether its stream reported the number of tokens, so that we need not count."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Extra fields without which it refuses requests."""


def examine(
    endpoint: str,
    *,
    model: str | None = None,
    api: str = "auto",
    access: Access | None = None,
    asking: RequestForm | None = None,
    transport: httpx.BaseTransport | None = None,
) -> EndpointReport:
    """Run the preflight: reach the endpoint, read its model list, choose the model, have one small reply
    streamed.

    ``api`` is a dialect's name, or ``auto``: chat, else completions, else what there is. Raises SuiteError
    for settings that cannot be right, SUTError for an endpoint that cannot be measured. At most thirteen
    requests, where nearly every path is missing; five more ask who answers. ``transport``: another way to the
    endpoint than a connection.
    """
    bases, asking = base_candidates(endpoint), asking or RequestForm()
    if is_grpc(endpoint):
        return _examine_grpc(bases[0], model, api, access or Access(), asking)
    dialects = detection.to_try(endpoint, api, asking)
    with ControlPlane(bases[0], access or Access(), transport) as control:
        named = dialects.named
        headers = {} if named is None else headers_for(named, control.headers)
        listed = detection.own_model_list(control, bases[0], named)
        listed = listed or _find_models(control, bases, endpoint, model, headers)
        if listed is not None:
            model, bases = choose_model(listed, model), [listed.base_url]
        else:
            listed = ModelList(bases[0], ())
        options = EncodeOptions(model or "", asking.ignore_eos, asking.extra_body, asking.prompt_form)
        report = _find_stream(control, bases, dialects, options, listed, endpoint)
    access = access or Access()
    hasty = replace(access, answer_s=min(access.answer_s, _IDENTITY_S))
    with ControlPlane(bases[0], hasty, transport) as control:
        values = {key: fact.value for key, fact in report.facts.items()}
        told = told_by_pages(control.get_or_failure, report.base_url, values)
    return replace(report, facts=report.facts | told)


def _examine_grpc(
    base: str, model: str | None, api: str, access: Access, asking: RequestForm
) -> EndpointReport:
    """The preflight over gRPC, where the server describes itself by methods of its API."""
    transport = required("grpc", "--llm-endpoint")
    for name in transport.dialects:
        dialect_at(base, name)  # which says what is not installed
    introduced = load(transport.preflight["introduced"])
    with ControlPlane(base, access) as control:
        seen = introduced(control, base, api, model)
        name = choose_model(seen.listed, model, complete=True)
        options = EncodeOptions(name, asking.ignore_eos, asking.extra_body, asking.prompt_form)
        spoken = detection.ToTry(seen.dialect, asking.prompt_form)
        report = _find_stream(control, [base], spoken, options, seen.listed, base)
    told = Facts.of(Origin.DETECTED, seen.facts, without_query(seen.source))
    return replace(report, facts=report.facts | told)


def _find_models(
    control: ControlPlane, bases: list[str], endpoint: str, model: str | None, headers: Mapping[str, str]
) -> ModelList | None:
    """The model list, or ``None`` if there is none and the model is known without it.

    It is asked for over HTTP, which a server of WebSockets alone does not have: not where it can be left.
    """
    if model is not None and is_websocket(endpoint):
        return None
    answers: list[Answer] = []
    for base in bases:
        answer = control.get_or_failure(below(base, "/models"), headers)
        if isinstance(answer, SUTError):
            if model is None:
                raise errors.or_named_model(answer)
            continue
        refusal = errors.outright_refusal(answer, control.key_source)
        if refusal is not None:
            raise refusal
        listed = read_model_list(base, answer)
        if listed is not None:
            return listed
        answers.append(answer)
    if model is not None:
        return None
    telling = [answer for answer in answers if answer.status not in errors.NO_SUCH_PATH]
    if telling:
        raise errors.no_model_list(telling[0])
    raise _wrong_path(control, answers[0], endpoint, named=False)


def _find_stream(
    control: ControlPlane,
    bases: list[str],
    dialects: detection.ToTry,
    options: EncodeOptions,
    listed: ModelList,
    endpoint: str,
) -> EndpointReport:
    """What the first dialect at the first base that streams a reply shows."""
    failures: list[Answer] = []
    refused: list[errors.RefusedField] = []
    for base, spoken in detection.attempts(bases, dialects):
        if not detection.is_worth_trying(spoken, failures):
            continue
        answer, changed = _answered(control, base, spoken, options)
        if 200 <= answer.status < 300:
            return _report(control, base, spoken, answer, options, listed, changed)
        refusal = errors.outright_refusal(answer, control.key_source)
        if refusal is not None:
            raise refusal
        failures.append(answer)
        refused += errors.refused_fields(answer, detection.small_body(spoken, options))
    for answer in failures:
        if said := errors.says_no_such_model(answer):
            raise unknown_model(options.model, listed.names, answer.url, said)
    if refused:
        raise errors.refuses_field(refused[0], options.extra_body)
    unlisted = listed.entries and options.model not in listed.names
    if unlisted and (said := errors.may_be_the_model(failures[0])):
        raise unknown_model(options.model, listed.names, failures[0].url, said)
    telling = [answer for answer in failures if answer.status not in errors.NO_SUCH_PATH]
    if is_websocket(endpoint) and (not telling or telling[0].status == errors.UPGRADE_REQUIRED):
        raise errors.no_websocket(failures[0])
    if telling:
        raise errors.unusable(telling[0])
    if is_grpc(endpoint):
        raise errors.no_grpc_service(failures[0], [spoken.name for spoken in dialects], "")
    if listed.entries:
        other = detection.other_that_answers(control, bases[0], dialects, options)
        raise errors.no_completions(failures[0], [spoken.path for spoken in dialects], other)
    raise _wrong_path(control, failures[0], endpoint)


def _answered(
    control: ControlPlane, base: str, spoken: Dialect, options: EncodeOptions
) -> tuple[Answer, dict[str, Any]]:
    """The answer to the small request, and the extra fields with which it was taken where the model refuses
    fields that others need. The first answer where it was taken with none."""
    first = answer = detection.ask(control, base, spoken, options)
    changed: dict[str, Any] = {}
    while answer.status in (400, 422):
        asked = replace(options, extra_body={**options.extra_body, **changed})
        refused = errors.refused_fields(answer, detection.small_body(spoken, asked))
        further = errors.sent_instead([each for each in refused if each.name not in options.extra_body])
        if further.items() <= changed.items():
            return first, {}
        changed |= further
        asked = replace(options, extra_body={**options.extra_body, **changed})
        answer = detection.ask(control, base, spoken, asked)
    return (answer, changed) if 200 <= answer.status < 300 else (first, {})


def _check_stream(spoken: Dialect, answer: Answer, asked: bytes) -> tuple[str, bool, float | None]:
    """The fingerprint in a streamed reply, or ``""``; whether it reported its tokens; how long the model was
    loaded for it, None if it does not say. Raises SUTError if nothing was streamed."""
    chunks = detection.chunks_in(spoken, answer)
    if isinstance(spoken, NonGenerativeDialect):  # one document, which may report its input tokens
        summary = spoken.summary(chunks, spoken.results_asked(asked))
        if summary.outcome is not Outcome.OK:
            raise errors.no_results(answer, spoken.name, summary.error or summary.outcome)
        return "", summary.input_tokens is not None, None
    # As in measured replies: some servers send events under another content type.
    if not is_stream(answer.headers, spoken.protocol) and not detection.is_streamed(spoken, chunks):
        raise errors.not_streamed(answer, detection.looks_like(answer, spoken))
    said = next((chunk.error for chunk in chunks if chunk.error), None)
    if said is not None or not detection.is_completion(chunks):
        other = detection.looks_like(answer, spoken)
        several = next((chunk.problem for chunk in chunks if "one newline" in chunk.problem), "")
        raise errors.no_completion(answer, len(chunks), said, other, several)
    if not any(chunk.done for chunk in chunks) and not answer.ended:
        raise errors.never_ends(answer, len(chunks), detection.most_tokens(spoken))
    if not any(chunk.finish_reason for chunk in chunks) and not counted_at_its_end(chunks):
        raise errors.unfinished(answer, len(chunks))
    if spoken.protocol == "grpc" and not any(
        chunk.text or chunk.blank or chunk.ids_alone for chunk in chunks
    ):
        raise errors.in_one_piece(answer, len(chunks))
    events = events_of([(answer.body, 0)], protocol=spoken.protocol)
    totals = any(chunk.usage is not None and chunk.usage.output_tokens is not None for chunk in chunks)
    counts = totals or any(chunk.ids_alone for chunk in chunks)
    prints = ((json_object(event.data) or {}).get("system_fingerprint") for event in events)
    fingerprint = next((each for each in prints if isinstance(each, str) and each), "")
    return fingerprint, counts, detection.model_load_ms(chunks)


def _wrong_path(control: ControlPlane, answer: Answer, endpoint: str, *, named: bool = True) -> SUTError:
    """The error for a path that does not exist, with whether the usual one does. ``named``: the model is
    known without a list."""
    bases, tried = suggested_bases(endpoint), base_candidates(endpoint)
    for base in (base for base in bases if base not in tried):
        seen = control.get_or_failure(below(base, "/models"))
        if isinstance(seen, SUTError):
            continue
        if read_model_list(base, seen) is not None or seen.status in (401, 403):
            return errors.wrong_path(answer, without_query(base), None)
    example = None if bases[-1] in tried else without_query(bases[-1])
    other = detection.engine_api_at(control, bases[-1])
    error = errors.wrong_path(answer, None, example, other)
    return error if named or other else errors.or_named_model(error)


def _report(
    control: ControlPlane,
    base: str,
    spoken: Dialect,
    answer: Answer,
    options: EncodeOptions,
    listed: ModelList,
    changed: Mapping[str, Any],
) -> EndpointReport:
    asked = detection.small_body(spoken, options)
    fingerprint, counts_tokens, model_load_ms = _check_stream(spoken, answer, asked)
    server = answer.headers.get("server", listed.server)
    proxy = None if control.proxy is None else control.proxy.url
    model, entry = options.model, listed.entry(options.model)
    values: dict[str, Any] = {
        SUTFact.MODEL_NAME: model,
        EndpointFact.MODELS: list(
            dict.fromkeys(
                [model, *[str(entry[key]) for key in ("root", "parent") if isinstance(entry.get(key), str)]]
            )
        ),
        StreamingFact.PROTOCOL: spoken.protocol,
        EndpointFact.URL: without_query(base),
        EndpointFact.API: spoken.name,
        EndpointFact.SERVER: server or None,
        EndpointFact.PROXY: proxy or "none",
    }
    if base.startswith(("https:", "wss:", "grpcs:")):
        values[EndpointFact.CERTIFICATE_CHECKED] = not control.insecure
    if spoken.protocol != "grpc":
        values[EndpointFact.ANSWERED_BY] = named_model([answer.body])
    if model_load_ms is not None:
        values[EndpointFact.MODEL_LOAD_MS] = model_load_ms
    values |= engine_facts(entry, server, fingerprint)
    facts = Facts.of(Origin.DETECTED, values, without_query(base))
    return EndpointReport(base, model, listed.names, spoken.name, proxy, facts, counts_tokens, changed)


T = TypeVar("T")

PAUSE_S = 1.0
"""Seconds between two attempts."""
_HEALTH_S = 5.0
_LOADING = 503
_HINT = "if it is still starting, --llm-wait=300 waits for it"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an endpoint, by which clock, and who is told meanwhile."""

    within_s: float = 0.0
    """Seconds from the first attempt within which further ones are made; 0: there is only one."""
    say: Callable[[str], None] = lambda _: None
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def when_ready(attempt: Callable[[], T], patience: Patience) -> T:
    """The result of ``attempt``, which is made every second as long as it raises NotReadyError.

    Any other error ends the waiting. An attempt that has begun is not cut off: it has deadlines of its own.
    Raises the last NotReadyError, with how long was waited, when the time is over.
    """
    began_s = patience.monotonic_s()
    while True:
        try:
            return attempt()
        except NotReadyError as error:
            waited_s = patience.monotonic_s() - began_s
            waited = f"{quantity(waited_s, 'count')} s"
            if waited_s >= patience.within_s > 0:
                within = trimmed(patience.within_s)
                what = f"not ready after {waited} (--llm-wait={within}); at last: {error.what}"
                raise NotReadyError(what, where=error.where, remedy=error.remedy) from None
            if not patience.within_s:
                remedy = f"{error.remedy}; {_HINT}"
                raise NotReadyError(error.what, where=error.where, remedy=remedy) from None
            within = f"{trimmed(patience.within_s)} s"
            patience.say(f"waiting for {error.where}: {error.what}; {waited} of {within}")
            patience.sleep(min(PAUSE_S, patience.within_s - waited_s))


def refuse_while_loading(endpoint: str, access: Access) -> None:
    """Ask the health page of the server, ``/health`` beside the API.

    Raises NotReadyError for a status of 503. Any other answer is that of a server that is healthy, or has no
    such page; none within 5 s too, since some gateways try all their engines first. Whoever asks for more
    meets a server that is not there at all, and can say more about it. A gRPC server is asked by the method
    of its API that tells whether it is ready.
    """
    hasty = replace(access, answer_s=min(access.answer_s, _HEALTH_S))
    with ControlPlane(endpoint, hasty) as control:
        try:
            answer = _says_it_is_loading(control, endpoint)
        except SUTError:
            return
    if answer is not None:
        remedy = "look at the server's log: it says itself that it is not ready"
        said = (
            "its health method says that it is not ready"
            if is_grpc(endpoint)
            else f"HTTP {_LOADING} of its health page"
        )
        raise NotReadyError(said, where=answer.url, remedy=remedy)


def why_not_ready(endpoint: str, access: Access) -> str:
    """Why a gRPC server is not ready, in words; empty if it is, as far as its API can say."""
    root = urlsplit(endpoint)._replace(path="", query="", fragment="").geturl()
    try:
        with ControlPlane(root, access) as control:
            answer = _says_it_is_loading(control, root)
    except SUTError as error:
        return error.what
    return "" if answer is None else f"its health method says that it is not ready ({answer.status})"


def _says_it_is_loading(control: ControlPlane, endpoint: str) -> Answer | None:
    if is_grpc(endpoint):
        says_it_is_loading = load(required("grpc", "--llm-endpoint").preflight["loading"])
        found: Answer | None = says_it_is_loading(control, base_candidates(endpoint)[0])
        return found
    answer = control.get_or_failure(health_url(endpoint))
    return answer if isinstance(answer, Answer) and answer.status == _LOADING else None


def health_url(endpoint: str) -> str:
    """The URL of the health page: ``https://host/health`` for ``https://host/v1`` and ``https://host``."""
    return below(server_root(endpoint), "/health")
