"""An endpoint of documents is examined by a document, and by nothing else."""

from __future__ import annotations

from canned_http import Canned, told

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes.endpoint import examine

MODELS = "GET /v1/models"
EMBEDDED = {"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def test_a_non_generative_dialect_is_examined_by_a_document(serve_canned, canned_engine):
    server = serve_canned({MODELS: canned_engine[MODELS], "POST /v1/embeddings": Canned.json(EMBEDDED)})
    report = examine(server.url, api="openai-embeddings")
    assert (report.api, report.counts_tokens) == ("openai-embeddings", True)
    assert report.facts["streaming.protocol"].value == "json"
    (asked,) = (seen for seen in server.seen if seen.method == "POST")
    assert asked.json["input"] == "Hello"


def test_a_reply_without_a_result_is_told_before_any_load(serve_canned, canned_engine):
    for reply, said in (
        ({"data": []}, "no result"),
        ({"error": {"message": "no pooling model"}}, "no pooling model"),
        ({"data": [{"score": float("nan")}]}, "without a finite score"),
    ):
        server = serve_canned({MODELS: canned_engine[MODELS], "POST /v1/score": Canned.json(reply)})
        text = told(SUTError, server.url, api="score")
        assert said in text
        assert "the reply is not of the API score" in text


def test_auto_takes_no_non_generative_dialect(serve_canned, canned_engine):
    server = serve_canned({MODELS: canned_engine[MODELS], "POST /v1/embeddings": Canned.json(EMBEDDED)})
    assert "has no /chat/completions" in told(SUTError, server.url)
    assert not [seen for seen in server.seen if seen.path.endswith("/embeddings")]


def test_a_wrong_path_of_a_non_generative_dialect_names_what_is_spoken(serve_canned, canned_engine):
    server = serve_canned(canned_engine)
    assert "--llm-api=openai-chat" in told(SUTError, server.url, api="rerank")
