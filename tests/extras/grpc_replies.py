"""Replies over gRPC that are as they should be: what hostile servers begin with."""

from __future__ import annotations

import struct
from typing import Any

from http2_frames import header_block
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from smg_grpc_proto.generated import sglang_scheduler_pb2 as sglang
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from tritonclient.grpc import service_pb2 as kserve

from pytest_llmbench.extras.grpc.messages import prefixed

HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
_STREAM = 1


def _ids(pb: Any) -> tuple[bytes, ...]:
    """Two tokens and the end, as vLLM and SGLang say it."""
    chunks = [pb.GenerateStreamChunk(token_ids=[at], prompt_tokens=7, completion_tokens=1) for at in (1, 2)]
    end = pb.GenerateComplete(output_ids=[1, 2], prompt_tokens=7, completion_tokens=2, finish_reason="stop")
    said = [*(pb.GenerateResponse(chunk=chunk) for chunk in chunks), pb.GenerateResponse(complete=end)]
    return tuple(prefixed(each.SerializeToString()) for each in said)


def _texts() -> tuple[bytes, ...]:
    """Two texts and the response that is marked as final."""
    found = []
    for text in (b"one", b" two", b""):
        response = kserve.ModelInferResponse(model_name="m", id="a")
        if text:
            response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
            response.raw_output_contents.append(struct.pack("<I", len(text)) + text)
        response.parameters["triton_final_response"].bool_param = not text
        said = kserve.ModelStreamInferResponse(infer_response=response)
        found.append(prefixed(said.SerializeToString()))
    return tuple(found)


REPLIES = {"vllm-grpc": _ids(vllm), "sglang-grpc": _ids(sglang), "kserve-grpc": _texts()}
"""The messages of a whole reply, by its dialect."""

SETTINGS = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20}).serialize()
"""What a server begins with."""
_OK = HeadersFrame(_STREAM, header_block(HEADERS), flags=["END_HEADERS"]).serialize()
_DATA = b"".join(DataFrame(_STREAM, each).serialize() for each in REPLIES["vllm-grpc"])
_END = HeadersFrame(
    _STREAM, header_block([("grpc-status", "0")]), flags=["END_HEADERS", "END_STREAM"]
).serialize()
FRAMES = (
    _OK + _DATA + _END,
    PingFrame(0, b"12345678").serialize() + _OK + _DATA + RstStreamFrame(_STREAM, error_code=2).serialize(),
    WindowUpdateFrame(0, window_increment=9).serialize() + GoAwayFrame(0, _STREAM, 11, b"enough").serialize(),
    _OK + DataFrame(_STREAM, b"\0", flags=["PADDED"], pad_length=3).serialize() + _END,
    b"",
)
"""What follows the settings on a connection with one call."""
