"""Preflight where no connection comes about: DNS, ports, timeouts, TLS, proxies, and what is no URL."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import struct
import threading

import pytest
import trustme
from canned_http import HTML, Canned, told
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.http_client import ClientCertificate, HttpProxy, client_context
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import ControlPlane, is_loopback, proxy_for
from pytest_llmbench.probes.endpoint import examine

CANARY = "sk-canary-0123456789"
HASTY = Access(connect_s=0.5, answer_s=0.5)


# --- nobody there


def test_a_host_that_does_not_exist():
    message = told(SUTError, "http://no-such-host.invalid:8000/v1")
    assert "no-such-host.invalid cannot be resolved" in message
    assert "http://no-such-host.invalid:8000/v1/models" in message
    assert "check the host name" in message


def test_a_port_that_nobody_listens_on():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    message = told(SUTError, f"http://127.0.0.1:{port}/v1")
    assert "connection refused" in message
    assert f"http://127.0.0.1:{port}/v1/models" in message
    assert "correct the port" in message


def test_a_host_that_drops_connections():
    """A full backlog: the kernel drops further SYNs, as a firewall would."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = []
        for _ in range(4):
            extra = socket.socket()
            extra.setblocking(False)
            extra.connect_ex(full.getsockname())
            waiting.append(extra)
        message = told(SUTError, f"http://127.0.0.1:{full.getsockname()[1]}", access=HASTY)
        for extra in waiting:
            extra.close()
    assert "no connection within 0.5 s" in message
    assert "firewall" in message


def test_a_server_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = told(SUTError, f"http://127.0.0.1:{silent.getsockname()[1]}", access=HASTY)
    assert "no answer within 0.5 s" in message
    assert "loaded its model" in message


def test_garbage_instead_of_http():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        message = told(SUTError, f"http://127.0.0.1:{listener.getsockname()[1]}", access=HASTY)
        thread.join(5)
    assert "no HTTP answer" in message
    assert "TLS" not in message


# --- servers that end connections


def answering(data: bytes, *more: bytes) -> tuple[str, threading.Thread]:
    """A server that answers whatever comes over its connections, one after the other, so, and ends them."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener:
            for each in (data, *more):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(each)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1", thread


SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("second", "told_so"), [(SETTINGS, True), (b"HTTP/1.1 400 Bad Request\r\n\r\n", False), (b"", False)]
)
def test_a_port_that_speaks_http2_only(second: bytes, told_so: bool) -> None:
    url, thread = answering(SETTINGS, b"", second)  # to HTTP/1.1, to TLS, to HTTP/2
    message = told(SUTError, url)
    thread.join(5)
    assert ("the port speaks HTTP/2 and no HTTP/1.1" in message) is told_so
    assert ("--llm-http=2" in message) is told_so


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked", "6\r\ndata: \r\n"),
        ("Content-Type: text/event-stream\r\nContent-Length: 100", "data: "),
        ("Content-Type: application/json\r\nContent-Length: 100", ""),
    ],
)
def test_an_answer_that_is_cut_is_an_answer(head: str, body: str) -> None:
    cut = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}".encode()
    url, _ = answering(cut)
    message = told(SUTError, url)
    assert f"HTTP 200, and after {6 if body else 0} bytes of the answer the connection ended" in message
    assert "no HTTP answer" not in message


class Abrupt:
    """Answers by path, as over a connection that is kept; what it does instead of answering stands there too.

    ``"end"`` and ``"reset"`` end the connection without an answer. After an error response the next request
    on the same connection is met with a reset, unannounced.
    """

    def __init__(self, answers: dict[str, bytes | str]) -> None:
        self.answers = answers
        self.connections = 0
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        failed = False
        while asked := connection.recv(65536):
            path = asked.decode(errors="replace").partition(" ")[2].partition(" ")[0]
            answer = "reset" if failed else self.answers.get(path, "end")
            if isinstance(answer, str):
                if answer == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            self.requests.append(path)
            failed = not answer.startswith(b"HTTP/1.1 200")
            connection.sendall(answer)


def answered(status: str, body: str, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


LISTED = answered("200 OK", '{"data": [{"id": "m"}]}')
STREAMED = answered(
    "200 OK",
    'data: {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
    "text/event-stream",
)
MISSING = answered("404 Not Found", '{"error": "no"}')


def test_a_connection_that_ends_after_an_error_is_replaced():
    server = Abrupt(
        {"/v1/models": LISTED, "/v1/chat/completions": MISSING, "/v1/completions": STREAMED},
    )
    with server as url:
        assert examine(url).api == "openai-completions"
    assert server.requests == ["/v1/models", "/v1/chat/completions", "/v1/completions"]
    assert server.connections > 1


def test_a_request_is_sent_no_more_than_once_again():
    server = Abrupt({"/v1/models": LISTED, "/v1/chat/completions": "reset"})
    with server as url:
        message = told(SUTError, url)
    assert server.connections == 2
    assert "/v1/chat/completions: connected, but no HTTP answer" in message


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_model_list_that_never_comes_names_the_option_and_not_tls(how):
    with Abrupt({"/v1/models": how}) as url:
        message = told(SUTError, url)
    assert "connected, but no HTTP answer" in message
    assert "--llm-model" in message
    assert "TLS" not in message
    assert "https" not in message


@pytest.mark.parametrize("listing", ["end", MISSING, answered("500 Internal Server Error", "{}")])
def test_without_an_answer_for_the_list_a_named_model_will_do(listing):
    with Abrupt({"/v1/models": listing, "/v1/chat/completions": MISSING, "/v1/completions": STREAMED}) as url:
        assert examine(url, model="mine").model == "mine"


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "400 Bad Request"])
def test_a_model_list_that_fails_names_the_option(status):
    with Abrupt({"/v1/models": answered(status, '{"error": "no"}')}) as url:
        assert "name the model: --llm-model" in told(SUTError, url)


# --- TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def server_context(authority, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority, tmp_path):
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


def test_a_trusted_certificate(serve, engine, authority, ca_file):
    server = serve(engine, tls=server_context(authority, "127.0.0.1"))
    report = examine(f"https://127.0.0.1:{server.port}", access=Access(ca_file=ca_file))
    assert report.base_url == f"https://127.0.0.1:{server.port}/v1"
    assert report.facts.value("endpoint.certificate_checked") is True


def test_one_control_plane_asks_over_plain_http_and_checks_over_tls(serve, engine, authority, ca_file):
    plain, secure = serve(engine), serve(engine, tls=server_context(authority, "127.0.0.1"))
    url = f"http://127.0.0.1:{plain.port}"
    with ControlPlane(url, Access(ca_file=ca_file)) as control:
        assert control.get(f"{url}/v1/models").status == 200
        assert control.get(f"https://127.0.0.1:{secure.port}/v1/models").status == 200
    with ControlPlane(url, Access()) as control:
        assert control.get(f"{url}/v1/models").status == 200
        with pytest.raises(SUTError, match="certificate is not trusted"):
            control.get(f"https://127.0.0.1:{secure.port}/v1/models")


def test_a_ca_file_that_cannot_be_used_is_told_where_nothing_speaks_tls(tmp_path):
    with pytest.raises(SuiteError, match=r"none\.pem"):
        ControlPlane("http://127.0.0.1:1/v1", Access(ca_file=tmp_path / "none.pem"))


def test_a_certificate_nobody_vouches_for(serve, engine, authority):
    server = serve(engine, tls=server_context(authority, "127.0.0.1"))
    message = told(SUTError, f"https://127.0.0.1:{server.port}")
    assert "certificate is not trusted" in message
    assert "ca_file" in message
    assert "insecure" in message


def test_a_certificate_that_is_not_checked(serve, engine, authority):
    server = serve(engine, tls=server_context(authority, "127.0.0.1"))
    report = examine(f"https://127.0.0.1:{server.port}", access=Access(insecure=True))
    assert report.facts.value("endpoint.certificate_checked") is False


def test_a_certificate_for_another_name(serve, engine, authority, ca_file):
    server = serve(engine, tls=server_context(authority, "llm.example.org"))
    message = told(SUTError, f"https://127.0.0.1:{server.port}", access=Access(ca_file=ca_file))
    assert "mismatch" in message
    assert "use the host name that the certificate is for" in message


def out_of_date(authority, begins, ends):
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued = authority.issue_cert("127.0.0.1", not_before=now + begins * day, not_after=now + ends * day)
    issued.configure_cert(context)
    return context


@pytest.mark.parametrize(
    ("begins", "ends", "told_of"), [(-3, -1, "has expired"), (1, 3, "is not valid yet")], ids=["old", "new"]
)
def test_a_certificate_out_of_its_time(serve, engine, authority, ca_file, begins, ends, told_of):
    """No other authority helps there."""
    server = serve(engine, tls=out_of_date(authority, begins, ends))
    message = told(SUTError, f"https://127.0.0.1:{server.port}", access=Access(ca_file=ca_file))
    assert f"the server's certificate {told_of}" in message
    assert "clock of this machine" in message
    assert "ca_file" not in message
    assert "--llm-insecure" in message


def test_a_certificate_that_signs_itself(serve, engine, tmp_path):
    own = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "own.pem").write_bytes(own.cert_pem.bytes() + own.private_key_pem.bytes())
    context.load_cert_chain(tmp_path / "own.pem")
    server = serve(engine, tls=context)
    message = told(SUTError, f"https://127.0.0.1:{server.port}")
    assert "the server's certificate is signed by itself" in message
    assert "SSL_CERT_FILE" in message


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_of_the_client_that_is_demanded(serve, engine, authority, ca_file, version):
    context = server_context(authority, "127.0.0.1")
    context.minimum_version = context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    server = serve(engine, tls=context)
    message = told(SUTError, f"https://127.0.0.1:{server.port}", access=Access(ca_file=ca_file))
    assert "demand a certificate of its client" in message.replace("demands", "demand")
    assert "plain HTTP" not in message
    assert "client_cert_file" in message


@pytest.fixture
def demanding(authority):
    context = server_context(authority, "127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("apart", [False, True])
def test_a_certificate_of_the_client_that_is_shown(
    serve, engine, authority, ca_file, demanding, tmp_path, apart
):
    own = authority.issue_cert("tester@example.org")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    cert, key = tmp_path / "own.pem", tmp_path / "own.key"
    cert.write_bytes(chain if apart else chain + own.private_key_pem.bytes())
    key.write_bytes(own.private_key_pem.bytes())
    client = ClientCertificate(cert, key if apart else None)
    server = serve(engine, tls=demanding)
    report = examine(f"https://127.0.0.1:{server.port}", access=Access(ca_file=ca_file, client=client))
    assert report.model == "org/small-model"


@pytest.mark.parametrize("content", [None, b"no certificate", "encrypted"])
def test_a_certificate_of_the_client_that_cannot_be_used(tmp_path, content):
    """Least of all is a password asked for at the terminal."""
    cert = tmp_path / "own.pem"
    if content == "encrypted":
        own = trustme.CA().issue_cert("tester@example.org")
        key = load_pem_private_key(own.private_key_pem.bytes(), None)
        sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
        cert.write_bytes(own.cert_chain_pems[0].bytes() + sealed)
    elif content is not None:
        cert.write_bytes(content)
    with pytest.raises(SuiteError, match="the client certificate cannot be used") as caught:
        client_context(client=ClientCertificate(cert))
    assert caught.value.where == str(cert)
    assert "client_key_file" in str(caught.value)


def test_authorities_of_the_environment(serve, engine, authority, ca_file, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    server = serve(engine, tls=server_context(authority, "127.0.0.1"))
    report = examine(f"https://127.0.0.1:{server.port}")
    assert report.facts.value("endpoint.certificate_checked") is True


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_of_authorities_that_holds_none_trusts_nobody(tmp_path, content):
    """Least of all those of the system."""
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(OSError, match="certificate"):
        client_context(tmp_path / "ca.pem")


def test_tls_to_a_plain_port(serve, engine):
    server = serve(engine)
    message = told(SUTError, f"https://127.0.0.1:{server.port}/v1")
    assert "TLS: the handshake failed" in message
    assert f"use http://127.0.0.1:{server.port}" in message


def test_plain_http_to_a_tls_port(serve, engine, authority):
    server = serve(engine, tls=server_context(authority, "127.0.0.1"))
    message = told(SUTError, f"http://127.0.0.1:{server.port}/v1")
    assert "the port speaks TLS" in message
    assert f"write https://127.0.0.1:{server.port}/v1" in message


def test_a_server_that_asks_for_https_in_words(serve, engine):
    page = b"<html><title>400</title>The plain HTTP request was sent to HTTPS port</html>"
    server = serve({"GET /v1/models": Canned(400, dict(HTML), page)})
    message = told(SUTError, server.url)
    assert f"write https://127.0.0.1:{server.port}/v1" in message


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used(tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    message = told(SuiteError, "https://127.0.0.1:1", access=Access(ca_file=file))
    assert f"CA file {file}" in message


# --- settings that cannot be right


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:8000",
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:99999",
        "http://[::1",
        "",
        "v1",
    ],
)
def test_what_is_no_url(endpoint):
    message = told(SuiteError, endpoint)
    assert "is not a URL of an HTTP endpoint" in message
    assert "http://localhost:8000/v1" in message


def test_credentials_in_the_url_are_refused_and_not_repeated():
    message = told(SuiteError, f"https://user:{CANARY}@llm.example.org/v1")
    assert "holds credentials" in message
    assert CANARY not in message
    assert "LLM_API_KEY" in message


def test_an_unknown_dialect(serve, engine):
    assert "openai-chat" in told(SuiteError, serve(engine).url, api="openai-chta")


# --- proxies


def test_loopback_never_goes_through_a_proxy(serve, engine, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    assert examine(serve(engine).url).proxy is None
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.5", "::1", "sim.localhost"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "localhost.example.org", "example.org"))


def test_another_host_goes_through_the_proxy_of_the_environment(serve, engine, monkeypatch):
    server = serve(engine)
    monkeypatch.setenv("http_proxy", f"http://user:{CANARY}@127.0.0.1:{server.port}")
    report = examine("http://sut.invalid/v1")
    assert server.seen[0].path == "http://sut.invalid/v1/models"
    assert report.proxy == f"http://127.0.0.1:{server.port}"
    assert report.facts.value("endpoint.proxy") == f"http://127.0.0.1:{server.port}"
    assert CANARY not in str(report)


def test_a_proxy_that_is_down_is_named(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://user:{CANARY}@127.0.0.1:9")
    message = told(SUTError, "http://sut.invalid/v1")
    assert "through the proxy http://127.0.0.1:9" in message
    assert "NO_PROXY" in message
    assert CANARY not in message


def test_which_proxy_is_used(monkeypatch):
    monkeypatch.setenv("https_proxy", "proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "inside.example.org")
    assert proxy_for("https://outside.example.org/v1") == HttpProxy("proxy.example.org", 3128)
    assert proxy_for("https://inside.example.org/v1") is None
    assert proxy_for("http://outside.example.org/v1") is None
    monkeypatch.setenv("all_proxy", "socks5://proxy.example.org:1080")
    with pytest.raises(SuiteError, match=r"of the environment, socks5.*only http:// is spoken"):
        proxy_for("http://outside.example.org/v1")
