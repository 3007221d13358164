"""Routers before several replicas, compared in one session of replay."""

from __future__ import annotations

import math

import pytest
from plugin_suite import SMALL_WARMUP, Suite

FOUR = "replay:h100-70b-tp4?prefix_caching=on&replicas=4"
SUITE = """
CHATS = {
    "sessions": {
        "turns": (3, 8),
        "pause_s": (0.5, 3.0),
        "input_tokens": (100, 400),
        "output_tokens": (40, 120),
        "own_tokens": (1_000, 4_000),
    }
}

@llmbench.sessions(workload=CHATS, sessions=24, total_sessions=24)
@llmbench.no_regression("turn_ttft[2+].p50", max_slowdown=0.0)
def test_route(): ...
"""


def test_routing_by_prefix_beats_turns_by_more_than_the_detectable_effect(suite: Suite) -> None:
    suite.write(SUITE, SMALL_WARMUP)
    turns = f"--llm-baseline-endpoint={FOUR}&router=round_robin"
    suite.measure(f"{FOUR}&router=prefix", turns, "--llm-runs=4").assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    (found,) = [each for each in entry["comparisons"] if each["metric"] == "turn_ttft[2+].p50"]
    assert found["verdict"] == "improved"
    assert found["change"]["upper"] < -0.4
    assert math.log1p(found["change"]["point"]) < -math.log1p(found["mde"])
    facts = {name: entry["facts"][name] for name in ("sut.replicas", "sut.router", "sut.boundary")}
    assert {name: fact["value"] for name, fact in facts.items()} == {
        "sut.replicas": 4,
        "sut.router": "prefix",
        "sut.boundary": "application_gateway",
    }
    assert {fact["origin"] for fact in facts.values()} == {"simulated"}


def test_a_variant_is_another_policy(suite: Suite) -> None:
    (suite.path / "sut.toml").write_text('[variants.turns]\npreset = "router=round_robin"\n')
    suite.write(SUITE, SMALL_WARMUP)
    result = suite.measure(
        f"{FOUR}&router=session",
        "--llm-sut=sut.toml",
        "--llm-baseline-endpoint=variant:turns",
        "--llm-runs=4",
    )
    result.assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    (found,) = [each for each in entry["comparisons"] if each["metric"] == "turn_ttft[2+].p50"]
    assert found["verdict"] == "improved"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("sim:fast?replicas=257", "*replicas is 257; it must be from 1 to 256*"),
        ("sim:fast?prefill_workers=1", "*prefill_workers is 1 and decode_workers 0: name both, or none*"),
        ("replay:fast?router=prefix", "*router is prefix, but there is one replica*"),
        ("replay:fast?replicas=2&router=prefixes", "*did you mean 'prefix'*"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(suite: Suite, endpoint: str, said: str) -> None:
    suite.write(SUITE)
    result = suite.run(f"--llm-endpoint={endpoint}")
    assert result.ret != 0
    result.assert_outcomes()
    text = result.stdout.str() + result.stderr.str()
    pytest.LineMatcher(text.splitlines()).fnmatch_lines([said])
