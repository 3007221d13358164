"""Endpoints as users write them."""

from __future__ import annotations

import re
import ssl

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.request_head import RequestHead
from pytest_llmbench.generator.http.target import Target

KEY = "sk-canary-0123456789"


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "path"),
    [
        ("http://localhost:8000/v1", "localhost", 8000, "localhost:8000", "/v1/chat/completions"),
        ("http://localhost:8000/v1/", "localhost", 8000, "localhost:8000", "/v1/chat/completions"),
        ("http://example.org", "example.org", 80, "example.org", "/chat/completions"),
        ("https://example.org/v1", "example.org", 443, "example.org", "/v1/chat/completions"),
        ("https://example.org:443/v1", "example.org", 443, "example.org", "/v1/chat/completions"),
        ("http://[::1]:8000/v1", "::1", 8000, "[::1]:8000", "/v1/chat/completions"),
        ("http://[::1]/v1", "::1", 80, "[::1]", "/v1/chat/completions"),
        (
            "http://bücher.example/a/b/v1",
            "bücher.example",
            80,
            "xn--bcher-kva.example",
            "/a/b/v1/chat/completions",
        ),
        ("http://h/v1?api-version=2", "h", 80, "h", "/v1/chat/completions?api-version=2"),
        (" http://h/v1 ", "h", 80, "h", "/v1/chat/completions"),
        ("ws://h/v1", "h", 80, "h", "/v1/chat/completions"),
        ("wss://h:8000", "h", 8000, "h:8000", "/chat/completions"),
        ("wss://h:443/v1", "h", 443, "h", "/v1/chat/completions"),
        ("grpc://h:443", "h", 443, "h:443", "/chat/completions"),
        ("grpcs://[::1]:50051/", "::1", 50051, "[::1]:50051", "/chat/completions"),
    ],
)
def test_urls(url, host, port, authority, path):
    target = Target.parse(url)
    assert (target.host, target.port, target.authority) == (host, port, authority)
    assert target.request_target("/chat/completions") == path


@pytest.mark.parametrize(
    ("base", "path", "joined"),
    [
        ("", "/v1/chat", "/v1/chat"),
        ("/v1", "/v1/chat", "/v1/chat"),
        ("/openai/v1", "/v1/chat", "/openai/v1/chat"),
        ("/v1/chat", "/v1/chat", "/v1/chat"),
        ("/v1", "/chat", "/v1/chat"),
        ("/v2", "/v1/chat", "/v2/v1/chat"),
    ],
)
def test_segments_that_both_have_are_not_repeated(base, path, joined):
    assert Target.parse(f"http://h{base}").request_target(path) == joined


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("grpc://h", "names no port, and the scheme has no default port: grpc://host:port"),
        ("grpcs://h", "names no port, and the scheme has no default port: grpcs://host:port"),
        ("grpc://h:1/v1", "a gRPC server has no path below it: grpc://host:port"),
        ("grpc://h:1/?a=b", "a gRPC server has no path below it: grpc://host:port"),
        ("grpc://h:0", "port 0"),
        ("grpc://:1", "names no host"),
        ("ws://:8000/v1", "names no host"),
        ("ftp://h", "supported are http://, https://, sim"),
        ("localhost", "supported are http://, https://, sim"),
        ("", "supported are http://, https://, sim"),
        ("http://", "names no host"),
        ("http://:8000/v1", "names no host"),
        ("http://h:99999/", "Port out of range"),
        ("http://h:0/", "port 0"),
        ("http://h:x/", "Port could not be cast"),
        ("http://[::1/v1", "is not a URL"),
        ("http://" + "x" * 70 + ".org/", "is not a host name"),
    ],
)
def test_urls_that_are_none(url, said):
    with pytest.raises(SuiteError, match=said.replace(".", r"\.")):
        Target.parse(url)


def test_credentials_in_the_url_are_refused_and_not_repeated():
    with pytest.raises(SuiteError, match="credentials") as caught:
        Target.parse(f"http://user:{KEY}@h/v1")
    assert KEY not in str(caught.value)


def test_header_values_are_never_shown():
    target = Target.parse("http://h/v1", headers={"Authorization": f"Bearer {KEY}"})
    assert KEY not in repr(target) + str(target) + target.url
    assert "Authorization: …" in repr(target)
    assert f"Authorization: Bearer {KEY}\r\n".encode() in RequestHead(target, "/chat").wire("id", b"")


@pytest.mark.parametrize("value", [f"{KEY}\r\nX: 1", f"{KEY}\0", f"{KEY}ü"])
def test_header_values_that_would_break_the_request(value):
    with pytest.raises(SuiteError, match="'X-Key'") as caught:
        Target.parse("http://h/v1", headers={"X-Key": value})
    assert KEY not in str(caught.value)


def test_all_mistakes_at_once():
    with pytest.raises(SuiteError) as caught:
        Target.parse("http://:0/v1", headers={"a b": "1", "Content-Length": "5"})
    for said in ("names no host", "port 0", "'a b'", "'Content-Length'"):
        assert said in str(caught.value)


def test_headers_of_the_handshake_are_our_own():
    for name in ("Sec-WebSocket-Protocol", "upgrade", "Connection"):
        with pytest.raises(SuiteError, match=f"'{name}' is set by the load generator"):
            Target.parse("ws://h/v1", headers={name: "x"})
    assert Target.parse("http://h/v1", headers={"Sec-WebSocket-Protocol": "x"}).headers


def test_headers_of_a_call_are_our_own():
    names = ("TE", "grpc-timeout", "Grpc-Encoding", "upgrade", "content-type", "keep-alive")
    with pytest.raises(SuiteError) as caught:
        Target.parse("grpc://h", headers=dict.fromkeys(names, "x"))
    for said in (*(f"header '{name}' is set by the load generator" for name in names), "names no port"):
        assert said in str(caught.value)
    assert Target.parse("http://h/v1", headers={"grpc-timeout": "1S"}).headers


def test_tls_settings(tmp_path):
    assert Target.parse("http://h").ssl_context is None
    verified = Target.parse("https://h").ssl_context
    assert verified is not None
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert Target.parse("ws://h").ssl_context is None
    assert Target.parse("wss://h").ssl_context is not None
    assert Target.parse("wss://h", insecure=True).insecure
    assert Target.parse("grpc://h:1").ssl_context is None
    assert Target.parse("grpcs://h:1", insecure=True).ssl_context is not None
    assert Target.parse("grpcs://h:1", insecure=True).insecure
    insecure = Target.parse("https://h", insecure=True)
    assert insecure.ssl_context is not None
    assert insecure.ssl_context.verify_mode == ssl.CERT_NONE
    assert "insecure" in repr(insecure)
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    for ca_file in (bad, tmp_path / "missing.pem"):
        with pytest.raises(SuiteError, match="CA file"):
            Target.parse("https://h", ca_file=ca_file)


def test_a_request_in_one_buffer():
    target = Target.parse("http://h:8000/v1", headers={"User-Agent": "mine"})
    wire = RequestHead(target, "/chat/completions").wire("run-7", b'{"a":1}')
    head, _, body = wire.partition(b"\r\n\r\n")
    assert body == b'{"a":1}'
    assert head.decode().split("\r\n") == [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: h:8000",
        "User-Agent: mine",
        "Accept: text/event-stream, application/json",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        "x-request-id: run-7",
        "Content-Length: 7",
    ]


@pytest.mark.parametrize("url", ["localhost:8000/v1", "127.0.0.1:8000", "host/v1", "[::1]:80/v1"])
def test_an_address_without_a_scheme_is_shown_with_one(url):
    with pytest.raises(SuiteError, match=re.escape(f"names no scheme; write http://{url}")):
        Target.parse(url)
    with pytest.raises(SuiteError, match="not an endpoint; supported are http://"):
        Target.parse("nonsense")
