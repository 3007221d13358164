"""Preflight against small servers on loopback: what is found, and each way of being unusable."""

from __future__ import annotations

import json

import pytest
from canned_http import HTML, STREAM, Canned, chat_chunk, told

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.request import ASKED_LIMIT
from pytest_llmbench.probes.access import Access, Credentials, RequestForm
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.probes.model_list import base_candidates

CANARY = "sk-canary-0123456789"
KEY = Credentials(
    {"Authorization": f"Bearer {CANARY}"}, frozenset({CANARY}), "environment variable LLM_API_KEY"
)
HASTY = Access(connect_s=0.5, answer_s=0.5)
POSTS = ("POST /v1/chat/completions", "POST /v1/completions")


# --- endpoints that answer as they should


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_base_url_may_be_written_in_four_ways(serve, engine, suffix):
    server = serve(engine)
    report = examine(server.url + suffix)
    assert report.base_url == server.url + "/v1"
    assert report.model == "org/small-model"
    assert report.models == ("org/small-model",)
    assert report.api == "openai-chat"
    assert report.proxy is None


def test_what_is_detected_becomes_facts(serve, engine):
    server = serve(engine)
    facts = examine(server.url).facts
    assert {key: fact.value for key, fact in facts.items()} == {
        "sut.model.name": "org/small-model",
        "endpoint.models": ["org/small-model"],
        "sut.software.engine": "vLLM",
        "sut.software.version": "0.32.0",
        "sut.context_limit_tokens": 8192,
        "streaming.protocol": "sse",
        "endpoint.url": server.url + "/v1",
        "endpoint.api": "openai-chat",
        "endpoint.server": "uvicorn",
        "endpoint.proxy": "none",
    }
    assert {fact.origin for fact in facts.values()} == {Origin.DETECTED}
    assert {fact.source for fact in facts.values()} == {server.url + "/v1"}


def test_the_small_request_looks_like_the_measured_ones(serve, engine):
    server = serve(engine)
    asking = RequestForm(ignore_eos=True, extra_body={"seed": 7})
    examine(server.url, access=Access(KEY), asking=asking)
    sent = server.seen[-1]
    assert sent.path == "/v1/chat/completions"
    assert sent.json["stream"] is True
    assert sent.json["model"] == "org/small-model"
    assert sent.json["ignore_eos"] is True
    assert sent.json["seed"] == 7
    assert sent.json["max_tokens"] <= 8
    assert sent.headers["Authorization"] == f"Bearer {CANARY}"
    assert sent.headers["Accept-Encoding"] == "identity"
    assert len(server.seen) == 2


def test_prompts_as_token_ids_ask_for_completions(serve, engine):
    server = serve(engine)
    report = examine(server.url, asking=RequestForm(prompt_form="token_ids"))
    assert report.api == "openai-completions"
    assert [seen.json["prompt"] for seen in server.seen if seen.method == "POST"] == [[300]]


@pytest.mark.parametrize("api", ["openai-chat", "openai-completions"])
def test_the_dialect_may_be_chosen(serve, engine, api):
    assert examine(serve(engine).url, api=api).api == api


@pytest.mark.parametrize(
    "refusal",
    [
        Canned.json({"detail": "Not Found"}, 404),
        Canned.json({"error": {"message": "no chat template is defined for this model"}}, 400),
        Canned.json({"error": {"message": "This is not a chat model and thus not supported here"}}, 404),
        Canned.json({"error": {"message": "chat template failed"}}, 500),
    ],
)
def test_without_chat_completions_are_taken(serve, engine, refusal):
    report = examine(serve(engine | {"POST /v1/chat/completions": refusal}).url)
    assert report.api == "openai-completions"


def test_a_model_list_at_the_root_is_taken_too(serve, engine):
    server = serve({path.replace("/v1", ""): answer for path, answer in engine.items()})
    assert examine(server.url).base_url == server.url


def test_an_api_below_a_path_is_found(serve, engine):
    server = serve({path.replace("/v1", "/llm/v1"): answer for path, answer in engine.items()})
    assert examine(server.url + "/llm").base_url == server.url + "/llm/v1"


def test_a_query_stays_with_every_request(serve, engine):
    server = serve(engine)
    report = examine(server.url + "/v1?api-version=2026")
    assert report.base_url == server.url + "/v1?api-version=2026"
    assert [seen.path for seen in server.seen] == [
        "/v1/models?api-version=2026",
        "/v1/chat/completions?api-version=2026",
    ]
    assert "2026" not in str(dict(report.facts))


def test_without_a_model_list_a_named_model_will_do(serve, engine):
    del engine["GET /v1/models"]
    report = examine(serve(engine).url, model="mine")
    assert report.model == "mine"
    assert report.models == ()


def test_an_open_connection_after_the_end_marker_does_not_matter(serve, engine):
    engine["POST /v1/chat/completions"] = Canned.events(chat_chunk("Hi", "stop"), "[DONE]", hold_s=30)
    assert examine(serve(engine).url, access=Access(answer_s=20)).api == "openai-chat"


def test_llama_cpp_is_recognised(serve, engine):
    engine["GET /v1/models"] = Canned.json({"data": [{"id": "m", "owned_by": "llamacpp"}]})
    chunk = chat_chunk("Hi", "stop", system_fingerprint="b10549-1ab2c3d")
    engine["POST /v1/chat/completions"] = Canned.events(chunk, "[DONE]")
    facts = examine(serve(engine).url).facts
    assert facts.value("sut.software.engine") == "llama.cpp"
    assert facts.value("sut.software.version") == "b10549"
    assert "sut.context_limit_tokens" not in facts


PROPS = {"build_info": "b6789-1ab2c3d", "default_generation_settings": {}}
SERVER_INFO = {"version": "0.5.4", "tp_size": 1, "mem_fraction_static": 0.9}
INFO = {"version": "3.3.6", "model_id": "m", "max_total_tokens": 4096}


@pytest.mark.parametrize(
    ("owner", "path", "said", "name", "version"),
    [
        ("vllm", "/version", {"version": "0.32.1"}, "vLLM", "0.32.1"),
        ("tensorrt_llm", "/version", {"version": "1.2.0"}, "TensorRT-LLM", "1.2.0"),
        ("library", "/api/version", {"version": "0.12.3"}, "Ollama", "0.12.3"),
        ("me", "/props", PROPS, "llama.cpp", "b6789-1ab2c3d"),
        ("me", "/get_server_info", SERVER_INFO, "SGLang", "0.5.4"),
        ("sglang", "/server_info", SERVER_INFO, "SGLang", "0.5.4"),
        ("me", "/info", INFO, "TGI", "3.3.6"),
        ("me", "/version", {"version": "1.0"}, None, None),
        ("me", "/api/version", {"version": "1.0"}, None, None),
        ("me", "/info", {"version": "1.0"}, None, None),
        ("vllm", "/version", {"version": 3}, "vLLM", None),
        ("vllm", "/version", {"version": "x" * 500}, "vLLM", None),
        ("vllm", "/version", ["0.1"], "vLLM", None),
    ],
)
def test_who_answers_and_where_it_says_so(serve, engine, owner, path, said, name, version):
    engine["GET /v1/models"] = Canned.json({"data": [{"id": "m", "owned_by": owner}]})
    engine["POST /v1/chat/completions"] = Canned.events(chat_chunk("Hi", "stop"), "[DONE]")
    server = serve({**engine, f"GET {path}": Canned.json(said)})
    facts = examine(server.url).facts
    assert facts.value("sut.software.engine") == name
    assert facts.value("sut.software.version") == version
    if version is not None:
        assert facts["sut.software.version"].source == f"{server.url}{path}"
        assert facts["sut.software.version"].origin is Origin.DETECTED
    assert len(server.seen) <= 2 + 4


def test_pages_that_do_not_answer_hold_nobody_up(serve, engine):
    engine["POST /v1/chat/completions"] = Canned.events(chat_chunk("Hi", "stop"), "[DONE]")
    server = serve({**engine, "GET /version": Canned(200, {}, b"", hold_s=30)})
    assert examine(server.url, access=HASTY).facts.value("sut.software.version") is None


# --- endpoints of which something is told


def failed(message: str, http: int, /, **more: object) -> Canned:
    return Canned.json({"error": {"message": message, **more}}, http)


def unprocessable(name: str) -> Canned:
    """As FastAPI answers, with the field beside the message, and the value of another one in it."""
    detail = {
        "type": "extra_forbidden",
        "loc": ["body", name],
        "msg": "Extra inputs are not permitted",
        "input": {"temperature": 0, "model": "m"},
    }
    return Canned.json({"detail": [detail]}, 422)


def listing(*names: str) -> Canned:
    return Canned.json({"data": [{"id": name} for name in names]})


MODELS, CHAT, COMPLETIONS = "GET /v1/models", *POSTS
KEYED = {"access": Access(KEY)}
PAGE = Canned(200, dict(HTML), b"<html>Welcome</html>")
NO_DB = {"type": "no_db_connection", "param": None, "code": "400"}
ASKED_FOR = (
    "Invalid model name passed in model=tiny. Call `/v1/models` to view available models for your key."
)
PINNED = Canned.json({"detail": "Server is pinned to 'org/small-model'"}, 400)
WHOLE = Canned.json({"object": "chat.completion", "choices": [{"message": {"content": "Hi"}}]})
UNKNOWN_FIELD = {"type": "missing", "loc": ["body", "x"], "msg": "Field required", "input": {"model": "m"}}
FIELDS = RequestForm(ignore_eos=True, extra_body={"cache_prompt": False, "return_token_ids": True})
OMIT = 'request.omit = ["stream_options"] in the SUT file'
COUNT = {"choices": [], "usage": {"completion_tokens": 1}}


def on_posts(answer: Canned) -> dict[str, Canned]:
    return dict.fromkeys(POSTS, answer)


TOLD = {
    # of the key
    **{
        f"no key, {status}": (
            {MODELS: failed("Missing key", status)}, {},
            [f"HTTP {status} (Missing key); no API key was sent", "export LLM_API_KEY (or OPENAI_API_KEY)"],
        )
        for status in (401, 403)
    },
    "a wrong key, which is not repeated": (
        {MODELS: failed(f"Incorrect API key provided: {CANARY}", 401)}, KEYED,
        ["the key from environment variable LLM_API_KEY is refused",
         "Incorrect API key provided: [redacted]"],
        CANARY,
    ),
    "a bad request of LiteLLM's for a wrong key": (
        {CHAT: failed("No connected db.", 400, **NO_DB)}, KEYED,
        ["HTTP 400 (No connected db.", "the key from environment variable LLM_API_KEY is refused"],
    ),
    "a bad request of Gemini's for a wrong key": (
        {CHAT: failed("API key not valid. Please pass a valid API key.", 400, status="INVALID_ARGUMENT")},
        KEYED,
        ["HTTP 400 (API key not valid. Please pass a valid API key.",
         "the key from environment variable LLM_API_KEY is refused"],
    ),
    "a bad request that mentions a key": (
        {CHAT: failed(ASKED_FOR, 400)}, {"api": "openai-chat", **KEYED},
        ["HTTP 400 (Invalid model name"], "is refused",
    ),
    "a key that may list but not complete": (
        {CHAT: Canned.json({"error": "quota"}, 403)}, KEYED, ["is refused"]
    ),
    # of the path
    **{
        f"nothing behind {path}": (
            {}, {"endpoint": path}, ["HTTP 404 (Not Found)", "the API is at $URL/v1: --llm-endpoint=$URL/v1"]
        )
        for path in ("/wrong", "/v2", "/v1/chat/completions", "/v1/models")
    },
    "nothing behind a path, and a named model": (
        {}, {"endpoint": "/wrong", "model": "org/small-model"}, ["--llm-endpoint=$URL/v1"]
    ),
    "nothing at all": (
        {MODELS: None, CHAT: None, COMPLETIONS: None}, {"endpoint": "/wrong/v2"},
        ["no OpenAI-compatible API there", "it usually ends in /v1, like $URL/v1"],
    ),
    "models but no completions": (
        {CHAT: None, COMPLETIONS: None}, {},
        ["lists models, but has no /chat/completions and no /completions"],
    ),
    "a web site": (
        {MODELS: PAGE, "GET /models": PAGE}, {},
        ["not an OpenAI-compatible endpoint: text/html instead of a model list", "Welcome"],
    ),
    "a web site, and a named model": (
        {MODELS: PAGE, CHAT: PAGE}, {"model": "m"}, ["not an OpenAI-compatible endpoint: text/html"]
    ),
    # of the model
    "several models": (
        {MODELS: listing("first", "second")}, {},
        ["serves 2 models: choose one of first, second", "--llm-model=first"],
    ),
    "many models": (
        {MODELS: listing(*(f"m{n:03}" for n in range(100)))}, {}, ["m019 and 80 more"], "m020"
    ),
    **{
        f"no model {wanted}": (
            on_posts(failed("The model does not exist.", 404, code=404)), {"model": wanted},
            [f"has no model '{wanted}'",
             "did you mean org/small-model? it serves org/small-model (--llm-model)"],
        )
        for wanted in ("org/smal-model", "small-model", "Small-Model", "other/small-model")
    },
    "no model of an endpoint without a list": (
        {MODELS: None, **on_posts(failed("The model `x` does not exist.", 404, code=404))}, {"model": "x"},
        ["has no model 'x': The model `x` does not exist."],
    ),
    "pinned to a model, of a list of all on the disk": (
        {MODELS: listing("other"), **on_posts(PINNED)}, {},
        ["has no model 'other': Server is pinned to 'org/small-model'", "--llm-model"],
    ),
    "pinned to a model, with a list that fails": (
        {MODELS: Canned(500), **on_posts(PINNED)}, {"model": "other"},
        ["has no model 'other': Server is pinned to 'org/small-model'", "--llm-model"],
    ),
    # of the reply
    "a reply in one piece": (
        {CHAT: WHOLE}, {},
        ["answers without streaming: application/json in one piece", "switch streaming on"],
    ),
    "an error in a stream": (
        {CHAT: Canned.events({"error": {"message": "out of memory"}}, "[DONE]")}, {},
        ["the streamed reply is an error", "out of memory"],
    ),
    **{
        f"a stream without a completion, {body!r}": (
            {CHAT: Canned(200, dict(STREAM), body)}, {}, ["without a completion in it"]
        )
        for body in (b"", b": ping\n\n", b'data: {"weather": "fine"}\n\n', b"data: [DONE]\n\n")
    },
    **{
        f"a stream that never ends, finish reason {finish}": (
            {CHAT: Canned.events(chat_chunk("Hi", finish), hold_s=30)}, {"access": HASTY},
            ["the streamed reply does not end: still open after 1 events, for 4 tokens at most",
             "max_tokens"],
        )
        for finish in (None, "stop")
    },
    **{  # the end of the response, the end marker and the usage by itself say nothing of it
        f"a reply without a finish reason, but {end}": (
            {CHAT: Canned.events(chat_chunk("Hi"), *end)}, {},
            [f"ends without a finish reason ({1 + len(end)} events)", "count as truncated", "--llm-api"],
        )
        for end in ([], ["[DONE]"], [COUNT])
    },
    # of refusals
    **{
        f"the field {name}, {answer.status}": (
            on_posts(answer), {"asking": FIELDS}, ["it refuses the field", remedy]
        )
        for name, answer, remedy in (
            ("stream_options", unprocessable("stream_options"), OMIT),
            ("ignore_eos", unprocessable("ignore_eos"), "take request.ignore_eos out of the SUT file"),
            ("cache_prompt", unprocessable("cache_prompt"),
             "take cache_prompt out of request.extra_body in the SUT file"),
            ("return_token_ids", unprocessable("return_token_ids"),
             "or request.chunk_tokens out of the SUT file"),
            ("temperature", unprocessable("temperature"), "a gateway before the engine may translate it"),
            ("stream_options in words",
             Canned.json({"detail": "Unexpected keys in the request: {'stream_options'}"}, 422), OMIT),
            ("ignore_eos", failed("Unrecognized request argument supplied: ignore_eos", 400),
             "take request.ignore_eos out of the SUT file"),
            ("max_tokens",
             Canned.json({"error": "'max_tokens' is not supported with this model; change the prompt"}, 400),
             "it refuses the field max_tokens"),
        )
    },
    "a refusal that shows the whole request": (
        on_posts(Canned.json({"detail": [UNKNOWN_FIELD]}, 422)), {},
        ["HTTP 422 (Field required"], "it refuses",
    ),
    "any other refusal, in the words of the server": (
        on_posts(failed("unknown field ignore_eos", 422)), {}, ["HTTP 422 (unknown field ignore_eos)"]
    ),
    **{
        f"busy, {status}": (
            {CHAT: failed("overloaded", status)}, {},
            [f"HTTP {status} (overloaded): the endpoint takes no requests now"],
        )
        for status in (429, 503)
    },
}  # fmt: skip
"""Case → the answers in place of an engine's (None: no such path), options of the preflight, what is said,
and what is not."""


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told(serve, engine, case):
    changes, options, said, *unsaid = TOLD[case]
    given = {path: answer for path, answer in {**engine, **changes}.items() if answer is not None}
    server = serve(given)
    endpoint = server.url + options.get("endpoint", "")
    message = told(SUTError, **{**options, "endpoint": endpoint})
    for text in said:
        assert text.replace("$URL", server.url) in message
    assert not any(text in message for text in unsaid)


@pytest.mark.parametrize("given", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("listing", [None, {"data": []}])
def test_no_remedy_repeats_the_url_that_was_given(serve, given, listing):
    server = serve({} if listing is None else {"GET /v1/models": Canned.json(listing)})
    remedy = told(SUTError, server.url + given, model=None if listing is None else "m").splitlines()[-1]
    assert server.url not in remedy


def test_a_redirect(serve):
    moved = Canned(308, {"Location": "https://elsewhere.example.org/v1/models?token=1"})
    message = told(SUTError, serve({"GET /v1/models": moved}).url)
    assert "redirects to https://elsewhere.example.org/v1/models" in message
    assert "token" not in message


def test_a_redirect_to_itself_is_no_final_url(serve):
    server = serve({})
    server.answers["GET /v1/models"] = Canned(301, {"Location": f"{server.url}/v1/models"})
    assert "it redirects to itself" in told(SUTError, f"{server.url}/v1")


# --- models


def test_one_of_several_models(serve, engine):
    engine["GET /v1/models"] = Canned.json({"data": [{"id": "first"}, {"id": "second"}]})
    assert examine(serve(engine).url, model="second").model == "second"


def test_a_model_that_answers_need_not_be_listed(serve, engine):
    """As behind the wildcards and aliases of a gateway."""
    server = serve(engine)
    found = examine(server.url, model="openai/gpt-x")
    asked = [each.json["model"] for each in server.seen if each.method == "POST"]
    assert (found.model, asked) == ("openai/gpt-x", ["openai/gpt-x"])


def test_no_model_at_all(serve, engine):
    engine["GET /v1/models"] = Canned.json({"data": []})
    assert "lists no model" in told(SUTError, serve(engine).url)
    assert examine(serve(engine).url, model="hidden").model == "hidden"


# --- replies


def test_a_count_and_an_end_marker_behind_the_text_do_for_a_finish_reason(serve, engine):
    end = [{"choices": [], "usage": {"completion_tokens": 1}}, "[DONE]"]
    engine["POST /v1/chat/completions"] = Canned.events(chat_chunk("Hi"), *end)
    report = examine(serve(engine).url)
    assert (report.api, report.counts_tokens) == ("openai-chat", True)


@pytest.mark.parametrize("kind", [dict(STREAM), dict(HTML), {}, {"Content-Type": "application/json"}])
def test_a_200_with_an_empty_body(serve, engine, kind):
    engine["POST /v1/chat/completions"] = Canned(200, kind, b"")
    message = told(SUTError, serve(engine).url)
    assert "empty" in message.partition("→")[0]


def refusing(**said: str):
    """Refuses bodies with these fields, each in these words."""

    def refuses(body):
        name = next((each for each in said if each in body), None)
        return None if name is None else Canned.json({"error": {"message": said[name], "param": name}}, 400)

    return refuses


NO_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
    "instead."
)
NO_HEAT = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
    "supported."
)


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({"max_tokens": NO_LIMIT}, {"max_tokens": None, "max_completion_tokens": ASKED_LIMIT}),
        ({"temperature": NO_HEAT}, {"temperature": None}),
        ({"temperature": "temperature is deprecated for this model"}, {"temperature": None}),
        ({"temperature": "invalid temperature: only 1 is allowed"}, {"temperature": None}),
        (
            {"max_tokens": NO_LIMIT, "temperature": NO_HEAT},
            {"max_tokens": None, "max_completion_tokens": ASKED_LIMIT, "temperature": None},
        ),
        ({}, {}),
    ],
)
def test_what_a_model_refuses_is_left_out(serve, engine, said, changed):
    engine["POST /v1/chat/completions"].refuses = refusing(**said)
    server = serve(engine)
    found = examine(server.url)
    body = next(each.json for each in reversed(server.seen) if each.method == "POST")
    assert found.changed == changed
    assert found.api == "openai-chat"
    if "max_completion_tokens" in changed:
        assert body["max_completion_tokens"] == 4
    assert not said.keys() & body.keys()


def test_what_the_author_sends_is_not_left_out(serve, engine):
    for path in POSTS:
        engine[path].refuses = refusing(temperature=NO_HEAT)
    message = told(SUTError, serve(engine).url, asking=RequestForm(extra_body={"temperature": 0.7}))
    assert "take temperature out of request.extra_body" in message


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ([{"id": "a"}, {"id": "b"}], ("a", "b")),
        (["a", "b"], ("a", "b")),
        ({"models": [{"id": "a"}]}, ("a",)),
        ({"object": "list", "data": None}, ()),
    ],
)
def test_model_lists_of_other_forms(serve, engine, listed, names):
    engine["GET /v1/models"] = Canned.json(listed)
    assert examine(serve(engine).url, model="a").models == names
    if not names:
        assert "lists no model" in told(SUTError, serve(engine).url)


@pytest.mark.parametrize(
    "refusal",
    [
        {"code": 1113, "message": "no balance left"},
        {"base_resp": {"status_code": 1008, "status_msg": "no balance left"}, "choices": None},
        {"error_code": 17, "error_msg": "no balance left"},
        {"detail": "no balance left"},
        {"success": False, "msg": "no balance left"},
        {"header": {"code": 11200, "message": "no balance left"}},
    ],
)
@pytest.mark.parametrize("status", [200, 402])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_words_of_a_server_are_kept(serve, engine, refusal, status, streamed):
    said = Canned.events(refusal) if streamed else Canned.json(refusal)
    said.status = status
    assert "no balance left" in told(SUTError, serve(engine | dict.fromkeys(POSTS, said)).url)


def test_one_newline_between_events(serve, engine):
    body = b"".join(f"data: {json.dumps(chat_chunk(each))}\n".encode() for each in "abc")
    engine["POST /v1/chat/completions"].body = body + b"\n"
    assert "one newline stands between them" in told(SUTError, serve(engine).url, api="openai-chat")


def test_events_of_another_content_type_are_a_stream(serve, engine):
    engine["POST /v1/chat/completions"].headers["Content-Type"] = "text/plain"
    assert examine(serve(engine).url).api == "openai-chat"


def test_what_is_omitted_is_not_sent(serve, engine):
    server = serve(engine)
    examine(server.url, asking=RequestForm(extra_body={"stream_options": None}))
    assert "stream_options" not in server.seen[-1].json


@pytest.mark.parametrize("name", ["api_key", "key", "token"])
def test_a_key_in_the_query_is_refused_and_not_shown(name):
    with pytest.raises(SuiteError) as caught:
        base_candidates(f"http://host:1/v1?api-version=2&{name}=s3cret-canary")
    said = str(caught.value)
    assert "s3cret-canary" not in said
    assert "write http://host:1/v1?api-version=2," in said
    assert "LLM_API_KEY" in said


def test_other_parameters_of_the_query_stay():
    (base,) = base_candidates("http://host:1/v1?api-version=2024-06-01")
    assert base == "http://host:1/v1?api-version=2024-06-01"
