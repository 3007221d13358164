"""Images and sounds at the embedded engine: tokens by a known rule, and the time of its encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from planned_load import TextWorkload

from pytest_llmbench import make_workload
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.messages import Piece
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.engine.media import ids_in, ids_of, tokens_of
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.dialect import EncodeOptions

WORKLOAD = make_workload(
    "seen", input_tokens=50, output_tokens=4, images={"width": (30, 90), "height": 57}, audio={"seconds": 1}
)
BARE = make_workload("seen", input_tokens=50, output_tokens=4)
PLAN = LoadPlan("media", WORKLOAD, ClosedLoop(1), 6, seed=3)
TOKENS = [50 + tokens_of(request.media) for request in WORKLOAD.requests(6, 3)]


def replayed(options: str = "") -> Observation:
    return ReplayEngine(parse_scenario(f"fast?{options}")).run(PLAN)


def test_tokens_by_hand() -> None:
    assert tokens_of([Piece("image", 1, 28, 28), Piece("image", 1, 29, 57)]) == 1 + 2 * 3
    assert tokens_of([Piece("audio", 1, milliseconds=1000), Piece("audio", 1, milliseconds=1)]) == 25 + 1


def test_the_engine_reads_the_sizes_out_of_the_bytes() -> None:
    request = PlannedRequest(
        0, 4, 2, text="a", media=(Piece("image", 7, 60, 40), Piece("audio", 7, milliseconds=400))
    )
    (message,) = json.loads(dialect("openai-chat").encode(request, EncodeOptions("m")))["messages"]
    first = ids_in(message["content"])
    assert len(first) == tokens_of(request.media) == len(ids_of(request.media))
    assert first == ids_in(message["content"]), "a prefix cache knows them again"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,????"}},
        {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
        {"type": "image_url"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": ""}},
    ],
)
def test_what_it_cannot_read_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(RefusalError):
        ids_in([part])


def test_a_replay_counts_them_and_waits_for_the_encoder() -> None:
    none, some = replayed("media_encoder_us_per_token=0"), replayed("media_encoder_us_per_token=1000")
    assert some.records.input_tokens.tolist() == TOKENS
    assert some.records.requested_input_tokens.tolist() == [50] * 6
    longer_ns = (some.records.first_content_ns - some.records.submitted_ns) - (
        none.records.first_content_ns - none.records.submitted_ns
    )
    assert longer_ns.tolist() == [1_000_000 * (each - 50) for each in TOKENS]
    assert [each.tolist() for each in np.unique(some.records.class_label)] == ["audio+image"]


@dataclass(frozen=True)
class Drawings(TextWorkload):
    """The same text beside a drawing, which is another one in the last request."""

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        text = "what is drawn here and why " * 8
        return [
            PlannedRequest(i, 4, 32, text=text, media=(Piece("image", i // (count - 1), 560, 560),))
            for i in range(count)
        ]


def test_a_prefix_cache_tells_drawings_apart_also_beside_a_text() -> None:
    plan = LoadPlan("drawings", Drawings(), ClosedLoop(1), 3, seed=1)
    seen = ReplayEngine(parse_scenario("fast?prefix_caching=on")).run(plan)
    assert seen.records.input_tokens.tolist() == [32 + 400] * 3
    assert seen.records.cached_tokens.tolist() == [0, 416, 32]


def test_a_file_has_no_size_in_a_replay() -> None:
    with pytest.raises(RefusalError):
        tokens_of([Piece("image", path="a.png")])


def test_served_counts_are_those_of_a_replay_and_the_encoder_takes_its_time() -> None:
    """The engine gets the bytes and knows nothing of how they were made."""
    with EmbeddedEngine.start("fast?media_encoder_us_per_token=500&prefix_caching=true") as engine:
        with LoadGenerator(Target.parse(engine.url), dialect("openai-chat"), model=engine.model) as generator:
            records = generator.run(PLAN).records
            bare = generator.run(PLAN.with_(workload=BARE)).records
        truths = {truth.request_id: truth for truth in engine.ground_truth()}
    assert records.ok.all()
    own = [tokens - 50 for tokens in TOKENS]
    assert (records.input_tokens - bare.input_tokens).tolist() == own
    for name, tokens, whole in zip(records.request_id, own, records.input_tokens.tolist(), strict=True):
        truth = truths[name]
        assert truth.prompt_tokens == whole
        assert truth.admitted_ns is not None
        assert truth.admitted_ns - truth.received_ns >= 500_000 * tokens


def test_a_dialect_without_parts_refuses_before_anything_is_sent() -> None:
    with EmbeddedEngine.start("fast") as engine:
        with (
            LoadGenerator(
                Target.parse(engine.url), dialect("openai-completions"), model=engine.model
            ) as generator,
            pytest.raises(SuiteError, match="openai-completions carries no images"),
        ):
            generator.run(PLAN)
        assert engine.ground_truth() == []
