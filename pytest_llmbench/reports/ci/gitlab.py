"""GitLab's metrics report: OpenMetrics text, shown in a merge request beside the values of the target branch.

``artifacts: reports: metrics:`` (docs.gitlab.com, "Metrics reports"). GitLab compares values **as text**, so
those that were measured are rounded to three significant digits. The form is that of OpenMetrics 1.0: no
blank line, the samples of a family together, ``# EOF`` at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_llmbench.reports.ci.figures import Figure, figures
from pytest_llmbench.reports.numbers import Entry

_FAMILIES = {
    "llmbench_value": "What was measured.",
    "llmbench_lower": "Lower end of the confidence interval.",
    "llmbench_upper": "Upper end of the confidence interval.",
    "llmbench_limit": "The limit that the test holds the metric to.",
}


def gitlab_metrics(report: Entry) -> str:
    """Four families of gauges with the labels ``metric``, ``test`` and ``unit``; limits have ``op`` beside.

    What is undefined, and an end of an interval that is open, has no sample.
    """
    found = figures(report)
    lines = []
    for family, text in _FAMILIES.items():
        lines += [f"# TYPE {family} gauge", f"# HELP {family} {text}"]
        lines += [line for figure in found for line in _samples(family, figure)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _samples(family: str, figure: Figure) -> Iterator[str]:
    labels = [("metric", figure.metric), ("test", figure.nodeid), ("unit", figure.unit)]
    if family == "llmbench_limit":
        for op, limit in figure.limits.items():
            yield f"{family}{_labels([*labels, ('op', op)])} {float(limit)!r}"
        return
    value = getattr(figure, family.removeprefix("llmbench_"))
    if value is not None:
        yield f"{family}{_labels(labels)} {float(f'{value:.3g}')!r}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
