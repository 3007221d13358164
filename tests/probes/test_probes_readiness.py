"""Waiting for an endpoint: what is waited for, what is not, and what is told meanwhile and at the end."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from canned_http import Canned, CannedServer

from pytest_llmbench.errors import NotReadyError, SUTError
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.endpoint import (
    EndpointReport,
    Patience,
    examine,
    health_url,
    refuse_while_loading,
    when_ready,
)

LOADING = Canned.json({"error": {"message": "Loading model"}}, 503)
FAILING = Canned.json({"error": {"message": "Connection error."}}, 500)


class Waiting:
    """Patience by a clock of its own; ``then`` happens at each pause."""

    def __init__(self, within_s: float, *then: Callable[[], object]) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self._then = list(then)
        self.patience = Patience(within_s, self.told.append, lambda: self.now_s, self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds
        if self._then:
            self._then.pop(0)()


def ready(server_url: str, waiting: Waiting, model: str | None = None) -> EndpointReport:
    def attempt() -> EndpointReport:
        refuse_while_loading(server_url, Access())
        return examine(server_url, model=model)

    return when_ready(attempt, waiting.patience)


def test_health_then_models_then_a_token_are_waited_for(serve, engine):
    healthy = Canned.json({"status": "ok"})
    chat, listing = engine["POST /v1/chat/completions"], engine["GET /v1/models"]
    empty = Canned.json({"data": []})
    server: CannedServer = serve({"GET /health": LOADING, "GET /v1/models": empty})
    answers = server.answers
    waiting = Waiting(
        60,
        lambda: answers.update({"GET /health": healthy}),
        lambda: answers.update({"GET /v1/models": listing, "POST /v1/chat/completions": LOADING}),
        lambda: answers.update({"POST /v1/chat/completions": chat}),
    )
    assert ready(server.url, waiting).model == "org/small-model"
    assert waiting.now_s == 3
    assert [seen.path for seen in server.seen] == [
        *["/health"],
        *["/health", "/v1/models"],
        *["/health", "/v1/models", "/v1/chat/completions"],
        *["/health", "/v1/models", "/v1/chat/completions"],
    ]
    assert waiting.told == [
        f"waiting for {server.url}/health: HTTP 503 of its health page; 0 s of 60 s",
        f"waiting for {server.url}/v1: the endpoint lists no model; 1 s of 60 s",
        f"waiting for {server.url}/v1/chat/completions: HTTP 503 (Loading model): the endpoint takes no "
        "requests now; 2 s of 60 s",
    ]


@pytest.mark.parametrize("answer", [LOADING, FAILING, Canned.json({}, 502), Canned.json({}, 429)])
def test_a_server_that_loads_or_a_gateway_before_it(serve, engine, answer):
    server = serve({"GET /v1/models": answer})
    waiting = Waiting(5, lambda: server.answers.update(engine))
    assert ready(server.url, waiting).api == "openai-chat"


def test_a_port_that_nobody_listens_on_yet(serve, engine):
    server = serve(engine)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    waiting = Waiting(2.5)
    with pytest.raises(NotReadyError) as caught:
        ready(url, waiting)
    assert waiting.now_s == 2.5
    assert caught.value.what.startswith("not ready after 2 s (--llm-wait=2.5); at last: connection refused")
    assert caught.value.where == f"{url}/models"
    assert "correct the port" in str(caught.value)
    assert examine(server.url)


def test_a_health_page_that_never_answers_holds_nobody_up(serve, engine):
    unknown = Canned.json({"error": {"message": "no such model"}}, 404)
    paths = ("POST /v1/chat/completions", "POST /v1/completions")
    held = Canned(200, {}, b"", hold_s=30)
    server = serve({**engine, **dict.fromkeys(paths, unknown), "GET /health": held})
    with pytest.raises(SUTError):
        examine(server.url, model="no-such-model")
    refuse_while_loading(server.url, Access(answer_s=0.1))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"GET /v1/models": Canned.json({"error": "no"}, 401)}, "no API key was sent"),
        ({"GET /v1/models": Canned.json({"error": "no"}, 403)}, "no API key was sent"),
        ({}, "no OpenAI-compatible API there"),
        ({"GET /v1/models": Canned(308, {"Location": "/elsewhere"})}, "redirects"),
        ({"GET /v1/models": Canned.json({"data": [{"id": "a"}, {"id": "b"}]})}, "--llm-model=a"),
    ],
    ids=["401", "403", "404", "redirect", "two models"],
)
def test_what_no_waiting_mends_is_said_at_once(serve, answers, said):
    waiting = Waiting(60)
    with pytest.raises(SUTError, match=said) as caught:
        ready(serve(answers).url, waiting)
    assert not isinstance(caught.value, NotReadyError)
    assert waiting.told == []
    assert waiting.now_s == 0


def test_tls_where_there_is_none_is_not_waited_for(serve, engine):
    waiting = Waiting(60)
    server = serve(engine)
    with pytest.raises(SUTError, match="TLS"):
        ready(server.url.replace("http:", "https:"), waiting)
    assert waiting.now_s == 0


def test_without_waiting_the_option_is_named(serve):
    waiting = Waiting(0)
    server = serve({"GET /v1/models": LOADING})
    with pytest.raises(NotReadyError, match=r"HTTP 503 \(Loading model\)") as caught:
        when_ready(lambda: examine(server.url), waiting.patience)
    assert str(caught.value).endswith("if it is still starting, --llm-wait=300 waits for it")
    assert len(server.seen) == 1
    assert waiting.told == []


@pytest.mark.parametrize(
    ("endpoint", "page"),
    [
        ("http://h:1/v1", "http://h:1/health"),
        ("http://h:1", "http://h:1/health"),
        ("https://h/llm/v1/", "https://h/llm/health"),
        ("https://h/llm?v=1", "https://h/llm/health?v=1"),
        ("https://h/v10beta", "https://h/health"),
        ("https://h/vllm", "https://h/vllm/health"),
    ],
)
def test_where_the_health_page_is(endpoint, page):
    assert health_url(endpoint) == page
