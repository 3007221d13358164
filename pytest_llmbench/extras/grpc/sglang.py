"""SGLang's gRPC service: ``sglang.grpc.scheduler.SglangScheduler/Generate``, from token ids to token ids.

It goes to the scheduler, which has no tokenizer: a prompt is token ids. Sampling parameters that are not set
are 0 there and not the defaults of SGLang, so those that must not be 0 are sent.

Source: sglang_scheduler.proto of the package smg-grpc-proto, 0.4.28; the servicer of smg-grpc-servicer.
"""

from __future__ import annotations

from smg_grpc_proto.generated import sglang_scheduler_pb2 as pb

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.grpc.protobuf import add_fields
from pytest_llmbench.extras.grpc.token_stream import TokenStreamOverGrpc
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.wire.openai_chat import token_prompt

_OWN = ("request_id", "tokenized", "input_embeds")


class SGLangOverGrpc(TokenStreamOverGrpc):
    name = "sglang-grpc"
    path = "/sglang.grpc.scheduler.SglangScheduler/Generate"
    messages = pb

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        if options.prompt_form != "token_ids":
            raise SuiteError(
                f"{self.name} takes token ids, not text",
                where="--llm-api",
                remedy='send token ids: request.prompt = "token_ids" in the SUT file (--llm-sut)',
            )
        body = pb.GenerateRequest(stream=True)
        sampling = body.sampling_params
        sampling.max_new_tokens, sampling.temperature = request.max_tokens, request.temperature
        sampling.top_p, sampling.top_k, sampling.repetition_penalty, sampling.n = 1.0, -1, 1.0, 1
        sampling.skip_special_tokens = sampling.spaces_between_special_tokens = True
        sampling.ignore_eos = options.ignore_eos
        body.tokenized.input_ids.extend(token_prompt(request))
        if options.extra_body:
            add_fields(body, sampling, options.extra_body, _OWN, self.name)
        return bytes(body.SerializeToString())
