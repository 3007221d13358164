"""Thousands of tests in one session: what each is audited against is worked out once."""

from __future__ import annotations

from dataclasses import replace

from complete_run import complete

from pytest_llmbench.compliance.audit import among_siblings
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.facts import Facts

MANY = 12


class Watched(Facts):
    """Counts how often somebody goes through them."""

    looked_through = 0

    def under(self, prefix: str) -> Facts:
        self.looked_through += 1
        return super().under(prefix)


def test_the_facts_of_a_result_are_gone_through_once_whatever_is_audited_against_it() -> None:
    result = complete().result
    results = [replace(result, facts=Watched(dict(result.facts))) for _ in range(MANY)]
    for index, each in enumerate(results):
        siblings = (*results[:index], *results[index + 1 :])
        assert among_siblings(Evidence(each.test, each, siblings=siblings))
    assert [each.facts.looked_through for each in results] == [1] * MANY
