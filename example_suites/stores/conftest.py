"""Baselines in OpenSearch, a document for each session, and its figures on PyTorch's HUD where `HUD_URL` says
where that takes records:

    pytest example_suites/stores --llm-endpoint=https://host/v1 --llm-runs=3 --llm-save=main \
        --llm-storage=opensearch:https://search.example.org/llmbench
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx


class OpenSearch:
    def __init__(self, index: str) -> None:
        self.client = httpx.Client(base_url=index, timeout=10)

    def names(self) -> list[str]:
        query = {"size": 10_000, "_source": False, "query": {"match_all": {}}}
        found = self.client.post("_search", json=query)
        if found.status_code == 404:
            return []  # the first session makes the index
        return [hit["_id"] for hit in found.raise_for_status().json()["hits"]["hits"]]

    def read(self, name: str) -> str:
        found = self.client.get(f"_doc/{_id(name)}").raise_for_status()
        return str(found.json()["_source"]["session"])

    def add(self, name: str, text: str) -> bool:
        session = json.loads(text)
        if url := os.environ.get("HUD_URL"):
            httpx.post(url, json=hud_records(session), timeout=10).raise_for_status()
        made = self.client.put(f"_create/{_id(name)}?refresh=true", json=document(session, text))
        if made.status_code == 409:
            return False
        made.raise_for_status()
        return True


def _id(name: str) -> str:
    return name.replace("/", "%2F")


def document(session: dict[str, Any], text: str) -> dict[str, Any]:
    """What dashboards draw beside the session, which is text so that it makes no thousand fields."""
    return {
        "@timestamp": session["saved"],
        "name": session["name"],
        "machine": session["machine"],
        "commit": (session["commit"] or {}).get("id"),
        "figures": [
            {"test": test["nodeid"], "metric": name, "value": metric["point"], "unit": metric["unit"]}
            for test in session["tests"]
            for name, metric in test["metrics"].items()
        ],
        "session": text,
    }


def hud_records(session: dict[str, Any]) -> list[dict[str, Any]]:
    """A record for each metric of each test, in the third schema of PyTorch's benchmark database."""
    return [
        {
            "benchmark": {
                "name": test["nodeid"],
                "mode": "serving",
                "extra_info": {"session": session["name"], "standing": test["standing"]},
            },
            "model": {"name": test["identity"]["model"]},
            "metric": {"name": name, "benchmark_values": values, "extra_info": {"runs": test["runs"]}},
        }
        for test in session["tests"]
        for name, values in test["by_run"].items()
    ]


def pytest_llmbench_stores(config: Any) -> dict[str, Any]:
    return {"opensearch": OpenSearch}
