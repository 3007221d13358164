"""An endpoint of gRPC and what is done beside its load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scripted_server import ScriptedServer, plain, reply

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.beforehand import mistakes_of
from pytest_llmbench.harness.comparison.systems import listed_systems
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.launched import launched_server
from pytest_llmbench.harness.sut.variant_servers import perform
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.sut_schema import Call

KEY = "sk-canary-0123456789"
ENGINE = [sys.executable, "-m", "pytest_llmbench.simulator", "--port", "0", "--grpc-port", "{port}"]


def test_an_administrative_call_needs_a_url() -> None:
    access = Access(Credentials({"Authorization": f"Bearer {KEY}"}, frozenset({KEY}), "a test"))
    with pytest.raises(
        SuiteError, match=r"(?s)variant off: a gRPC server has no POST /reset.*url of its HTTP"
    ):
        perform(Call(method="POST", path="/reset"), "grpc://h:1", access, where="variant off")
    server = ScriptedServer(reply(plain("200 OK", b"{}")), read_body=False)
    try:
        url = f"{server.url}/reset"
        perform(Call(method="POST", url=url), "grpc://h:1", access, where="variant off")
    finally:
        server.stop()
    (served,) = server.served
    assert "authorization" not in served.headers  # the key is for the gRPC server


def test_a_launched_server_is_healthy_when_its_method_says_so() -> None:
    with launched_server(ENGINE, url="grpc://127.0.0.1:{port}", timeout_s=60.0) as server:
        assert server.url.startswith("grpc://127.0.0.1:")


def test_a_launched_server_that_does_not_come_up_says_what_was_seen() -> None:
    asleep = [sys.executable, "-c", "import time; time.sleep(60)", "{port}"]
    with (
        pytest.raises(SUTError, match=r"not healthy within 0\.5 s \(connection refused"),
        launched_server(asleep, url="grpc://127.0.0.1:{port}", timeout_s=0.5),
    ):
        pass


@pytest.mark.parametrize(
    ("endpoint", "api", "told"),
    [
        ("grpc://h:1", "openai-chat", "openai-chat is not spoken over gRPC"),
        ("http://h/v1", "kserve-grpc", "kserve-grpc is spoken over gRPC alone"),
        ("ws://h/v1", "vllm-grpc", "vllm-grpc is spoken over gRPC alone"),
        ("sim", "vllm-grpc", "vllm-grpc is spoken over gRPC alone"),
        ("grpc://h", "auto", "no port"),
        ("grpc://h:1/v1", "auto", "no path"),
    ],
)
def test_what_is_said_before_any_traffic(endpoint: str, api: str, told: str) -> None:
    (mistake,) = mistakes_of(Settings(endpoint=endpoint, api=api))
    assert told in mistake


@pytest.mark.parametrize("api", ["auto", "vllm-grpc", "sglang-grpc", "kserve-grpc"])
def test_dialects_of_grpc_at_an_endpoint_of_grpc(api: str) -> None:
    assert mistakes_of(Settings(endpoint="grpcs://h:1", api=api)) == []


def test_sglang_by_text_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text('[endpoint]\napi = "sglang-grpc"\n', "utf-8")
    (mistake,) = mistakes_of(Settings(endpoint="grpc://h:1", sut=file))
    assert 'sglang-grpc, which takes no text: request.prompt = "token_ids"' in mistake
    file.write_text('[endpoint]\napi = "sglang-grpc"\n[request]\nprompt = "token_ids"\n', "utf-8")
    assert mistakes_of(Settings(endpoint="grpc://h:1", sut=file)) == []


def test_systems_are_named_without_the_scheme() -> None:
    several = Settings(endpoint="grpc://one:1", endpoints=("grpc://one:1", "grpcs://two:2"))
    assert [each.name for each in listed_systems(several)] == ["one:1", "two:2"]
