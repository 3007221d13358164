"""gRPC of vLLM, SGLang and KServe, on HTTP/2: dialects, load, the preflight, the embedded engine's face."""

from __future__ import annotations

from pytest_llmbench.registry import Extra, Transport

_HERE = "pytest_llmbench.extras.grpc"
_DIALECTS = {
    "vllm-grpc": f"{_HERE}.token_stream:VLLMOverGrpc",
    "sglang-grpc": f"{_HERE}.token_stream:SGLangOverGrpc",
    "kserve-grpc": f"{_HERE}.kserve:KServeOverGrpc",
}
OVER_GRPC = tuple(_DIALECTS)
"""Names of the dialects, in the order in which ``auto`` tries them."""

EXTRA = Extra(
    home=_HERE,
    transports=(
        Transport(
            name="grpc",
            title="gRPC",
            schemes=("grpc", "grpcs"),
            dialects=_DIALECTS,
            carry=f"{_HERE}.transport:carry",
            preflight={
                "call": f"{_HERE}.preflight:call",
                "introduced": f"{_HERE}.preflight:introduced",
                "loading": f"{_HERE}.preflight:says_it_is_loading",
                "status": f"{_HERE}.messages:CallStatus",
            },
            faces={"engine": f"{_HERE}.engine_face:GrpcServer"},
        ),
    ),
    decoders={"grpc": f"{_HERE}.messages:MessageDecoder"},
    packages=("google", "grpc", "h2", "smg_grpc_proto", "tritonclient"),
    install="pytest-llmbench[grpc]",
)
