"""What every object of the report is made of: the base of the models, instants, numbers with intervals."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pytest_llmbench.store.plain import plain_number


def _finite(value: object) -> object:
    return plain_number(value) if isinstance(value, int | float) else value


Finite = Annotated[float | None, BeforeValidator(_finite)]
"""``null`` also for what is no finite number: a check must not cost the report because of what it saw."""
Instant = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class Shape(BaseModel):
    """Base of every object in the report: nothing unknown, nothing infinite, nothing changed later.

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


class Metric(Shape):
    """A number with its interval. ``null`` as point: undefined; as an end: the interval is open there."""

    point: float | None
    lower: float | None
    upper: float | None
    level: float
    """Confidence level, 0 to 1."""
    n: int
    """Samples the estimate rests on."""
    method: str
    """How the interval was found; of an undefined number why: ``not measurable: no server data``."""
    unit: str
    n_required: int | None = None
    """Samples from which on the interval closes on both sides, if it is open for want of them."""
    too_high_by: float = 0.0
    """By how much the measuring machine may have made every number of this too high, in its unit."""
    too_low_by: float = 0.0
    """The same for too low."""
