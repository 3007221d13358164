"""Workloads of this suite by name, for its markers."""

import pytest

from pytest_llmbench import LogNormal, SyntheticWorkload, Workload, make_workload

CHAT = SyntheticWorkload("chat", LogNormal(5.5, 0.8, 16, 2048), LogNormal(4.5, 0.7, 8, 512))
DOCUMENTS = make_workload(
    "documents",
    input_tokens=(32, 96),
    output_tokens=(64, 192),
    prefix_tokens=2048,
    prefix_fraction=1.0,
    prefixes=8,
)


def pytest_llmbench_workloads(config: pytest.Config) -> dict[str, Workload]:
    """Seven chats to three questions about a document."""
    return {"mix": make_workload("mix", mix={"chat": (CHAT, 0.7), "documents": (DOCUMENTS, 0.3)})}
