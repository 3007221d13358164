"""Numbers and texts that no server would send: every session ends in words, with all that was measured."""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest
from hostile_run import ARTEFACTS, Session, within
from hostile_server import Reply, event, serving, stream, words

ABSURD: list[Any] = [
    2**63 - 1,
    2**63,
    10**12,
    30_000_000,
    10**30,
    1e300,
    -1,
    -(10**40),
    "7",
    None,
    True,
    [1],
    {},
]
TEXTS = [
    "\ud800",
    "\x1b[2J\x1b[31mred",
    "x" * 1_000_000,
    "\u202egnirts",
    "a\r\nb\x00c",
    "<script>alert(1)</script>",
]


def _values(_: str, number: int) -> Reply:
    """An absurd number in one place after the other."""
    value = ABSURD[number % len(ABSURD)]
    places: list[dict[str, Any]] = [
        {"usage": {"prompt_tokens": 7, "completion_tokens": value}},
        {"usage": {"prompt_tokens": value, "completion_tokens": 4}},
        {"usage": {"completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": value}}},
        {"usage": {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": value}}},
        {"timings": {"queue_ms": value, "prompt_ms": value, "cache_n": value, "preemptions": value}},
        {"timings": {"predicted_n": value}, "token_times_ns": [value, value]},
    ]
    return stream(words(usage=None, more=places[number % len(places)]))


def _texts(_: str, number: int) -> Reply:
    text = TEXTS[number % len(TEXTS)]
    replies = [
        stream(words(finish=text)),
        stream(event({"error": {"message": text, "code": text}})),
        (500, "application/json", json.dumps({"error": {"message": text}}).encode()),
        stream(f"data: {text}\n\n".encode("utf-8", "replace")),
        stream(words(more={"timings": {text: 1.0}})),
    ]
    return replies[number % len(replies)]


@pytest.fixture
def session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Session:
    return within(pytester, monkeypatch, capfd)


def _largest_kib() -> tuple[int, int]:
    """Of this process and of a child, which sends the load, at their peaks; another test's, it may be."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_maxrss, children.ru_maxrss


@pytest.mark.parametrize("behaviour", [_values, _texts])
def test_a_session_ends_in_words(behaviour: Any, session: Session) -> None:
    before_kib = _largest_kib()
    with serving(behaviour, honest=12) as endpoint:
        left = session(endpoint, *ARTEFACTS, "-vv", "--tb=long")
    assert left.code == 1, left.terminal
    assert "Traceback" not in left.terminal + left.texts["standard error"]
    assert "INTERNALERROR" not in left.terminal
    assert "INVALID" in left.terminal
    entry = json.loads(left.texts["out/report.json"])["tests"][0]
    counts = dict(entry["counts"])
    assert counts.pop("submitted") == sum(counts.values()) > 20  # then the error budget is used up
    for name in ("terminal", "junit.xml", "out/report.html", "out/summary.md", "out/minimum.txt"):
        text = left.texts[name]
        assert not any(sign in text for sign in "\x1b\x00\u202e"), name
        # Nothing renders a terminal or a .txt as a page; which of the errors they quote is up to chance.
        assert name in ("terminal", "out/minimum.txt") or "<script>alert" not in text
        assert "xxxxxxxxxx" * 60 not in text
    for before, largest in zip(before_kib, _largest_kib(), strict=True):
        assert largest < max(1_500_000, before + 300_000)


def test_a_report_that_cannot_be_written_takes_no_other_with_it(
    pytester: pytest.Pytester, session: Session
) -> None:
    """In virtual time: the test passes however busy this machine is."""
    (pytester.path / "out" / "report.html").mkdir(parents=True)
    (pytester.path / "out" / "report.html" / "in the way").write_text("x")
    left = session("replay", "--llm-inconclusive=pass", "--llm-report=out")
    assert left.code == 1
    assert "1 passed" in left.terminal
    assert "  verdict  " in left.terminal
    assert "llmbench: ERROR:" in left.terminal
    assert "report.html: cannot write the file" in left.terminal
    assert {"out/report.json", "out/summary.md", "out/minimum.txt"} <= set(left.texts)
    assert "Traceback" not in left.terminal
