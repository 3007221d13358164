"""A proxy from the option to the report: said in the header, with each result, and in the facts."""

from __future__ import annotations

import json

import pytest
from plugin_suite import SMALL_WARMUP, Suite
from relays import http_proxy

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = pytest.mark.usefixtures("however_late")

SUITE = """
from pytest_llmbench import llmbench, make_workload

@llmbench.ttft(concurrency=2, requests=10, workload=make_workload(input_tokens=16, output_tokens=128))
def test_first_token(): ...
"""


def test_a_proxy_is_said_and_recorded(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    with http_proxy() as log:
        result = suite.measure(engine.url, f"--llm-proxy={log.url}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"llmbench: *, through the proxy {log.url}"])
    result.stdout.fnmatch_lines(
        ["*requests went through the proxy*", f"*{log.url} (--llm-proxy): every figure includes*"]
    )
    written = json.dumps(suite.report)
    assert '"measured_through_proxy"' in written
    assert f'"endpoint.proxy": {{"value": "{log.url}"' in written


def test_without_one_nothing_is_said(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(engine.url)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*through the proxy*")
    assert "measured_through_proxy" not in json.dumps(suite.report)


def test_what_is_no_proxy_is_an_error_before_any_traffic(suite: Suite) -> None:
    suite.write(SUITE)
    result = suite.measure("http://127.0.0.1:9/v1", "--llm-proxy=socks5://127.0.0.1:1080")
    result.stderr.fnmatch_lines(["*only http:// is spoken to a proxy*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
