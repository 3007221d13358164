"""vLLM's own gRPC service: ``vllm.grpc.engine.VllmEngine/Generate``, from text or token ids to token ids.

Sampling parameters that are not set have the defaults of vLLM's ``SamplingParams``; temperature and
``max_tokens`` are always set. A ``max_tokens`` beyond the context is cut without a word.

Source: vllm_engine.proto of the package smg-grpc-proto, 0.4.28; the servicer of smg-grpc-servicer.
"""

from __future__ import annotations

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from pytest_llmbench.extras.grpc.protobuf import add_fields, utf8_prompt
from pytest_llmbench.extras.grpc.token_stream import TokenStreamOverGrpc
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.wire.openai_chat import token_prompt

_OWN = ("request_id", "text", "tokenized")


class VLLMOverGrpc(TokenStreamOverGrpc):
    name = "vllm-grpc"
    path = "/vllm.grpc.engine.VllmEngine/Generate"
    messages = pb

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        body = pb.GenerateRequest(stream=True)
        sampling = body.sampling_params
        sampling.max_tokens, sampling.temperature = request.max_tokens, request.temperature
        sampling.ignore_eos = options.ignore_eos
        if options.prompt_form == "text":
            body.text = utf8_prompt(request)
        else:
            body.tokenized.input_ids.extend(token_prompt(request))
        if options.extra_body:
            add_fields(body, sampling, options.extra_body, _OWN, self.name)
        return bytes(body.SerializeToString())
