"""``llm_client``: what a reply says, how requests look, and every way in which one can fail."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_server import (
    DONE,
    FINISH,
    HEAD,
    REPLY,
    Conversation,
    ScriptedServer,
    chunk,
    chunked,
    plain,
    text_event,
)
from small_tokenizer import small_tokenizer

from pytest_llmbench.errors import RequestFailedError, SuiteError
from pytest_llmbench.harness.client import LLMClient, Reply
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.probes.access import Access, Credentials, RequestForm
from pytest_llmbench.redaction import keep_secret

CANARY = "sk-canary-0123456789"
Serve = Callable[..., ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[ScriptedServer] = []

    def start(answer: bytes, *, then_wait_s: float = 0.0) -> ScriptedServer:
        def script(conversation: Conversation) -> None:
            conversation.send(answer)
            if then_wait_s:
                conversation.wait(then_wait_s)
            conversation.close()

        running.append(ScriptedServer(script))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def client(url: str, api: str = "openai-chat", asking: RequestForm | None = None) -> LLMClient:
    access = Access(Credentials({"Authorization": f"Bearer {CANARY}"}, frozenset({CANARY}), "a test"))
    return LLMClient(lambda: url, "small", api, access, asking or RequestForm())


@pytest.mark.asyncio
async def test_a_stream_gives_its_chunks_and_then_its_reply(serve: Serve) -> None:
    stream = client(serve(REPLY).url).stream("Hello", max_tokens=8)
    with pytest.raises(SuiteError, match="has not ended"):
        _ = stream.reply
    texts = [piece.text async for piece in stream if piece.text]
    assert texts == ["one", " two"]
    reply = stream.reply
    assert reply.ok
    assert (reply.text, reply.reasoning, reply.finish_reason, reply.status) == ("one two", "", "stop", 200)
    assert (reply.input_tokens, reply.output_tokens) == (7, 2)
    assert reply.record.token_source is TokenSource.SERVER_USAGE
    assert len(reply.chunk_gaps_ms) == 1
    assert reply.ttft_ms is not None
    assert reply.latency_ms is not None
    assert 0 <= reply.ttft_ms <= reply.latency_ms
    with pytest.raises(SuiteError, match="sent once"):
        [piece async for piece in stream]


def line(text: str, **more: object) -> bytes:
    return json.dumps({"message": {"content": text}, "done": False, **more}).encode() + b"\n"


def so_far(text: str, tokens: int, reason: str | None = None) -> bytes:
    told = {"prompt_tokens": 7, "completion_tokens": tokens, "finish_reason": reason and {"type": reason}}
    return b"data: " + json.dumps({"text": text, "meta_info": told}).encode() + b"\n\n"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("api", "path", "answer"),
    [
        (
            "ollama-chat",
            "/api/chat",
            HEAD.replace(b"text/event-stream", b"application/x-ndjson")
            + chunked([line("one"), line(" two"), line("", done=True, done_reason="stop", eval_count=2)]),
        ),
        (
            "sglang-generate",
            "/generate",
            HEAD + chunked([so_far("one", 1), so_far("one two", 2, "stop"), DONE]),
        ),
    ],
)
async def test_other_framings_and_text_so_far(serve: Serve, api: str, path: str, answer: bytes) -> None:
    server = serve(answer)
    stream = client(server.url.removesuffix("/v1"), api).stream("Hello", max_tokens=8)
    assert [piece.text async for piece in stream if piece.text] == ["one", " two"]
    assert (stream.reply.ok, stream.reply.text, stream.reply.output_tokens) == (True, "one two", 2)
    assert server.served[0].head.startswith(f"POST {path} HTTP/1.1")


@pytest.mark.asyncio
async def test_chunks_come_while_the_reply_goes_on(serve: Serve) -> None:
    server = serve(HEAD + chunk(text_event("one")), then_wait_s=20)
    async for piece in client(server.url).stream("Hello", timeout_s=15):
        assert piece.text == "one"
        break


@pytest.mark.asyncio
async def test_requests_look_like_those_of_a_load(serve: Serve) -> None:
    server = serve(REPLY)
    asking = RequestForm(ignore_eos=True, extra_body={"seed": 7, "top_k": 1, "stream_options": None})
    await client(server.url, asking=asking).complete(
        "Hello", max_tokens=3, temperature=0.5, extra_body={"top_k": 2}
    )
    (seen,) = server.served
    assert seen.head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert seen.headers["authorization"] == f"Bearer {CANARY}"
    assert seen.headers["accept-encoding"] == "identity"
    assert json.loads(seen.body) == {
        "model": "small",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "max_tokens": 3,
        "temperature": 0.5,
        "ignore_eos": True,
        "seed": 7,
        "top_k": 2,
    }


@pytest.mark.asyncio
async def test_messages_where_the_dialect_has_some(serve: Serve) -> None:
    server = serve(REPLY)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    await client(server.url).complete(messages)
    assert json.loads(server.served[0].body)["messages"] == messages
    with pytest.raises(SuiteError, match="openai-completions has no messages"):
        client(server.url, "openai-completions").stream(messages)


@pytest.mark.asyncio
async def test_prompts_go_as_token_ids_where_those_of_a_load_do(serve: Serve) -> None:
    server = serve(REPLY)
    asking = RequestForm(prompt_form="token_ids")
    await client(server.url, "openai-completions", asking).complete("Hello", check=False)
    assert json.loads(server.served[0].body)["prompt"] == [9906]


@pytest.mark.asyncio
async def test_the_system_s_own_tokenizer_counts_and_makes_ids(serve: Serve) -> None:
    own = small_tokenizer()
    server = serve(HEAD + chunked([text_event("hello hello"), FINISH, DONE]))
    chat = LLMClient(lambda: server.url, "small", "openai-chat", Access(), RequestForm(), own)
    reply = await chat.complete("hello")
    assert (reply.input_tokens, reply.output_tokens) == (1, 2)
    assert reply.record.token_source is TokenSource.TOKENIZER_FILE
    ids = RequestForm(prompt_form="token_ids")
    asked = LLMClient(lambda: server.url, "small", "openai-completions", Access(), ids, own)
    await asked.complete("hello there", check=False)
    assert json.loads(server.served[1].body)["prompt"] == own.encode("hello there")


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        (plain("500 Oops", b'{"error": {"message": "out of memory"}}'), Outcome.HTTP_ERROR, "out of memory"),
        (plain("429 Slow", b"{}"), Outcome.RATE_LIMITED, "HTTP 429"),
        (plain("200 OK", b"", "Content-Type: text/event-stream\r\n"), Outcome.EMPTY, "no event at all"),
        (plain("200 OK", b'{"choices": []}'), Outcome.UNDECODABLE, "without streaming"),
        (HEAD + chunked([text_event("one"), DONE]), Outcome.TRUNCATED, "no finish reason"),
        (HEAD + chunked([FINISH, DONE]), Outcome.EMPTY, "no content"),
        (HEAD + chunk(text_event("one")), Outcome.DISCONNECTED, "ended|closed|without"),
        (
            HEAD + chunked([b'data: {"error": {"message": "guard down"}}\n\n', DONE]),
            Outcome.IN_BAND_ERROR,
            "guard down",
        ),
    ],
    ids=["500", "429", "empty", "in one piece", "no finish reason", "no content", "cut off", "in band"],
)
@pytest.mark.asyncio
async def test_what_fails_is_an_error_unless_nobody_checks(
    serve: Serve, answer: bytes, outcome: Outcome, said: str
) -> None:
    asked = client(serve(answer).url)
    with pytest.raises(RequestFailedError, match=said) as caught:
        await asked.complete("Hello")
    assert isinstance(caught.value.reply, Reply)
    assert caught.value.where == asked.endpoint
    reply = await asked.complete("Hello", check=False)
    assert not reply.ok
    assert reply.outcome is outcome
    assert reply.error


@pytest.mark.asyncio
async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    reply = await client(url).complete("Hello", check=False)
    assert reply.outcome is Outcome.DISCONNECTED
    assert "connection refused" in (reply.error or "")
    assert reply.ttft_ms is None
    assert reply.status is None


@pytest.mark.parametrize("answer", [b"", HEAD, HEAD + chunk(text_event("one"))])
@pytest.mark.asyncio
async def test_a_reply_that_does_not_end_is_given_up(serve: Serve, answer: bytes) -> None:
    server = serve(answer, then_wait_s=20)
    reply = await client(server.url).complete("Hello", timeout_s=1.5, check=False)
    assert reply.outcome is Outcome.TIMEOUT
    assert reply.text == ("one" if b"one" in answer else "")
    assert "1.5 s" in (reply.error or "")


@pytest.mark.asyncio
async def test_an_open_connection_after_the_end_marker_does_not_matter(serve: Serve) -> None:
    server = serve(HEAD + chunk(text_event("one")) + chunk(FINISH) + chunk(DONE), then_wait_s=20)
    assert (await client(server.url).complete("Hello", timeout_s=15)).ok


@pytest.mark.asyncio
async def test_a_key_that_the_server_repeats_is_taken_out(serve: Serve) -> None:
    keep_secret(CANARY)
    refusal = plain("401 No", json.dumps({"error": {"message": f"wrong key {CANARY}"}}).encode())
    with pytest.raises(RequestFailedError, match="wrong key") as caught:
        await client(serve(refusal).url).complete("Hello")
    assert CANARY not in str(caught.value)
    assert CANARY not in str(caught.value.reply.error)


@pytest.mark.asyncio
async def test_several_at_once(serve: Serve) -> None:
    asked = client(serve(REPLY).url)
    replies = await asyncio.gather(*(asked.complete(f"Hello {n}") for n in range(5)))
    assert [reply.text for reply in replies] == ["one two"] * 5


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"timeout_s": 0}, {"timeout_s": float("nan")}])
def test_what_cannot_be_asked(options: dict[str, float]) -> None:
    with pytest.raises(SuiteError, match="more than 0"):
        client("http://127.0.0.1:9/v1").stream("Hello", **options)


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    access = Access(ca_file=tmp_path / "none.pem")
    asked = LLMClient(lambda: "https://127.0.0.1:9/v1", "m", "openai-chat", access, RequestForm())
    with pytest.raises(SuiteError, match="CA file"):
        asked.connected()
