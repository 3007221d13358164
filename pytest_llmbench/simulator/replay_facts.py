"""What a replay states about itself, beside the engine's own disclosure."""

from __future__ import annotations

from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.simulator.disclosure import disclosure
from pytest_llmbench.simulator.engine_config import EngineConfig
from pytest_llmbench.simulator.replay_load import Delays

_SOURCE = "replay in virtual time"


def protocol(config: EngineConfig) -> str:
    """The face that the replay stands for: an engine by itself streams a gRPC message per token, a gateway
    with filters around it server-sent events (the draft's advice for either, section 4.6.1)."""
    filters = (config.input_filter, config.output_filter)
    return "grpc" if filters == ("absent", "absent") else "sse"


def replay_facts(config: EngineConfig, delays: Delays) -> Facts:
    """The SUT's facts. All of them have the origin ``simulated``: none was seen on a wire."""
    own = {
        "sut.simulated": "replay",
        "replay.submit_to_received_us": delays.submit_to_received_us,
        "replay.write_to_read_us": delays.write_to_read_us,
        "clock.topology": "single_machine",
        "clock.method": "one virtual clock",
        "streaming.protocol": protocol(config),
        "endpoint.server": "none: virtual time",
    }
    return disclosure(config) | Facts.of(Origin.SIMULATED, own, _SOURCE)


def run_facts(config: EngineConfig) -> Facts:
    """What a load generator would say about the wire and its stamps."""
    grpc = protocol(config) == "grpc"
    return Facts.of(
        Origin.SIMULATED,
        {
            "sut.simulated": "replay",
            "streaming.protocol": protocol(config),
            "wire.prompt_form": "token_ids",
            "timing.submit_point": "message_sent" if grpc else "last_request_byte",
            "timing.first_point": "first_token_message" if grpc else "parsed_data_event",
            "timing.first_token_kind": "content",
            "timing.clock_resolution_ns": 1,
            "timing.timestamp_format": "epoch_ms",
        },
        _SOURCE,
    )


def replay_note(config: EngineConfig, delays: Delays) -> str:
    """For everyone who reads a result of a replay."""
    return (
        f"replay: preset {config.name} in virtual time. Nothing was sent and no time passed; client and "
        f"network are constants ({delays.submit_to_received_us:g} µs to the engine, "
        f"{delays.write_to_read_us:g} µs back)"
    )


__all__ = ["protocol", "replay_facts", "replay_note", "run_facts"]
