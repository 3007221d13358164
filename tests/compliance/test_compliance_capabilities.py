"""Each structural property is proved by tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from pytest_llmbench.compliance.evidence import CAPABILITIES

ROOT = Path(__file__).parents[2]
_OPEN_LOOP = "tests/generator/test_generator_open_loop.py::test_open_loop_keeps_schedule_while_server_stalls"
_CLOSED_LOOP = "tests/generator/test_generator_closed_loop.py::test_closed_loop_keeps_concurrency"
_SUBMITTED = "tests/generator/test_generator_instants.py::test_submitted_when_last_byte_has_left"
_FIRST_CONTENT = "tests/generator/test_generator_instants.py::test_first_content_is_a_parsed_data_event"
_MESSAGES = "tests/extras/test_generator_transports.py::test_a_message_has_the_instant_of_its_last_byte"
_GRPC = "tests/extras/grpc/test_generator_grpc.py"
_GRPC_SUBMITTED = f"{_GRPC}::test_the_submission_is_that_of_the_last_part"
_GRPC_FIRST_TOKEN = (
    "tests/extras/grpc/test_wire_grpc_dialects.py::test_the_first_token_is_in_the_first_message_with_one"
)
_NO_CONTENT = (
    "tests/generator/test_generator_instants.py::test_whitespace_and_reasoning_are_not_first_content"
)
_POISSON = "tests/arrivals/test_arrivals_schedule.py::test_poisson_gaps_are_exponential"
_SEEDED = "tests/arrivals/test_arrivals_schedule.py::test_schedule_is_determined_by_seed"
_UNIFORM = "tests/arrivals/test_arrivals_schedule.py::test_uniform_gaps_are_constant"
_GAMMA = "tests/arrivals/test_arrivals_schedule.py::test_gamma_gaps_have_the_declared_variation"
_SYNTHETIC = "tests/workloads/test_workloads_synthetic.py::test_synthetic_uniform_reproduces_published_hashes"
_ITL = "tests/metrics/test_metrics_itl.py"
_REPLAY = "tests/simulator/replay/test_simulator_replay.py"
_REPLAY_AGREES = f"{_REPLAY}::test_the_two_faces_agree_at_low_load"
_REPLAY_CHUNKS = f"{_REPLAY}::test_chunks_of_several_tokens"
_REPLAY_DELAYS = f"{_REPLAY}::test_delays_are_what_they_are_said_to_be"
_NANOSECONDS = "tests/store/test_store_records_file.py::test_record_line_keeps_nanoseconds"
PROOFS = {
    "open_loop": (_OPEN_LOOP,),
    "closed_loop": (_CLOSED_LOOP,),
    "arrival.poisson": (_POISSON, _SEEDED),
    "arrival.uniform": (_UNIFORM,),
    "arrival.bursty": (_GAMMA,),
    "streaming": (_FIRST_CONTENT, _MESSAGES),
    "concurrency_model": (_OPEN_LOOP,),
    "generation_order": (_SYNTHETIC,),
    "timestamp_precision_ns": (_NANOSECONDS,),
    "submit_points": (_SUBMITTED, _MESSAGES, _GRPC_SUBMITTED),
    "first_points": (_FIRST_CONTENT, _GRPC_FIRST_TOKEN),
    "itl.gaps": (
        f"{_ITL}::test_direct_and_b_give_further_tokens_of_a_chunk_no_gap",
        f"{_ITL}::test_a_is_between_chunks",
        f"{_ITL}::test_c_is_the_servers_clock",
        f"{_ITL}::test_points_are_those_of_numpy",
    ),
    "itl.per_request": (f"{_ITL}::test_jitter_and_longest_pause",),
    "itl.without_ttft": (f"{_ITL}::test_the_first_token_has_no_gap_whatever_the_ttft",),
    "replay.streaming": (_REPLAY_CHUNKS, _REPLAY_AGREES),
    "replay.submit_points": (_REPLAY_DELAYS,),
    "replay.first_points": (_REPLAY_DELAYS, _REPLAY_AGREES),
    "first_token_kind": (_FIRST_CONTENT, _NO_CONTENT),
}
"""The tests that prove each capability."""


@cache
def functions_in(file: str) -> set[str]:
    """The names of the test functions in a file of the tree; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text("utf-8") if path.is_file() else "")
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def elsewhere(name: str) -> str:
    """The files that a test of this name may have moved to."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return ", ".join(
        str(path.relative_to(ROOT)) for path in paths if f"def {name}(" in path.read_text("utf-8")
    )


def test_every_proof_is_a_test() -> None:
    wrong = []
    for name, proofs in PROOFS.items():
        for proof in proofs:
            file, _, test = proof.rpartition("::")
            if test not in functions_in(file):
                wrong.append(f"{name}: {proof} (found: {elsewhere(test) or 'no test of this name'})")
    assert not wrong, "proofs that are no tests:\n" + "\n".join(wrong)


def test_every_capability_has_a_value_and_a_proof() -> None:
    assert PROOFS.keys() == CAPABILITIES.keys()
    assert all(PROOFS.values())
    assert not [name for name, value in CAPABILITIES.items() if value in (None, False, ())]
