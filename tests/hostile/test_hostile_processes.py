"""A key is no argument of a process and in no temporary file; nor is it told when a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hostile_run import ARTEFACTS, UNNEEDED, unpacked
from hostile_server import Reply, serving, stream, traces, words

KEY = "sk-canary-7A9b3Z5w-0123"
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=5000, rate=20, requests=1000)
def test_ttft(llm_result): ...
"""


def _arguments(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _descendants(process: int) -> list[int]:
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *_descendants(child))]


def _texts(folder: Path) -> dict[str, str]:
    """Of all files; one may vanish meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        try:
            found[str(path.relative_to(folder))] = unpacked(path).decode("utf-8", "replace")
        except OSError:
            continue
    return found


def test_the_key_stands_in_no_command_line_and_no_temporary_file(tmp_path: Path) -> None:
    suite, scratch = tmp_path / "suite", tmp_path / "scratch"
    suite.mkdir()
    scratch.mkdir()
    (suite / "test_suite.py").write_text(SUITE, "utf-8")
    loaded = threading.Event()

    def behaviour(_: str, number: int) -> Reply:
        if number >= 30:
            loaded.set()
        return stream(words())

    with serving(behaviour) as endpoint, (tmp_path / "out.txt").open("wb") as out:
        run = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *UNNEEDED,
                f"--llm-endpoint={endpoint}", "-vv", "-l", "--llm-scale=quick", "--llm-remeasure=0",
                "--llm-workers=2", "--tb=long", *ARTEFACTS,
            ],
            cwd=suite, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "LLM_API_KEY": KEY, "TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            seen = _watch_and_kill_a_worker(run, scratch, loaded)
            assert run.wait(60) == 1
        finally:
            run.kill()
            run.wait()
    told = _texts(tmp_path)
    assert "INVALID" in told["out.txt"], told["out.txt"]
    assert "SIGKILL" in told["out.txt"]
    assert "Traceback" not in told["out.txt"]
    assert {name: found for name, text in (seen | told).items() if (found := traces(text, KEY))} == {}


def _watch_and_kill_a_worker(
    run: subprocess.Popen[bytes], scratch: Path, loaded: threading.Event
) -> dict[str, str]:
    """What stood in command lines and temporary files while load was running."""
    seen: dict[str, str] = {}
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and run.poll() is None:
        at_work = _descendants(run.pid)
        for process in (run.pid, *at_work):
            text = _arguments(process)
            seen[f"arguments of {process}: {text}"] = text
        seen |= _texts(scratch)
        if loaded.wait(0.1):
            os.kill(at_work[-1], signal.SIGKILL)
            return seen
    raise AssertionError(f"no load was seen: {sorted(seen)}")
