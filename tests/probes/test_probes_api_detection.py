"""The dialect of an endpoint: what ``auto`` takes, how few requests it sends, what a wrong one is told."""

from __future__ import annotations

import json

import pytest
from canned_http import STREAM, Canned, chat_chunk, told

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes.access import Access, Credentials, RequestForm
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.probes.sut_schema import Endpoint
from pytest_llmbench.wire.catalogue import DIALECTS

CHAT, COMPLETIONS, RESPONSES = "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses"
MODELS = "GET /v1/models"


def named(*events):
    lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
    return Canned(200, dict(STREAM), "".join(lines).encode())


A_RESPONSE = named(
    {"type": "response.created", "response": {"status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "Hi"},
    {"type": "response.completed", "response": {"status": "completed", "usage": {"output_tokens": 1}}},
)


PAGES_OF_ENGINES = ("/version", "/props", "/get_server_info", "/server_info", "/info")


def asked(server):
    """The requests until the dialect was found; pages that tell the engine and its version come after."""
    seen = list(server.seen)
    while seen[-1].method == "GET" and seen[-1].path.endswith(PAGES_OF_ENGINES):
        seen.pop()
    return seen


def test_responses_are_found_where_there_is_nothing_else(serve, engine):
    server = serve({MODELS: engine[MODELS], RESPONSES: A_RESPONSE})
    report = examine(server.url)
    assert (report.api, report.counts_tokens) == ("openai-responses", True)
    assert report.facts["endpoint.api"].value == "openai-responses"
    assert len(asked(server)) == 4
    assert asked(server)[-1].json["max_output_tokens"] == 16  # OpenAI takes no fewer


def test_a_refusal_that_tells_something_ends_the_search(serve, engine):
    refusal = Canned.json({"error": {"message": "no room"}}, 400)
    server = serve({MODELS: engine[MODELS], CHAT: refusal, COMPLETIONS: refusal, RESPONSES: A_RESPONSE})
    assert "no room" in told(SUTError, server.url)
    assert [seen.path for seen in server.seen[1:]] == ["/v1/chat/completions", "/v1/completions"]


def test_a_named_dialect_without_a_path_is_told_which_one_there_is(serve, engine):
    server = serve({MODELS: engine[MODELS], RESPONSES: A_RESPONSE})
    text = told(SUTError, server.url, api="openai-chat", asking=RequestForm(extra_body={"logprobs": True}))
    assert "no /chat/completions" in text
    assert "it speaks openai-responses: --llm-api=openai-responses" in text
    assert len(server.seen) <= 4
    assert "logprobs" not in server.seen[-1].json  # meant for the other dialect


def test_a_stream_of_another_dialect_is_told(serve, engine):
    chat = Canned.events(chat_chunk("Hi"), "[DONE]")
    text = told(SUTError, serve(engine | {RESPONSES: chat}).url, api="openai-responses")
    assert "a stream of another dialect, openai-chat" in text
    assert "--llm-api=openai-chat" in text
    assert "openai-responses" in told(SUTError, serve(engine | {CHAT: A_RESPONSE}).url)


@pytest.mark.parametrize("named_model", [None, "mine"])
def test_however_little_is_there_few_requests_are_sent(serve, named_model):
    server = serve({})
    told(SUTError, server.url, model=named_model)
    assert len(server.seen) <= 12


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
def test_a_path_that_is_given_whole_is_told_its_base(serve, engine, path):
    server = serve(engine)
    assert f"the API is at {server.url}/v1" in told(SUTError, server.url + path)


def test_a_key_goes_to_anthropic_under_its_name_too_and_is_shown_nowhere(serve, engine):
    key = "sk-canary-0123456789"
    credentials = Credentials({"Authorization": f"Bearer {key}"}, frozenset({key}), "file key")
    message = named(
        {"type": "message_start", "message": {"usage": {"input_tokens": 2}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )
    server = serve({MODELS: engine[MODELS], "POST /v1/messages": message})
    report = examine(server.url, api="anthropic-messages", access=Access(credentials))
    assert report.counts_tokens
    assert [seen.path for seen in asked(server)] == ["/v1/models", "/v1/messages"]
    for seen in asked(server):
        sent = {name.lower(): value for name, value in seen.headers.items()}
        assert sent["x-api-key"] == key
        assert sent["anthropic-version"] == "2023-06-01"
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": f"what is {key}?"}}
    server = serve({MODELS: engine[MODELS], "POST /v1/messages": Canned.json(refusal, 400)})
    text = told(SUTError, server.url, api="anthropic-messages", access=Access(credentials))
    assert "what is" in text
    assert key not in text


# --- the API of one engine

TAGS = Canned.json({"models": [{"name": "small:latest"}, {"name": 7}, "x"]})


def lines(*payloads):
    body = "".join(json.dumps(payload) + "\n" for payload in payloads).encode()
    return Canned(200, {"Content-Type": "application/x-ndjson"}, body)


OLLAMA_CHAT = lines(
    {"message": {"content": "Hi"}, "done": False},
    {
        "message": {"content": ""},
        "done": True,
        "done_reason": "stop",
        "eval_count": 1,
        "load_duration": 2_500_000_000,
        "prompt_eval_count": 2,
    },
)
OLLAMA = {"GET /api/tags": TAGS, "POST /api/chat": OLLAMA_CHAT}


@pytest.mark.parametrize("suffix", ["", "/v1", "/", "/api", "/api/v1"])
def test_the_api_of_an_engine_begins_at_the_root(serve, suffix):
    server = serve(OLLAMA)
    report = examine(server.url + suffix, api="ollama-chat")
    assert (report.base_url, report.model) == (server.url, "small:latest")
    assert report.facts["streaming.protocol"].value == "ndjson"
    assert report.facts["endpoint.model_load_ms"].value == 2_500.0
    assert report.counts_tokens
    assert [seen.path for seen in asked(server)] == ["/api/tags", "/api/chat"]


def test_without_a_page_of_its_own_the_usual_list_of_models_will_do(serve, engine):
    server = serve({MODELS: engine[MODELS], "POST /api/chat": OLLAMA_CHAT})
    assert examine(server.url, api="ollama-chat").model == "org/small-model"
    assert asked(server)[-1].path == "/api/chat"


def test_an_endpoint_with_nothing_else_is_told_by_its_page(serve):
    assert "it looks like ollama-chat: --llm-api=ollama-chat" in told(SUTError, serve(OLLAMA).url)


def test_a_reply_of_ollama_in_one_piece_is_no_stream(serve):
    whole = Canned.json({"message": {"content": "Hi"}, "done": True, "done_reason": "stop"})
    text = told(SUTError, serve(OLLAMA | {"POST /api/chat": whole}).url, api="ollama-chat")
    assert "answers without streaming" in text


def test_lines_on_a_path_of_openai_are_told(serve, engine):
    assert "another dialect, ollama-chat" in told(SUTError, serve(engine | {CHAT: OLLAMA_CHAT}).url)


def test_the_sut_file_takes_every_dialect():
    for name in ["auto", *DIALECTS]:
        assert Endpoint(api=name).api == name


def sglang(text, tokens, ended=None):
    told = {"prompt_tokens": 2, "completion_tokens": tokens, "finish_reason": ended}
    return {"text": text, "meta_info": told}


SGLANG = {
    "GET /get_model_info": Canned.json({"model_path": "org/sgl", "is_generation": True}),
    "POST /generate": Canned.events(sglang("a", 1), sglang("ab", 2, {"type": "length"}), "[DONE]"),
}
TGI = {
    "GET /info": Canned.json({"model_id": "org/tgi", "version": "3"}),
    "POST /generate_stream": Canned.events(
        {
            "token": {"text": "a", "special": False},
            "details": {"finish_reason": "length", "generated_tokens": 1},
        }
    ),
}


@pytest.mark.parametrize(
    ("api", "answers", "model"), [("sglang-generate", SGLANG, "org/sgl"), ("tgi-generate", TGI, "org/tgi")]
)
def test_engines_tell_their_one_model(serve, api, answers, model):
    server = serve(answers)
    report = examine(server.url, api=api)
    assert (report.base_url, report.model, report.counts_tokens) == (server.url, model, True)
    assert f"it looks like {api}" in told(SUTError, serve(answers).url)


def test_token_ids_go_to_an_engine_that_takes_them(serve):
    server = serve(SGLANG)
    examine(server.url, api="sglang-generate", asking=RequestForm(prompt_form="token_ids"))
    assert asked(server)[-1].json["input_ids"] == [300]


def test_the_path_of_triton_holds_the_model(serve):
    server = serve({"POST /v2/models/mine/generate_stream": Canned.events({"text_output": "a"})})
    report = examine(server.url, api="triton-generate", model="mine")
    assert (report.base_url, report.counts_tokens) == (server.url, False)
    assert "--llm-model" in told(SUTError, server.url, api="triton-generate")
