#!/usr/bin/env python3
"""What a Megatron checkpoint of a GLM-5 must hold, made from the Hugging Face directory alone: the mapping a second time, in PyTorch.

  expected.py SOURCE TARGET [--without-mtp] [--pad-vocab TP] [--layers RANGES] [--exclude PATTERN]... [--manifest FILE]...

Writes every global tensor into TARGET, a safetensors file: gate above up, experts stacked, FP8 weights multiplied by their
scales, and everything in BF16 but the routers' bias. Every tensor of SOURCE must be used once. Each manifest is that of a checkpoint
of the real Megatron-Core: its tensors must have the sha256 of ours, and its chunks be those that `boxes` says.
With --pad-vocab, embedding and head are then filled up with zeros, as Megatron-Bridge sizes them for so many tensor parallel ranks.
With --layers and --exclude only the keys of that part of the model are written.
Exit status 0 when nothing differs, 1 otherwise.
"""
import argparse, hashlib, json, math, sys

import safetensors.torch
import torch

import part
from check_torch_dist import raw
from hf_directory import read_config, shard_files
from report import Report

BIAS = "mlp.gate.e_score_correction_bias"
SCALE = "_scale_inv"

ATTENTION = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.q_a_proj.weight": "self_attention.linear_q_down_proj.weight",
    "self_attn.q_a_layernorm.weight": "self_attention.q_layernorm.weight",
    "self_attn.q_b_proj.weight": "self_attention.linear_q_up_proj.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "self_attention.linear_kv_down_proj.weight",
    "self_attn.kv_a_layernorm.weight": "self_attention.kv_layernorm.weight",
    "self_attn.kv_b_proj.weight": "self_attention.linear_kv_up_proj.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
}
# In layers that choose positions themselves.
INDEXER = {
    "self_attn.indexer.wq_b.weight": "self_attention.core_attention.indexer.linear_wq_b.weight",
    "self_attn.indexer.wk.weight": "self_attention.core_attention.indexer.linear_wk.weight",
    "self_attn.indexer.k_norm.weight": "self_attention.core_attention.indexer.k_norm.weight",
    "self_attn.indexer.k_norm.bias": "self_attention.core_attention.indexer.k_norm.bias",
    "self_attn.indexer.weights_proj.weight": "self_attention.core_attention.indexer.linear_weights_proj.weight",
}
PREDICTION = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "eh_proj.weight": "eh_proj.weight",
    "shared_head.norm.weight": "final_layernorm.weight",
}


# --- the Hugging Face side ---

def stored(source):
    """Every tensor as it lies in the shards."""
    tensors = {}
    for path in shard_files(source):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def dequantized(weight, scale, block):
    """Each block of codes times its scale, in F32, rounded to BF16 once."""
    rows, columns = weight.shape
    grid = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return (weight.float() * grid[:rows, :columns]).to(torch.bfloat16)


def plain(source, without_mtp=False):
    """Every tensor as BF16 and without scales, the routers' bias as it is: what an export holds."""
    config, tensors = read_config(source), stored(source)
    for name in [name for name in tensors if name.endswith(SCALE)]:
        weight = name[:-len(SCALE)]
        tensors[weight] = dequantized(tensors[weight], tensors.pop(name), config["quantization_config"]["weight_block_size"])
    for name, tensor in tensors.items():
        if not name.endswith(BIAS):
            tensors[name] = tensor.to(torch.bfloat16)
    if without_mtp:
        layers = prediction_layers(config)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(layers)}
    return tensors


def prediction_layers(config):
    """The prefixes of the tensors in prediction layers."""
    first = config["num_hidden_layers"]
    return tuple(f"model.layers.{first + layer}." for layer in range(config.get("num_nextn_predict_layers") or 0))


# --- the Megatron side ---

def megatron(config, tensors):
    """Global tensors by key. Errors: a tensor that is asked for twice or not at all."""
    left, result = dict(tensors), {}

    def halves(prefix):
        return torch.cat([left.pop(prefix + "gate_proj.weight"), left.pop(prefix + "up_proj.weight")])

    def block(source, attention, mlp):
        for table in (ATTENTION, INDEXER):
            if table is ATTENTION or source + next(iter(table)) in left:
                result.update({attention + key: left.pop(source + name) for name, key in table.items()})
        norm = left.pop(source + "post_attention_layernorm.weight")
        if source + "mlp.gate.weight" not in left:
            result[mlp + "mlp.linear_fc1.layer_norm_weight"] = norm
            result[mlp + "mlp.linear_fc1.weight"] = halves(source + "mlp.")
            result[mlp + "mlp.linear_fc2.weight"] = left.pop(source + "mlp.down_proj.weight")
            return
        result[mlp + "pre_mlp_layernorm.weight"] = norm
        result[mlp + "mlp.router.weight"] = left.pop(source + "mlp.gate.weight")
        result[mlp + "mlp.router.expert_bias"] = left.pop(source + BIAS)
        result[mlp + "mlp.shared_experts.linear_fc1.weight"] = halves(source + "mlp.shared_experts.")
        result[mlp + "mlp.shared_experts.linear_fc2.weight"] = left.pop(source + "mlp.shared_experts.down_proj.weight")
        experts = [f"{source}mlp.experts.{expert}." for expert in range(config["n_routed_experts"])]
        result[mlp + "mlp.experts.experts.linear_fc1.weight"] = torch.stack([halves(expert) for expert in experts])
        result[mlp + "mlp.experts.experts.linear_fc2.weight"] = torch.stack([left.pop(expert + "down_proj.weight") for expert in experts])

    result["embedding.word_embeddings.weight"] = left.pop("model.embed_tokens.weight")
    for layer in range(config["num_hidden_layers"]):
        block(f"model.layers.{layer}.", f"decoder.layers.{2 * layer}.", f"decoder.layers.{2 * layer + 1}.")
    result["decoder.final_norm.weight"] = left.pop("model.norm.weight")
    result["output_layer.weight"] = left.pop("lm_head.weight")
    for layer, source in enumerate(prediction_layers(config)):
        if source + "enorm.weight" in left:
            target = f"mtp.layers.{layer}."
            result.update({target + key: left.pop(source + name) for name, key in PREDICTION.items()})
            block(source, target + "mtp_model_layer.layers.0.", target + "mtp_model_layer.layers.1.")
    if left:
        raise ValueError(f"tensors that nothing asks for: {sorted(left)[:5]}")
    return result


# What Megatron makes longer than the vocabulary, and to a multiple of what for each rank.
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")
DIVISIBLE_BY = 1280


def padded_size(vocabulary, ranks):
    return math.ceil(vocabulary / (DIVISIBLE_BY * ranks)) * DIVISIBLE_BY * ranks


def padded(tensors, ranks):
    """The same with zeros below the rows of the vocabulary."""
    result = dict(tensors)
    for key in PADDED:
        rows = padded_size(tensors[key].shape[0], ranks) - tensors[key].shape[0]
        result[key] = torch.cat([tensors[key], torch.zeros(rows, tensors[key].shape[1], dtype=tensors[key].dtype)])
    return result


COLUMNS = ("linear_q_up_proj.weight", "linear_kv_up_proj.weight", "word_embeddings.weight", "output_layer.weight", "eh_proj.weight")


def boxes(key, shape, tp, etp):
    """The chunks that Megatron-Core writes on a mesh, as (offsets, sizes): by axis, into how many."""
    parts = [1] * len(shape)
    if ".experts.experts." in key:
        parts[0] = shape[0]
        parts[1 if "linear_fc1" in key else 2] = 2 * etp if "linear_fc1" in key else etp
    elif key.endswith("linear_fc1.weight"):
        parts[0] = 2 * tp
    elif key.endswith(COLUMNS):
        parts[0] = tp
    elif key.endswith(("linear_proj.weight", "linear_fc2.weight")):
        parts[1] = tp
    sizes = tuple(extent // count for extent, count in zip(shape, parts))
    found = [()]
    for size, count in zip(sizes, parts):
        found = [offsets + (index * size,) for offsets in found for index in range(count)]
    return sorted((offsets, sizes) for offsets in found)


def check(tensors, manifest, report):
    """Holds our tensors against what the real Megatron-Core wrote."""
    expected, mesh = manifest["tensors"], manifest["topology"]
    for key in sorted(set(expected) - set(tensors)):
        report.bad(f"not made: {key}")
    for key in sorted(set(tensors) - set(expected)):
        if not key.startswith("mtp.") or any(other.startswith("mtp.") for other in expected):
            report.bad(f"made, and not in the manifest: {key}")
    chunks = 0
    for key in sorted(set(expected) & set(tensors)):
        tensor, entry = tensors[key], expected[key]
        if (list(tensor.shape), str(tensor.dtype)) != (entry["shape"], "torch." + entry["dtype"]):
            report.bad(f"{key}: {tensor.dtype} {list(tensor.shape)}, in the manifest {entry['dtype']} {entry['shape']}")
        elif hashlib.sha256(raw(tensor)).hexdigest() != entry["sha256"]:
            report.bad(f"{key}: sha256 is not the manifest's")
        cut = sorted((tuple(chunk["offsets"]), tuple(chunk["sizes"])) for chunk in entry["chunks"])
        chunks += len(cut)
        if cut != boxes(key, entry["shape"], mesh["tp"], mesh["etp"]):
            report.bad(f"{key}: cut otherwise in the manifest")
    print(f"manifest: {len(expected)} tensors have our sha256, {chunks} chunks are where the rule says")


def main(arguments):
    parser = argparse.ArgumentParser(prog="expected.py")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--without-mtp", action="store_true")
    parser.add_argument("--pad-vocab", type=int)
    part.add_options(parser)
    parser.add_argument("--manifest", action="append", default=[])
    arguments = parser.parse_args(arguments)
    report = Report(20)
    config, sources = read_config(arguments.source), plain(arguments.source, arguments.without_mtp)
    tensors = megatron(config, sources)
    for path in arguments.manifest:
        with open(path) as file:
            check(tensors, json.load(file), report)
    if arguments.pad_vocab:
        tensors = padded(tensors, arguments.pad_vocab)
    keys = part.chosen(arguments).keys(sources, torch.full, lambda flags: megatron(config, flags))
    tensors = {key: tensor for key, tensor in tensors.items() if key in keys}
    safetensors.torch.save_file(tensors, arguments.target)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(f"{len(tensors)} global tensors, {size} bytes")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
