"""What the load generator can do, each property with the unit tests that prove it.

``replay.*`` are those of the driver in virtual time, which stands for a wire that it does not have.
Entries of the catalogue with verification ``structural`` rest on this registry; a run-time fact that
contradicts it wins. A new transport or arrival law becomes a row here together with its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_OPEN_LOOP = "tests/generator/test_generator_open_loop.py::test_open_loop_keeps_schedule_while_server_stalls"
_CLOSED_LOOP = "tests/generator/test_generator_closed_loop.py::test_closed_loop_keeps_concurrency"
_SUBMITTED = "tests/generator/test_generator_instants.py::test_submitted_when_last_byte_has_left"
_FIRST_CONTENT = "tests/generator/test_generator_instants.py::test_first_content_is_a_parsed_data_event"
_WEBSOCKET = (
    "tests/generator/websocket/test_generator_websocket.py::test_a_message_has_the_instant_of_its_last_byte"
)
_GRPC = "tests/generator/grpc/test_generator_grpc.py"
_GRPC_MESSAGE = f"{_GRPC}::test_a_message_has_the_instant_of_its_last_byte"
_GRPC_SUBMITTED = f"{_GRPC}::test_the_submission_is_that_of_the_last_part"
_GRPC_FIRST_TOKEN = (
    "tests/wire/test_wire_grpc_dialects.py::test_the_first_token_is_in_the_first_message_with_one"
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


@dataclass(frozen=True, slots=True)
class Capability:
    """A property of the generator."""

    value: Any
    """``True``, or the value that a run-time fact has to agree with."""
    proofs: tuple[str, ...]
    """Node ids of the tests that prove it."""


CAPABILITIES: Mapping[str, Capability] = MappingProxyType(
    {
        "open_loop": Capability(True, (_OPEN_LOOP,)),
        "closed_loop": Capability(True, (_CLOSED_LOOP,)),
        "arrival.poisson": Capability(True, (_POISSON, _SEEDED)),
        "arrival.uniform": Capability(True, (_UNIFORM,)),
        "arrival.bursty": Capability(True, (_GAMMA,)),
        "streaming": Capability(("sse", "websocket", "grpc"), (_FIRST_CONTENT, _WEBSOCKET, _GRPC_MESSAGE)),
        "concurrency_model": Capability("asyncio", (_OPEN_LOOP,)),
        "generation_order": Capability(True, (_SYNTHETIC,)),
        "timestamp_precision_ns": Capability(1, (_NANOSECONDS,)),
        "submit_points": Capability(
            ("last_request_byte", "message_sent"), (_SUBMITTED, _WEBSOCKET, _GRPC_SUBMITTED)
        ),
        "first_points": Capability(
            ("parsed_data_event", "first_token_message"), (_FIRST_CONTENT, _GRPC_FIRST_TOKEN)
        ),
        "itl.gaps": Capability(
            True,
            (
                f"{_ITL}::test_direct_and_b_give_further_tokens_of_a_chunk_no_gap",
                f"{_ITL}::test_a_is_between_chunks",
                f"{_ITL}::test_c_is_the_servers_clock",
                f"{_ITL}::test_points_are_those_of_numpy",
            ),
        ),
        "itl.per_request": Capability(True, (f"{_ITL}::test_jitter_and_longest_pause",)),
        "itl.without_ttft": Capability(True, (f"{_ITL}::test_the_first_token_has_no_gap_whatever_the_ttft",)),
        "replay.streaming": Capability(("sse", "grpc"), (_REPLAY_CHUNKS, _REPLAY_AGREES)),
        "replay.submit_points": Capability(("last_request_byte", "message_sent"), (_REPLAY_DELAYS,)),
        "replay.first_points": Capability(
            ("parsed_data_event", "first_token_message"), (_REPLAY_DELAYS, _REPLAY_AGREES)
        ),
        "first_token_kind": Capability("content", (_FIRST_CONTENT, _NO_CONTENT)),
    }
)
