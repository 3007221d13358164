"""``python:module:attr``: what is called, what comes of it, and what is wrong with it in words."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import OpenSUT, open_sut
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import OUTCOMES, TOKEN_SOURCES
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

_NUMBERS = count()
Opening = Callable[..., OpenSUT]

ENGINE = """
import asyncio

async def generate(prompt, max_tokens):
    for n in range(max_tokens):
        await asyncio.sleep(0)
        yield f"word{n} "
"""
APP = """
import json

started = []

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            told = await receive()
            started.append(told["type"])
            scope["state"]["model"] = "tiny"
            await send({"type": told["type"] + ".complete"})
            if told["type"].endswith("shutdown"):
                return
    asked = await receive()
    async def answer(body, kind=b"application/json", status=200):
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})
    if scope["path"] == "/v1/models":
        return await answer(json.dumps({"data": [{"id": scope["state"]["model"]}]}).encode())
    if scope["path"] != "/v1/chat/completions":
        return await answer(b"{}", status=404)
    body = json.loads(asked["body"])
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-type", b"text/event-stream")]})
    for n in range(body["max_tokens"]):
        last = "length" if n + 1 == body["max_tokens"] else None
        event = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": last}]}
        await send({"type": "http.response.body", "body": b"data: " + json.dumps(event).encode() + b"\\n\\n",
                    "more_body": True})
        LATE
    await send({"type": "http.response.body", "body": b"data: [DONE]\\n\\n"})
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of a name of its own, and returns that name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"in_process_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


LISTENER = """
heard = []

async def generate(TAKES, max_tokens):
    heard.append(TAKES)
    for _ in range(3):
        yield "so ", 1
"""


@pytest.fixture
def opening() -> Iterator[Opening]:
    running: list[OpenSUT] = []

    def start(endpoint: str, given: dict[str, Any] | None = None, **settings: Any) -> OpenSUT:
        chosen = Settings(endpoint=endpoint, **settings)
        running.append(open_sut(SUT(endpoint, **(given or {})), chosen, on_progress=lambda _: None))
        return running[-1]

    yield start
    for opened in running:
        opened.close()


def loaded(opened: OpenSUT, requests: int = 6, total_s: float = 60.0, tokens: int = 5) -> Observation:
    words = SyntheticWorkload("words", Fixed(8), Fixed(tokens))
    deadlines = Deadlines(total_s=total_s, first_byte_s=total_s)
    return opened.executor.run(LoadPlan("load", words, ClosedLoop(3), requests, 1, deadlines=deadlines))


def outcomes(seen: Observation) -> set[Outcome]:
    return {OUTCOMES[code] for code in seen.records.outcome}


@pytest.mark.parametrize("takes", ["messages", "prompt"])
def test_turns_of_sessions_read_what_the_function_said(
    module: Callable[[str], str], opening: Opening, takes: str
) -> None:
    name = module(LISTENER.replace("TAKES", takes))
    opened = opening(f"python:{name}:generate")
    heard = importlib.import_module(name).heard
    before = len(heard)
    talk = SessionWorkload("talk", Fixed(3), Fixed(6), Fixed(5), system_tokens=9, answers="live")
    seen = opened.executor.run(LoadPlan("load", talk, SessionSlots(1), 6, seed=1))
    assert seen.records.counts()["ok"] == 6
    assert seen.facts.value("wire.messages") == ("roles" if takes == "messages" else "one_text")
    asked = heard[before:]
    if takes == "messages":
        assert [[each["role"][0] for each in messages] for messages in asked] == [
            ["s", "u"], ["s", "u", "a", "u"], ["s", "u", "a", "u", "a", "u"]
        ] * 2  # fmt: skip
        assert {
            each["content"] for messages in asked for each in messages if each["role"] == "assistant"
        } == {"so so so "}
    else:
        assert [prompt.count("\n\nassistant: so so so ") for prompt in asked] == [0, 1, 2] * 2
    assert seen.records.requested_input_tokens.tolist() == [15, 24, 33] * 2


def test_what_the_sut_file_declares_of_replies_holds_here_too(
    module: Callable[[str], str], opening: Opening, tmp_path: Path
) -> None:
    text = APP.replace("LATE", "pass").replace('"word "', '("Hm", "</think>", "yes", "!")[n]')
    kind = '(b"content-type", b"text/event-stream")'
    text = text.replace(kind, f'{kind}, (b"server-timing", b"queue;dur=5, prefill;dur=12")')
    (tmp_path / "sut.toml").write_text("""
        reasoning = { tags = "think", starts_thinking = true }
        server_times = { queue_wait = "header:Server-Timing:queue", prefill = "header:Server-Timing:prefill" }
    """)
    opened = opening(f"python:{module(text)}:app", sut=tmp_path / "sut.toml")
    records = loaded(opened, tokens=4).records
    assert records.ok.all()
    assert (records.first_reasoning_ns < records.first_content_ns).all()
    assert set(records.queue_wait_ns.tolist()) == {5_000_000}
    assert set(records.prefill_ns.tolist()) == {12_000_000}


def test_an_async_generator_is_measured(module: Callable[[str], str], opening: Opening) -> None:
    name = module(ENGINE)
    endpoint = f"python:{name}:generate"
    opened = opening(endpoint)
    assert (opened.opened.model, opened.api, opened.endpoint) == ("generate", "python", endpoint)
    assert opened.server == opened.endpoint
    records = loaded(opened).records
    assert records.ok.all()
    assert {TOKEN_SOURCES[code] for code in records.token_source} == {TokenSource.REFERENCE_TOKENIZER}
    assert (records.first_content_ns >= records.submitted_ns).all()
    assert (records.chunk_offsets[1:] - records.chunk_offsets[:-1] == 5).all()
    assert set(records.finish_reason) == {"stop"}


def test_a_schedule_is_kept_too(module: Callable[[str], str], opening: Opening) -> None:
    opened = opening(f"python:{module(ENGINE)}:generate")
    words = SyntheticWorkload("words", Fixed(8), Fixed(2))
    seen = opened.executor.run(LoadPlan("load", words, OpenLoop(200.0), 10, 1))
    assert seen.records.ok.all()
    assert seen.selfcheck.transport == "in process: async generator"


def test_the_facts_say_what_was_not_measured(module: Callable[[str], str], opening: Opening) -> None:
    opened = opening(f"python:{module(ENGINE)}:generate")
    for facts in (opened.facts, loaded(opened).facts):
        assert facts.value("streaming.protocol") == "in_process"
        assert facts.value("timing.submit_point") == "call"
        assert facts.value("engine.metrics") == "not measurable: called in process"
    assert opened.facts.value("clock.topology") == "single_machine"
    assert "network.rtt_ms" not in opened.facts
    assert "no network and no server" in str(opened.opened.notes[0])


@pytest.mark.parametrize(
    "signature",
    [
        "prompt, max_tokens",
        "messages, *, max_tokens, temperature=1.0",
        "**options",
        "prompt, /, max_tokens",
        "prompt, max_tokens, tools",
        "question, max_tokens",
        "prompt",
    ],
)
def test_what_it_is_called_with(signature: str, module: Callable[[str], str], opening: Opening) -> None:
    said = {
        "prompt, /, max_tokens": "its prompt cannot be given by keyword",
        "prompt, max_tokens, tools": "it needs tools, which no request has",
        "question, max_tokens": "it needs question, which no request has",
        "prompt": "it has no max_tokens",
    }.get(signature)
    seen = "seen = []\n"
    body = f"async def generate({signature}):\n    seen.append(dict(locals()))\n    yield 'one', 1\n"
    name = module(seen + body)
    if said is not None:
        with pytest.raises(SuiteError, match=said) as caught:
            opening(f"python:{name}:generate")
        assert caught.value.where == f"python:{name}:generate"
        return
    opened = opening(f"python:{name}:generate")
    assert loaded(opened, 1).records.ok.all()


def test_extra_fields_are_parameters(module: Callable[[str], str], opening: Opening) -> None:
    name = module("async def generate(prompt, max_tokens, top_k=0):\n    yield 'one ' * top_k, top_k\n")
    opened = opening(f"python:{name}:generate", {"extra_body": {"top_k": 3}})
    assert set(loaded(opened).records.output_tokens) == {3}
    with pytest.raises(SuiteError, match="it has no top_p, which every request is to have"):
        opening(f"python:{name}:generate", {"extra_body": {"top_p": 1}})


def test_counts_that_are_given_are_taken(module: Callable[[str], str], opening: Opening) -> None:
    name = module(
        "async def generate(prompt, max_tokens):\n    yield 'a b', 2\n    yield ' c', max_tokens - 2\n"
    )
    records = loaded(opening(f"python:{name}:generate")).records
    assert set(records.output_tokens) == {5}
    assert records.chunk_tokens.tolist() == [2, 3] * 6
    assert set(records.finish_reason) == {"length"}


@pytest.mark.parametrize(
    ("third", "outcome", "said"),
    [
        ("raise ValueError('no slot')", Outcome.IN_BAND_ERROR, "ValueError: no slot"),
        ("raise SystemExit(3)", Outcome.IN_BAND_ERROR, "SystemExit: 3"),
        ("raise asyncio.CancelledError", Outcome.IN_BAND_ERROR, "the call cancelled itself"),
        ("yield 7", Outcome.IN_BAND_ERROR, "TypeError: it yielded int, not text"),
        ("yield 'a', 1", Outcome.IN_BAND_ERROR, "with and without a number of tokens"),
        ("await asyncio.sleep(60)", Outcome.TIMEOUT, "total deadline"),
        ("while True: yield 'more '", Outcome.TIMEOUT, "total deadline"),
        ("return", Outcome.OK, None),
    ],
)
def test_what_the_callable_does_is_data(
    third: str, outcome: Outcome, said: str | None, module: Callable[[str], str], opening: Opening
) -> None:
    name = module(
        "import asyncio\ncalls = []\nasync def generate(prompt, max_tokens):\n"
        "    calls.append(1)\n    mine = len(calls)\n    yield 'one '\n    if mine == 3:\n"
        f"        {third}\n"
    )
    seen = loaded(opening(f"python:{name}:generate"), total_s=0.4)
    expected = {Outcome.OK, outcome}
    assert outcomes(seen) == expected
    failed = [error for error in seen.records.error if error]
    assert len(failed) == len(expected) - 1
    assert said is None or said in failed[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "async def generate(prompt, max_tokens):\n    raise ValueError('no weights')\n    yield",
            "no weights",
        ),
        ("async def generate(prompt, max_tokens):\n    return\n    yield", "empty"),
        ("def generate(prompt, max_tokens):\n    return 'text'", "TypeError"),
    ],
)
def test_a_first_reply_that_fails_is_an_error(
    text: str, said: str, module: Callable[[str], str], opening: Opening
) -> None:
    name = module(text)
    with pytest.raises(SUTError, match="its first reply failed") as caught:
        opening(f"python:{name}:generate")
    assert said in str(caught.value)
    assert caught.value.where == f"python:{name}:generate"


@pytest.mark.parametrize(
    ("text", "attribute", "said"),
    [
        ("import no_such_thing", "generate", "No module named 'no_such_thing'"),
        ("1 / 0", "generate", "ZeroDivisionError"),
        ("raise SystemExit('not here')", "generate", "SystemExit: not here"),
        ("def generate(): ...", "generat", "did you mean generate?"),
        ("generate = 3", "generate", "it is of type int"),
        ("def generate(prompt, max_tokens): yield 'a'", "generate", "a plain generator function"),
        ("class Engine: ...", "Engine", "a class \\(name an instance\\)"),
    ],
)
def test_what_cannot_be_called_is_a_mistake_of_the_suite(
    text: str, attribute: str, said: str, module: Callable[[str], str], opening: Opening
) -> None:
    name = module(text)
    with pytest.raises(SuiteError, match=said) as caught:
        opening(f"python:{name}:{attribute}")
    assert caught.value.where == f"python:{name}:{attribute}"


def test_a_module_that_is_not_there(opening: Opening) -> None:
    with pytest.raises(SuiteError, match="module no_such_engine cannot be imported") as caught:
        opening("python:no_such_engine:generate")
    assert "pythonpath" in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["python:", "python:module", "python:a b:c", "python::c", "python:a:b:c"]
)
def test_what_names_nothing(endpoint: str, opening: Opening) -> None:
    with pytest.raises(SuiteError, match=r"python:package\.module:attribute"):
        opening(endpoint)


@pytest.mark.parametrize("workers", [2, "ray"])
def test_several_processes_are_refused(workers: int | str, opening: Opening) -> None:
    with pytest.raises(SuiteError, match="loaded by this process alone"):
        opening("python:engine:generate", workers=workers)


def test_methods_and_instances_are_callables(module: Callable[[str], str], opening: Opening) -> None:
    name = module(
        "class Engine:\n    async def generate(self, prompt, max_tokens):\n        yield 'one'\n"
        "    __call__ = generate\nengine = Engine()\n"
    )
    assert loaded(opening(f"python:{name}:engine.generate")).records.ok.all()
    assert loaded(opening(f"python:{name}:engine")).records.ok.all()


def test_an_application_is_measured_without_a_socket(module: Callable[[str], str], opening: Opening) -> None:
    name = module(APP.replace("LATE", "pass"))
    opened = opening(f"python:{name}:app")
    assert (opened.opened.model, opened.api) == ("tiny", "openai-chat")
    assert opened.facts.value("endpoint.url") == f"python:{name}:app"
    assert opened.facts.value("streaming.protocol") == "in_process"
    seen = loaded(opened)
    opened.close()
    assert seen.records.ok.all()
    assert seen.selfcheck.transport == "in process: ASGI"
    assert (seen.records.chunk_offsets[1:] - seen.records.chunk_offsets[:-1] == 5).all()
    assert importlib.import_module(name).started == ["lifespan.startup", "lifespan.shutdown"]


@pytest.mark.parametrize(
    ("late", "outcome", "said"),
    [
        ("if n == 6: raise ValueError('no slot')", Outcome.DISCONNECTED, "the application raised ValueError"),
        ("if n == 6: return", Outcome.DISCONNECTED, "returned before the end of its response"),
        ("if n == 6: import asyncio; await asyncio.sleep(60)", Outcome.TIMEOUT, "total deadline"),
    ],
)
def test_an_application_that_fails_is_data(
    late: str, outcome: Outcome, said: str, module: Callable[[str], str], opening: Opening
) -> None:
    seen = loaded(opening(f"python:{module(APP.replace('LATE', late))}:app"), 2, total_s=0.4, tokens=8)
    assert outcomes(seen) == {outcome}
    assert all(said in (error or "") for error in seen.records.error)


def test_an_application_that_begins_in_the_middle(module: Callable[[str], str], opening: Opening) -> None:
    early = "await send({'type': 'http.response.body', 'body': b'x'})"
    text = APP.replace("LATE", "pass").replace(
        '    body = json.loads(asked["body"])\n',
        f'    body = json.loads(asked["body"])\n    if body["max_tokens"] > 4:\n        {early}\n',
    )
    seen = loaded(opening(f"python:{module(text)}:app"), 2)
    assert outcomes(seen) == {Outcome.UNDECODABLE}
    assert seen.records.error[0] == "the application began with http.response.body"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("async def app(scope, receive, send):\n    raise ValueError('no weights')", "HTTP 500 .*no weights"),
        (
            "async def app(scope, receive, send):\n    await receive()\n"
            "    await send({'type': 'lifespan.startup.failed', 'message': 'no weights'})",
            "failed to start: no weights",
        ),
    ],
)
def test_an_application_that_does_not_start(
    text: str, said: str, module: Callable[[str], str], opening: Opening
) -> None:
    with pytest.raises(SUTError, match=said) as caught:
        opening(f"python:{module(text)}:app")
    assert (caught.value.where or "").startswith("python:in_process_")
