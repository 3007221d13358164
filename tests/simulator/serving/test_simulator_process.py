"""The engine as a process: it starts, it stops, and it never outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import plain_http
import pytest

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.simulator.__main__ import main
from pytest_llmbench.simulator.scenario import PRESETS
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

DEADLINE_S = 10.0


def answers(url: str) -> bool:
    try:
        return plain_http.get(f"{url}/models", timeout=DEADLINE_S).status_code == 200
    except httpx.TransportError:
        return False


def ends(url: str) -> bool:
    """Whether nobody serves ``url`` any more before the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while answers(url):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_it_starts_and_stops() -> None:
    engine = EmbeddedEngine.start("fast?max_num_seqs=5")
    try:
        assert answers(engine.url)
        assert engine.model == "sim-fast"
        assert engine.config.max_num_seqs == 5
        assert engine.ground_truth() == []
        if sys.platform == "linux":  # NumPy takes as long to load as half of all else that a start needs
            assert "numpy" not in Path(f"/proc/{engine.pid}/maps").read_text()
        assert engine.disclosure().value("sut.model.name") == "sim-fast"
    finally:
        engine.stop()
    assert not answers(engine.url)
    engine.stop()
    with pytest.raises(SUTError, match="does not answer") as caught:
        engine.ground_truth()
    assert "status -15" in str(caught.value)


def test_mistakes_in_the_preset_are_the_authors() -> None:
    with pytest.raises(SuiteError, match="did you mean 'h100-8b'"):
        EmbeddedEngine.start("h100-8bb")


def test_too_slow_a_start_is_an_error() -> None:
    with pytest.raises(SUTError, match="not ready after 0 s"):
        EmbeddedEngine.start(deadline_s=0.0)


def test_a_failed_start_shows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SUTError, match="did not start") as caught:
        EmbeddedEngine.start()
    assert "broken on purpose" in str(caught.value)
    assert "-m pytest_llmbench.simulator" in str(caught.value)


def test_an_engine_that_died_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with EmbeddedEngine.start() as engine:
        os.kill(engine.pid, signal.SIGKILL)
        assert ends(engine.url)
        with pytest.raises(SUTError, match="does not answer"):
            engine.status()
    assert capfd.readouterr() == ("", "")


PARENT = """
import json, sys, time
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
engine = EmbeddedEngine.start()
{before}
print(json.dumps([engine.url, engine.pid]), flush=True)
time.sleep(60)
"""
FORK = "import os\nif os.fork() == 0:\n    time.sleep(8)\n    os._exit(0)"


@pytest.mark.parametrize("before", ["", FORK], ids=["alone", "with a fork that holds the pipe"])
def test_it_ends_when_its_parent_is_killed(before: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(before=before)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        url, _ = json.loads(parent.stdout.readline())
        assert answers(url)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    assert ends(url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_even_in_mid_stream(number: signal.Signals) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "pytest_llmbench.simulator", "--port", "0"], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        assert (ready["ready"], ready["model"], ready["pid"]) == (True, "sim-fast", server.pid)
        body = {"prompt": "x", "max_tokens": 30_000, "stream": True}
        with plain_http.stream(
            "POST", f"{ready['url']}/completions", json=body, timeout=DEADLINE_S
        ) as response:
            chunks = response.iter_raw()
            next(chunks)
            server.send_signal(number)
            assert server.wait(DEADLINE_S) == -number
            with pytest.raises(httpx.TransportError):
                list(chunks)
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "fst?seeed=1"]) == 2
    message = capsys.readouterr().err
    assert "did you mean 'fast'" in message
    assert "did you mean 'seed'" in message


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_is_none_is_named(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([f"--port={port}"])
    assert caught.value.code == 2
    assert f"{port!r} is not a port" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "pytest_llmbench.simulator", "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}: cannot listen: Address already in use" in ended.stderr
    assert "--port" in ended.stderr


def test_help_describes_presets_and_endpoints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(
        name in text for name in [*PRESETS, "/v1/chat/completions", "/sim/ground_truth", "--parent-pipe"]
    )
    assert max(map(len, text.splitlines())) <= 120
