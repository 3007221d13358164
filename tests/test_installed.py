"""The versions of installed distributions."""

from __future__ import annotations

from importlib.metadata import distributions, version

from pytest_llmbench.installed import installed_version


def test_every_distribution_has_the_version_that_the_library_tells() -> None:
    names = {each.metadata["Name"] for each in distributions()}
    assert len(names) > 20
    assert {name: installed_version(name) for name in names} == {name: version(name) for name in names}


def test_one_that_is_not_installed_has_none() -> None:
    assert installed_version("no-such-distribution-anywhere") is None
