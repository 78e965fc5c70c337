#!/usr/bin/env python3
"""What a Megatron checkpoint of a Qwen3 must hold, made from the Hugging Face directory alone: the mapping a second time, in NumPy.

  expected_qwen3.py SOURCE TARGET [--per-layer] [--layers RANGES] [--exclude PATTERN]... [--manifest FILE]...

Writes every global tensor into TARGET, a safetensors file. BF16 values are moved as their bits: NumPy has no such number, and none is
computed. Layers are stacked along a leading axis; with --per-layer each has tensors of its own. Every tensor of SOURCE must be used once.
Each manifest is that of a checkpoint of the real Megatron-Core: its tensors must have the sha256 of ours, its chunks be those that
`boxes` says, and its objects those of `objects`. With --layers and --exclude only the keys of that part of the model are written. Exit status
0 when nothing differs, 1 otherwise.
"""
import argparse, hashlib, itertools, json, struct, sys

import numpy as np

import part
from hf_directory import read_config, shard_files
from report import Report

LAYERS = "decoder.layers."

# In every layer: what is renamed and nothing else.
PLAIN = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
# The modules of a layer that have an extra state.
MODULES = [
    "self_attention.linear_qkv", "self_attention.q_layernorm", "self_attention.k_layernorm", "self_attention.linear_proj",
    "mlp.linear_fc1", "mlp.linear_fc2",
]


# --- safetensors, whose weights here are all BF16 ---

def read_shard(path):
    """Name to bits."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, and only BF16 is understood here")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype="<u2").reshape(entry["shape"])
    return tensors


def write_shard(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in tensors.values():
            file.write(bits(tensor))


def bits(tensor):
    """The little-endian bytes in row-major order."""
    return np.ascontiguousarray(tensor, dtype="<u2").tobytes()


def stored(source):
    """Every tensor as it lies in the shards."""
    tensors = {}
    for path in shard_files(source):
        tensors.update(read_shard(path))
    return tensors


# --- the Megatron side ---

def fused(query, key, value, config):
    """Group after group: the query heads that share a key head, then that key head, then its value head."""
    groups = config["num_key_value_heads"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    sharing = config["num_attention_heads"] // groups
    if [len(query), len(key), len(value)] != [groups * sharing * head, groups * head, groups * head]:
        raise ValueError("the config's heads are not those of the projections")
    rows = []
    for group in range(groups):
        rows.append(query[group * sharing * head:(group + 1) * sharing * head])
        rows.append(key[group * head:(group + 1) * head])
        rows.append(value[group * head:(group + 1) * head])
    return np.concatenate(rows)


def megatron(config, tensors, per_layer=False):
    """Global tensors by key. Errors: a tensor that is asked for twice or not at all."""
    left = dict(tensors)
    result = {"embedding.word_embeddings.weight": left.pop("model.embed_tokens.weight")}
    layers = []
    for layer in range(config["num_hidden_layers"]):
        source = f"model.layers.{layer}."
        params = {target: left.pop(source + name) for name, target in PLAIN.items()}
        attention = [left.pop(f"{source}self_attn.{part}_proj.weight") for part in "qkv"]
        params["self_attention.linear_qkv.weight"] = fused(*attention, config)
        params["mlp.linear_fc1.weight"] = np.concatenate([left.pop(f"{source}mlp.{part}_proj.weight") for part in ("gate", "up")])
        layers.append(params)
    for name in layers[0]:
        if per_layer:
            result.update({f"{LAYERS}{layer}.{name}": params[name] for layer, params in enumerate(layers)})
        else:
            result[LAYERS + name] = np.stack([params[name] for params in layers])
    result["decoder.final_layernorm.weight"] = left.pop("model.norm.weight")
    # A tied head is the embedding, and is stored nowhere else.
    if not config.get("tie_word_embeddings", False):
        result["output_layer.weight"] = left.pop("lm_head.weight")
    if left:
        raise ValueError(f"tensors that nothing asks for: {sorted(left)[:5]}")
    return result


def is_stacked(key):
    """Whether the key is of all layers, and its first axis theirs."""
    return key.startswith(LAYERS) and not key[len(LAYERS)].isdigit()


# The axis of one layer's param that tensor parallel ranks share.
CUT = {
    "word_embeddings.weight": 0, "output_layer.weight": 0, "linear_qkv.weight": 0, "linear_fc1.weight": 0,
    "linear_proj.weight": 1, "linear_fc2.weight": 1,
}


def boxes(key, shape, tp):
    """The chunks that Megatron-Core writes, as (offsets, sizes): by axis, into how many."""
    parts = [1] * len(shape)
    leading = int(is_stacked(key))
    parts[:leading] = shape[:leading]
    for suffix, axis in CUT.items():
        if key.endswith("." + suffix) or key == suffix:
            # Each rank holds a part of the gate and a part of the up matrix: two chunks, also where there is one rank.
            parts[leading + axis] = 2 * tp if suffix == "linear_fc1.weight" else tp
    sizes = tuple(extent // count for extent, count in zip(shape, parts))
    corners = itertools.product(*[[part * size for part in range(count)] for size, count in zip(sizes, parts)])
    return sorted((tuple(corner), sizes) for corner in corners)


def objects(config, per_layer):
    """The names of the extra states."""
    count = config["num_hidden_layers"]
    names = {"decoder.final_layernorm._extra_state/shard_0_1"}
    for layer, module in itertools.product(range(count), MODULES):
        names.add(f"{LAYERS}{layer}.{module}._extra_state/shard_0_1" if per_layer else f"{LAYERS}{module}._extra_state/shard_{layer}_{count}")
    return names


def common_state(per_layer):
    """What a loader learns first: among it, by which of the two names the layers are to be asked for."""
    content = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if per_layer:
        content["non_homogeneous_layers"] = True
    return {"checkpoint_version": 3.0, "iteration": 0, "content_metadata": content}


def check(config, tensors, per_layer, manifest, report):
    """Holds our tensors and objects against what the real Megatron-Core wrote."""
    expected, tp = manifest["tensors"], manifest["topology"]["tp"]
    for key in sorted(set(expected) - set(tensors)):
        report.bad(f"not made: {key}")
    for key in sorted(set(tensors) - set(expected)):
        report.bad(f"made, and not in the manifest: {key}")
    chunks = 0
    for key in sorted(set(expected) & set(tensors)):
        tensor, entry = tensors[key], expected[key]
        if (list(tensor.shape), "bfloat16") != (entry["shape"], entry["dtype"]):
            report.bad(f"{key}: bfloat16 {list(tensor.shape)}, in the manifest {entry['dtype']} {entry['shape']}")
        elif hashlib.sha256(bits(tensor)).hexdigest() != entry["sha256"]:
            report.bad(f"{key}: sha256 is not the manifest's")
        cut = sorted((tuple(chunk["offsets"]), tuple(chunk["sizes"])) for chunk in entry["chunks"])
        chunks += len(cut)
        if cut != boxes(key, entry["shape"], tp):
            report.bad(f"{key}: cut otherwise in the manifest")
    theirs = dict(manifest["objects"])
    if theirs.pop("common_state/shard_0_1", None) != str([common_state(per_layer)]):
        report.bad("the common state is another in the manifest")
    for name in sorted(objects(config, per_layer) ^ set(theirs)):
        report.bad(f"object on one side only: {name}")
    for name in sorted(theirs):
        if theirs[name] != "[tensor([], dtype=torch.uint8)]":
            report.bad(f"object {name} is {theirs[name]} in the manifest")
    print(f"manifest: {len(expected)} tensors have our sha256, {chunks} chunks are where the rule says, {len(theirs)} objects have our names")


def check_file(source, per_layer, path, report):
    config = read_config(source)
    with open(path) as file:
        check(config, megatron(config, stored(source), per_layer), per_layer, json.load(file), report)


def main(arguments):
    parser = argparse.ArgumentParser(prog="expected_qwen3.py")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--per-layer", action="store_true")
    part.add_options(parser)
    parser.add_argument("--manifest", action="append", default=[])
    arguments = parser.parse_args(arguments)
    report = Report(20)
    for path in arguments.manifest:
        check_file(arguments.source, arguments.per_layer, path, report)
    config, sources = read_config(arguments.source), stored(arguments.source)
    tensors = megatron(config, sources, arguments.per_layer)
    keys = part.chosen(arguments).keys(sources, np.full, lambda flags: megatron(config, flags, arguments.per_layer))
    tensors = {key: tensor for key, tensor in tensors.items() if key in keys}
    write_shard(arguments.target, tensors)
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"{len(tensors)} global tensors, {size} bytes")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
