"""KServe's inference protocol v2 over gRPC, ``ModelStreamInfer``, as Triton serves an LLM: text in, text out.

Inputs are named as Triton's vLLM backend names them: ``text_input`` (BYTES), ``stream`` (BOOL) and
``sampling_parameters`` (BYTES, a JSON object, which the extra fields go into). The output is
``text_output`` (BYTES): what is new or all so far, which depends on the backend
(:mod:`~pytest_llmbench.wire.chunk` finds out). There are no token counts and no finish reason: the
response that is marked as final says that all has come, and the end of the call, with its status, that it has
succeeded.

Source: grpc_service.proto of the package tritonclient, 2.73; KServe's open inference protocol, v2.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from pytest_llmbench.extras.grpc.messages import message_in, refuse_no_stream, utf8_prompt
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, set_error
from pytest_llmbench.wire.dialect import CallDialect, EncodeOptions, require_text
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.reply import STREAM_END
from pytest_llmbench.wire.sse import SSEEvent

_OUTPUT = "text_output"
_FINAL = "triton_final_response"
_WANTS_FINAL = "triton_enable_empty_final_response"
_LENGTH = struct.Struct("<I")


class KServeOverGrpc(CallDialect):
    """The dialect; one request for each call, so that no responses of others are among those of a reply."""

    name = "kserve-grpc"
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    rooted = True
    accumulates = True
    ends_with_body = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        refuse_no_stream(options.extra_body)
        sampling: dict[str, Any] = {"max_tokens": request.max_tokens, "temperature": request.temperature}
        if options.ignore_eos:
            sampling["ignore_eos"] = True
        body = pb.ModelInferRequest(model_name=options.model)
        body.parameters[_WANTS_FINAL].bool_param = True
        _add_input(body, "text_input", "BYTES", _element(utf8_prompt(request).encode()))
        _add_input(body, "stream", "BOOL", b"\x01")
        given = {**sampling, **options.extra_body}
        given.pop("stream", None)  # an input of its own
        listed = json.dumps({name: value for name, value in given.items() if value is not None})
        _add_input(body, "sampling_parameters", "BYTES", _element(listed.encode()))
        return bytes(body.SerializeToString())

    def message(self, body: bytes, request_id: str) -> bytes:
        # Serialized messages that follow one another are one, with the fields of both.
        return body + bytes(pb.ModelInferRequest(id=request_id).SerializeToString())

    def decode(self, event: SSEEvent) -> Chunk:
        chunk = Chunk(event.stamp_ns, event.read_index)
        message = message_in(event, pb.ModelStreamInferResponse, chunk)
        if message is None:
            return chunk
        if message.error_message:
            set_error(chunk, message.error_message)
            return chunk
        response = message.infer_response
        if response.outputs:
            _read_output(chunk, response)
        if _FINAL in response.parameters and response.parameters[_FINAL].bool_param:
            # Not done: a call that is broken off behind it has no status, and has not succeeded.
            chunk.choice, chunk.finish_reason = 0, STREAM_END
        return chunk


def _add_input(body: Any, name: str, datatype: str, raw: bytes) -> None:
    body.inputs.add(name=name, datatype=datatype, shape=[1])
    body.raw_input_contents.append(raw)


def _element(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _read_output(chunk: Chunk, response: Any) -> None:
    """The text of the response's output, whose contents are typed or raw (of all outputs in order)."""
    names = [tensor.name for tensor in response.outputs]
    if _OUTPUT not in names:
        chunk.problem = f"a response without {_OUTPUT}: {shorten(', '.join(names), 80)}"
        return
    place = names.index(_OUTPUT)
    try:
        if place < len(response.raw_output_contents):
            data = b"".join(_elements(response.raw_output_contents[place]))
        else:
            data = b"".join(response.outputs[place].contents.bytes_contents)
        chunk.text = data.decode()
    except UnicodeDecodeError as error:
        chunk.problem = f"{_OUTPUT} that is not UTF-8 ({error.reason})"
    except ValueError as error:
        chunk.problem = f"{_OUTPUT} {error}"
    else:
        chunk.choice, chunk.blank = 0, chunk.text == ""


def _elements(raw: bytes) -> list[bytes]:
    """The elements of a BYTES tensor. Raises ValueError where their lengths do not add up."""
    found, at = [], 0
    while at < len(raw):
        if at + _LENGTH.size > len(raw):
            raise ValueError("whose elements have no lengths before them")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        if at > len(raw):
            raise ValueError("that is shorter than it says")
        found.append(raw[at - length : at])
    return found
