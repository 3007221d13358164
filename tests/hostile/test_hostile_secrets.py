"""A key that a server gives back leaves through no channel, in no encoding, into no artefact."""

from __future__ import annotations

import json
import logging
import textwrap
from pathlib import Path

import httpx
import pytest
from canary_table import CHANNELS, KEY, SESSIONS, kept
from hostile_run import ARTEFACTS, Left, Session, alone_in, within
from hostile_server import ENCODINGS, serving, stream, traces, words
from hpack import Encoder

from pytest_llmbench.harness.report_files import head_of
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.http_client import why_no_tunnel
from pytest_llmbench.redaction import keep_secret, outward
from pytest_llmbench.wire.error_replies import classify_unstreamed, read_error_body


def test_the_search_finds_what_it_looks_for() -> None:
    for name, encode in ENCODINGS.items():
        assert name in traces(f"before {encode(KEY)} after", KEY)
    assert traces(f"cut {KEY[:18]}", KEY)
    assert not traces("nothing [redacted] here", KEY)


@pytest.fixture
def session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Session:
    return within(pytester, monkeypatch, capfd)


def _nowhere(left: Left, text: str = KEY) -> None:
    assert {name: found for name, kept in left.texts.items() if (found := traces(kept, text))} == {}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_key_that_is_given_back_is_in_no_artefact(name: str, session: Session) -> None:
    left = kept(name, session)
    assert left.code in (0, 1), left.terminal  # fifty requests may decide the limit
    assert "Traceback" not in left.terminal
    _nowhere(left)
    assert any("[redacted]" in text for text in left.texts.values())


@pytest.mark.slow
def test_nor_where_xdist_carries_it(tmp_path: Path) -> None:
    """In processes of their own; one worker carries all that two would."""
    with serving(CHANNELS["500"], honest=12) as endpoint:
        left = alone_in(tmp_path)(endpoint, *ARTEFACTS, "-n", "1", "-vv", "-l", key=KEY)
    assert left.code == 1
    assert "[gw0]" in left.terminal
    assert "[redacted]" in left.terminal
    _nowhere(left)


def test_nor_the_locals_and_the_output_of_a_test(session: Session) -> None:
    """The test without a load says the key whatever this machine makes of the load of the other."""
    suite = """
    import os, warnings
    from pytest_llmbench import llmbench

    @llmbench.ttft(rate=200, requests=20)
    def test_ttft(llm_result):
        test_without_a_load()

    def test_without_a_load():
        key = os.environ["LLM_API_KEY"]
        print("the key is", key)
        warnings.warn(key)
        assert not key, key
    """
    with serving(lambda key, n: stream(words())) as endpoint:
        left = session(endpoint, *ARTEFACTS, "-l", "--tb=long", suite=textwrap.dedent(suite), key=KEY)
    assert left.code == 1
    assert "the key is [redacted]" in left.terminal
    _nowhere(left)


@pytest.mark.parametrize("option", ["--llm-endpoint", "--llm-baseline-endpoint"])
def test_nor_the_userinfo_and_the_query_of_a_url(option: str, session: Session) -> None:
    secret = "pw-canary-7A9b3Z5w"
    suite = (
        "from pytest_llmbench import llmbench\n\n@llmbench.ttft(rate=40, requests=30)\ndef test_a(): ...\n"
    )
    with serving(lambda key, n: stream(words())) as here, serving(lambda key, n: stream(words())) as there:
        hidden = there.replace("http://", f"http://user:{secret}@") + f"?api_key={secret}"
        first = f"a={here}" if option == "--llm-endpoint" else here
        second = f"--llm-endpoint=b={hidden}" if option == "--llm-endpoint" else f"{option}={hidden}"
        left = session(first, second, "--llm-runs=3", *ARTEFACTS, suite=suite)
    assert "the URL holds credentials" in left.terminal + left.texts["standard error"]
    assert {name for name, text in left.texts.items() if secret in text} == set()


def test_a_model_list_may_hold_anything(session: Session) -> None:
    names = ["\ud800", "\x1b[2J", "x" * 10**6, "", "a\nb", 7]
    body = json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()
    with serving(
        lambda key, n: stream(words()), models=lambda key: (200, "application/json", body)
    ) as endpoint:
        left = session(endpoint, *ARTEFACTS)
    assert left.code == 1
    assert "\x1b[2J" not in left.terminal
    assert "Traceback" not in left.terminal
    assert "--llm-model" in left.terminal
    assert len(left.terminal) < 20_000


def test_nor_what_libraries_log_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    keep_secret(KEY)

    def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"x-was": request.headers["authorization"]})

    with caplog.at_level(logging.DEBUG), httpx.Client(transport=httpx.MockTransport(echo)) as client:
        client.get(f"http://server.test/v1?api_key={KEY}", headers={"authorization": f"Bearer {KEY}"})
        Encoder().encode([("authorization", f"Bearer {KEY}")])
        logging.getLogger("httpcore.http11").debug(
            "receive_response_headers.complete %r", [(b"x", KEY.encode())]
        )
    assert "[redacted]" in caplog.text
    assert not traces(caplog.text, KEY)
    assert not [record for record in caplog.records if record.name.startswith("hpack")]


@pytest.mark.parametrize("library", ["httpx", "httpcore", "hpack"])
def test_every_logger_of_these_libraries_is_guarded(library: str) -> None:
    loggers = logging.root.manager.loggerDict.items()
    named = [each for name, each in loggers if name.partition(".")[0] == library]
    telling = [each for each in named if isinstance(each, logging.Logger)]
    assert telling
    assert all(each.filters for each in telling)


def test_the_command_line_is_repeated_without_options_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold secrets of other plugins, which nobody has told us."""
    monkeypatch.chdir(tmp_path)
    Path("test_a.py").touch()
    theirs = [f"--testrail-password={KEY}", "--token", KEY, f"https://user:{KEY}@host/", f"-o=token={KEY}"]
    ours = ["--llm-require", "test_a.py::test_a[1]", "--llm-scale", "quick", "--llm-endpoint=sim"]
    monkeypatch.setattr("sys.argv", ["/bin/pytest", *theirs, *ours, *theirs])
    assert head_of(Settings(endpoint="sim"), 0).environment.command == ["pytest", *ours]


@pytest.mark.parametrize("left", [8, 12, 20])
def test_what_a_cut_of_ours_leaves_of_a_key_is_found(left: int) -> None:
    keep_secret(KEY)
    before = "word " * 2000
    page = before[: 8 * 1024 - left - 5] + "<p>" + "  " + KEY + " and so on" * 900
    start = (" " * 150 + before)[: 200 - left] + KEY + before
    told = (
        read_error_body(page.encode())[1],
        classify_unstreamed({"content-type": "text/html"}, start.encode())[1],
        why_no_tunnel((b"220 " + b"x" * (56 - left)) + KEY.encode() + b" ready"),
    )
    for said in map(outward, told):
        assert KEY[:6] not in said, said
