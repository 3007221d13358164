"""The headers of requests and the ids of requests."""

from __future__ import annotations

from uuid import UUID

from pytest_llmbench.http_client import call_headers, numbered_ids, usual_headers


def test_ids_are_uuids_that_end_in_the_index() -> None:
    """Middleware of servers takes UUIDs alone."""
    id_of, other = numbered_ids(), numbered_ids()
    for index in (0, 7, 19_999, 10**12 - 1):
        said = UUID(id_of(index))
        assert str(said) == id_of(index)
        assert (said.version, said.variant) == (4, "specified in RFC 4122")
        assert int(id_of(index)[-12:]) == index
    assert len({id_of(0), id_of(1), other(0), other(1)}) == 4


def test_a_header_is_sent_once_whatever_its_case() -> None:
    given = {"user-agent": "mine/1", "X-Team": "a"}
    headers = usual_headers(given, {"ACCEPT": "application/json", "x-team": "b"})
    assert {name.lower(): value for name, value in headers.items()} == {
        "user-agent": "mine/1",
        "x-team": "b",
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    assert len(headers) == 5
    assert call_headers({"User-Agent": "mine/1"})["user-agent"] == "mine/1"
