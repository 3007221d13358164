"""Measured requests as arrays for analysis: an entry for each request, whatever became of it.

What was not observed is NaN in an array of numbers, None in one of texts, and -1 in instants (``…_ns``),
which as floats would not keep their nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.latency import FAMILIES, FloatArray, per_request
from pytest_llmbench.model import records
from pytest_llmbench.model.records import IN_RAGGED, KINDS, MISSING, BoolColumn, IntColumn, Records

if TYPE_CHECKING:
    import pandas as pd

TextColumn = npt.NDArray[np.object_]
NO_PANDAS = "pip install 'pytest-llmbench[pandas]', or use the arrays"

LATENCIES = tuple(f"{family}_ms" for family in FAMILIES)
"""The latency columns in milliseconds, defined as the metrics of the same name; NaN for a request that has
none."""
TEXTS = frozenset(("label", *KINDS, *records.TEXTS))
COLUMNS = (
    "load",
    "label",
    *(name for name in Records.__dataclass_fields__ if name not in IN_RAGGED),
    "ok",
    *LATENCIES,
)
"""Names of all columns with one entry per request, as in the records file."""


class LoadRequests(NamedTuple):
    """The requests of one load."""

    load: int
    """Index of the load among the loads of its test."""
    label: str
    records: Records


class RequestTable:
    """Requests in the order of their loads, in each as submitted.

    A column is an attribute, or an item by its name: ``table.ttft_ms``, ``table["output_tokens"]``.
    """

    ok: BoolColumn
    """Whether each request ended well; latencies have only those."""
    label: TextColumn
    """The label of the load that each request belongs to: ``run 1 of 3``, ``90% of saturation``."""
    load: IntColumn
    """Index of each request's load in the ``loads`` of the test; tells loads with the same label apart."""
    outcome: TextColumn
    ttft_ms: FloatArray
    tpot_ms: FloatArray
    e2e_ms: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray

    def __init__(self, parts: Sequence[LoadRequests]) -> None:
        self.records = Records.concatenate([part.records for part in parts])
        """The requests as the metrics of this package take them."""
        self._parts = parts
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<RequestTable of {len(self)} requests>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *COLUMNS]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in COLUMNS:
            raise KeyError(f"{name}; there are: {', '.join(COLUMNS)}")
        if name not in self._columns:
            self._columns[name] = self._column(name)
            self._columns[name].setflags(write=False)
        return self._columns[name]

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        if name not in COLUMNS:
            raise AttributeError(f"no column is called {name!r}; there are: {', '.join(COLUMNS)}")
        return self[name]

    @cached_property
    def chunk_ns(self) -> list[IntColumn]:
        """The instants of the content chunks of each request, in nanoseconds."""
        return np.split(self.records.chunk_ns, self.records.chunk_offsets[1:-1]) if len(self) else []

    @cached_property
    def chunk_tokens(self) -> list[IntColumn]:
        """The tokens of each of those chunks; -1 where they are not known."""
        return np.split(self.records.chunk_tokens, self.records.chunk_offsets[1:-1]) if len(self) else []

    def select(self, mask: npt.ArrayLike) -> RequestTable:
        """The requests where ``mask`` is true: ``table.select(table.input_tokens > 1000)``."""
        kept = np.asarray(mask, dtype=bool)
        if kept.shape != (len(self),):
            raise ValueError(f"a mask of {len(self)} requests is needed, not one of shape {kept.shape}")
        parts, first = [], 0
        for part in self._parts:
            last = first + len(part.records)
            parts.append(part._replace(records=part.records.select(kept[first:last])))
            first = last
        return RequestTable(parts)

    def to_frame(self) -> pd.DataFrame:
        """A row for each request. Instants that were not observed are ``<NA>``. SuiteError without pandas."""
        pandas = import_pandas()
        columns: dict[str, Any] = {name: self[name] for name in COLUMNS}
        for name in COLUMNS:
            if name.endswith("_ns"):
                own = self[name]
                columns[name] = pandas.arrays.IntegerArray(own.copy(), own == MISSING)
        return pandas.DataFrame(columns)

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name == "label":
            return _texts([part.label for part in self._parts for _ in range(len(part.records))])
        if name == "load":
            counts = [len(part.records) for part in self._parts]
            return np.repeat(np.array([part.load for part in self._parts], dtype=np.int64), counts)
        if name == "ok":
            return self.records.ok.copy()
        if name in LATENCIES:
            return per_request(name.removesuffix("_ms"), self.records)
        if name in KINDS:
            codes: npt.NDArray[np.int8] = getattr(self.records, name)
            return _texts([str(kind) for kind in KINDS[name]])[codes]
        own: Any = getattr(self.records, name)
        if name in TEXTS:
            return _texts(own)
        if name == "index" or name.endswith("_ns"):
            return np.array(own)
        numbers: FloatArray = np.where(own == MISSING, np.nan, own.astype(np.float64))
        return numbers


def _texts(values: Sequence[Any]) -> TextColumn:
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column


def import_pandas() -> Any:
    """The module pandas. SuiteError, which says how to get it, where it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise SuiteError("data frames need pandas, which is not installed", remedy=NO_PANDAS) from error
    return pandas
