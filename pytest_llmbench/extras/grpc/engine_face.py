"""The gRPC interface: token streams of the same engine as vLLM's and KServe's services, on a port of their
own."""

from __future__ import annotations

from grpc import aio
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server
from tritonclient.grpc.service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.grpc.engine_kserve import KServeFace
from pytest_llmbench.extras.grpc.engine_vllm import VllmFace
from pytest_llmbench.simulator.serving.app import BODY_LIMIT_BYTES
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.generation import Generation, Tokenizer


class GrpcServer:
    """A running gRPC server beside the HTTP server; made by :meth:`start` on the loop of the engine."""

    def __init__(self, server: aio.Server, port: int) -> None:
        self._server = server  # one that nobody refers to any more stops serving
        self.port = port

    @classmethod
    async def start(
        cls, generation: Generation, driver: EngineDriver, tokenizer: Tokenizer, host: str, port: int
    ) -> GrpcServer:
        """Listen on ``port``; 0 takes a free one. :raises SUTError: the port cannot be listened on."""
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", BODY_LIMIT_BYTES)]
        server = aio.server(options=options)
        add_VllmEngineServicer_to_server(VllmFace(generation, driver, tokenizer), server)
        add_GRPCInferenceServiceServicer_to_server(KServeFace(generation, driver), server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
            await server.start()
        except RuntimeError as error:
            raise SUTError(
                f"cannot listen for gRPC: {error}",
                where=address,
                remedy="choose another --grpc-port (0 takes a free one)",
            ) from error
        return cls(server, bound)
