"""SUT variants: each way of reaching one, fresh states, and what is said when one does not come up."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_llm_server import FakeLLMServer

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.open_sut import OpenSUT, open_sut
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.probes.access import Credentials
from pytest_llmbench.redaction import outward
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PROGRAM = [sys.executable, str(Path(__file__).parent / "fake_llm_server.py"), "{port}"]
SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
DEADLINES = Deadlines(connect_s=2.0, drain_s=5.0)


@pytest.fixture
def server() -> Iterator[FakeLLMServer]:
    with FakeLLMServer() as running:
        yield running


class Opened:
    """An opened SUT with the habits of these tests."""

    def __init__(self, opened: OpenSUT) -> None:
        self.opened = opened

    def run(self, variant: str = "", requests: int = 3, **more: Any) -> Observation:
        plan = LoadPlan(
            "test", SMALL, ClosedLoop(1), requests, 1, variant=variant, deadlines=DEADLINES, **more
        )
        return self.opened.executor.run(plan)


@pytest.fixture
def opening() -> Iterator[Any]:
    opened: list[OpenSUT] = []

    def open_(endpoint: str, sut_file: Path | None = None, workers: int = 0, **variants: Any) -> Opened:
        settings = Settings(endpoint=endpoint, sut=sut_file, workers=workers)
        opened.append(open_sut(SUT(endpoint), settings, on_progress=lambda _: None, variants=variants))
        return Opened(opened[-1])

    yield open_
    for each in opened:
        each.close()


def test_another_url(server: FakeLLMServer, opening: Any) -> None:
    with FakeLLMServer() as other:
        sut = opening(
            server.url, workers=1, candidate={"url": other.url, "sut": {"prefix_caching": "enabled"}}
        )
        assert other.calls == []  # lazily
        seen = sut.run("candidate")
        assert seen.records.counts()["ok"] == 3
        assert other.completions >= 3
        assert server.completions == 1  # the preflight's
        assert seen.facts.value("sut.prefix_caching") == "enabled"
        assert seen.facts.value("endpoint.url") == other.url
        assert sut.run().facts.value("sut.prefix_caching") is None
        assert sut.opened.variants["candidate"].facts.value("sut.prefix_caching") == "enabled"


def test_other_requests(server: FakeLLMServer, opening: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT", "tenant-secret-1")
    request = {"extra_body": {"priority": 10}, "headers": {"x-tenant": {"env": "TENANT"}}}
    sut = opening(server.url, low={"request": request})
    sut.run("low")
    assert all(body["priority"] == 10 for body in server.bodies()[1:])
    assert {headers.get("x-tenant") for _, path, _, headers in server.calls[1:] if "comp" in path} == {
        "tenant-secret-1"
    }
    sut.run()
    assert "priority" not in server.bodies()[-1]
    assert outward("tenant-secret-1") == "[redacted]"


def test_a_control_call_and_the_way_back(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(
        server.url,
        on={
            "control": {"path": "/admin/204", "body": {"guard": True}, "expect": 204},
            "restore": {"path": "/admin/off"},
        },
        other={"control": {"url": f"{server.origin}/admin/other"}},
    )
    sut.run("on")
    sut.run("on")
    assert server.paths() == ["/admin/204"]  # once is enough
    assert server.calls[[path for _, path, _, _ in server.calls].index("/admin/204")][2] == {"guard": True}
    sut.run()
    sut.run("on")
    sut.run("other")
    assert server.paths() == ["/admin/204", "/admin/off", "/admin/204", "/admin/off", "/admin/other"]
    with pytest.raises(SUTError, match="nothing says how to switch it back"):
        sut.run()


def test_what_was_switched_over_is_switched_back_at_the_end(server: FakeLLMServer) -> None:
    variants = {"on": {"control": {"path": "/admin/on"}, "restore": {"path": "/admin/off"}}}
    settings = Settings(endpoint=server.url, workers=0)
    opened = open_sut(SUT(server.url), settings, on_progress=lambda _: None, variants=variants)
    Opened(opened).run("on")
    opened.close()
    assert server.paths() == ["/admin/on", "/admin/off"]


def test_a_control_call_that_is_refused(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, on={"control": {"path": "/refuse/it"}})
    with pytest.raises(SUTError, match=r"/refuse/it answered with status 409, not 200 to 299: .*not now"):
        sut.run("on")


def test_a_fresh_state_by_a_call(server: FakeLLMServer, opening: Any, tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(
        '[endpoint.reset]\npath = "/flush"\n[variants.low]\nrequest = { extra_body = { a = 1 } }\n'
    )
    sut = opening(server.url, file)
    assert sut.opened.variants[""].can_be_fresh
    assert sut.opened.variants["low"].can_be_fresh
    before = sut.opened.executor.state("")
    sut.run(fresh_state=True)
    sut.run("low", fresh_state=True)
    assert server.paths() == ["/flush", "/flush"]
    assert sut.opened.executor.state("") != before
    assert sut.opened.executor.state("low") == sut.opened.executor.state("")


def test_a_field_that_the_server_refuses_is_never_sent(
    server: FakeLLMServer, opening: Any, tmp_path: Path
) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(
        '[request]\nomit = ["stream_options"]\n[variants.low]\nrequest = { extra_body = { a = 1 } }\n'
    )
    sut = opening(server.url, file)
    sut.run()
    sut.run("low")
    assert {body.get("a") for body in server.bodies()} == {None, 1}
    assert not [body for body in server.bodies() if "stream_options" in body]
    assert sut.opened.facts.value("request.extra_body") == {"stream_options": None}


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ("usage", "stream_options", {"include_usage": True, "continuous_usage_stats": True}),
        ("ids", "return_token_ids", True),
        ("timings", "timings_per_token", True),
    ],
)
def test_the_tokens_of_each_chunk_are_asked_for(
    server: FakeLLMServer, opening: Any, tmp_path: Path, asked: str, field: str, value: Any
) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(f'[request]\nchunk_tokens = "{asked}"\nextra_body = {{ seed = 7 }}\n')
    sut = opening(server.url, file)
    sut.run()
    bodies = server.bodies()
    assert [(body[field], body["seed"]) for body in bodies] == [(value, 7)] * len(bodies)
    assert field in sut.opened.facts.value("request.extra_body")


def test_no_way_to_a_fresh_state(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url)
    assert not sut.opened.variants[""].can_be_fresh
    with pytest.raises(SuiteError, match="the SUT cannot be put into a fresh state"):
        sut.run(fresh_state=True)


def test_an_unknown_variant_names_the_known_ones(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, cache_on={"url": server.url})
    with pytest.raises(SuiteError, match=r"no variant 'cach_on'; it has cache_on\n.*did you mean cache_on\?"):
        sut.run("cach_on")


def test_a_launched_server(server: FakeLLMServer, opening: Any, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "launched.log"
    sut = opening(
        server.url,
        one={"command": PROGRAM, "log": str(log), "sut": {"profile": "launched"}},
        two={"command": PROGRAM},
    )
    seen = sut.run("one")
    assert seen.records.counts()["ok"] == 3
    assert seen.facts.value("sut.profile") == "launched"
    assert "starting on" in log.read_text()
    first = port_of(seen)
    before = sut.opened.executor.state("one")
    again = sut.run("one", fresh_state=True)
    assert port_of(again) != first
    assert sut.opened.executor.state("one") != before
    sut.run("two")  # only one launched variant at a time
    assert not answers(port_of(again))


def test_launched_servers_side_by_side(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(
        server.url,
        one={"command": PROGRAM, "concurrent": True},
        two={"command": PROGRAM, "concurrent": True},
    )
    first = port_of(sut.run("one"))
    sut.run("two")
    assert answers(first)


def test_a_server_that_ends_before_it_is_healthy(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, bad={"command": [*PROGRAM, "die-at-start"]})
    with pytest.raises(SUTError) as caught:
        sut.run("bad")
    told = str(caught.value)
    for part in ("variant bad", "exit code 3", "command: ", "die-at-start", "/health", "| no such model"):
        assert part in told


def test_a_server_that_never_gets_healthy_is_ended(server: FakeLLMServer, opening: Any) -> None:
    command = [*PROGRAM, "never-healthy"]
    sut = opening(server.url, slow={"command": command, "health": {"timeout_s": 0.6}})
    with pytest.raises(SUTError, match=r"not healthy within 0\.6 s \(") as caught:
        sut.run("slow")
    port = int(str(caught.value).split("http://127.0.0.1:")[1].split("/")[0])
    assert not answers(port)


def test_a_command_that_is_not_there(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, none={"command": ["/nowhere/serve", "{port}"]})
    with pytest.raises(SUTError, match=r"cannot be started: No such file.*/nowhere/serve"):
        sut.run("none")


def test_a_server_that_dies_while_load_is_running(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, workers=1, weak={"command": [*PROGRAM, "die-after=4"]})
    seen = sut.run("weak", requests=2_000)
    assert seen.interrupted == "the server of variant weak ended with exit code 7 while load was running"
    assert int(seen.records.ok.sum()) < 2_000
    state = sut.opened.executor.state("weak")
    assert sut.run("weak", requests=2).records.counts()["ok"] == 2  # started anew
    assert sut.opened.executor.state("weak") == state


def test_the_death_that_a_test_waits_for_is_no_interruption(server: FakeLLMServer, opening: Any) -> None:
    sut = opening(server.url, weak={"command": [*PROGRAM, "die-after=4"]})
    seen = sut.run("weak", requests=8, stop_when_failing=True)
    assert seen.interrupted is None
    assert seen.stopped is not None


def test_the_whole_process_group_is_ended(server: FakeLLMServer, opening: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); "
        "sys.exit(subprocess.call(sys.argv[1:]))"
    )
    sut = opening(server.url, group={"command": [sys.executable, "-c", script, *PROGRAM]})
    sut.run("group")
    child = int(pid_file.read_text())
    assert alive(child)
    sut.opened.close()
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_replays_have_the_standard_variants(opening: Any) -> None:
    sut = opening("replay:fast?seed=3", small={"preset": "max_num_seqs=2", "sut": {"profile": "small"}})
    known = sut.opened.variants
    assert {"", "cache_enabled", "cache_disabled", "guardrails_full", "small"} <= set(known)
    assert all(info.can_be_fresh for info in known.values())
    assert known["guardrails_full"].facts.value("guardrails.input_filter") == "enabled"
    base, cached, small = sut.run(), sut.run("cache_enabled"), sut.run("small")
    assert cached.facts.value("sut.prefix_caching") == "enabled"
    assert small.facts.value("sut.profile") == "small"
    # One virtual clock for all of them: nothing happens before what came before it.
    assert base.ended_ns < cached.started_ns < cached.ended_ns < small.started_ns
    ids = [*base.records.request_id, *cached.records.request_id, *small.records.request_id]
    ids += sut.run("small", fresh_state=True).records.request_id
    assert len(set(ids)) == len(ids)


def test_a_served_engine_is_restarted_for_a_fresh_state(opening: Any) -> None:
    sut = opening("sim:fast?prefix_caching=on")
    sut.run()
    first = sut.opened.executor.base.executor
    sut.run(fresh_state=True)
    assert sut.opened.executor.base.executor is not first


@pytest.mark.parametrize(
    ("endpoint", "variant", "told"),
    [
        ("replay", {"url": "http://x/v1"}, "a replay has only presets"),
        ("replay", {"preset": "max_num_seq=3"}, "did you mean 'max_num_seqs'"),
        ("http://127.0.0.1:9/v1", {"preset": "seed=3"}, "the endpoint is not the embedded engine"),
        ("http://127.0.0.1:9/v1", {"url": "u", "preset": "p"}, "reached in 2 ways"),
    ],
)
def test_variants_that_cannot_be(opening: Any, endpoint: str, variant: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        opening(endpoint, odd=variant)


def port_of(seen: Observation) -> int:
    return int(str(seen.facts.value("endpoint.url")).rpartition(":")[2].removesuffix("/v1"))


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_other_requests_find_the_engine_that_was_started_anew(opening: Any) -> None:
    sut = opening("sim:fast", low={"request": {"extra_body": {"priority": 1}}})
    for _ in range(2):
        assert sut.run("low", fresh_state=True).records.counts()["ok"] == 3


def test_further_request_fields_are_on_record_and_cannot_be_declared_away():
    sut = SUT("http://127.0.0.1:1/v1", extra_body={"priority": 3})
    facts = SUTAccess(sut, Settings(), None, Credentials()).told(Facts(), {"request.extra_body": {}})
    assert facts.value("request.extra_body") == {"priority": 3}
