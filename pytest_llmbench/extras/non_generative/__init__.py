"""Embeddings, reranking, scores and log-probabilities: dialects, their test, and their side of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.non_generative"

EXTRA = Extra(
    document_dialects={
        "openai-embeddings": f"{_HERE}.dialects:OpenAIEmbeddings",
        "rerank": f"{_HERE}.dialects:Rerank",
        "score": f"{_HERE}.dialects:Score",
        "logprobs": f"{_HERE}.dialects:LogProbs",
    },
    decoders={"json": f"{_HERE}.dialects:DocumentDecoder"},
    tests={"non_generative": f"{_HERE}.procedure:TEST"},
    main_metrics={"non_generative": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        "latency": f"{_HERE}.procedure:LATENCY",
        "latency_scheduled": f"{_HERE}.procedure:LATENCY_SCHEDULED",
    },
    sentences={"non_generative": f"{_HERE}:SENTENCES"},
    engine_apis={"documents": f"{_HERE}.engine_face:DocumentFace"},
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "no_latency": Sentence("no request got a result, so there is no latency to report"),
    }
)
