"""What the TTFT report contains: configuration summary, tables and plot (section 5.1.5)."""

from __future__ import annotations

import re

from pytest_llmbench.compliance.checks.registry import Checks
from pytest_llmbench.compliance.look import Answer, Look
from pytest_llmbench.compliance.stored import row_of

check = Checks()

_ROWS = ("Requests", "p50", "p90", "p95", "p99", "p99_9", "mean", "min", "max")
_SEPARATOR = re.compile("(?<=\\d)[,_ '\u00a0\u202f](?=\\d{3})")
_DURATION = re.compile(r"\d\s*(s|min|h)\b")


def _shows(look: Look, item: str, *wanted: object) -> Answer:
    """The summary's item names every one of the wanted values, numbers as whole numbers."""
    text = _SEPARATOR.sub("", look.configuration(item)).lower()
    absent = [str(value) for value in wanted if not re.search(_as_word(str(value).lower()), text)]
    return look.answer(
        not absent, f"the summary shows: {item}", f"{item}: the summary does not show {', '.join(absent)}"
    )


def _as_word(value: str) -> str:
    return rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)"


@check("M-5.1.5.1-sut-boundary")
def boundary(look: Look) -> Answer:
    components = look.fact("sut.components", [])
    words = (
        str(look.need("sut.boundary")).removesuffix("_system").removeprefix("application_").replace("_", " ")
    )
    return _shows(look, "SUT configuration and boundary", words, *components)


@check("M-5.1.5.1-model-hardware")
def model_and_hardware(look: Look) -> Answer:
    undisclosed = look.fact("sut.hardware.disclosed") is False
    hardware = "undisclosed" if undisclosed else look.need("sut.hardware.accelerator_type")
    return _shows(look, "Model and hardware", look.need("sut.model.name"), hardware)


@check("M-5.1.5.1-workload")
def workload(look: Look) -> Answer:
    """Name and seed of a reference workload, the length laws of a custom one."""
    wanted = [look.need("workload.name")]
    if look.fact("workload.standard") is not True:
        (kind,) = look.need_fields("workload.input_length", "type")
        wanted.append(kind)
    return _shows(look, "Workload", *wanted)


@check("M-5.1.5.1-load")
def load(look: Look) -> Answer:
    model = look.need("load.model")
    if model == "open":
        return _shows(look, "Load model", "open", f"{look.need('load.rate_rps'):g}")
    return _shows(look, "Load model", model, look.need("load.concurrency"))


@check("M-5.1.5.1-count-duration")
def count_and_duration(look: Look) -> Answer:
    item = "Request count and test duration"
    if not _DURATION.search(look.configuration(item)):
        return look.unmet("the summary shows no duration")
    return _shows(look, item, len(look.records))


@check("M-5.1.5.1-warmup")
def warmup(look: Look) -> Answer:
    """Requests, output tokens, drain and probes; a cold start says that there was none."""
    if look.fact("warmup.performed") is False:
        return _shows(look, "Warm-up", "no warm-up")
    requests_ok, output_tokens = look.need_all("warmup.requests_ok", "warmup.output_tokens")
    return _shows(look, "Warm-up", requests_ok, output_tokens, "drained", "probes")


@check("M-5.1.5.1-prefix-caching")
def prefix_caching(look: Look) -> Answer:
    return _shows(look, "Prefix caching", look.need("sut.prefix_caching"))


@check("M-5.1.5.1-guardrails")
def guardrails(look: Look) -> Answer:
    input_filter, output_filter = look.need_all("guardrails.input_filter", "guardrails.output_filter")
    return _shows(look, "Guardrails", f"input filter {input_filter}", f"output filter {output_filter}")


@check("S-5.1.5.2-tabular")
def tabular(look: Look) -> Answer:
    look.table("ttft_results")
    missing = [name for name in _ROWS if row_of(look.result, name) is None]
    return look.answer(not missing, "results as a table", f"rows missing: {', '.join(missing)}")


@check("S-5.1.5.4-distribution-plot")
def distribution_plot(look: Look) -> Answer:
    plot = look.plot("ttft_cdf", "ttft_histogram")
    points = max((len(x) for x, _ in plot.series.values()), default=0)
    return look.answer(points > 1, f"{plot.id} with {points} points", f"{plot.id} has no points")


__all__ = ["check"]
