"""Whether a server speaks HTTP/2, asked before any load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from h2.events import ConnectionTerminated
from http2_script import Peer, answers, only_http2, peers
from scripted_load import Secured
from scripted_server import ScriptedServer, plain, reply

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.http2.transport import agree_on_http2
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.endpoint import examine


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[ScriptedServer] = []

    def start(script: Any, **options: Any) -> str:
        servers.append(ScriptedServer(script, read_body=False, **options))
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def test_a_server_that_speaks_it(serve: Callable[..., str]) -> None:
    opened: list[Peer] = []
    agree_on_http2(serve(peers(answers(), opened)), Access())
    (peer,) = opened
    for _ in range(100):
        if peer.got(ConnectionTerminated):
            break
        peer.conversation.wait(0.05)
    assert peer.got(ConnectionTerminated)
    assert peer.asked == 0


def test_a_server_that_agrees_over_tls(serve: Callable[..., str], secured: Secured) -> None:
    context, ca_file = secured("http/1.1", "h2")
    agree_on_http2(serve(peers(answers()), tls=context), Access(ca_file=ca_file))


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
def test_a_server_that_does_not_agree_over_tls(
    serve: Callable[..., str], secured: Secured, protocols: tuple[str, ...]
) -> None:
    context, ca_file = secured(*protocols)
    url = serve(peers(answers()), tls=context)
    with pytest.raises(SUTError, match=r"(?s)did not accept h2 over TLS \(ALPN: none.*leave out"):
        agree_on_http2(url, Access(ca_file=ca_file))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (reply(plain("400 Bad Request")), r"answers with HTTP/1\.1 \(HTTP/1\.1 400 Bad Request\)"),
        (reply(b"SSH-2.0-OpenSSH\r\n"), "not HTTP/2: the server begins with"),
        (lambda conversation: conversation.close(), "closed the connection at its opening"),
        (lambda conversation: conversation.reset(), "no answer to the opening of a connection"),
    ],
)
def test_what_is_no_http2(serve: Callable[..., str], script: Any, said: str) -> None:
    with pytest.raises(SUTError, match=said):
        agree_on_http2(serve(script), Access())


def test_a_server_that_says_nothing(serve: Callable[..., str]) -> None:
    url = serve(lambda conversation: conversation.wait(5.0))
    with pytest.raises(SUTError, match="no answer to the opening of a connection"):
        agree_on_http2(url, Access(answer_s=0.2))


def test_a_query_of_the_url_is_not_repeated(serve: Callable[..., str]) -> None:
    url = serve(reply(plain("400 Bad Request")))
    with pytest.raises(SUTError) as caught:
        agree_on_http2(f"{url}?key=secret", Access())
    assert "secret" not in str(caught.value)


def test_a_port_that_speaks_nothing_else_is_examined_over_it(serve: Callable[..., str]) -> None:
    url = serve(only_http2)
    seen = examine(url, access=Access(http2=True))
    assert (seen.base_url, seen.model, seen.api) == (url, "m", "openai-chat")


def test_where_the_load_goes_over_http1_the_way_out_is_named(serve: Callable[..., str]) -> None:
    with pytest.raises(SUTError, match=r"(?s)speaks HTTP/2 and no HTTP/1\.1.*--llm-http=2.*grpc://127"):
        examine(serve(only_http2))


@pytest.mark.parametrize("protocols", [("h2",), ("h2", "http/1.1")])
def test_over_tls_it_is_asked_by_what_was_agreed(
    serve: Callable[..., str], secured: Secured, protocols: tuple[str, ...]
) -> None:
    context, ca_file = secured(*protocols)
    url = serve(only_http2, tls=context)
    assert examine(url, access=Access(ca_file=ca_file, http2=True)).model == "m"
