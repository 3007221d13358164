"""The known-delay server does what its script says, and notes what it did."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from three_attempts import three_attempts

from pytest_llmbench.simulator.known_delay import KnownDelayServer, Script, http1_writes

MS = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[KnownDelayServer]:
    with KnownDelayServer() as running:
        yield running


def address(server: KnownDelayServer) -> tuple[str, int]:
    where = urlsplit(server.url(Script()))
    assert where.hostname is not None
    assert where.port is not None
    return where.hostname, where.port


def post(server: KnownDelayServer, name: str, target: str, header: str = "x-request-id") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address(server), timeout=10)
    try:
        connection.request("POST", target, body=b'{"stream":true}', headers={header: name})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ask(server: KnownDelayServer, name: str, script: Script, header: str = "x-request-id") -> list[str]:
    status, body = post(server, name, f"/v1/chat/completions?{script.query}", header)
    assert status == 200
    assert body.endswith("\n\n")
    return [event.removeprefix("data: ") for event in body[:-2].split("\n\n")]


def test_a_script_and_its_query_are_one() -> None:
    script = Script(20_000, 5_000, 3)
    assert Script.of(script.query) == script
    assert script.offsets_ns == [20 * MS, 25 * MS, 30 * MS]
    assert Script(7, 0, 3).offsets_ns == [7_000]  # without an ITL there is one write


@pytest.mark.parametrize("query", ["ttft_us=-1", "tokens=0", "itl_us=x", "delay=5"])
def test_what_is_no_script_is_refused(server: KnownDelayServer, query: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Script.of(query)
    assert post(server, "a", f"/v1/chat/completions?{query}")[0] == 400
    assert server.truth() == {}


def test_other_paths_are_not_found(server: KnownDelayServer) -> None:
    assert post(server, "a", "/v1/completions")[0] == 404


def test_there_are_as_many_payloads_as_writes() -> None:
    assert len(http1_writes(Script(1, 1, 7))) == len(Script(1, 1, 7).offsets_ns) == 7
    assert len(http1_writes(Script(1, 0, 7))) == len(Script(1, 0, 7).offsets_ns) == 1


@pytest.mark.parametrize("itl_us", [0, 500])
def test_a_reply_has_the_tokens_asked_for_and_says_so(server: KnownDelayServer, itl_us: int) -> None:
    *content, finish, usage, done = ask(server, "tokens", Script(0, itl_us, 5))
    assert [json.loads(event)["choices"][0]["delta"]["content"] for event in content] == [" tea"] * 5
    assert json.loads(finish)["choices"][0]["finish_reason"] == "stop"
    assert json.loads(usage)["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"
    assert len(server.truth()["tokens"].written_ns) == (5 if itl_us else 1)


@pytest.mark.timing
@three_attempts
def test_writes_are_on_the_script_and_on_this_machines_clock(server: KnownDelayServer) -> None:
    script = Script(20_000, 5_000, 20)
    before = time.monotonic_ns()
    ask(server, "paced", script)
    after = time.monotonic_ns()
    truth = server.truth()["paced"]
    assert before < truth.received_ns
    assert truth.written_ns[-1] < after
    late = [at - truth.received_ns - due for at, due in zip(truth.written_ns, script.offsets_ns, strict=True)]
    assert min(late) >= 0
    assert statistics.median(late) < 1 * MS  # of a millisecond timer it would be more


def test_the_log_is_given_once(server: KnownDelayServer) -> None:
    ask(server, "once", Script())
    assert list(server.truth()) == ["once"]
    assert server.truth() == {}


def test_a_header_may_be_in_any_case(server: KnownDelayServer) -> None:
    ask(server, "Shouted", Script(), header="X-REQUEST-ID")
    assert list(server.truth()) == ["Shouted"]


def test_a_reply_that_is_due_sooner_does_not_wait_for_one_that_is_due_later(server: KnownDelayServer) -> None:
    slow = threading.Thread(target=ask, args=(server, "slow", Script(2_000_000)))
    slow.start()
    time.sleep(0.05)
    ask(server, "quick", Script(20_000))
    slow.join()
    truth = server.truth()
    waited = {name: (known.written_ns[0] - known.received_ns) / MS for name, known in truth.items()}
    assert waited["quick"] >= 20
    assert waited["slow"] >= 2_000
    assert truth["quick"].written_ns[0] < truth["slow"].written_ns[0]


def test_a_request_in_two_parts_was_received_with_the_second(server: KnownDelayServer) -> None:
    head = b"POST /v1/chat/completions?ttft_us=0 HTTP/1.1\r\nx-request-id: parts\r\nContent-Length: 4\r\n\r\n"
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(head + b"ab")
        time.sleep(0.05)
        between = time.monotonic_ns()
        client.sendall(b"cd")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert server.truth()["parts"].received_ns > between


def test_more_than_the_length_says_is_refused(server: KnownDelayServer) -> None:
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1\r\n\r\nabc")
        assert client.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_client_that_leaves_disturbs_nobody(server: KnownDelayServer) -> None:
    with socket.create_connection(address(server), timeout=10) as client:
        client.sendall(
            b"POST /v1/chat/completions?itl_us=1000&tokens=200 HTTP/1.1\r\nx-request-id: gone\r\n\r\n"
        )
        assert client.recv(1) == b"H"
    ask(server, "stays", Script(20_000, 1_000, 3))
    truth = server.truth()
    assert len(truth["stays"].written_ns) == 3
    assert len(truth["gone"].written_ns) < 200


def test_it_ends_with_whoever_started_it() -> None:
    with KnownDelayServer() as running:
        child = running._child
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(5) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="receive times are the Linux kernel's")
def test_a_request_arrives_when_the_kernel_has_it_not_when_the_server_reads(server: KnownDelayServer) -> None:
    ask(server, "first", Script())
    asking = http.client.HTTPConnection(*address(server), timeout=10)
    asking.connect()
    time.sleep(0.05)  # accepted, and waiting for the request
    os.kill(server.pid, signal.SIGSTOP)
    try:
        sent_ns = time.monotonic_ns()
        asking.request("POST", f"/v1/chat/completions?{Script().query}", headers={"x-request-id": "stopped"})
        taken_in_ns = time.monotonic_ns()
        time.sleep(0.1)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    asking.getresponse().read()
    asking.close()
    truth = server.truth()["stopped"]
    assert sent_ns <= truth.received_ns <= taken_in_ns
    assert truth.written_ns[0] - truth.received_ns > 90 * MS


def test_a_reply_that_is_not_read_waits_and_is_whole(server: KnownDelayServer) -> None:
    with socket.create_connection(address(server), timeout=10) as slow:
        script = Script(0, 0, 60_000)
        request = f"POST /v1/chat/completions?{script.query} HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
        slow.sendall(request.encode())
        time.sleep(0.05)
        body = bytearray()
        while not body.endswith(b"0\r\n\r\n"):
            body += slow.recv(1 << 20)
        assert body.count(b" tea") == 60_000
    server.truth()
