"""The real llama.cpp HTTP server, from the ``xllamacpp`` wheel, in a process of its own.

    python llama_server.py MODEL.gguf PORT [SLOTS] [CONTEXT] [POOLING]

POOLING, ``mean`` or ``rank``: it answers with embeddings or scores, and generates nothing.

Serves until a signal ends it.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(model: str, port: str, slots: str = "4", context: str = "8192", pooling: str = "") -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {"tiny-random"}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = int(port)
    parameters.n_parallel = int(slots)
    parameters.n_ctx = int(context)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.warmup = True
    parameters.offline = True
    parameters.ui = False
    parameters.endpoint_metrics = True
    if pooling:
        kinds = xllamacpp.llama_pooling_type
        parameters.embedding = True
        parameters.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    server = xllamacpp.Server(parameters)
    print("ready", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
