"""Whether records are the same, column by column."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from pytest_llmbench.model.records import Records


def same(one: Records, other: Records) -> None:
    """Equal in every column, whatever holds its values; numbers also in their type."""
    for column in fields(Records):
        left, right = getattr(one, column.name), getattr(other, column.name)
        assert list(left) == list(right), column.name
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, column.name
