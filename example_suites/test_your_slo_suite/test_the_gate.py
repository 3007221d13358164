"""Does the gate say the right thing of engines whose behaviour is known? In virtual time, no server."""

import pytest
from gate import GATE

from pytest_llmbench import SUT, Bench

SCENARIOS = {
    "healthy": ("h100-8b", "pass", ()),
    "a model twice as large": ("h100-8b?step_base_us=45000", "fail", ("tpot.p99",)),
    "prefill is eight times as dear": ("h100-8b?prefill_us_per_token=300", "fail", ("ttft.p50",)),
    "a batch that is too small": ("h100-8b?max_num_seqs=8", "fail", ("ttft.p99",)),
}
"""What happened: the scenario, what the gate has to say, and which limits it has to name."""
LOST = {
    "every tenth connection is reset": "fault=reset&fault_rate=0.1&fault_after_tokens=5",
    "rate limits": "fault=rate_limit&fault_rate=0.2",
    "replies end early": "fault=truncate&fault_rate=0.1&fault_after_tokens=5",
}
"""What takes replies away: the gate may judge none of these."""


@pytest.fixture
def llm_sut(request: pytest.FixtureRequest) -> SUT:
    """The engine that a test asks for, in virtual time."""
    return SUT(f"replay:{request.param}")


@pytest.mark.parametrize(
    ("llm_sut", "verdict", "broken"), SCENARIOS.values(), ids=SCENARIOS, indirect=["llm_sut"]
)
def test_the_verdict(llm_bench: Bench, verdict: str, broken: tuple[str, ...]) -> None:
    result = llm_bench.measure("ttft", **GATE)
    assert result.validity.verdict == "valid"
    assert result.gate.verdict == verdict
    failed = {judged.objective.metric for judged in result.gate.objectives if judged.verdict == "fail"}
    assert failed.issuperset(broken)


@pytest.mark.parametrize("llm_sut", [f"h100-8b?{fault}" for fault in LOST.values()], ids=LOST, indirect=True)
def test_lost_replies_are_no_verdict(llm_bench: Bench) -> None:
    """Whoever loses the slow ones looks quick: too many lost replies void the run."""
    result = llm_bench.measure("ttft", **GATE)
    assert result.validity.verdict == "invalid"
    assert "requests failed" in " ".join(result.validity.reasons)


@pytest.mark.parametrize("llm_sut", ["h100-8b"], indirect=True)
def test_too_small_a_sample_is_left_open(llm_bench: Bench) -> None:
    """Forty requests have no P99: neither a pass nor a failure, and the number that would decide is told."""
    result = llm_bench.measure("ttft", **GATE | {"requests": 40})
    assert result.gate.verdict == "inconclusive"
    (open_one,) = [judged for judged in result.gate.objectives if judged.objective.metric == "ttft.p99"]
    assert open_one.advice is not None
    assert open_one.advice.total > 40
