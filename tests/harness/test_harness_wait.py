"""``--llm-wait`` on its way from the options to the endpoint."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace

import pytest
from fake_llm_server import FakeLLMServer

from pytest_llmbench.errors import NotReadyError, SuiteError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.address import reach, reach_with, workers_coming_up
from pytest_llmbench.harness.sut.launched import free_port
from pytest_llmbench.harness.sut.sut import SUT


def test_a_server_that_comes_later_is_measured() -> None:
    port = free_port()
    settings = Settings.from_options({"endpoint": f"http://127.0.0.1:{port}/v1", "wait": "60", "workers": 0})
    told: list[str] = []
    come, running = threading.Event(), []

    def say(text: str) -> None:
        told.append(text)
        if not come.is_set():
            come.set()
            running.append(FakeLLMServer(port).__enter__())

    access = replace(SUTAccess.to(SUT(settings.endpoint or ""), settings, None), on_progress=say)
    reached = reach(settings.endpoint or "", access)
    reached.executor.close()
    running[0].__exit__()
    assert reached.model == "fake"
    assert len(told) == 1
    assert "connection refused" in told[0]
    assert told[0].endswith("of 60 s")


def test_by_default_nothing_is_waited_for() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    settings = Settings.from_options({"endpoint": url})
    assert settings.wait == 0
    told: list[str] = []
    with pytest.raises(NotReadyError, match="connection refused"):
        reach(url, replace(SUTAccess.to(SUT(url), settings, None), on_progress=told.append))
    assert told == []


def test_workers_come_up_meanwhile_and_are_ended_if_nothing_comes_of_it() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    access = SUTAccess.to(SUT(url), Settings.from_options({"endpoint": url, "workers": "2"}), None)
    processes: list[subprocess.Popen[bytes]] = []

    def reached() -> None:
        with workers_coming_up(access) as pool:
            assert pool is not None
            processes.extend(member.process for member in pool._members.values())
            assert [process.poll() for process in processes] == [None, None]
            reach_with(pool, url, access)

    with pytest.raises(NotReadyError):
        reached()
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize("given", ["-1", "nan", "inf", "soon"])
def test_what_is_no_time_to_wait(given: str) -> None:
    with pytest.raises(SuiteError, match="--llm-wait"):
        Settings.from_options({"endpoint": "http://h/v1", "wait": given})
