"""Options of a session, validated in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.procedure import Scale

DEFAULT_SEED = 42
"""The draft's own default (METHODOLOGY §4.3)."""


class Settings(BaseModel):
    """Command line and ini file. Field ``x_y`` is option ``--llm-x-y`` and ini ``llm_x_y``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = None
    model: str | None = None
    api: str = "auto"
    sut: Path | None = None
    scale: Scale = "standard"
    plan: bool = False
    report: Path | None = None
    runs: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0)
    inconclusive: Literal["fail", "pass"] = "fail"
    require: bool = False
    api_key_file: Path | None = None
    workloads: Path | None = None
    export_sequence: bool = False
    allow_overload: bool = False
    workers: int = Field(default=1, ge=1)

    @field_validator("workers", mode="before")
    @classmethod
    def _workers_are_of_this_host(cls, given: Any) -> Any:
        if isinstance(given, str) and given.strip().lower().partition(":")[0] == "ray":
            raise ValueError("Ray is not supported yet: give a number of worker processes on this host")
        return given

    @model_validator(mode="after")
    def _sequences_need_a_place(self) -> Self:
        if self.export_sequence and self.report is None:
            raise ValueError("needs --llm-report, the directory that the sequences are written into")
        return self

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from raw option values; SuiteError with every mistake and the option's name."""
        try:
            return cls(**{name: value for name, value in options.items() if value not in (None, "")})
        except ValidationError as error:
            raise SuiteError.from_mistakes([_explain(detail) for detail in error.errors()]) from None


def _explain(detail: Any) -> str:
    if not detail["loc"]:  # of several options together; so far there is one such rule
        return f"--llm-export-sequence {detail['ctx']['error']}"
    option = "--llm-" + str(detail["loc"][0]).replace("_", "-")
    return f"{option}: {detail['msg'].lower()}, got {detail['input']!r}"


__all__ = ["DEFAULT_SEED", "Settings"]
