"""Adapters over HTTP: what requests name and replies say, calls that load and unload, one that is absent."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.mixture import of_adapters
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

pytestmark = pytest.mark.usefixtures("however_late")
LOAD_MS = 150
SHORT = SyntheticWorkload("short", Fixed(16), Fixed(4))


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(f"fast?adapters=3&adapter_load_ms={LOAD_MS}") as engine:
        yield engine


def sent(engine: EmbeddedEngine, *names: str) -> Records:
    with LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model) as generator:
        return generator.run(LoadPlan("some", of_adapters(SHORT, names), ClosedLoop(1), 4, 7)).records


def test_a_first_use_takes_the_time_of_the_load_and_the_reply_names_it(engine: EmbeddedEngine) -> None:
    records = sent(engine, "adapter-1", "adapter-2")
    assert list(records.class_label) == ["adapter-1", "adapter-2"] * 2
    assert list(records.answered_by) == [None] * 4  # each as it was asked for
    ttft_ms = (records.first_content_ns - records.submitted_ns) / 1e6
    assert ttft_ms[:2].min() >= LOAD_MS > ttft_ms[2:].min()


def test_calls_load_and_unload(engine: EmbeddedEngine) -> None:
    with httpx.Client(base_url=engine.url, trust_env=False, timeout=10) as client:

        def listed() -> list[str]:
            return [each["id"] for each in client.get("models").json()["data"]]

        assert (
            client.post("load_lora_adapter", json={"lora_name": "new", "lora_path": "/x"}).status_code == 200
        )
        assert "new" in listed()
        assert sent(engine, "new").ok.all()
        assert client.post("load_lora_adapter", json={"lora_name": "new"}).status_code == 400
        assert client.post("unload_lora_adapter", json={"lora_name": "new"}).status_code == 200
        assert "new" not in listed()
        assert client.post("unload_lora_adapter", json={"lora_name": "new"}).status_code == 404
        assert client.post("unload_lora_adapter", json={}).status_code == 400
    assert sent(engine, "new").http_status.tolist() == [404] * 4


SUITE = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

SHORT = SyntheticWorkload("short", Fixed(16), Fixed(4))

@llmbench.job(prompts=20, concurrency=4, workload=SHORT, adapters={"adapter-1": 0.5, "adapter-2": 0.3})
def test_shares(llm_result):
    names = {"ttft[adapter-1].p50", "tpot[base].p50", "request_throughput[adapter-2]"}
    assert names <= set(llm_result.metrics)
    assert not [each.check for each in llm_result.findings if "other_models" in each.check]

@llmbench.job(prompts=20, workload=SHORT, adapters=["adapter-1", "adapter-7"])
def test_absent(llm_result):
    raise AssertionError("nothing is sent")
"""


def test_figures_by_adapter_and_one_that_is_not_there(
    pytester: pytest.Pytester, engine: EmbeddedEngine
) -> None:
    suite = Suite(pytester)
    suite.write(SUITE, SMALL_WARMUP)
    outcome = suite.measure(engine.url, "-n0")
    outcome.assert_outcomes(passed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*the endpoint has no adapter adapter-7*", "*did you mean adapter-?*"])


COSTLY = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

LOAD = llmbench.job(prompts=40, concurrency=4, workload=SyntheticWorkload("short", Fixed(16), Fixed(11)), {})

@llmbench.no_regression("tpot.mean", max_slowdown=0.201)
@LOAD
def test_allowed(llm_result): ...

@llmbench.no_regression("tpot.mean", max_slowdown=0.199)
@LOAD
def test_too_much(llm_result): ...
"""


def test_the_cost_against_the_base_model(pytester: pytest.Pytester) -> None:
    """A step takes 1.0 ms and 0.1 ms for each of the two adapters in turn, of which its batch has both."""
    suite = Suite(pytester)
    suite.write(COSTLY.format('adapters=["adapter-1", "adapter-2"]'), SMALL_WARMUP)
    engine = "adapters=2&adapter_us=100&step_base_us=1000&decode_us_per_sequence=0&kv_us_per_token=0"
    ran = suite.measure(f"replay:fast?{engine}", "-n0", "--llm-baseline-endpoint=base-model", "--llm-runs=4")
    ran.assert_outcomes(passed=1, failed=1)


def test_no_adapters_have_no_base_model_to_compare_with(pytester: pytest.Pytester) -> None:
    suite = Suite(pytester)
    suite.write(COSTLY.format(""), SMALL_WARMUP)
    outcome = suite.measure("replay", "-n0", "--llm-baseline-endpoint=base-model", "--llm-runs=4")
    outcome.assert_outcomes(errors=2)
    outcome.stdout.fnmatch_lines(["*names no adapters, so there is nothing to compare*"])


def test_an_api_that_names_no_model(pytester: pytest.Pytester, engine: EmbeddedEngine) -> None:
    suite = Suite(pytester)
    suite.write(SUITE, SMALL_WARMUP)
    outcome = suite.measure("replay:fast?adapters=2", "-n0", "--llm-api=sglang-generate", "-k", "shares")
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines(["*requests of sglang-generate name no model*"])
