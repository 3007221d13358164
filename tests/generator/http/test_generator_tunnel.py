"""The answer to CONNECT, cut at every byte; what is no answer; what comes before there is one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pytest_llmbench.generator.http.links import Link, Tunnel, TunnelRefusedError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.http_client import HttpProxy

OPEN = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n"


@dataclass
class FakeLink:
    written: bytes = b""
    closed: bool = False

    def write(self, data: bytes) -> bool:
        self.written += data
        return True

    def came_apart(self) -> bool:
        return True

    def nothing_delivered(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


@dataclass
class Behind:
    attached: int = 0
    reads: list[tuple[bytes, int]] = field(default_factory=list)
    errors: list[Exception | None] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def attach(self, link: Link) -> None:
        self.attached += 1

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        self.reads.append((data, at_ns))

    def written(self, whole: bool) -> None:
        self.told.append("written")

    def ended(self, error: Exception | None) -> None:
        self.errors.append(error)

    def dropped(self) -> None:
        self.told.append("dropped")


def opened() -> tuple[Tunnel, FakeLink, Behind]:
    link, behind = FakeLink(), Behind()
    tunnel = Tunnel(behind, b"CONNECT a:1 HTTP/1.1\r\n\r\n")
    tunnel.attach(link)
    return tunnel, link, behind


def fed(*reads: bytes) -> tuple[FakeLink, Behind]:
    tunnel, link, behind = opened()
    for at_ns, data in enumerate(reads):
        tunnel.received(data, at_ns)
    return link, behind


@pytest.mark.parametrize("cut", range(len(OPEN) + 1))
def test_cut_at_every_byte(cut):
    link, behind = fed(*filter(None, (OPEN[:cut], OPEN[cut:])))
    assert (behind.attached, behind.reads, behind.errors, link.closed) == (1, [], [], False)


def test_what_comes_right_behind_the_answer_is_the_server_s():
    _, behind = fed(OPEN + b"\x16\x03", b"more")
    assert behind.reads == [(b"\x16\x03", 0), (b"more", 1)]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy answered 407 (Proxy"),
        (b"HTTP/1.0 502 x\r\nA: b\r\n\r\n", "the proxy answered 502 (Bad Gateway) to CONNECT"),
        (b"HTTP/1.1 999 x\r\n\r\n", "the proxy answered 999 to CONNECT"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login\r\n\r\n", "answered 302"),
        (b"HTTP/1.1 \xb2\xb3\xb9\r\n\r\n", "no answer of a proxy"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no answer of a proxy: 'SSH-2.0-OpenSSH'"),
        (b"\r\n\r\n", "no answer of a proxy"),
        (b"x" * 70_000, "no answer of a proxy"),
    ],
)
def test_any_other_answer_ends_it(answer, what):
    link, behind = fed(answer)
    assert (behind.attached, link.closed) == (0, True)
    (error,) = behind.errors
    assert isinstance(error, TunnelRefusedError)
    assert what in str(error)


def test_a_proxy_that_closes_is_an_error_and_not_an_end():
    tunnel, _, behind = opened()
    tunnel.written(whole=True)
    tunnel.ended(None)
    tunnel.dropped()
    assert "closed by the proxy" in str(behind.errors[0])
    assert behind.told == ["dropped"]


def test_a_refusal_is_told_once():
    tunnel, _, behind = opened()
    tunnel.received(b"HTTP/1.1 403 Forbidden\r\n\r\n", 0)
    tunnel.ended(None)
    assert len(behind.errors) == 1


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://engine.example/v1", b"engine.example:443"),
        ("https://engine.example:8443/v1", b"engine.example:8443"),
        ("https://[::1]:8443/v1", b"[::1]:8443"),
        ("https://b\xfccher.example/v1", b"xn--bcher-kva.example:443"),
    ],
)
def test_what_the_proxy_is_asked(url, where):
    target = Target.parse(url, proxy=HttpProxy("proxy.example", 3128, "user:pass"))
    credentials = b"Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"
    asked = b"CONNECT " + where + b" HTTP/1.1\r\nHost: " + where + b"\r\n" + credentials + b"\r\n"
    assert target.tunnel_request == asked
    assert target.peer == ("proxy.example", 3128)
    assert target.is_tunnelled


def test_plain_http_is_asked_of_the_proxy_itself():
    assert not Target.parse("http://engine.example/v1", proxy=HttpProxy("p", 3128)).is_tunnelled
    assert Target.parse("http://engine.example/v1", proxy=HttpProxy("p", 3128), http2=True).is_tunnelled
