"""Faults in conversions of GLM-5, and the checks that must see them."""
import json, os

import torch

import check_export, check_import, check_ranks, check_same, check_torch_dist, expected
from damage import *
from families import GLM5
from records import MANIFEST, REPORT

NORM = "decoder.final_norm.weight"
EXPERTS = "decoder.layers.7.mlp.experts.experts.linear_fc1.weight"
NORM_STATE = "decoder.final_norm._extra_state/shard_0_1"
GATED = "decoder.layers.1.mlp.linear_fc1.weight"
DOWN = "decoder.layers.0.self_attention.linear_q_down_proj.weight"
ROUTER_BIAS = "decoder.layers.7.mlp.router.expert_bias"
EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"
COMMON_FILE = "iter_0000000/common.pt"
HEAD_STATE = "output_layer._extra_state/shard_0_1"


# --- the checks ---

def by_torch_dist(run, tensors, report):
    check_torch_dist.check(run, tensors, report)


def by_expected(source, manifest, report):
    tensors = expected.megatron(expected.read_config(source), expected.plain(source))
    with open(manifest) as file:
        expected.check(tensors, json.load(file), report)


def scenes(at):
    """What is damaged, and the check that must see it: scene to (good result, check of a copy of it)."""
    return {
        # GLM-5.2, whole, against the real checkpoint of the same mesh.
        "torch_dist": (at["run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import": (at["run"], lambda copy, report: check_import.check(copy, at["fixture"], GLM5, report)),
        "export": (at["exported"], lambda copy, report: check_export.check(copy, at["source"], GLM5, False, None, report)),
        "export without mtp": (at["exported"], lambda copy, report: check_export.check(copy, at["source"], GLM5, True, None, report)),
        "same": (at["run"], lambda copy, report: check_same.check(at["run"], [copy], [], report)),
        "same but": (at["run"], lambda copy, report: check_same.check(at["run"], [copy], [COMMON_FILE], report)),
        # GLM-5.2, cut for tensor, pipeline and expert parallelism.
        "torch_dist, cut": (at["cut_run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import, cut": (at["cut_run"], lambda copy, report: check_import.check(copy, at["cut_fixture"], GLM5, report)),
        "ranks": (at["cut_run"], lambda copy, report: check_ranks.check(copy, at["expected"], at["ranks"], GLM5, report)),
        "ranks of a file": (at["ranks"], lambda copy, report: check_ranks.check(at["cut_run"], at["expected"], copy, GLM5, report)),
        "expected": (at["source"], lambda copy, report: by_expected(copy, os.path.join(at["cut_fixture"], "manifest.json"), report)),
        # GLM-5 on a mesh that no real checkpoint has, from weights in F32.
        "import by rule": (at["f32_run"], lambda copy, report: check_import.check(copy, at["f32_fixture"], GLM5, report, [2, 1, 2, 2])),
        "export of f32": (at["f32_exported"], lambda copy, report: check_export.check(copy, at["f32_source"], GLM5, False, None, report)),
        # One chunk for each tensor.
        "import, whole": (at["whole_run"], lambda copy, report: check_import.check(copy, at["cut_fixture"], GLM5, report, boxes=check_import.whole)),
        # A vocabulary that is padded.
        "torch_dist, padded": (at["padded_run"], lambda copy, report: by_torch_dist(copy, at["padded_expected"], report)),
        "import, padded": (at["padded_run"], lambda copy, report: check_import.check(copy, at["fixture"], GLM5, report, [2, 1, 1, 1], is_padded=True)),
        "ranks, padded": (at["padded_run"], lambda copy, report: check_ranks.check(copy, at["expected"], at["ranks"], GLM5, report)),
        # GLM-5.3 from weights in FP8.
        "torch_dist of fp8": (at["fp8_run"], lambda copy, report: by_torch_dist(copy, at["fp8_expected"], report)),
        "ranks of fp8": (at["fp8_run"], lambda copy, report: check_ranks.check(copy, at["fp8_expected"], at["fp8_ranks"], GLM5, report)),
        "import of fp8": (at["fp8_run"], lambda copy, report: check_import.check(copy, at["fp8_fixture"], GLM5, report)),
        "expected of fp8": (at["fp8_source"], lambda copy, report: by_expected(copy, os.path.join(at["fp8_fixture"], "manifest.json"), report)),
        "export of fp8": (at["fp8_exported"], lambda copy, report: check_export.check(copy, at["fp8_source"], GLM5, False, at["dequantized"], report)),
        "export by another program": (at["dequantized"], lambda copy, report: check_export.check(at["fp8_exported"], at["fp8_source"], GLM5, False, copy, report)),
    }


# Scenes whose undamaged result is a fault itself.
FAILING = ["export without mtp", "same but"]


# --- faults that only this family can have ---

# The FP8 matrices of the source as their codes, in F32, without the scales.
CODES = {}


def plainly(name):
    def change(value):
        return CODES[name].to(value.dtype)
    return change


def without_scales(tensors):
    for name in tensors:
        if name.endswith(expected.SCALE):
            tensors[name] = torch.ones_like(tensors[name])


def narrow_bias(tensors):
    for name in tensors:
        if name.endswith(expected.BIAS):
            tensors[name] = tensors[name].to(torch.bfloat16)


def one_as_codes(tensors):
    name = next(name for name in sorted(CODES) if name in tensors)
    tensors[name] = CODES[name].to(torch.bfloat16)


def a_scale(tensors):
    tensors[next(iter(sorted(CODES))) + expected.SCALE] = torch.ones(1)


def wide_router(tensors):
    name = next(name for name in sorted(tensors) if name.endswith("mlp.gate.weight"))
    tensors[name] = tensors[name].float()


COMMON_STATE = [{"checkpoint_version": 3.0, "iteration": 0}]
FAULTS = [
    # scene, what the report must say, fault, how
    ("torch_dist", "bits differ", "a bit of a weight", flip_weight(NORM)),
    ("torch_dist", "another CRC", "a bit of a weight", flip_weight(NORM)),
    ("torch_dist", "not on a page", "a tensor appended as PyTorch does", cut_in_two(NORM)),
    ("torch_dist", "expected tensor absent", "a tensor deleted", delete_entry(NORM)),
    ("torch_dist", "unexpected tensor", "a tensor renamed", rename_tensor(NORM, "decoder.final_layernorm.weight")),
    ("torch_dist", "dtype", "a dtype changed", change_dtype(NORM)),
    ("torch_dist", "chunks hold", "a chunk deleted", delete_chunk(EXPERTS)),
    ("torch_dist", "beyond the file", "a data file cut off", cut_off),
    ("torch_dist", "not a distributed checkpoint", "no metadata.json", remove("metadata.json")),
    ("torch_dist", "load failed", "no common.pt", remove("common.pt")),
    ("torch_dist", "load failed", "the common state in both forms", lambda run: set_object(run, check_import.COMMON, COMMON_STATE)),
    ("import", "sha256", "a bit of a weight", flip_weight(NORM)),
    ("import", "tensor absent", "a tensor deleted", delete_entry(NORM)),
    ("import", "tensor unexpected", "a tensor renamed", rename_tensor(NORM, "decoder.final_layernorm.weight")),
    ("import", "dtype", "a dtype changed", change_dtype(NORM)),
    ("import", "chunks otherwise", "a tensor cut otherwise", cut_in_two(NORM)),
    ("import", "object absent", "an object deleted", delete_entry(NORM_STATE)),
    ("import", "object unexpected", "an object more", lambda run: set_object(run, "x._extra_state/shard_0_1", [None])),
    ("import", NORM_STATE, "an extra state without its tensor", lambda run: set_object(run, NORM_STATE, [None])),
    ("import", NORM_STATE, "an extra state that is not empty", lambda run: set_object(run, NORM_STATE, [torch.zeros(1, dtype=torch.uint8)])),
    ("import", NORM_STATE, "an extra state of another dtype", lambda run: set_object(run, NORM_STATE, [torch.zeros(0)])),
    ("import", HEAD_STATE, "a head with an extra state", lambda run: set_object(run, HEAD_STATE, [torch.zeros(0, dtype=torch.uint8)])),
    ("import", "beside common.pt", "the common state in both forms", lambda run: set_object(run, check_import.COMMON, COMMON_STATE)),
    ("import", "common.pt", "another iteration", pickled("common.pt", lambda value: value.update(iteration=1))),
    ("import", "common.pt", "no content metadata", pickled("common.pt", lambda value: value.pop("content_metadata"))),
    ("import", "common.pt", "no common.pt", remove("common.pt")),
    ("import", "train_state.pt", "a counter that is no tensor", pickled("train_state.pt", lambda value: value.update(step=0))),
    ("import", "train_state.pt", "a counter of another width", pickled("train_state.pt", lambda value: value.update(step=torch.tensor(0, dtype=torch.int32)))),
    ("import", "latest_train_state.pt", "no train state in the run", lambda run: os.remove(os.path.join(run, "latest_train_state.pt"))),
    ("import", "metadata.json", "two of four keys in metadata.json", description),
    ("import", "latest_checkpointed_iteration.txt", "another tracker", tracker),
    ("import", "layernorm_epsilon is the text", "a number that YAML reads as text", text(r"^( +layernorm_epsilon:).*$", r"\1 1e-05")),
    ("import", "hidden_size", "another width", text(r"^( +hidden_size:).*$", r"\1 97")),
    ("import", "bf16", "a flag as text", text(r"^( +bf16:).*$", r"\1 'yes'")),
    ("import", "hybrid_layer_pattern is absent", "no layer pattern", text(r"^ +hybrid_layer_pattern:.*\n", "")),
    ("import", "ckpt_format", "another format", text(r"^( +ckpt_format:).*$", r"\1 zarr")),
    ("export", "bits differ", "a bit of a weight", lambda exported: flip(first_shard(exported), os.path.getsize(first_shard(exported)) - 1)),
    ("export", "tensor absent", "a tensor deleted", shard(lambda tensors, name: tensors.pop(name))),
    ("export", "tensor unexpected", "a tensor renamed", shard(lambda tensors, name: tensors.update({name + "x": tensors.pop(name)}))),
    ("export", "float16", "a dtype changed", shard(replace_by(lambda tensor: tensor.view(torch.float16)))),
    ("export", "expected torch.bfloat16", "a tensor widened", shard(replace_by(lambda tensor: tensor.float()))),
    ("export", "expected torch.bfloat16 (", "a tensor transposed", shard(replace_by(lambda tensor: tensor.T.contiguous()))),
    ("export", "bits differ", "rows in another order", shard(replace_by(lambda tensor: tensor.flip(0).contiguous()))),
    ("export", "format", "no format in a shard", shard(lambda tensors, name: None, metadata=None)),
    ("export", "index key", "an index key renamed", index(rename_key)),
    ("export", "total_size", "another total size", index(grow)),
    ("export", "config.json", "a byte more in config.json", append("config.json", b"\n")),
    ("export", "record absent: rialto-manifest.json", "no manifest", lambda exported: os.remove(os.path.join(exported, MANIFEST))),
    ("export", "side file", "a side file more", append("generation_config.json", b"{}")),
    ("export without mtp", "tensor unexpected", "prediction layers that should be gone", lambda exported: None),
    ("torch_dist", "another CRC", "a CRC of right data", wrong_crc(NORM)),
    ("torch_dist, cut", "bits differ", "gate and up swapped", swap(GATED, [(0, 2), (1, 3)])),
    ("torch_dist, cut", "bits differ", "two experts swapped", swap(EXPERTS, [(0, 2), (1, 3)])),
    ("torch_dist, cut", "bits differ", "a chunk's data one row off", rewrite(GATED, lambda value: value.roll(1, 0))),
    ("torch_dist, cut", "overlapping", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("torch_dist, cut", "not on a page", "data not aligned", rewrite(EXPERTS, torch.clone)),
    ("torch_dist, cut", "expected tensor absent", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("torch_dist, cut", "unexpected tensor", "a tensor more", add_tensor("x.weight", NORM)),
    ("torch_dist, cut", "dtype", "a router bias narrowed", rewrite(ROUTER_BIAS, torch.Tensor.bfloat16)),
    ("import, cut", "sha256", "gate and up swapped", swap(GATED, [(0, 2), (1, 3)])),
    ("import, cut", "sha256", "two experts swapped", swap(EXPERTS, [(0, 2), (1, 3)])),
    ("import, cut", "chunks otherwise", "a border one row off", rewrite(GATED, torch.clone, a_row_off)),
    ("import, cut", "chunks otherwise", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("import, cut", "tensor absent", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("import, cut", "object absent", "an object missing", delete_entry(NORM_STATE)),
    ("import, cut", "tensor unexpected", "a tensor more", add_tensor("x.weight", NORM)),
    ("import, cut", "dtype", "a router bias narrowed", rewrite(ROUTER_BIAS, torch.Tensor.bfloat16)),
    ("import, cut", "hybrid_layer_pattern", "stages that end elsewhere", text(r"^( +hybrid_layer_pattern:.*)\|(..)", r"\1\2|")),
    ("import by rule", "chunks otherwise", "a border one row off", rewrite(GATED, torch.clone, a_row_off)),
    ("import by rule", "chunks otherwise", "one chunk for a tensor", rewrite(GATED, torch.clone, lambda chunks: [((0, 0), (chunks[-1][0][0] + chunks[-1][1][0], chunks[0][1][1]))])),
    ("import by rule", "hybrid_layer_pattern", "another layer pattern", text(r"^( +hybrid_layer_pattern: *\S*?)D", r"\1M")),
    ("import by rule", "expected 1 stages", "a stage more", text(r"^( +hybrid_layer_pattern: *\S*?)E", r"\1E|")),
    ("import by rule", "expert_tensor_parallel_size", "another mesh", text(r"^( +expert_tensor_parallel_size:).*$", r"\1 1")),
    ("import, cut", "pipeline_model_parallel_size", "another mesh", text(r"^( +pipeline_model_parallel_size:).*$", r"\1 1")),
    ("import, whole", "chunks otherwise", "a tensor cut in two", cut_in_two(NORM)),
    ("torch_dist, padded", f"{EMBEDDING}: bits differ", "padding that is no zero", rewrite(EMBEDDING, with_one(-1))),
    ("torch_dist, padded", f"{HEAD}: bits differ", "a row of the vocabulary changed", rewrite(HEAD, with_one(255))),
    ("torch_dist, padded", f"{EMBEDDING}: shape", "padding of another length", rewrite(EMBEDDING, *shorter(128))),
    ("import, padded", "the padding below row 256 is not zeros", "padding that is no zero", rewrite(HEAD, with_one(256))),
    ("import, padded", f"{EMBEDDING}: sha256", "a row of the vocabulary changed", rewrite(EMBEDDING, with_one(255))),
    ("import, padded", f"{HEAD}: shape", "padding of another length", rewrite(HEAD, *shorter(1280))),
    ("import, padded", f"{HEAD}: cut into 2 chunks otherwise", "a border one row off", rewrite(HEAD, torch.clone, a_row_off)),
    ("import, padded", "should_pad_vocab", "padding that is not said", text(r"^( +should_pad_vocab:).*$", r"\1 false")),
    ("import, padded", "vocab_size", "the padded size for the true one", text(r"^( +vocab_size:).*$", r"\1 2560")),
    ("import, padded", "make_vocab_size_divisible_by", "another multiple", text(r"^( +make_vocab_size_divisible_by:).*$", r"\1 128")),
    ("ranks, padded", "bits differ", "a row of the vocabulary changed", rewrite(HEAD, with_one(255))),
    ("ranks", "bits differ", "gate and up swapped", swap(GATED, [(0, 2), (1, 3)])),
    ("ranks", "bits differ", "two experts swapped", swap(EXPERTS, [(0, 2), (1, 3)])),
    ("ranks", "bits differ", "a chunk's data one row off", rewrite(GATED, lambda value: value.roll(1, 0))),
    ("ranks", "bits differ", "a bit of a weight", flip_weight(NORM)),
    ("ranks", "bits differ", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("ranks", "Unexpected keys", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("ranks", "Unexpected keys", "an object missing", delete_entry(NORM_STATE)),
    ("ranks", "load failed", "the object of one expert missing", delete_entry("decoder.layers.7.mlp.experts.experts.linear_fc1._extra_state/shard_3_8")),
    ("ranks", "Missing keys (for all ranks): {'x.weight'}", "a tensor more", add_tensor("x.weight", NORM)),
    ("ranks", "Missing keys (for all ranks): {'x._extra_state'}", "an object more", lambda run: set_object(run, "x._extra_state/shard_0_1", [None])),
    ("ranks", "is stored as torch.bfloat16", "a router bias narrowed", rewrite(ROUTER_BIAS, torch.Tensor.bfloat16)),
    ("ranks", "bits differ", "a chunk missing", rewrite(GATED, torch.clone, lambda chunks: chunks[:3])),
    ("ranks", "load failed", "a tensor of fewer rows", rewrite(DOWN, lambda value: value[:-1], lambda chunks: [((0, 0), (chunks[0][1][0] - 1, chunks[0][1][1]))])),
    ("ranks", "the model's is", "an object of another value", lambda run: set_object(run, NORM_STATE, [None])),
    ("ranks", "load failed", "no common.pt", remove("common.pt")),
    ("ranks of a file", "Invalid access pattern", "a rank that asks for nothing", ranks_file(silence(1))),
    ("ranks of a file", "Missing keys", "a stage that asks for nothing", ranks_file(silence(2))),
    ("ranks of a file", "Invalid access pattern", "a tensor with two main replicas", ranks_file(two_main_replicas)),
    ("ranks of a file", "the parameter is", "a parameter of another shape", ranks_file(lambda ranks: ranks[0]["parameters"].update({"embedding.word_embeddings.weight": [[256, 96], "bfloat16"]}))),
    ("ranks of a file", "nothing was asked for", "a parameter that is not loaded", ranks_file(lambda ranks: ranks[0]["parameters"].update({"x.weight": [[1], "bfloat16"]}))),
    ("expected", "sha256", "gate and up swapped", of_source(exchange("mlp", "gate_proj", "up_proj"))),
    ("expected", "sha256", "two experts swapped", of_source(exchange("layers.3", "experts.0.", "experts.1."))),
    ("expected", "float32", "router biases narrowed", of_source(narrow_bias)),
    ("expected", "nothing asks for", "a tensor more", of_source(lambda tensors: tensors.update({"model.x": torch.zeros(1)}))),
    ("expected", "KeyError", "a tensor less", of_source(lambda tensors: tensors.pop("model.layers.3.mlp.experts.7.up_proj.weight"))),
    ("expected of fp8", "sha256", "scales ignored", of_source(without_scales)),
    ("torch_dist of fp8", "bits differ", "a scale ignored", rewrite(DOWN, plainly("model.layers.0.self_attn.q_a_proj.weight"))),
    ("ranks of fp8", "bits differ", "a scale ignored", rewrite(DOWN, plainly("model.layers.0.self_attn.q_a_proj.weight"))),
    ("import of fp8", "sha256", "a scale ignored", rewrite(DOWN, plainly("model.layers.0.self_attn.q_a_proj.weight"))),
    ("export of fp8", "bits differ", "a scale ignored", tensors_of(one_as_codes)),
    ("export of fp8", "tensor unexpected", "a scale that is left", tensors_of(a_scale)),
    ("export of fp8", "config.json", "a quantization_config that is left", config(lambda document: document.update(quantization_config={"quant_method": "fp8"}))),
    ("export by another program", "dequantized otherwise", "a bit of a weight", lambda path: flip(path, os.path.getsize(path) - 1)),
    ("export of f32", "expected torch.bfloat16", "a router left in F32", tensors_of(wide_router)),
    ("export of f32", "expected torch.float32", "router biases narrowed", tensors_of(narrow_bias)),
    ("export of f32", "side file", "a side file missing", lambda exported: os.remove(os.path.join(exported, "generation_config.json"))),
    ("same", "differs", "a bit of a weight", flip_weight(NORM)),
    ("same", "one side only", "a file missing", remove("common.pt")),
    ("same", "one side only", "no report of the run", lambda run: os.remove(os.path.join(run, REPORT))),
    ("same", "manifest.json differs", "a digest of other data", append(MANIFEST, b" ")),
    ("same", "one side only", "a file more", append("iter_0000000/x", b"x")),
    ("same but", "should not be", "a file that should differ", lambda run: None),
]


def prepare(at):
    """What faults are made of."""
    codes = expected.stored(at["fp8_source"])
    CODES.update({name: tensor.float() for name, tensor in codes.items() if name + expected.SCALE in codes})
