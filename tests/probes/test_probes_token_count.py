"""Counting tokens as the server counts them, against servers that are each right or wrong in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from canned_http import Canned, CannedServer

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.token_count import ServerTokenCount
from pytest_llmbench.workloads.readable import exact_prompt

TEMPLATE = 7
"""Tokens that the servers' chat template adds."""
CANARY = "sk-canary-0123456789"

Reply = Callable[[Any], Canned]


class Replies(dict[str, Canned]):
    """The answers of a canned server, made from what it was just asked. A token is a word."""

    def __init__(self, replies: dict[str, Reply]) -> None:
        super().__init__()
        self.replies = replies
        self.server: CannedServer | None = None

    def get(self, key: str, default: Any = None) -> Any:
        made = self.replies.get(key.removeprefix("POST "))
        assert self.server is not None
        return default if made is None else made(self.server.seen[-1].json)


def words(asked: Any) -> int:
    if "messages" in asked:
        return TEMPLATE + len(asked["messages"][0]["content"].split())
    return len(asked["prompt"].split())


def completion(asked: Any, count: int | None = None) -> Canned:
    said = {"prompt_tokens": words(asked) if count is None else count, "completion_tokens": 1}
    choice = {"index": 0, "delta": {"content": "x"}, "text": "x", "finish_reason": "length"}
    return Canned.events({"choices": [choice]}, {"choices": [], "usage": said}, "[DONE]")


def without_usage(asked: Any) -> Canned:
    return Canned.events({"choices": [{"index": 0, "delta": {"content": "x"}}]}, "[DONE]")


def vllm(asked: Any) -> Canned:
    return Canned.json({"count": words(asked), "max_model_len": 4096, "tokens": [5] * words(asked)})


def llama_cpp(asked: Any) -> Canned:
    """Knows ``content`` alone, and begins with a special token if asked to."""
    count = len(asked.get("content", "").split()) + (1 if asked.get("add_special") else 0)
    return Canned.json({"tokens": [9] * count})


Serving = Callable[[dict[str, Reply]], CannedServer]


@pytest.fixture
def serving(serve: Callable[..., CannedServer]) -> Serving:
    def start(replies: dict[str, Reply]) -> CannedServer:
        answers = Replies(replies)
        answers.server = serve(answers)
        return answers.server

    return start


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def counter(server: CannedServer, api: str = "chat", **options: Any) -> ServerTokenCount:
    return ServerTokenCount(server.url + "/v1", "m", api, **options)


def paths(server: CannedServer) -> list[str]:
    return [seen.path for seen in server.seen]


@pytest.mark.parametrize(
    ("api", "completions", "counted"), [("chat", CHAT, TEMPLATE + 3), ("completions", COMPLETIONS, 3)]
)
def test_vllm(serving: Serving, api: str, completions: str, counted: int) -> None:
    server = serving({"/tokenize": vllm, completions: completion})
    with counter(server, api) as count:
        assert count.source == ""
        assert count("one two three") == counted
        assert count.source == f"POST {server.url}/tokenize"
        assert not count.leaves_traces
    assert paths(server) == [completions, "/tokenize", "/tokenize"]  # usage of a sample, its count, ours
    asked = server.seen[-1].json
    assert asked["model"] == "m"
    prompt = asked["messages"] if api == "chat" else asked["prompt"]
    assert prompt == ([{"role": "user", "content": "one two three"}] if api == "chat" else "one two three")


def test_what_was_counted_is_remembered(serving: Serving) -> None:
    server = serving({"/tokenize": vllm, CHAT: completion})
    with counter(server) as count:
        assert [count("a b"), count("a b"), count("a")] == [TEMPLATE + 2, TEMPLATE + 2, TEMPLATE + 1]
        assert count.calls == len(server.seen) == 4


def test_tokenize_below_the_api(serving: Serving) -> None:
    server = serving({"/v1/tokenize": vllm, CHAT: completion})
    with counter(server) as count:
        assert count("a b") == TEMPLATE + 2
        assert count.source == f"POST {server.url}/v1/tokenize"


def test_llama_cpp_counts_completions_by_its_own_shape(serving: Serving) -> None:
    def with_bos(asked: Any) -> Canned:
        return completion(asked, words(asked) + 1)

    server = serving({"/tokenize": llama_cpp, COMPLETIONS: with_bos})
    with counter(server, "completions") as count:
        assert count("a b c") == 4
        assert not count.leaves_traces
    assert server.seen[-1].json == {"content": "a b c", "add_special": True, "parse_special": True}


def in_template(asked: Any) -> Canned:
    """Of as many words as the template of the completions has tokens, less the special one in front."""
    return Canned.json({"prompt": "<t> " * (TEMPLATE - 1) + asked["messages"][0]["content"]})


def test_llama_cpp_counts_a_chat_behind_its_template_and_runs_nothing(serving: Serving) -> None:
    server = serving({"/tokenize": llama_cpp, "/apply-template": in_template, CHAT: completion})
    with counter(server, extra_body={"chat_template_kwargs": {"x": 1}, "top_k": 1}) as count:
        assert count("a b c") == TEMPLATE + 3
        assert count.source == f"POST {server.url}/tokenize"
        assert not count.leaves_traces
        assert count("a b c d") == TEMPLATE + 4
    assert paths(server).count(CHAT) == 1, "the sample alone"
    asked = next(seen.json for seen in server.seen if seen.path == "/apply-template")
    assert set(asked) == {"model", "messages", "chat_template_kwargs"}


@pytest.mark.parametrize(
    "template",
    [
        lambda _: Canned(404),
        lambda _: Canned.json({"text": "hi"}),
        lambda _: Canned.json({"prompt": 3}),
        lambda asked: Canned.json({"prompt": asked["messages"][0]["content"]}),
    ],
    ids=["absent", "without a prompt", "no text", "of another template"],
)
def test_a_template_of_no_use_is_not_taken(serving: Serving, template: Reply) -> None:
    server = serving({"/tokenize": llama_cpp, "/apply-template": template, CHAT: completion})
    with counter(server) as count:
        assert count("a b") == TEMPLATE + 2
        assert count.leaves_traces


def test_llama_cpp_s_tokenize_knows_no_chat_template(serving: Serving) -> None:
    server = serving({"/tokenize": llama_cpp, CHAT: completion})
    with counter(server) as count:
        assert count("a b c") == TEMPLATE + 3
        assert count.source == f"usage of one-token completions, {server.url}{CHAT}"
        assert count.leaves_traces
    asked = server.seen[-1].json
    assert (asked["max_tokens"], asked["stream_options"]) == (1, {"include_usage": True})


def test_a_count_that_the_usage_contradicts_is_not_taken(serving: Serving) -> None:
    """A gateway that adds a system prompt, say."""

    def more(asked: Any) -> Canned:
        return completion(asked, words(asked) + 50)

    server = serving({"/tokenize": vllm, CHAT: more})
    with counter(server) as count:
        assert count("a b") == TEMPLATE + 52
        assert count.leaves_traces


@pytest.mark.parametrize("reply", [without_usage, lambda _: Canned(500)], ids=["no usage", "no completion"])
def test_a_count_that_nothing_contradicts_is_taken(serving: Serving, reply: Reply) -> None:
    with counter(serving({"/tokenize": vllm, CHAT: reply})) as count:
        assert count("a b") == TEMPLATE + 2


def test_what_changes_the_template_is_sent_along(serving: Serving) -> None:
    server = serving({"/tokenize": vllm, CHAT: completion})
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 1}
    with counter(server, extra_body=extra) as count:
        count("a")
    completed, *tokenized = server.seen
    assert completed.json["top_k"] == 1
    for asked in tokenized:
        assert asked.json["chat_template_kwargs"] == {"enable_thinking": False}
        assert "top_k" not in asked.json


def test_an_answer_with_more_ids_than_are_read(serving: Serving) -> None:
    def long(asked: Any) -> Canned:
        return Canned.json({"count": 300_000, "max_model_len": 400_000, "tokens": [100_000] * 300_000})

    with counter(serving({"/tokenize": lambda asked: (vllm if words(asked) < 9 else long)(asked)})) as count:
        assert count("word " * 20) == 300_000


def test_a_server_that_does_not_say(serving: Serving) -> None:
    with counter(serving({CHAT: without_usage})) as count, pytest.raises(SUTError) as caught:
        count("a")
    told = str(caught.value)
    assert "does not say how many tokens" in told
    assert "/tokenize: HTTP 404" in told
    assert f"{CHAT}: its stream holds no usage" in told
    assert "token_ids" in told


@pytest.mark.parametrize("answer", [{"count": "5"}, {"count": None}, {"count": 5.5}, {"count": True}, [5], 5])
def test_what_is_no_count(serving: Serving, answer: Any) -> None:
    server = serving({"/tokenize": lambda _: Canned.json(answer)})
    with counter(server) as count, pytest.raises(SUTError, match="an answer without a count"):
        count("a")


def test_a_prompt_that_cannot_be_counted(serving: Serving) -> None:
    def limited(asked: Any) -> Canned:
        if words(asked) > TEMPLATE + 4:
            return Canned.json({"error": {"message": "too long for this model"}}, 400)
        return vllm(asked)

    with counter(serving({"/tokenize": limited, CHAT: completion})) as count:
        assert count("a b") == TEMPLATE + 2
        with pytest.raises(SUTError, match="too long for this model") as caught:
            count("a b c d e")
        assert "9 characters" in str(caught.value)
        assert count("a b") == TEMPLATE + 2


def test_the_number_of_requests_is_bounded(serving: Serving) -> None:
    server = serving({"/tokenize": vllm, CHAT: completion})
    with counter(server, most_calls=4) as count:
        assert [count("a"), count("a b")] == [TEMPLATE + 1, TEMPLATE + 2]
        assert count("a") == TEMPLATE + 1
        with pytest.raises(SUTError, match="asked 4 times"):
            count("a b c")
    assert len(server.seen) == 4


def test_nothing_listens() -> None:
    count = ServerTokenCount("http://127.0.0.1:1/v1", "m", "chat")
    with count, pytest.raises(SUTError, match="connection refused"):
        count("a")


def test_the_key_is_sent_and_never_told(serving: Serving) -> None:
    access = Access(Credentials({"Authorization": f"Bearer {CANARY}"}, frozenset({CANARY}), "LLM_API_KEY"))

    def repeating(asked: Any) -> Canned:
        return Canned.json({"error": {"message": f"wrong key {CANARY}"}}, 401)

    server = serving({"/tokenize": repeating, CHAT: repeating})
    with counter(server, access=access) as count, pytest.raises(SUTError) as caught:
        count("a")
    assert "HTTP 401" in str(caught.value)
    assert CANARY not in str(caught.value)
    assert server.seen[0].headers["Authorization"] == f"Bearer {CANARY}"


def test_a_prompt_of_exact_length_is_found_with_it(serving: Serving) -> None:
    server = serving({"/tokenize": vllm, CHAT: completion})
    with counter(server) as count:
        found = exact_prompt(120, count, 1)
        assert count(found.text) == 120
