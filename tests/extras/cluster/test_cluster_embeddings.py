"""Prefill and decode on engines of their own behind the faces of extras."""

from __future__ import annotations

from typing import Any

import plain_http
import pytest

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

BLOCK = 16
APART = "fast?prefill_workers=2&decode_workers=2"
MIXED = SyntheticWorkload("mixed", Uniform(20, 600), Uniform(1, 40))


@pytest.mark.parametrize("face", ["websocket", "grpc"])
def test_other_faces_are_served_by_both_stages(face: str) -> None:
    workload = SyntheticWorkload("faces", Uniform(20, 600), Uniform(4, 40))
    plan = LoadPlan("faces", workload, ClosedLoop(4), 16, seed=2)
    with EmbeddedEngine.start(f"{APART}&lead_reasoning_tokens=2", grpc=face == "grpc") as engine:
        url = f"grpc://{engine.grpc_target}" if face == "grpc" else engine.url.replace("http", "ws")
        dialect = dialect_at(url, "auto" if face == "websocket" else "vllm-grpc")
        with LoadGenerator(Target.parse(url), dialect, model=engine.model) as generator:
            records = generator.run(plan).records
        truths = {truth.request_id: truth for truth in engine.ground_truth()}
    assert records.ok.all()
    assert len(truths) == len(records)
    assert {truth.decode_replica for truth in truths.values()} == {2, 3}
    assert sum(truth.output_tokens for truth in truths.values()) == records.output_tokens.sum()


def test_embeddings_need_the_prefill_workers_alone() -> None:
    with EmbeddedEngine.start(APART) as engine:
        body: dict[str, Any] = {"input": "the wide sea"}
        reply = plain_http.post(engine.url + "/embeddings", json=body, timeout=10.0)
        assert reply.status_code == 200
        truth = engine.ground_truth()[-1]
    assert (truth.generates, truth.decode_replica, truth.transfer_begun_ns) == (False, None, None)
    assert truth.replica in (0, 1)
