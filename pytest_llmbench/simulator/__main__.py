"""``python -m pytest_llmbench.simulator``: command line that runs the embedded engine on its own."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import asdict

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.registry import every, names
from pytest_llmbench.simulator.child import end_with_parent
from pytest_llmbench.simulator.engine.config import EngineConfig, shown
from pytest_llmbench.simulator.scenario import (
    DEFAULT_PRESET,
    OPTIONS,
    PARTS,
    PRESETS,
    option_meanings,
    parse_scenario,
)

_DESCRIPTION = """\
A simulated LLM server with known truth: continuous batching by steps, OpenAI's streaming API, and a record of
what really happened to each request. For trying out a benchmark suite, or a client, without a GPU.

Latency behaves as in a real engine: it rises with load, long prompts delay their neighbours' tokens, and
beyond max_num_seqs requests wait in a queue. The text is filler; its length is exact. The stream can have the
peculiarities of real servers, and replies can go wrong, at a chosen rate and at a chosen point.
"""

_EXAMPLES = """\
endpoints:
  POST /v1/chat/completions  POST /v1/completions     streamed or not; text or token ids
  WebSocket /v1/responses    response.create messages, one turn after another; the ground truth's id is the
                             response's id without resp_, or metadata.request_id if that is given
  gRPC (--grpc-port)         vllm.grpc.engine.VllmEngine/Generate, and KServe's ModelInfer, ModelStreamInfer
  POST /tokenize             GET  /v1/models          GET  /health
  POST /reset_prefix_cache   as vLLM's in development mode: prefixes computed so far are not found any more
  POST /start_profile        and /stop_profile, as vLLM's and SGLang's: a trace of the requests between them,
                             in the folder VLLM_TORCH_PROFILER_DIR
  GET  /metrics              Prometheus, under vLLM's series names; the largest batch, which vLLM does not
                             tell, is the label max_num_seqs of vllm:scheduler_config_info
  GET  /sim/ground_truth     one line of JSON per request that has ended: received_ns, queued_ns, admitted_ns,
                             first_token_ns, first_write_ns, last_write_ns, ... (CLOCK_MONOTONIC), token
                             counts, the fault it suffered; with trace=true each token's exit and each write
  GET  /sim/dcgm/metrics     with idle_w: power, energy counter, utilisation, memory and temperature of each
                             accelerator, as the page of NVIDIA's DCGM exporter
  GET  /sim/energy           with idle_w: the energy of each engine over time; between two points power is
                             constant
  GET  /sim/status           load, and how well the server keeps its own schedule

When the server is ready it prints one line of JSON: {"ready": true, "url": ..., "model": ..., "pid": ...},
and "grpc_target" with --grpc-port.

examples:
  python -m pytest_llmbench.simulator --port 8000
  python -m pytest_llmbench.simulator --preset 'h100-8b?max_num_seqs=32&eos_mean_tokens=200' --port 8000
  python -m pytest_llmbench.simulator --preset 'fast?fault=reset,stall&fault_rate=0.05&seed=7'
  python -m pytest_llmbench.simulator --preset 'fast?role_chunk=at_start&usage=every_chunk&line_end=crlf'
  curl -sN localhost:8000/v1/chat/completions -H 'content-type: application/json' -d \\
    '{"stream": true, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}'
"""


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal arrives. Returns exit status 2 for wrong arguments and 1 if the server cannot
    start."""
    options = _parser().parse_args(arguments)
    try:
        scenario = parse_scenario(options.preset)
    except LLMBenchError as error:
        print(error, file=sys.stderr)
        return 2
    if options.parent_pipe:
        end_with_parent()
    from pytest_llmbench.simulator.serving.server import serve

    try:
        serve(scenario, options.host, options.port, options.grpc_port)
    except LLMBenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """Parser that describes presets and options only where help is asked for: their meanings are parsed out
    of the source, which would be a seventh of an engine's start."""

    def format_help(self) -> str:
        self.epilog = f"{_describe_presets()}\n{_describe_options()}\n{_EXAMPLES}"
        return super().format_help()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m pytest_llmbench.simulator",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "--preset",
        default=DEFAULT_PRESET,
        metavar="NAME[?OPTION=VALUE&...]",
        help="which engine to be, with any of the options below (default: %(default)s)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port to listen on; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--grpc-port",
        type=_port,
        metavar="PORT",
        help="serve gRPC, too, on this port; 0 takes a free one (needs pytest-llmbench[grpc])",
    )
    parser.add_argument(
        "--parent-pipe",
        action="store_true",
        help="end when standard input is closed: for a program that starts the engine with a pipe there, so "
        "that the engine never outlives it",
    )
    return parser


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be a number from 0 to 65535")
    return number


def _describe_presets() -> str:
    blocks = ["presets:"]
    for config in PRESETS.values():
        text = (
            f"{config.name}: a step takes {shown(config.step_base_us)} µs, plus "
            f"{shown(config.prefill_us_per_token)} µs per prompt token, "
            f"{shown(config.decode_us_per_sequence)} µs per decoding sequence and "
            f"{shown(config.kv_us_per_token)} µs per cached token; {config.max_num_seqs} sequences and "
            f"{config.max_num_batched_tokens} tokens at a time, context {config.context_limit_tokens}. "
            f"{config.provenance}"
        )
        blocks.append(textwrap.fill(text, width=108, initial_indent="  ", subsequent_indent="      "))
    return "\n".join(blocks) + "\n"


def _describe_options() -> str:
    """Every option with its meaning in one line, and its default unless that is the preset's figure."""
    blocks = []
    deployments = {kind.title: kind for kind in every("deployments").values()}
    for title, kind in {**PARTS, **deployments}.items():
        meanings = option_meanings(kind)
        defaults = {} if kind is EngineConfig else asdict(kind())
        each = " (each a figure of the preset)" if kind is EngineConfig else ""
        blocks.append(f"options of the {title}{each}:")
        for name in filter(meanings.__contains__, (*OPTIONS, *names("deployments"))):
            default = f" ({_default(defaults[name])})" if name in defaults else ""
            text = f"{name:<28} {meanings[name]}{default}"
            blocks.append(textwrap.fill(text, width=108, initial_indent="  ", subsequent_indent=" " * 31))
    return "\n".join(blocks) + "\n"


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in ((), None) else shown(value)


if __name__ == "__main__":
    sys.exit(main())
