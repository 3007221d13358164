"""A key that a server gives back leaves through no channel, in no encoding, into no artefact."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from hostile_run import ARTEFACTS, session
from hostile_server import ENCODINGS, Behaviour, Reply, encoded, event, serving, stream, traces, words

KEY = "sk-canary/7A+q<\"x'-9b3Z5w"
"""A header holds no other signs."""


def _padded(key: str, number: int) -> str:
    """So that what is cut at 300 or 80 characters is cut within the key."""
    text = encoded(key, number)
    return f"{'.' * (265 - len(text) // 2)} {text}"


CHANNELS: dict[str, Behaviour] = {
    "500": lambda key, n: (500, "application/json", json.dumps({"error": encoded(key, n)}).encode()),
    "500, cut": lambda key, n: (500, "text/plain", _padded(key, n).encode()),
    "401": lambda key, n: (401, "application/json", json.dumps({"detail": encoded(key, n)}).encode()),
    "in-band error": lambda key, n: stream(
        event({"error": {"message": encoded(key, n), "type": encoded(key, n)}})
    ),
    "garbage event": lambda key, n: stream(f"data: {encoded(key, n)}\n\n".encode()),
    "finish reason": lambda key, n: stream(words(finish=encoded(key, n))),
    "name of a figure": lambda key, n: stream(
        words(more={"timings": {encoded(key, n): 1}, "metrics": encoded(key, n)})
    ),
    "redirect": lambda key, n: (302, "text/plain", f"http://127.0.0.1:9/{encoded(key, 1)}".encode()),
    "type of the content": lambda key, n: (200, f"text/{encoded(key, 1)}", b"{}"),
}


def test_the_search_finds_what_it_looks_for() -> None:
    for name, encode in ENCODINGS.items():
        assert name in traces(f"before {encode(KEY)} after", KEY)
    assert traces(f"cut {KEY[:18]}", KEY)
    assert not traces("nothing [redacted] here", KEY)


def _all_channels(key: str, number: int) -> Reply:
    """Every channel with every encoding, one after the other."""
    return list(CHANNELS.values())[number % len(CHANNELS)](key, number // len(CHANNELS))


SESSIONS: dict[str, tuple[Behaviour, int]] = {
    **{f"preflight: {name}": (behaviour, 0) for name, behaviour in CHANNELS.items()},
    "load: 500, cut": (CHANNELS["500, cut"], 12),
    "load: finish reason": (CHANNELS["finish reason"], 12),
    "load: everything": (_all_channels, 12),
}
"""What the server does, and from which completion on."""


@pytest.mark.parametrize("name", SESSIONS)
def test_a_key_that_is_given_back_is_in_no_artefact(name: str, tmp_path: Path) -> None:
    behaviour, honest = SESSIONS[name]
    with serving(behaviour, honest=honest) as endpoint:
        left = session(tmp_path, endpoint, *ARTEFACTS, "-vv", "-l", "--tb=long", key=KEY)
    assert left.code == 1, left.terminal
    assert "Traceback" not in left.terminal
    assert {name: found for name, text in left.texts.items() if (found := traces(text, KEY))} == {}
    assert any("[redacted]" in text for text in left.texts.values())


def test_nor_where_xdist_carries_it(tmp_path: Path) -> None:
    with serving(CHANNELS["500"], honest=12) as endpoint:
        left = session(tmp_path, endpoint, *ARTEFACTS, "-n", "2", "-vv", "-l", key=KEY)
    assert left.code == 1
    assert {name: found for name, text in left.texts.items() if (found := traces(text, KEY))} == {}


def test_nor_the_locals_and_the_output_of_a_test(tmp_path: Path) -> None:
    suite = """
    import os, warnings
    from pytest_llmbench import llmbench

    @llmbench.ttft(rate=40, requests=30)
    def test_ttft(llm_result):
        key = os.environ["LLM_API_KEY"]
        print("the key is", key)
        warnings.warn(key)
        assert not key, key
    """
    with serving(lambda key, n: stream(words())) as endpoint:
        left = session(
            tmp_path, endpoint, *ARTEFACTS, "-l", "--tb=long", suite=textwrap.dedent(suite), key=KEY
        )
    assert left.code == 1
    assert {name: found for name, text in left.texts.items() if (found := traces(text, KEY))} == {}


@pytest.mark.parametrize("option", ["--llm-endpoint", "--llm-baseline-endpoint"])
def test_nor_the_userinfo_and_the_query_of_a_url(option: str, tmp_path: Path) -> None:
    secret = "pw-canary-7A9b3Z5w"
    suite = (
        "from pytest_llmbench import llmbench\n\n@llmbench.ttft(rate=40, requests=30)\ndef test_a(): ...\n"
    )
    with serving(lambda key, n: stream(words())) as here, serving(lambda key, n: stream(words())) as there:
        hidden = there.replace("http://", f"http://user:{secret}@") + f"?api_key={secret}"
        first = f"a={here}" if option == "--llm-endpoint" else here
        second = f"--llm-endpoint=b={hidden}" if option == "--llm-endpoint" else f"{option}={hidden}"
        left = session(tmp_path, first, second, "--llm-runs=3", *ARTEFACTS, suite=suite)
    assert {name for name, text in left.texts.items() if secret in text} == set()


def test_a_model_list_may_hold_anything(tmp_path: Path) -> None:
    names = ["\ud800", "\x1b[2J", "x" * 10**6, "", "a\nb", 7]
    body = json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()
    with serving(
        lambda key, n: stream(words()), models=lambda key: (200, "application/json", body)
    ) as endpoint:
        left = session(tmp_path, endpoint, *ARTEFACTS)
    assert left.code == 1
    assert "\x1b[2J" not in left.terminal
    assert "Traceback" not in left.terminal
    assert "--llm-model" in left.terminal
    assert len(left.terminal) < 20_000
