"""Live answers by every dialect and over every transport: each turn reads what it was told, word for word."""

from __future__ import annotations

import json
import ssl
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc_script import GrpcTalk, calls, chunk, complete
from http2_script import Asked, Peer, each, peers
from live_talk import (
    CHAT,
    SESSIONS,
    TURNS,
    Heard,
    by_chat,
    chat_events,
    of_chat,
    of_text,
    over_http,
    sse,
)
from scripted_load import Secured
from scripted_server import DONE, HEAD, Script, ScriptedServer, chunked, event
from tritonclient.grpc import service_pb2 as kserve
from websocket_script import WebSocketTalk, completed, created, delta, websockets

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.grpc.messages import prefixed
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.in_process_transports import (
    AsgiTransport,
    CallableTransport,
    PythonPieces,
    parameters_of,
)
from pytest_llmbench.generator.loop_thread import LoopThread
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, SessionSlots
from pytest_llmbench.timing import MonotonicClock
from pytest_llmbench.wire.catalogue import dialect, dialect_at
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.sessions import turns_of

Serve = Callable[..., ScriptedServer]
MakePlan = Callable[..., LoadPlan]

# --- dialects of HTTP


def by_completions(body: Any, heard: Heard) -> bytes:
    told = [{"choices": [{"index": 0, "text": text}]} for text in heard(of_text(body["prompt"]))]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    return sse(*told, last, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})


def by_responses(body: Any, heard: Heard) -> bytes:
    return sse(created(), *map(delta, heard(of_chat(body["input"]))), completed(3))


def by_messages(body: Any, heard: Heard) -> bytes:
    said = [("system", body["system"])]
    for each_ in body["messages"]:
        (block,) = each_["content"]
        said.append((each_["role"], block["text"]))
    told = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in heard(said)
    ]
    usage = {"input_tokens": 9, "output_tokens": 3}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    return sse({"type": "message_start", "message": {"usage": usage}}, *told, end, {"type": "message_stop"})


def lines(*payloads: Any) -> bytes:
    head = HEAD.replace(b"text/event-stream", b"application/x-ndjson")
    return head + chunked([json.dumps(payload).encode() + b"\n" for payload in payloads])


OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 3}


def by_ollama_chat(body: Any, heard: Heard) -> bytes:
    told = [{"message": {"content": t}, "done": False} for t in heard(of_chat(body["messages"]))]
    return lines(*told, OLLAMA_END)


def by_ollama_generate(body: Any, heard: Heard) -> bytes:
    told = [{"response": text, "done": False} for text in heard(of_text(body["prompt"]))]
    return lines(*told, OLLAMA_END)


def by_sglang(body: Any, heard: Heard) -> bytes:
    texts = heard(of_text(body["text"]))
    told = [
        {
            "text": "".join(texts[: n + 1]),
            "meta_info": {
                "prompt_tokens": 9,
                "completion_tokens": n + 1,
                "finish_reason": {"type": "stop"} if n + 1 == len(texts) else None,
            },
        }
        for n in range(len(texts))
    ]
    return HEAD + chunked([*map(event, told), DONE])


def by_tgi(body: Any, heard: Heard) -> bytes:
    told: list[Any] = [{"token": {"text": text}} for text in heard(of_text(body["inputs"]))]
    told[-1]["details"] = {"finish_reason": "eos_token", "generated_tokens": 3}
    return sse(*told)


def by_triton(body: Any, heard: Heard) -> bytes:
    texts = heard(of_text(body["text_input"]))
    return sse(*({"text_output": "".join(texts[: n + 1])} for n in range(len(texts))))


BY_DIALECT: dict[str, Callable[[Any, Heard], bytes]] = {
    "openai-chat": by_chat,
    "openai-completions": by_completions,
    "openai-responses": by_responses,
    "anthropic-messages": by_messages,
    "ollama-chat": by_ollama_chat,
    "ollama-generate": by_ollama_generate,
    "sglang-generate": by_sglang,
    "tgi-generate": by_tgi,
    "triton-generate": by_triton,
}


def assert_live(
    generator: LoadGenerator | DistributedLoadGenerator, plan: MakePlan, heard: Heard
) -> Observation:
    """Loads of sessions with live answers through this generator; every answer was read."""
    wanted = plan(turns_of(CHAT, SESSIONS, 1), workload=CHAT, load=SessionSlots(2))
    seen = generator.run(wanted)
    assert seen.records.counts()["ok"] == SESSIONS * TURNS, list(seen.records.error)
    heard.assert_each_read_what_it_was_told()
    return seen


@pytest.mark.parametrize("name", BY_DIALECT)
def test_dialects_of_http(serve: Serve, plan: MakePlan, name: str) -> None:
    heard = Heard()
    server = serve(over_http(BY_DIALECT[name], heard), read_body=False)
    with LoadGenerator(Target.parse(server.url), dialect(name), model="m") as generator:
        seen = assert_live(generator, plan, heard)
    assert seen.facts.value("wire.messages") == ("roles" if dialect(name).message_roles else "one_text")


# --- transports


@pytest.fixture(params=["plain", "TLS"])
def tls(request: pytest.FixtureRequest, secured: Secured) -> tuple[ssl.SSLContext, Path] | None:
    """The context of a server with a certificate, and the file of its authority; None: without TLS."""
    return None if request.param == "plain" else secured("h2", "http/1.1")


def serving(
    serve: Serve, script: Script, tls: tuple[ssl.SSLContext, Path] | None, scheme: str = "http", **way: Any
) -> Target:
    context, ca_file = tls or (None, None)
    url = serve(script, read_body=False, tls=context).url.replace("http", scheme, 1)
    return Target.parse(url.removesuffix("/v1") if scheme == "grpc" else url, ca_file=ca_file, **way)


def test_http1(serve: Serve, plan: MakePlan, tls: tuple[ssl.SSLContext, Path] | None) -> None:
    heard = Heard()
    target = serving(serve, over_http(by_chat, heard), tls)
    with LoadGenerator(target, OpenAIChat(), model="m") as generator:
        assert assert_live(generator, plan, heard).selfcheck.transport == "http/1.1"


def test_http2(serve: Serve, plan: MakePlan, tls: tuple[ssl.SSLContext, Path] | None) -> None:
    heard = Heard()

    target = serving(serve, peers(each(chats(heard))), tls, http2=True)
    with LoadGenerator(target, OpenAIChat(), model="m") as generator:
        assert assert_live(generator, plan, heard).selfcheck.transport == "http/2"


def test_websocket(serve: Serve, plan: MakePlan, tls: tuple[ssl.SSLContext, Path] | None) -> None:
    heard = Heard()
    target = serving(serve, websockets(responds(heard)), tls, "ws")
    with LoadGenerator(target, dialect_at("ws://h", "auto"), model="m") as generator:
        seen = assert_live(generator, plan, heard)
    assert (seen.selfcheck.transport, seen.facts.value("wire.messages")) == ("websocket", "roles")


def test_grpc_of_text(serve: Serve, plan: MakePlan, tls: tuple[ssl.SSLContext, Path] | None) -> None:
    heard = Heard()
    target = serving(serve, calls(infers(heard)), tls, "grpc")
    with LoadGenerator(target, dialect_at("grpc://h:1", "kserve-grpc"), model="m") as generator:
        assert assert_live(generator, plan, heard).selfcheck.transport == "grpc"


def chats(heard: Heard) -> Callable[[Peer, Asked], None]:
    def answer(peer: Peer, asked: Asked) -> None:
        events = chat_events(heard(of_chat(json.loads(asked.body)["messages"])))
        peer.send(asked.reply([*map(event, events), DONE]))

    return answer


def responds(heard: Heard) -> Callable[[WebSocketTalk], None]:
    def turn(talk: WebSocketTalk) -> None:
        talk.say([created(), *map(delta, heard(of_chat(talk.asked["input"]))), completed(3)])

    return turn


def infers(heard: Heard) -> Callable[[GrpcTalk], None]:
    def turn(call: GrpcTalk) -> None:
        asked = kserve.ModelInferRequest.FromString(call.asked[5:])
        prompt = asked.raw_input_contents[0][4:].decode()
        call.reply([*map(infer_response, heard(of_text(prompt))), infer_response("", final=True)])

    return turn


def infer_response(text: str, *, final: bool = False) -> bytes:
    """A message of a reply of Triton's."""
    response = kserve.ModelInferResponse(model_name="m")
    if text:
        response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        response.raw_output_contents.append(struct.pack("<I", len(text.encode())) + text.encode())
    response.parameters["triton_final_response"].bool_param = final
    return prefixed(kserve.ModelStreamInferResponse(infer_response=response).SerializeToString())


@pytest.mark.parametrize("name", ["vllm-grpc", "sglang-grpc"])
def test_replies_of_token_ids_hold_no_answers(serve: Serve, plan: MakePlan, name: str) -> None:
    """The history would lack them, and nobody would see it."""
    asked: list[GrpcTalk] = []

    def turn(call: GrpcTalk) -> None:
        asked.append(call)
        call.reply([chunk(1), chunk(2), complete()])

    target = serving(serve, calls(turn), None, "grpc")
    with (
        LoadGenerator(target, dialect_at("grpc://h:1", name), model="m") as generator,
        pytest.raises(SuiteError, match=f"{name} answers in token ids, .* live answers cannot be read"),
    ):
        generator.run(plan(turns_of(CHAT, 2, 1), workload=CHAT, load=SessionSlots(2)))
    assert asked == []


# --- several workers


@pytest.mark.parametrize("way", ["HTTP/2", "WebSocket", "gRPC"])
def test_several_workers(serve: Serve, plan: MakePlan, way: str) -> None:
    heard = Heard()
    script, scheme, name = {
        "HTTP/2": (peers(each(chats(heard))), "http", "openai-chat"),
        "WebSocket": (websockets(responds(heard)), "ws", "openai-responses"),
        "gRPC": (calls(infers(heard)), "grpc", "kserve-grpc"),
    }[way]
    url = serve(script, read_body=False).url.replace("http", scheme, 1)
    address = Address(url.removesuffix("/v1") if scheme == "grpc" else url, http2=way == "HTTP/2")
    with DistributedLoadGenerator(address, name, workers=2, model="m") as generator:
        seen = assert_live(generator, plan, heard)
    assert seen.facts.value("generator.workers") == 2


def test_workers_tell_why_they_refuse(serve: Serve, plan: MakePlan) -> None:
    address = Address(serve(calls(lambda call: call.reply()), read_body=False).url)
    address = replace(address, url=address.url.replace("http", "grpc", 1).removesuffix("/v1"))
    with (
        DistributedLoadGenerator(address, "vllm-grpc", workers=2, model="m") as generator,
        pytest.raises(SuiteError, match="vllm-grpc answers in token ids"),
    ):
        generator.run(plan(turns_of(CHAT, 2, 1), workload=CHAT, load=SessionSlots(2)))


# --- in process


@pytest.mark.parametrize("way", ["messages", "prompt"])
def test_an_async_generator(plan: MakePlan, way: str) -> None:
    heard = Heard()

    async def of_messages(messages: list[dict[str, Any]], max_tokens: int) -> Any:
        for text in heard(of_chat(messages)):
            yield text, 1

    async def of_prompt(prompt: str, max_tokens: int) -> Any:
        for text in heard(of_text(prompt)):
            yield text, 1

    called = of_messages if way == "messages" else of_prompt
    parameters, clock = parameters_of(called), MonotonicClock()
    with LoadGenerator(
        Target.parse("http://localhost/v1"),
        PythonPieces(parameters),
        model="m",
        transport=CallableTransport(called, parameters, clock),
        thread=LoopThread(),
    ) as generator:
        seen = assert_live(generator, plan, heard)
    assert seen.facts.value("wire.messages") == ("roles" if way == "messages" else "one_text")


def test_an_asgi_application(plan: MakePlan) -> None:
    heard, clock = Heard(), MonotonicClock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for payload in chat_events(heard(of_chat(body["messages"]))):
            await send({"type": "http.response.body", "body": event(payload), "more_body": True})
        await send({"type": "http.response.body", "body": DONE})

    target = Target.parse("http://localhost/v1")
    with LoadGenerator(
        target, OpenAIChat(), model="m", transport=AsgiTransport(app, clock), thread=LoopThread()
    ) as generator:
        assert_live(generator, plan, heard)
