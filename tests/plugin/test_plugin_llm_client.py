"""The fixture ``llm_client``: single requests to the session's system under test."""

from __future__ import annotations

import pytest
from plugin_suite import SMALL_WARMUP, Suite

SUITE = """
import pytest
from pytest_llmbench import RequestFailedError

@pytest.mark.asyncio
async def test_a_reply(llm_client):
    reply = await llm_client.complete("Count to three.", max_tokens=4)
    assert reply.output_tokens == 4
    assert reply.ttft_ms > 0
    streamed = [chunk.text async for chunk in llm_client.stream("Count.", max_tokens=4) if chunk.text]
    assert len(streamed) == 4

@pytest.mark.asyncio
async def test_what_the_server_refuses(llm_client):
    with pytest.raises(RequestFailedError) as caught:
        await llm_client.complete("Hello", max_tokens=4, extra_body={"n": "many"})
    assert caught.value.reply.status == 400

def test_its_names(llm_client, llm_sut):
    assert llm_client.api == "openai-completions"
    assert llm_client.url.startswith("http://127.0.0.1:")
"""


def test_it_asks_the_embedded_engine(suite: Suite) -> None:
    suite.write(SUITE)
    suite.run("--llm-endpoint=sim", "--llm-api=completions").assert_outcomes(passed=3)


COUNTED = """
import psutil
import pytest
def measuring():
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    return sum("workers.process" in line for line in lines)

@pytest.mark.asyncio
async def test_a_reply(llm_client):
    assert (await llm_client.complete("Count to three.", max_tokens=4)).ok
    assert measuring() == 0

@llmbench.ttft(rate=50, requests=20)
def test_a_load(llm_client):
    assert measuring() == 2
"""


@pytest.mark.usefixtures("however_late")
def test_measuring_processes_start_with_the_first_load(suite: Suite) -> None:
    suite.write(COUNTED, SMALL_WARMUP)
    suite.measure("sim", "--llm-workers=2", "--llm-inconclusive=pass").assert_outcomes(passed=2)
    (entry,) = suite.report["tests"]
    assert entry["counts"]["ok"] == 20


def test_a_replay_has_nobody_to_ask(suite: Suite) -> None:
    suite.write("def test_it(llm_client): ...")
    result = suite.run("--llm-endpoint=replay:fast")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*but there is no server*", "*measure sim:fast, the same engine over HTTP*"])
    assert "Traceback" not in str(result.stdout)


def test_without_an_endpoint_it_is_skipped(suite: Suite) -> None:
    suite.write("def test_it(llm_client): ...")
    suite.run().assert_outcomes(skipped=1)
