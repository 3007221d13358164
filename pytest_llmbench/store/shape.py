"""What every object of the report is made of: the base of the models, and instants."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Instant = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class Shape(BaseModel):
    """Base of every object in the report: nothing unknown, nothing infinite, nothing changed later.

    A field may be a dataclass of ``model/``, which takes on this configuration when it is read from a file.
    One with a field of any JSON value has a model of its own: half a surrogate pair, which a server may have
    sent, survives in ``JsonValue`` and costs the report in ``Any``. So has one with defaults that a file may
    not leave out.

    A validator is built when it is first used: no session waits for it before its first request. Attribute
    docstrings are read where the schema is published (``store/schema.py``).
    """

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )
