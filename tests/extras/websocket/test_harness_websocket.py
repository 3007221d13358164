"""An endpoint of WebSockets and what is done beside its load."""

from __future__ import annotations

from scripted_server import ScriptedServer, plain, reply

from pytest_llmbench.harness.sut.variant_servers import perform
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.sut_schema import Call

KEY = "sk-canary-0123456789"


def test_administrative_calls_go_by_http_and_take_the_key_along() -> None:
    server = ScriptedServer(reply(plain("200 OK", b"{}")), read_body=False)
    try:
        access = Access(Credentials({"Authorization": f"Bearer {KEY}"}, frozenset({KEY}), "a test"))
        url = server.url.replace("http", "ws", 1)
        perform(Call(method="POST", path="/reset_prefix_cache"), url, access, where="variant off")
    finally:
        server.stop()
    (served,) = server.served
    assert served.head.startswith("POST /reset_prefix_cache HTTP/1.1")
    assert served.headers["authorization"] == f"Bearer {KEY}"
