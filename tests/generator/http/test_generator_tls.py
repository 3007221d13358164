"""TLS: verified by default, the same instants as without, failures with their cause."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from planned_load import TextWorkload
from scripted_server import HEAD, REPLY, STREAM, Conversation, reply

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.http_client import ClientCertificate
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.records import MISSING


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def test_requests_over_tls(serve, generator_for, plan, loop_factory, server_context, ca_file):
    def script(conversation: Conversation) -> None:
        for start in range(0, len(REPLY), 50):
            conversation.send(REPLY[start : start + 50])

    server = serve(script, tls=server_context)
    target = Target.parse(server.url, ca_file=ca_file)
    seen = generator_for(server, target=target, loop_factory=loop_factory).run(plan(20, load=ClosedLoop(3)))
    assert seen.records.counts()["ok"] == 20
    assert server.accepted == 3
    assert (seen.records.submitted_ns < seen.records.first_byte_ns).all()


def test_a_certificate_is_shown_to_a_server_that_demands_one(serve, generator_for, plan, authority, ca_file):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    own = ca_file.with_name("own.pem")
    own.write_bytes(authority.issue_cert("tester@example.org").private_key_and_cert_chain_pem.bytes())
    server = serve(reply(REPLY), tls=context)
    address = Address(server.url, ca_file=ca_file, client=ClientCertificate(own))
    seen = generator_for(server, target=address.target()).run(plan(4, load=ClosedLoop(2)))
    assert seen.records.counts()["ok"] == 4


def test_submitted_when_the_last_byte_has_left_over_tls(
    serve, generator_for, plan, loop_factory, server_context, ca_file
):
    """Ciphertext that waits in our process has not left it."""

    def script(conversation: Conversation) -> None:
        conversation.wait(0.3)
        conversation.read_body()
        conversation.send(REPLY)

    server = serve(script, tls=server_context, read_body=False, receive_buffer=1 << 16)
    generator = generator_for(
        server, target=Target.parse(server.url, ca_file=ca_file), loop_factory=loop_factory
    )
    seen = generator.run(plan(1, workload=TextWorkload(text="x" * 12_000_000)))
    assert seen.records.counts()["ok"] == 1
    assert seen.records.submitted_ns[0] - seen.records.dispatched_ns[0] > 250_000_000
    assert seen.records.submitted_ns[0] < seen.records.first_byte_ns[0]


def test_a_body_that_ends_with_the_tls_connection(
    serve, generator_for, plan, loop_factory, server_context, ca_file
):
    """The server says that it sends no more (close_notify) and leaves the socket open."""

    def script(conversation: Conversation) -> None:
        head = HEAD.replace(b"Transfer-Encoding: chunked", b"Connection: close")
        conversation.send(head + b"".join(STREAM))
        try:
            conversation.sock.unwrap()  # type: ignore[attr-defined]
        finally:
            conversation.wait(60)

    server = serve(script, tls=server_context)
    generator = generator_for(
        server, target=Target.parse(server.url, ca_file=ca_file), loop_factory=loop_factory
    )
    seen = generator.run(plan(1))
    assert seen.records.counts()["ok"] == 1
    assert seen.duration_s < 50


def test_an_unknown_authority_is_refused(serve, generator_for, plan, loop_factory, server_context):
    server = serve(reply(REPLY), tls=server_context)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(2))
    assert seen.records.counts()["disconnected"] == 2
    assert "CERTIFICATE_VERIFY_FAILED" in (seen.records.error[0] or "")
    assert seen.records.submitted_ns[0] == MISSING


def test_another_name_in_the_certificate_is_refused(serve, generator_for, plan, authority, ca_file):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    server = serve(reply(REPLY), tls=context)
    target = Target.parse(server.url, ca_file=ca_file)
    seen = generator_for(server, target=target).run(plan(1))
    assert "CERTIFICATE_VERIFY_FAILED" in (seen.records.error[0] or "")


def test_insecure_does_not_ask(serve, generator_for, plan, server_context):
    server = serve(reply(REPLY), tls=server_context)
    target = Target.parse(server.url, insecure=True)
    assert generator_for(server, target=target).run(plan(2)).records.counts()["ok"] == 2


def test_a_plain_server_behind_https(serve, generator_for, plan, loop_factory):
    server = serve(reply(REPLY), greet=lambda conversation: conversation.send(b"220 hello there\r\n"))
    generator = generator_for(server.url.replace("http:", "https:"), loop_factory=loop_factory)
    seen = generator.run(plan(1))
    assert seen.records.counts()["disconnected"] == 1
    assert "[SSL" in (seen.records.error[0] or "")
