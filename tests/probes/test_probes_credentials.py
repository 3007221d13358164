"""Keys come from the environment or a file, mistakes are told together, and no value is ever shown."""

from __future__ import annotations

import os

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.probes.access import read_credentials
from pytest_llmbench.redaction import outward

CANARY = "sk-canary-0123456789"


def refused(*args: object, **kwargs: object) -> str:
    with pytest.raises(SuiteError) as caught:
        read_credentials(*args, **kwargs)
    assert CANARY not in str(caught.value)
    return str(caught.value)


def test_no_key_is_fine():
    nothing = read_credentials({})
    assert nothing.headers == {}
    assert nothing.secrets == frozenset()
    assert nothing.source == ""


@pytest.mark.parametrize("variable", ["LLM_API_KEY", "OPENAI_API_KEY"])
def test_the_usual_variables(variable):
    found = read_credentials({variable: f" {CANARY}\n"})
    assert found.headers == {"Authorization": f"Bearer {CANARY}"}
    assert CANARY in found.secrets
    assert found.source == f"environment variable {variable}"


def test_our_own_variable_comes_first_and_an_empty_one_is_none():
    both = {"LLM_API_KEY": CANARY, "OPENAI_API_KEY": "other-key"}
    assert read_credentials(both).headers == {"Authorization": f"Bearer {CANARY}"}
    assert read_credentials(both | {"LLM_API_KEY": ""}).headers == {"Authorization": "Bearer other-key"}


def test_a_named_variable():
    environ = {"MINE": CANARY, "LLM_API_KEY": "another-key"}
    found = read_credentials(environ, key_env="MINE")
    assert found.headers == {"Authorization": f"Bearer {CANARY}"}
    assert "environment variable MINE with the API key is not set" in refused({}, key_env="MINE")


def test_a_key_file(tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{CANARY}\n")
    found = read_credentials({"LLM_API_KEY": "another-key"}, key_file=file)
    assert found.headers == {"Authorization": f"Bearer {CANARY}"}
    assert found.source == f"file {file}"


@pytest.mark.parametrize("content", ["", " \n", f"{CANARY}\nsecond line", "schlüssel"])
def test_a_key_file_that_holds_no_key(tmp_path, content):
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    assert str(file) in refused({}, key_file=file)


def test_a_key_file_that_cannot_be_read(tmp_path):
    assert "cannot be read: No such file" in refused({}, key_file=tmp_path / "none")
    binary = tmp_path / "key"
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in refused({}, key_file=binary)


def test_further_headers_from_variables():
    environ = {"TENANT": "tenant-0815", "GATE": CANARY}
    found = read_credentials(environ, header_env={"x-tenant": "TENANT", "api-key": "GATE"})
    assert found.headers == {"x-tenant": "tenant-0815", "api-key": CANARY}
    assert found.secrets == {"tenant-0815", CANARY}


def test_a_header_of_its_own_takes_the_place_of_the_usual_key():
    environ = {"LLM_API_KEY": "unused-key", "AUTH": f"Basic {CANARY}"}
    found = read_credentials(environ, header_env={"authorization": "AUTH"})
    assert found.headers == {"authorization": f"Basic {CANARY}"}
    assert found.secrets == {f"Basic {CANARY}", CANARY}
    assert "AUTH" in found.source


def test_all_mistakes_are_told_together(tmp_path):
    message = refused(
        {"BAD": f"{CANARY}\r\nx-evil: 1"},
        key_file=tmp_path / "none",
        header_env={"one": "MISSING", "two": "BAD"},
    )
    assert "3 mistakes" in message
    assert "environment variable MISSING, for header one, is not set" in message
    assert "environment variable BAD, for header two, holds more than one line" in message


def test_two_sources_contradict_each_other(tmp_path):
    message = refused({"A": CANARY}, key_env="A", key_file=tmp_path / "key")
    assert "choose one" in message
    message = refused({"A": CANARY, "B": CANARY}, key_env="A", header_env={"Authorization": "B"})
    assert "choose one" in message


def test_nothing_shows_the_key():
    found = read_credentials({"LLM_API_KEY": CANARY})
    assert CANARY not in repr(found)
    assert CANARY not in f"{found}"
    assert "LLM_API_KEY" in repr(found)


def test_what_is_read_leaves_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT", f"Basic {CANARY}")
    read_credentials(os.environ, header_env={"X-Tenant": "TENANT"})
    assert outward(f"sent Basic {CANARY}, x and {CANARY}!") == "sent [redacted], x and [redacted]!"
