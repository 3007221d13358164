"""How often the audit finds each planted cheat, and how often it accuses an honest engine.

    python benchmarks/bench_integrity.py [--sessions 100] [--scale standard] [--only NAME ...]

Sessions in virtual time, each with a seed, lengths and an engine seed of its own, and with times that differ
by chance: TTFT and every gap are multiplied by log-normal noise (sigma 0.1 for a reply, 0.2 for a gap). 3 %
of the replies under load begin otherwise, as kernels that are not invariant to the batch make them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.extras.integrity import procedure
from pytest_llmbench.extras.integrity.checks import AuditPrompts
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario

CHEATS = {
    "cache of replies": ("response_cache=on", "repeated_tpot"),
    "knows published prompts": ("known_prompts=1000", "published_tpot"),
    "canned first token": ("canned_first_token=on", "canned_first_token"),
    "shorter replies above 4": ("short_replies_above=4", "length_under_load"),
    "smaller model above 4": ("smaller_model_above=4", "text_under_load"),
}
HONEST = (
    "", "prefix_caching=on", "eos_mean_tokens=60", "tokens_per_chunk=4", "speculative_tokens=3",
    "think_mean_tokens=20", "max_num_seqs=4",
)  # fmt: skip
PRESETS = ("fast", "h100-8b")
_PUBLISHED = 42


def noisy(seen: Observation, luck: np.random.Generator) -> Observation:
    """The load with times that differ by chance, and some replies that batching changes."""
    workload, records = seen.plan.workload, seen.records
    if not isinstance(workload, AuditPrompts):
        return seen
    columns = {name: getattr(records, name) for name in records.__dataclass_fields__}
    offsets, stamps = records.chunk_offsets, np.array(records.chunk_ns)
    first, last = np.array(records.first_content_ns), np.array(records.last_content_ns)
    for row in range(len(records)):
        own = slice(offsets[row], offsets[row + 1])
        chunks = stamps[own]
        if not len(chunks):
            continue
        begun = np.concatenate([[records.submitted_ns[row]], chunks])
        gaps = np.diff(begun) * luck.lognormal(-0.02, 0.2, len(chunks)) * luck.lognormal(0.0, 0.1)
        made = records.submitted_ns[row] + np.cumsum(gaps).astype(np.int64)
        first[row] = made[np.searchsorted(chunks, first[row]).clip(0, len(made) - 1)]
        last[row], stamps[own] = made[-1], made
    told = list(records.answer_check)
    if workload.kind == "loaded":
        for row in np.flatnonzero(luck.random(len(told)) < 0.03):
            told[row] = told[row] and f"{told[row][:-18]} {'0' * 8} {told[row][-8:]}"
    columns |= {"chunk_ns": stamps, "first_content_ns": first, "last_content_ns": last, "answer_check": told}
    columns |= {
        "first_nonempty_ns": np.where(records.first_reasoning_ns > 0, records.first_nonempty_ns, first)
    }
    return replace(seen, records=Records(**columns))


def session(scenario: str, scale: str, number: int) -> tuple[set[str], str]:
    """The checks that accuse in one session, and its verdict."""
    luck = np.random.default_rng(number)
    engine = ReplayEngine(parse_scenario(f"{scenario}{'&' if '?' in scenario else '?'}seed={number}"))
    asked = procedure.Parameters()
    setting = ReplayedSUT(scenario).setting(asked.workload, scale, salt=f"session {number}")
    setting = replace(setting, seed=_PUBLISHED)
    result = drive(procedure.TEST.procedure(asked, setting), lambda plan: noisy(engine.run(plan), luck))
    accused = {finding.check for finding in result.findings if not finding.ok}
    return accused, str(gate(result.objectives, result.metrics).verdict)


def row(name: str, scenario: str, wanted: str, sessions: int, scale: str) -> str:
    runs = [session(scenario, scale, number) for number in range(sessions)]
    by_it = sum(wanted in accused for accused, _ in runs)
    others = sum(bool(accused - {wanted, wanted.replace("tpot", "ttft")}) for accused, _ in runs)
    verdicts = [sum(verdict == each for _, verdict in runs) for each in ("fail", "inconclusive", "pass")]
    cells = (by_it if wanted else "–", others, *verdicts)
    return f"{name:<26} {scenario:<34}" + "".join(f"{cell:>10}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--scale", default="standard")
    parser.add_argument("--only", nargs="*", help="parts of the names of rows")
    given = parser.parse_args()
    rows = [
        (name, f"{preset}?{options}", wanted)
        for name, (options, wanted) in CHEATS.items()
        for preset in PRESETS
    ]
    rows += [("honest", f"{preset}?{options}".rstrip("?"), "") for options in HONEST for preset in PRESETS]
    print(f"{given.sessions} sessions each, scale {given.scale}")
    heads = ("found", "others", "fail", "undecided", "pass")
    print(f"{'engine':<26} {'scenario':<34}" + "".join(f"{head:>10}" for head in heads))
    for name, scenario, wanted in rows:
        if given.only is None or any(part in f"{name} {scenario}" for part in given.only):
            print(row(name, scenario, wanted, given.sessions, given.scale), flush=True)


if __name__ == "__main__":
    main()
