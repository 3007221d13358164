"""What is saved of the spread of a load on a system: between its runs (``--llm-calibrate``), and between
sessions (those that were saved). By it one run of a job decides nearer limits than by an assumed spread."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_llmbench.compare.identity import made_otherwise, matched
from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.comparison.calibrate import Calibrations, Made, made_of
from pytest_llmbench.harness.comparison.identity import identity_of
from pytest_llmbench.harness.comparison.replication import MeasurementRequest
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.store.baselines import read_baseline, recent_baselines

FEWEST_SESSIONS, MOST_SESSIONS = 5, 20
"""Fewest saved sessions whose spread is taken, in place of that between the runs of one; and how many of the
latest are looked at."""


def with_spreads(request: MeasurementRequest, settings: Settings, *, virtual: bool) -> MeasurementRequest:
    """The request whose setting has what is known of the spread of its figures: of a job, and of a test with
    a budget of time, which says by it what it will find."""
    if not request.parameters.is_job and request.budget_s is None:
        return request
    own = request.setting
    identity = identity_of(request.definition, request.parameters, own, virtual=virtual)
    found = Calibrations(settings).spreads(identity) | _between_sessions(request.nodeid, identity, settings)
    return replace(request, setting=replace(own, spreads=found)) if found else request


def _between_sessions(nodeid: str, identity: Mapping[str, Any], settings: Settings) -> dict[str, SavedSpread]:
    """The spread of each figure between the saved sessions of this test, of the first run of each, that made
    it as the latest did."""
    logs: dict[str, list[tuple[Made, float]]] = defaultdict(list)
    for path in recent_baselines(settings.storage, MOST_SESSIONS):
        try:
            saved = read_baseline(path)
        except StoreError:  # said where somebody compares with it
            continue
        for test in saved.tests:
            if test.nodeid != nodeid or test.gate is GateVerdict.FAIL:
                continue
            if matched(test.identity, identity, ()).mismatches:
                continue
            for metric, values in test.by_run.items():
                alike = made_otherwise(metric, test.identity, identity) is None
                if alike and values and values[0] is not None and values[0] > 0:
                    logs[metric].append((made_of(metric, test.identity), math.log(values[0])))
    found = {}
    for metric, every in logs.items():
        latest = every[-1][0]
        own = [value for made, value in every if made == latest]
        if len(own) >= FEWEST_SESSIONS:
            found[metric] = SavedSpread(float(np.std(own, ddof=1)), len(own), of_sessions=True, made=latest)
    return found
