"""What a report says of its session beside the tests: the program, its host, the system, what is missing."""

from __future__ import annotations

from pydantic import Field, JsonValue, field_validator

from pytest_llmbench.model.facts import Origin
from pytest_llmbench.redaction import without_credentials
from pytest_llmbench.store.shape import Shape

DRAFT = "draft-gaikwad-llm-benchmarking-methodology-00"


class FactEntry(Shape):
    """One declared, detected or measured fact."""

    value: JsonValue
    origin: Origin
    source: str = ""
    """Where exactly: a file, a URL, a header."""


class Generator(Shape):
    """The program that wrote the report."""

    name: str = "pytest-llmbench"
    version: str
    draft: str = DRAFT


class Environment(Shape):
    """Where the load generator ran."""

    python: str
    implementation: str
    platform: str
    machine: str
    cpu_count: int | None
    packages: dict[str, str] = Field(default={})
    """Installed version of each package that takes part in the measurement."""
    command: list[str] = Field(default=[])
    settings: dict[str, JsonValue] = Field(default={})
    """The options in force, without secrets."""


class Sut(Shape):
    """The system under test."""

    endpoint: str
    """Without credentials."""
    model: str | None
    api: str | None
    facts: dict[str, FactEntry] = Field(default={})

    @field_validator("endpoint")
    @classmethod
    def _without_credentials(cls, endpoint: str) -> str:
        return without_credentials(endpoint)


class UnfinishedTest(Shape):
    """A test that had begun and has no result."""

    nodeid: str
    records_files: list[str] = Field(default=[])
    """Relative to the report: what was measured of it."""


class IncompleteEntry(Shape):
    """A session that did not come to its end: what its report lacks."""

    why: str
    unfinished: list[UnfinishedTest] = Field(default=[])
    not_begun: list[str] = Field(default=[])
    """Node ids of the load tests that were still to come; with pytest-xdist of all tests."""
    damaged_lines: int = 0
    """Of the journal that the report was recovered from."""
