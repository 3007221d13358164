"""A random-weight Qwen2 model as one GGUF file, made on the spot: no download, a few seconds.

    python tiny_gguf.py OUT.gguf [LAYERS]

Its tokenizer lies beside it, as ``tokenizer.json``.

The tokenizer is a byte-level BPE trained on this interpreter's own standard library, so it exists wherever
CPython does. The rows of the end token are zero in the output matrix, so greedy decoding never picks it and
every reply runs to its limit. Big enough (about 20 million parameters) that a token takes milliseconds:
with a smaller one, of fewer layers, the HTTP thread of the server is the bottleneck, and all events arrive
in one read.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 384, 8, 6, 2, 1024
HEAD = HIDDEN // HEADS
CONTEXT = 4096
VOCABULARY = 2048
CORPUS_BYTES = 1_000_000
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def corpus() -> Iterator[str]:
    done = 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = file.read_text("utf-8", "replace")
        done += len(text)
        yield text
        if done > CORPUS_BYTES:
            return


def tokenizer() -> dict[str, Any]:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(corpus(), trainer)
    loaded: dict[str, Any] = json.loads(made.to_str())
    return loaded


def write_parameters(writer: gguf.GGUFWriter, layers: int) -> None:
    writer.add_name("tiny-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def write_tokenizer(writer: gguf.GGUFWriter, made: dict[str, Any]) -> int:
    vocabulary: dict[str, int] = made["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {PAD, START, END}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    )
    merges = made["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(vocabulary[PAD])
    writer.add_eos_token_id(vocabulary[END])
    writer.add_pad_token_id(vocabulary[PAD])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def write_weights(writer: gguf.GGUFWriter, vocabulary: int, layers: int) -> None:
    rng = np.random.default_rng(0)

    def random(*shape: int, deviation: float = 0.05) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    output = random(vocabulary, HIDDEN)
    output[:3] = 0.0  # the special tokens: logit 0, never the largest
    ones = np.ones(HIDDEN, np.float32)
    writer.add_tensor("token_embd.weight", random(vocabulary, HIDDEN, deviation=1.0))
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        name = f"blk.{layer}."
        writer.add_tensor(name + "attn_q.weight", random(HIDDEN, HIDDEN))
        writer.add_tensor(name + "attn_q.bias", random(HIDDEN))
        for part in ("attn_k", "attn_v"):
            writer.add_tensor(f"{name}{part}.weight", random(KV_HEADS * HEAD, HIDDEN))
            writer.add_tensor(f"{name}{part}.bias", random(KV_HEADS * HEAD))
        writer.add_tensor(name + "attn_output.weight", random(HIDDEN, HIDDEN))
        writer.add_tensor(name + "ffn_gate.weight", random(FEED_FORWARD, HIDDEN))
        writer.add_tensor(name + "ffn_up.weight", random(FEED_FORWARD, HIDDEN))
        writer.add_tensor(name + "ffn_down.weight", random(HIDDEN, FEED_FORWARD))
        writer.add_tensor(name + "attn_norm.weight", ones)
        writer.add_tensor(name + "ffn_norm.weight", ones)


def main(out: str, layers: str = str(LAYERS)) -> None:
    writer = gguf.GGUFWriter(out, "qwen2")
    write_parameters(writer, int(layers))
    made = tokenizer()
    Path(out).with_name("tokenizer.json").write_text(json.dumps(made), "utf-8")
    vocabulary = write_tokenizer(writer, made)
    write_weights(writer, vocabulary, int(layers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
