"""Check whether a data set is the one its name says: by the digest that its publisher gives, or not
verified."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.compliance.evidence_view import EvidenceView
from pytest_llmbench.model.facts import Facts


def unverified(view: EvidenceView) -> str | None:
    """Why the data set of this run may be another than it is called; None for the published one."""
    view.fact("workload.dataset")
    return doubt_about(view.result.facts, view.evidence.published_digests)


def doubt_about(facts: Facts, published: Mapping[str, frozenset[str]]) -> str | None:
    """The reason to doubt the data set of a reference workload, in words; None if there is none.

    Data that does not claim such a name cannot be mistaken for published data.
    """
    dataset = facts.value("workload.dataset") or {}
    name, digest = str(dataset.get("name")), dataset.get("file_sha256")
    if facts.value("workload.standard") is not True or name not in published or digest in published[name]:
        return None
    return f"{name} by name alone: its file (SHA-256 {digest}) is none whose digest is published"


def sent_again(view: EvidenceView) -> str | None:
    """A data set of unknown identity that is too small for the run, so that its prompts were repeated."""
    entries = view.fact("workload.input_length", {}).get("params", {}).get("entries")
    sent = view.fact("workload.n_requests")
    if unverified(view) is None or not isinstance(entries, int) or not isinstance(sent, int):
        return None
    return f"{entries} entries for {sent} requests: the data set is not whole" if entries < sent else None
