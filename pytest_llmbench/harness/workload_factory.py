"""What the ``llm_workload`` fixture calls: a named workload, or one with lengths of one's own."""

from __future__ import annotations

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

Lengths = int | tuple[int, int] | Fixed | Uniform


def make_workload(
    name: str | Workload = "synthetic-uniform",
    *,
    input_tokens: Lengths | None = None,
    output_tokens: Lengths | None = None,
) -> Workload:
    """A workload by name; with lengths, a custom synthetic one (a number is fixed, a pair is uniform)."""
    if input_tokens is None and output_tokens is None:
        return workload(name)
    if input_tokens is None or output_tokens is None:
        raise SuiteError("a custom workload needs both input_tokens and output_tokens", where="llm_workload")
    label = name if isinstance(name, str) and name != "synthetic-uniform" else "custom"
    return SyntheticWorkload(label, _law(input_tokens), _law(output_tokens))


def _law(lengths: Lengths) -> Fixed | Uniform:
    if isinstance(lengths, Fixed | Uniform):
        return lengths
    return Fixed(lengths) if isinstance(lengths, int) else Uniform(*lengths)


__all__ = ["make_workload"]
