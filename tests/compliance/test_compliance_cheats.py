"""None of the cheats is worth more than it deserves."""

from __future__ import annotations

import pytest
from cheats import CHEATS, Cheat
from mutations import stating, unmet
from replayed_runs import complete
from situations import SITUATIONS

from pytest_llmbench.compliance.audit import audit, load_catalogue
from pytest_llmbench.model.judgement import ComplianceVerdict

RANKED = (
    ComplianceVerdict.NOT_COMPLIANT,
    ComplianceVerdict.CONDITIONAL,
    ComplianceVerdict.UNCONDITIONAL,
)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_not_above_what_it_deserves(cheat: Cheat) -> None:
    found = audit(cheat.done(cheat.run()))
    assert RANKED.index(found.verdict) <= RANKED.index(cheat.deserves)
    assert cheat.clause in unmet(found), f"{found.verdict} for another reason: {sorted(unmet(found))}"


def test_there_are_cheats_enough_each_with_a_name_of_its_own() -> None:
    assert len({cheat.name for cheat in CHEATS}) == len(CHEATS) >= 30


def test_cheats_name_clauses_that_can_take_the_class_away() -> None:
    catalogue = load_catalogue()
    blocking = {cheat.name for cheat in CHEATS if cheat.deserves is ComplianceVerdict.NOT_COMPLIANT}
    wrong = [
        cheat.name
        for cheat in CHEATS
        if catalogue[cheat.clause].verdict_effect != ("blocks" if cheat.name in blocking else "downgrades")
    ]
    assert wrong == []


def test_the_class_of_a_replay_is_simulated_whatever_is_declared() -> None:
    declared = stating({"sut.simulated": "no"})(complete("throughput"))
    assert audit(declared).simulated
    assert not audit(SITUATIONS["gateway"]()).simulated
