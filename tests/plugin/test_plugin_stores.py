"""Sessions whose baselines are kept elsewhere: in OpenSearch, as the example suite has it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from plugin_suite import Suite, refused

from pytest_llmbench.store import elsewhere
from pytest_llmbench.store.files import machine_id

EXAMPLE = Path(__file__).parents[2] / "example_suites" / "stores"
SAVED = ("--llm-runs=3", "--llm-save=main", "--llm-inconclusive=pass")
COMPARED = (*SAVED, "--llm-compare=main")


class Search:
    """What OpenSearch answers to the example: an index that is there once it has a document."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []
        self.down = False

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.down:
            return 503, {"error": "no shard"}
        if path == "/hud":
            self.records += body
            return 200, {}
        if path == "/llmbench/_search":
            hits = [{"_id": name} for name in self.documents]
            return (200, {"hits": {"hits": hits}}) if hits else (404, {"error": {"type": "index_not_found"}})
        found = re.fullmatch(r"/llmbench/_(doc|create)/([^/?]+)(\?refresh=true)?", path)
        assert found is not None, path
        name = found[2].replace("%2F", "/")
        if method == "PUT":
            taken = name in self.documents
            self.documents.setdefault(name, body)
            return (409 if taken else 201), {}
        return 200, {"_id": name, "_source": self.documents[name]}


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Search, str]]:
    own = Search()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = own.answer(self.command, self.path, body)
            told = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = do_PUT = _do  # noqa: N815 - the names that it is asked by

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setattr(elsewhere, "_PAUSES_S", (0.0, 0.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HUD_URL", f"{url}/hud")
        yield own, f"--llm-storage=opensearch:{url.replace('//', '//me:hunter2@')}/llmbench"
        server.shutdown()


def test_sessions_in_opensearch_outlive_a_night_in_which_it_is_down(
    suite: Suite, search: tuple[Search, str]
) -> None:
    own, storage = search
    shutil.copytree(EXAMPLE, suite.path, dirs_exist_ok=True)
    suite.measure("replay", *SAVED, storage).assert_outcomes(passed=1)
    (name,) = own.documents
    assert name == f"{machine_id()}/0001_main.json"
    document = own.documents[name]
    assert {"test", "metric", "value", "unit"} == document["figures"][0].keys()
    assert json.loads(document["session"])["tests"][0]["standing"] == "counts"
    record = next(each for each in own.records if each["metric"]["name"] == "tpot.p50")
    assert record["model"] == {"name": "sim-fast"}
    assert len(record["metric"]["benchmark_values"]) == 3

    own.down = True
    night = suite.measure("replay", *COMPARED, storage)
    night.assert_outcomes(passed=1)
    assert night.ret == 0
    text = " ".join(night.stdout.str().split())
    assert "does not answer (HTTPStatusError" in text
    assert "sessions are compared with the copy in" in text
    assert "the session is kept in" in text
    assert "hunter2" not in night.stdout.str() + json.dumps(suite.report)
    own.down = False
    after = suite.measure("replay", *COMPARED, storage)
    after.assert_outcomes(passed=1)
    assert [each.rpartition("/")[2] for each in own.documents] == [
        f"000{number}_main.json" for number in (1, 2, 3)
    ]
    assert not list(suite.path.glob(".llmbench/copies/*/unsent/*/*"))


def test_a_store_that_nobody_has_is_a_mistake(suite: Suite) -> None:
    refused(suite.measure("replay", "--llm-storage=gti:history")).fnmatch_lines(
        ["*'gti:history': there is no store 'gti'*"]
    )
