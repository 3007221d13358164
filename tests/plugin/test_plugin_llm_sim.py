"""The fixture ``llm_sim``: embedded engines for testing one's own suite and clients."""

from __future__ import annotations

import pytest
from plugin_suite import SMALL_WARMUP, Suite

PREAMBLE = """
import httpx
import pytest
import plain_http

def ask(engine, **body):
    body = {"prompt": "sea", "max_tokens": 4, **body}
    return plain_http.post(f"{engine.url}/completions", json=body, timeout=10)
"""


def test_it_starts_any_scenario_and_knows_the_truth(suite: Suite) -> None:
    suite.write(
        PREAMBLE
        + """
def test_two_engines(llm_sim):
    plain, faulty = llm_sim(), llm_sim("fast?fault=http_error&fault_status=507")
    assert plain.url != faulty.url
    assert ask(plain, model=plain.model).json()["usage"]["completion_tokens"] == 4
    assert ask(faulty).status_code == 507
    (truth,) = plain.ground_truth()
    assert truth.output_tokens == 4
    assert faulty.ground_truth() == []

def test_a_client_meets_resets(llm_sim):
    engine = llm_sim("fast?fault=reset&fault_rate=0.5&seed=1")
    resets = 0
    for _ in range(10):
        try:
            ask(engine)
        except httpx.TransportError:
            resets += 1
    assert resets == sum(truth.fault == "reset" for truth in engine.ground_truth())
    assert 0 < resets < 10
"""
    )
    suite.run().assert_outcomes(passed=2)


def test_it_stops_them_after_the_test(suite: Suite) -> None:
    suite.write(
        PREAMBLE
        + """
started = []

def test_one(llm_sim):
    started.append(llm_sim())
    raise RuntimeError("the test fails")

def test_after_it():
    with pytest.raises(httpx.ConnectError):
        ask(started[0])
"""
    )
    suite.run().assert_outcomes(passed=1, failed=1)


def test_a_wrong_scenario_is_said_in_words(suite: Suite) -> None:
    suite.write("def test_wrong(llm_sim): llm_sim('fast?fault=rest&max_num_sqs=4')")
    result = suite.run()
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "did you mean 'reset'" in text
    assert "did you mean 'max_num_seqs'" in text
    assert "Traceback" not in text


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("endpoint", [[], ["--llm-endpoint=sim:fast"]], ids=["without", "with"])
def test_a_suite_of_ones_own_against_it(suite: Suite, endpoint: list[str]) -> None:
    """A slow engine has to fail the gate, whatever endpoint the outer run is for."""
    suite.write(
        f"SMALL_WARMUP = {SMALL_WARMUP!r}"
        """
pytest_plugins = ["pytester"]

def test_the_gate_fails_on_a_slow_engine(pytester, llm_sim):
    pytester.makeini("[pytest]\\nasyncio_default_fixture_loop_scope = function\\nllm_workers = 0\\n")
    pytester.makeconftest(SMALL_WARMUP)
    pytester.makepyfile(
        '''
        from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

        PROMPTS = SyntheticWorkload("prompts", Fixed(320), Fixed(4))

        @llmbench.ttft(p50_ms=20, concurrency=2, requests=20, workload=PROMPTS)
        def test_gate(): ...
        '''
    )
    slow = llm_sim("fast?prefill_us_per_token=200")
    arguments = ["-p", "no:cacheprovider", f"--llm-endpoint={slow.url}", "--llm-scale=quick"]
    # failed, or on a very busy machine an error: the generator voids a run that it spoiled itself
    assert not pytester.runpytest_inprocess(*arguments).parseoutcomes().get("passed")
    assert len(slow.ground_truth()) >= 20
"""
    )
    suite.run(*endpoint).assert_outcomes(passed=1)
