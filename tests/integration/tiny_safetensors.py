"""The model of ``tiny_gguf.py`` as a folder in the layout of the Hugging Face hub.

python tiny_safetensors.py FOLDER
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_gguf import (
    CHAT_TEMPLATE,
    CONTEXT,
    END,
    FEED_FORWARD,
    HEAD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    PAD,
    START,
    tokenizer,
)

Tensor = np.ndarray[Any, np.dtype[np.float32]]


def config(vocabulary: Mapping[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": vocabulary[PAD],
        "eos_token_id": vocabulary[END],
        "pad_token_id": vocabulary[PAD],
    }


def weights(vocabulary: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)

    def random(*shape: int, deviation: float = 0.05) -> Tensor:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    output = random(vocabulary, HIDDEN)
    output[:3] = 0.0  # the special tokens: logit 0, never the largest
    ones = np.ones(HIDDEN, np.float32)
    made = {"model.embed_tokens.weight": random(vocabulary, HIDDEN, deviation=1.0), "lm_head.weight": output}
    made["model.norm.weight"] = ones
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part, rows in (("q", HIDDEN), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            made[f"{name}self_attn.{part}_proj.weight"] = random(rows, HIDDEN)
            made[f"{name}self_attn.{part}_proj.bias"] = random(rows)
        made[f"{name}self_attn.o_proj.weight"] = random(HIDDEN, HIDDEN)
        made[f"{name}mlp.gate_proj.weight"] = random(FEED_FORWARD, HIDDEN)
        made[f"{name}mlp.up_proj.weight"] = random(FEED_FORWARD, HIDDEN)
        made[f"{name}mlp.down_proj.weight"] = random(HIDDEN, FEED_FORWARD)
        made[f"{name}input_layernorm.weight"] = made[f"{name}post_attention_layernorm.weight"] = ones
    return made


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """The format safetensors: the length of a JSON header, the header, then the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors.values():
            out.write(tensor.tobytes())


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    vocabulary = made["model"]["vocab"]
    written = {
        "tokenizer.json": made,
        "config.json": config(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START, END],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in written.items():
        (out / name).write_text(json.dumps(content), "utf-8")
    write_tensors(out / "model.safetensors", weights(len(vocabulary)))


if __name__ == "__main__":
    main(sys.argv[1])
