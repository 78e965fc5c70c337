"""Faults in conversions of Qwen3, and the checks that must see them."""
import dataclasses, os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

import check_export, check_import, check_ranks, check_same, check_torch_dist, expected_qwen3
from damage import *
from families import PARALLEL, QWEN3

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"
NORM = "decoder.final_layernorm.weight"
STACKED = "decoder.layers."
QKV = STACKED + "self_attention.linear_qkv.weight"
OUT = STACKED + "self_attention.linear_proj.weight"
GATED = STACKED + "mlp.linear_fc1.weight"
DOWN = STACKED + "mlp.linear_fc2.weight"
KEY_NORM = STACKED + "self_attention.k_layernorm.weight"
GATED_STATES = [STACKED + f"mlp.linear_fc1._extra_state/shard_{layer}_3" for layer in range(3)]
SHARED_STATE = STACKED + "mlp.linear_fc1._extra_state/shard_0_1"
HEAD_STATE = "output_layer._extra_state/shard_0_1"
FLAG = "non_homogeneous_layers"


# --- the checks ---

def by_torch_dist(run, tensors, report):
    check_torch_dist.check(run, tensors, report, QWEN3.block_modules)


def manifest(fixture):
    return os.path.join(fixture, "manifest.json")


def prepare(at):
    """Nothing is needed."""


def scenes(at):
    """What is damaged, and the check that must see it: scene to (good result, check of a copy of it)."""
    return {
        # Tied, whole and cut for tensor and pipeline parallelism, against the real checkpoint of the same mesh.
        "torch_dist": (at["run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import": (at["run"], lambda copy, report: check_import.check(copy, at["fixture"], QWEN3, report)),
        "torch_dist, cut": (at["cut_run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import, cut": (at["cut_run"], lambda copy, report: check_import.check(copy, at["cut_fixture"], QWEN3, report)),
        "ranks": (at["cut_run"], lambda copy, report: check_ranks.check(copy, at["expected"], manifest(at["cut_fixture"]), QWEN3, report)),
        "ranks of a file": (manifest(at["cut_fixture"]), lambda copy, report: check_ranks.check(at["cut_run"], at["expected"], copy, QWEN3, report)),
        "export": (at["exported"], lambda copy, report: check_export.check(copy, at["source"], QWEN3, False, None, report)),
        "expected": (at["source"], lambda copy, report: expected_qwen3.check_file(copy, False, manifest(at["cut_fixture"]), report)),
        "expected of a file": (manifest(at["cut_fixture"]), lambda copy, report: expected_qwen3.check_file(at["source"], False, copy, report)),
        # Untied, on a mesh that no real checkpoint has.
        "torch_dist, untied": (at["untied_run"], lambda copy, report: by_torch_dist(copy, at["untied_expected"], report)),
        "import by rule": (at["untied_run"], lambda copy, report: check_import.check(copy, at["untied_fixture"], QWEN3, report, [4, 1, 1, 1])),
        "ranks, untied": (at["untied_run"], lambda copy, report: check_ranks.check(copy, at["untied_expected"], manifest(at["untied_fixture"]), QWEN3, report)),
        "export, untied": (at["untied_exported"], lambda copy, report: check_export.check(copy, at["untied_source"], QWEN3, False, None, report)),
        # Untied, with names for each layer.
        "torch_dist, by layer": (at["by_layer_run"], lambda copy, report: by_torch_dist(copy, at["by_layer_expected"], report)),
        "import, by layer": (at["by_layer_run"], lambda copy, report: check_import.check(copy, at["by_layer_fixture"], QWEN3, report)),
        "ranks, by layer": (at["by_layer_run"], lambda copy, report: check_ranks.check(copy, at["by_layer_expected"], manifest(at["by_layer_fixture"]), QWEN3, report)),
        "expected, by layer": (at["untied_source"], lambda copy, report: expected_qwen3.check_file(copy, True, manifest(at["by_layer_fixture"]), report)),
        "expected, stacked for by layer": (at["untied_source"], lambda copy, report: expected_qwen3.check_file(copy, False, manifest(at["by_layer_fixture"]), report)),
        "same": (at["by_layer_exported"], lambda copy, report: check_same.check(at["untied_exported"], [copy], [], report)),
    }


# Scenes whose undamaged result is a fault itself.
FAILING = ["expected, stacked for by layer"]


# --- faults that only this family can have ---

def groups(value):
    """The rows of the fused projection of the tied model: layer, group, head, row in the head, column. 4 query heads, a key, a value."""
    return value.reshape(len(value), 2, 6, 16, -1)


def ungrouped(value):
    """All query heads, then all key heads, then all value heads."""
    parts = groups(value)
    return torch.cat([part.flatten(1, 3) for part in (parts[:, :, :4], parts[:, :, 4:5], parts[:, :, 5:])], 1)


def keys_for_values(value):
    return groups(value)[:, :, [0, 1, 2, 3, 5, 4]].reshape(value.shape)


def other_groups(value):
    return groups(value).flip(1).reshape(value.shape)


def up_for_gate(value):
    return value.roll(value.shape[1] // 2, 1)


def other_layers(value):
    return value[[1, 0, 2]]


def without_last_layer(chunks):
    return [(offsets, sizes) for offsets, sizes in chunks if offsets[0] < 2]


def loaded(run, metadata, names):
    tensors = {name: torch.empty(metadata.state_dict_metadata[name].size, dtype=torch.bfloat16) for name in names}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(iteration(run)), planner=planner, no_dist=True)
    return [tensors[name] for name in names]


def add(run, metadata, name, value, like):
    """A tensor in one chunk for each layer, or in one."""
    tensor = metadata.state_dict_metadata[like]
    boxes = [((0,) * value.dim(), tuple(value.shape))]
    if expected_qwen3.is_stacked(name):
        boxes = [((layer, *[0] * (value.dim() - 1)), (1, *value.shape[1:])) for layer in range(len(value))]
    chunks = [ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)) for offsets, sizes in boxes]
    metadata.state_dict_metadata[name] = dataclasses.replace(tensor, size=value.shape, chunks=chunks)
    for chunk in chunks:
        part = value[tuple(slice(at, at + extent) for at, extent in zip(chunk.offsets, chunk.sizes))]
        store(run, metadata, MetadataIndex(name, chunk.offsets), part.clone())


def stack_one(run):
    """One param of all layers under the stacked name, in a checkpoint with names for each."""
    with metadata_of(run) as metadata:
        names = [OUT.replace(STACKED, f"{STACKED}{layer}.") for layer in range(3)]
        add(run, metadata, OUT, torch.stack(loaded(run, metadata, names)), names[0])
        for name in names:
            forget(metadata, name)


def unstack_one(run):
    with metadata_of(run) as metadata:
        [value] = loaded(run, metadata, [OUT])
        for layer in range(3):
            add(run, metadata, OUT.replace(STACKED, f"{STACKED}{layer}."), value[layer], OUT)
        forget(metadata, OUT)


def add_head(run):
    with metadata_of(run) as metadata:
        [value] = loaded(run, metadata, [EMBEDDING])
        add(run, metadata, HEAD, value, EMBEDDING)


def share_state(run):
    """One extra state for all layers, as it is named where there is no axis of layers."""
    for name in GATED_STATES:
        delete_entry(name)(run)
    set_object(run, SHARED_STATE, [torch.empty(0, dtype=torch.uint8)])


def set_flag(value):
    return pickled("common.pt", lambda common: common["content_metadata"].update({FLAG: value}))


def drop_flag(run):
    pickled("common.pt", lambda common: common["content_metadata"].pop(FLAG))(run)


def axes_exchanged(chunks):
    """As many chunks of each layer, but cut along the other axis."""
    rows = max(offsets[1] + sizes[1] for offsets, sizes in chunks)
    columns = max(offsets[2] + sizes[2] for offsets, sizes in chunks)
    across, down = columns // chunks[0][1][2], rows // chunks[0][1][1]
    height, width = rows // across, columns // down
    layers = sorted({offsets[0] for offsets, _ in chunks})
    return [((layer, i * height, j * width), (1, height, width)) for layer in layers for i in range(across) for j in range(down)]


def layers_together(chunks):
    """One chunk for all layers."""
    corner = [max(offsets[axis] + sizes[axis] for offsets, sizes in chunks) for axis in range(len(chunks[0][0]))]
    return [((0,) * len(corner), tuple(corner))]


def gate_and_up_together(chunks):
    return [((layer, 0, 0), (1, 192, 64)) for layer in range(3)]


# --- run_config.yaml, a field at a time ---

FIELDS = [*QWEN3.same_value, *PARALLEL]


def other(value):
    """Another value of the same type."""
    if isinstance(value, dict):
        return {**value, "_target_": "torch.float16"}
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else value * 2


FIELD_FAULTS = [
    *[("import", f"model.{name}", f"another {name}", provider(lambda model, name=name: model.update({name: other(model[name])}))) for name in FIELDS],
    *[("import", f"model.{name} is absent", f"no {name}", provider(lambda model, name=name: model.pop(name))) for name in QWEN3.same_value],
    *[("import", f"model.{name} is None", f"no {name}", provider(lambda model, name=name: model.pop(name))) for name in PARALLEL],
    ("import", "layernorm_epsilon is the text", "a number that YAML reads as text", provider(lambda model: model.update(layernorm_epsilon="1e-06"))),
    ("import", "rotary_base is 1000000 (int)", "a number without a point", provider(lambda model: model.update(rotary_base=1000000))),
    ("import, cut", "num_layers_in_first_pipeline_stage", "stages of other sizes", provider(lambda model: model.update(num_layers_in_first_pipeline_stage=2))),
    ("import, cut", "do not share evenly", "layers that the stages do not share evenly", provider(lambda model: model.update(num_layers=4))),
    ("import by rule", "expert_tensor_parallel_size is 1, expected 4", "another size for experts than Megatron fills in", provider(lambda model: model.update(expert_tensor_parallel_size=1))),
    ("import by rule", "model.tensor_model_parallel_size is 1, expected 4", "the mesh of the real checkpoint", provider(lambda model: model.update(tensor_model_parallel_size=1))),
]


def seen_by(scenes, name, damage):
    """One fault that several checks must see: scene to what each says."""
    return [(scene, reason, name, damage) for scene, reason in scenes.items()]


FAULTS = [
    # scene, what the report must say, fault, how
    *seen_by(
        {"torch_dist": f"block: {STACKED}0.self_attention.linear_qkv.weight differs", "import": f"{QKV}: sha256", "ranks": "bits differ"},
        "all query heads, all key heads, all value heads", rewrite(QKV, ungrouped)),
    *seen_by({"torch_dist": "bits differ", "import": f"{QKV}: sha256", "ranks": "bits differ"}, "two groups swapped", rewrite(QKV, other_groups)),
    *seen_by({"torch_dist": "bits differ", "import": f"{QKV}: sha256", "ranks": "bits differ"}, "keys and values swapped", rewrite(QKV, keys_for_values)),
    *seen_by({"torch_dist": "bits differ", "import": f"{GATED}: sha256", "ranks": "bits differ"}, "gate and up swapped", rewrite(GATED, up_for_gate)),
    *seen_by(
        {"torch_dist": f"block: {STACKED}1.self_attention.linear_proj.weight differs", "import": f"{OUT}: sha256", "ranks": "bits differ"},
        "two layers swapped in one param", rewrite(OUT, other_layers)),
    *seen_by({"torch_dist": "bits differ", "import": f"{KEY_NORM}: sha256", "ranks": "bits differ"}, "two layers swapped in a norm", rewrite(KEY_NORM, other_layers)),
    *seen_by(
        {"torch_dist": f"{OUT}: shape", "import": f"{OUT}: shape", "ranks": "load failed"},
        "a layer missing under a stacked key", rewrite(OUT, lambda value: value[:2].clone(), without_last_layer)),
    *seen_by({"torch_dist": "chunks hold", "import": f"{OUT}: cut into 2 chunks"}, "a chunk deleted", delete_chunk(OUT)),
    *seen_by({"torch_dist": "absent", "import": f"tensor absent: {OUT}", "ranks": "Unexpected keys"}, "a tensor deleted", delete_entry(OUT)),
    *seen_by(
        {"torch_dist": f"unexpected tensor: {STACKED}0.", "import": f"tensor unexpected: {STACKED}0.", "ranks": "Missing keys"},
        "a param with names for each layer among stacked ones", unstack_one),
    *seen_by(
        {"torch_dist, by layer": f"unexpected tensor: {OUT}", "import, by layer": f"tensor unexpected: {OUT}", "ranks, by layer": "Missing keys"},
        "a stacked param among names for each layer", stack_one),
    *seen_by(
        {"torch_dist": "1 ShardedObject are missing", "import": f"object absent: {GATED_STATES[1]}", "ranks": "load failed"},
        "the extra state of one layer missing", delete_entry(GATED_STATES[1])),
    *seen_by(
        {"torch_dist": "load failed", "import": f"object unexpected: {SHARED_STATE}", "ranks": "load failed"},
        "one extra state under a stacked key", share_state),
    *seen_by(
        {"torch_dist": f"block: {STACKED}0.mlp.linear_fc1._extra_state is", "import": GATED_STATES[0], "ranks": "the model's is"},
        "an extra state that is not empty", lambda run: set_object(run, GATED_STATES[0], [torch.zeros(1, dtype=torch.uint8)])),
    *seen_by(
        {"torch_dist, by layer": "Unexpected keys", "import, by layer": "object absent", "ranks, by layer": "Unexpected keys"},
        "the extra state of one layer missing", delete_entry(STACKED + "1.mlp.linear_fc2._extra_state/shard_0_1")),
    *seen_by(
        {"torch_dist": f"unexpected tensor: {HEAD}", "import": f"tensor unexpected: {HEAD}", "ranks": f"Missing keys (for all ranks): {{'{HEAD}'}}"},
        "a head beside a tied embedding", add_head),
    *seen_by(
        {"torch_dist": "Missing keys", "import": f"object unexpected: {HEAD_STATE}", "ranks": "Missing keys"},
        "a head's extra state", lambda run: set_object(run, HEAD_STATE, [torch.empty(0, dtype=torch.uint8)])),
    *seen_by(
        {"torch_dist, untied": f"absent from checkpoint: {HEAD}", "import by rule": f"tensor absent: {HEAD}", "ranks, untied": "Unexpected keys"},
        "no head where it is not tied", delete_entry(HEAD)),
    *seen_by({"torch_dist": "bits differ", "import": f"{EMBEDDING}: sha256", "ranks": "bits differ"}, "a bit of a weight", flip_weight(EMBEDDING)),
    # What a loader asks for follows from the content metadata.
    *seen_by(
        {"torch_dist, by layer": "Missing keys", "import, by layer": "common.pt", "ranks, by layer": "ask for its layers stacked"},
        "no flag for names of each layer", drop_flag),
    *seen_by(
        {"torch_dist, by layer": "Missing keys", "import, by layer": "common.pt", "ranks, by layer": "ask for its layers stacked"},
        "the flag for names of each layer not set", set_flag(False)),
    *seen_by(
        {"torch_dist": "Missing keys", "import": "common.pt", "ranks": "ask for its layers one by one"},
        "the flag for names of each layer on stacked ones", set_flag(True)),
    ("import, by layer", "common.pt", "the flag as a number", set_flag(1)),
    ("ranks", "ask for its layers one by one", "the other flag on stacked layers", pickled("common.pt", lambda common: common["content_metadata"].update(singleton_local_shards=True))),
    ("torch_dist", "Missing keys", "the other flag on stacked layers", pickled("common.pt", lambda common: common["content_metadata"].update(singleton_local_shards=True))),
    # How tensors are cut.
    ("import, cut", f"{OUT}: cut into 6 chunks otherwise", "a projection cut along the other axis", rewrite(OUT, torch.clone, axes_exchanged)),
    ("import, cut", f"{QKV}: cut into 6 chunks otherwise", "the fused projection cut along the other axis", rewrite(QKV, torch.clone, axes_exchanged)),
    ("import by rule", f"{DOWN}: cut into 12 chunks otherwise", "a projection cut along the other axis", rewrite(DOWN, torch.clone, axes_exchanged)),
    ("import by rule", f"{QKV}: cut into 12 chunks otherwise", "the fused projection cut along the other axis", rewrite(QKV, torch.clone, axes_exchanged)),
    ("import", f"{OUT}: cut into 1 chunks otherwise", "all layers in one chunk", rewrite(OUT, torch.clone, layers_together)),
    ("import by rule", f"{KEY_NORM}: cut into 1 chunks otherwise", "all layers in one chunk", rewrite(KEY_NORM, torch.clone, layers_together)),
    ("import", f"{GATED}: cut into 3 chunks otherwise", "gate and up in one chunk", rewrite(GATED, torch.clone, gate_and_up_together)),
    ("import by rule", f"{GATED}: cut into 3 chunks otherwise", "gate and up in one chunk", rewrite(GATED, torch.clone, gate_and_up_together)),
    ("torch_dist, cut", "not on a page", "data not aligned", rewrite(GATED, torch.clone)),
    # The ranks that stand in a manifest.
    ("ranks of a file", "Invalid access pattern", "a tied head that is a main replica", ranks_file(two_main_replicas)),
    ("ranks of a file", "Missing keys", "a stage that asks for nothing", ranks_file(silence(2))),
    ("ranks of a file", "the parameter is", "a parameter of another shape", ranks_file(lambda ranks: ranks[0]["parameters"][EMBEDDING].update(shape=[160, 64]))),
    ("ranks of a file", "nothing was asked for", "a parameter that is not loaded", ranks_file(lambda ranks: ranks[0]["parameters"].update({"x.weight": {"shape": [1], "dtype": "bfloat16"}}))),
    # The expectation, against the real manifest.
    ("expected", "sha256", "query and key norms swapped", of_source(exchange("layers", "q_norm", "k_norm"))),
    ("expected", f"{QKV}: sha256", "keys and values swapped", of_source(exchange("layers", "k_proj", "v_proj"))),
    ("expected", f"{GATED}: sha256", "gate and up swapped", of_source(exchange("mlp", "gate_proj", "up_proj"))),
    ("expected", "sha256", "two layers swapped", of_source(exchange("layers", "layers.0.", "layers.1."))),
    ("expected", f"{QKV}: sha256", "heads in one group", config(lambda document: document.update(num_key_value_heads=1, head_dim=32, num_attention_heads=4))),
    ("expected", "not those of the projections", "groups that the projections have not", config(lambda document: document.update(num_key_value_heads=4))),
    ("expected", "KeyError", "a tied model that is said not to be", config(lambda document: document.update(tie_word_embeddings=False))),
    ("expected", "nothing asks for", "a head beside a tied embedding", of_source(lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"]}))),
    ("expected", "KeyError", "a tensor less", of_source(lambda tensors: tensors.pop("model.layers.2.self_attn.k_norm.weight"))),
    ("expected", "only BF16", "a tensor in F32", of_source(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].float()}))),
    ("expected of a file", f"{GATED}: cut otherwise", "another chunk", json_file(lambda document: document["tensors"][GATED]["chunks"][0].update(offsets=[0, 1, 0]))),
    ("expected of a file", "not made", "a tensor more", json_file(lambda document: document["tensors"].update({HEAD: document["tensors"][EMBEDDING]}))),
    ("expected of a file", "made, and not", "a tensor less", json_file(lambda document: document["tensors"].pop(KEY_NORM))),
    ("expected of a file", f"one side only: {GATED_STATES[2]}", "an extra state less", json_file(lambda document: document["objects"].pop(GATED_STATES[2]))),
    ("expected of a file", "the common state is another", "the flag for names of each layer", json_file(lambda document: document["objects"].update({check_import.COMMON: str([expected_qwen3.common_state(True)])}))),
    ("expected of a file", "in the manifest", "an extra state of another value", json_file(lambda document: document["objects"].update({GATED_STATES[0]: "[None]"}))),
    ("expected, by layer", f"{STACKED}0.mlp.linear_fc1.weight: sha256", "gate and up swapped", of_source(exchange("layers.0.mlp", "gate_proj", "up_proj"))),
    ("expected, stacked for by layer", f"not made: {STACKED}0.", "the other names", lambda source: None),
    # Exports.
    ("export", "bits differ", "a bit of a weight", lambda exported: flip(first_shard(exported), os.path.getsize(first_shard(exported)) - 1)),
    ("export", "tensor unexpected: lm_head.weight", "a head beside a tied embedding", tensors_of(lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))),
    ("export", "q_norm.weight: bits differ", "query and key norms swapped", tensors_of(lambda tensors: exchange("layers", "q_norm", "k_norm")(tensors))),
    ("export", "bits differ", "two layers swapped", tensors_of(lambda tensors: exchange("layers", "layers.0.", "layers.1.")(tensors))),
    ("export", "expected torch.bfloat16", "a tensor widened", shard(replace_by(lambda tensor: tensor.float()))),
    ("export", "config.json", "a byte more in config.json", append("config.json", b"\n")),
    ("export", "side file on one side only", "no generation config", lambda exported: os.remove(os.path.join(exported, "generation_config.json"))),
    ("export, untied", "tensor absent: lm_head.weight", "no head where it is not tied", tensors_of(lambda tensors: tensors.pop("lm_head.weight"))),
    ("export, untied", "lm_head.weight: bits differ", "the embedding as the head", tensors_of(lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))),
    ("same", "differs", "a bit of a weight", lambda exported: flip(first_shard(exported), os.path.getsize(first_shard(exported)) - 1)),
    *FIELD_FAULTS,
]
