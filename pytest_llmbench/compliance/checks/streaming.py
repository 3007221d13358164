"""Streaming protocol and chunks (section 4.6)."""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, one_of, stated
from pytest_llmbench.compliance.look import Answer, Look
from pytest_llmbench.compliance.stored import chunk_sizes

check = Checks()

check("S-4.6.1-sse-for-gateway")(one_of("streaming.protocol", "sse"))
check("M-4.6.2-protocol-stated")(one_of("streaming.protocol", "sse", "websocket", "grpc"))
check("M-4.6.2-multi-token-handling")(stated("streaming.chunk_handling"))


@check("S-4.6.1-grpc-for-engine")
def grpc_for_engine(look: Look) -> Answer:
    protocol = look.need("streaming.protocol")
    return look.answer(
        protocol == "grpc",
        "gRPC streaming",
        f"the engine was measured over {protocol}; gRPC is advised at the engine boundary (AMB-23)",
    )


@check("M-4.6.2-chunk-granularity")
def chunk_granularity(look: Look) -> Answer:
    """``single`` is believed only if every content chunk of a success is known to hold one token."""
    chunking, sizes = look.need("streaming.chunking"), chunk_sizes(look.records)
    single = 0 < sizes.single == sizes.chunks
    if chunking == "single":
        return look.answer(
            single, "every chunk is one token", "declared single, but not every chunk is one token"
        )
    if chunking != "multi":
        return look.unmet(f"streaming.chunking is {chunking!r}, neither single nor multi")
    if not sizes.known:
        return look.met("chunks may hold several tokens (unknown)")
    return look.met(
        f"chunks may hold several tokens; share of single ones {look.need('streaming.single_token_share')}"
    )


__all__ = ["check"]
