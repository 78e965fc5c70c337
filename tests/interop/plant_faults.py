#!/usr/bin/env python3
"""Shows that the checks of this folder can fail: plants one fault at a time into copies of good results.

  plant_faults.py PLACES

PLACES is a JSON object that names the results, as `cargo xtask interop` left them, and what they are held against: see `scenes`.
Undamaged ones must pass; every damaged one must fail, and for the reason planted. Exit status 0 if that is so, 1 otherwise.
"""
import argparse, contextlib, dataclasses, gzip, io, json, os, pickle, re, shutil, sys, tempfile, zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, MetadataIndex

import check_export, check_import, check_ranks, check_same, check_torch_dist, expected

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
INDEX = "model.safetensors.index.json"


class Collected(check_torch_dist.Report):
    """A report that keeps what it is told."""

    def __init__(self):
        super().__init__(0)

    def bad(self, message):
        super().bad(message)
        self.lines.append(message)


# --- the checks ---

def by_torch_dist(run, tensors, report):
    arguments = argparse.Namespace(subset=False, skip_bytes=False, pages=True)
    tensors = check_torch_dist.Expected(tensors)
    root = check_torch_dist.resolve(run)
    metadata = check_torch_dist.run_dcp(root, tensors, report, arguments)
    check_torch_dist.run_mcore(root, metadata, tensors, report, arguments)


def by_expected(source, manifest, report):
    tensors = expected.megatron(expected.read_config(source), expected.plain(source))
    with open(manifest) as file:
        expected.check(tensors, json.load(file), report)


def scenes(at):
    """What is damaged, and the check that must see it: scene to (good result, check of a copy of it)."""
    return {
        # GLM-5.2, whole, against the real checkpoint of the same mesh.
        "torch_dist": (at["run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import": (at["run"], lambda copy, report: check_import.check(copy, at["fixture"], report)),
        "export": (at["exported"], lambda copy, report: check_export.check(copy, at["source"], False, None, report)),
        "export without mtp": (at["exported"], lambda copy, report: check_export.check(copy, at["source"], True, None, report)),
        "same": (at["run"], lambda copy, report: check_same.check(at["run"], [copy], [], report)),
        "same but": (at["run"], lambda copy, report: check_same.check(at["run"], [copy], [COMMON_FILE], report)),
        # GLM-5.2, cut for tensor, pipeline and expert parallelism.
        "torch_dist, cut": (at["cut_run"], lambda copy, report: by_torch_dist(copy, at["expected"], report)),
        "import, cut": (at["cut_run"], lambda copy, report: check_import.check(copy, at["cut_fixture"], report)),
        "ranks": (at["cut_run"], lambda copy, report: check_ranks.check(copy, at["expected"], at["ranks"], report)),
        "ranks of a file": (at["ranks"], lambda copy, report: check_ranks.check(at["cut_run"], at["expected"], copy, report)),
        "expected": (at["source"], lambda copy, report: by_expected(copy, os.path.join(at["cut_fixture"], "manifest.json"), report)),
        # GLM-5 on a mesh that no real checkpoint has, from weights in F32.
        "import by rule": (at["f32_run"], lambda copy, report: check_import.check(copy, at["f32_fixture"], report, [2, 1, 2, 2])),
        "export of f32": (at["f32_exported"], lambda copy, report: check_export.check(copy, at["f32_source"], False, None, report)),
        # One chunk for each tensor.
        "import, whole": (at["whole_run"], lambda copy, report: check_import.check(copy, at["cut_fixture"], report, boxes=check_import.whole)),
        # A vocabulary that is padded.
        "torch_dist, padded": (at["padded_run"], lambda copy, report: by_torch_dist(copy, at["padded_expected"], report)),
        "import, padded": (at["padded_run"], lambda copy, report: check_import.check(copy, at["fixture"], report, [2, 1, 1, 1], is_padded=True)),
        "ranks, padded": (at["padded_run"], lambda copy, report: check_ranks.check(copy, at["expected"], at["ranks"], report)),
        # GLM-5.3 from weights in FP8.
        "torch_dist of fp8": (at["fp8_run"], lambda copy, report: by_torch_dist(copy, at["fp8_expected"], report)),
        "ranks of fp8": (at["fp8_run"], lambda copy, report: check_ranks.check(copy, at["fp8_expected"], at["fp8_ranks"], report)),
        "import of fp8": (at["fp8_run"], lambda copy, report: check_import.check(copy, at["fp8_fixture"], report)),
        "expected of fp8": (at["fp8_source"], lambda copy, report: by_expected(copy, os.path.join(at["fp8_fixture"], "manifest.json"), report)),
        "export of fp8": (at["fp8_exported"], lambda copy, report: check_export.check(copy, at["fp8_source"], False, at["dequantized"], report)),
        "export by another program": (at["dequantized"], lambda copy, report: check_export.check(at["fp8_exported"], at["fp8_source"], False, copy, report)),
    }


# Scenes whose undamaged result is a fault itself.
FAILING = ["export without mtp", "same but"]


# --- tools to damage a run ---

def iteration(run):
    return check_torch_dist.resolve(run)


@contextlib.contextmanager
def metadata_of(run):
    """`.metadata`, written back after the block."""
    root = iteration(run)
    metadata = dcp.FileSystemReader(root).read_metadata()
    yield metadata
    with open(os.path.join(root, ".metadata"), "wb") as file:
        pickle.dump(metadata, file, protocol=2)


def forget(metadata, name):
    del metadata.state_dict_metadata[name]
    for index in [index for index in metadata.storage_data if index.fqn == name]:
        del metadata.storage_data[index]


def store(run, metadata, index, value):
    """Appends an item to a data file and points the entry at it."""
    place = next(iter(metadata.storage_data.values()))
    data = io.BytesIO()
    torch.save(value, data)
    with open(os.path.join(iteration(run), place.relative_path), "ab") as file:
        offset = file.tell()
        file.write(data.getvalue())
    metadata.storage_data[index] = dataclasses.replace(place, offset=offset, length=len(data.getvalue()))


def set_object(run, name, value):
    with metadata_of(run) as metadata:
        metadata.state_dict_metadata[name] = BytesStorageMetadata()
        for index in [index for index in metadata.storage_data if index.fqn == name]:
            del metadata.storage_data[index]
        store(run, metadata, MetadataIndex(name), value)


def rename_tensor(run):
    with metadata_of(run) as metadata:
        tensor, new = metadata.state_dict_metadata.pop(NORM), NORM.replace("final_norm", "final_layernorm")
        metadata.state_dict_metadata[new] = tensor
        for index in [index for index in metadata.storage_data if index.fqn == NORM]:
            metadata.storage_data[dataclasses.replace(index, fqn=new)] = metadata.storage_data.pop(index)


def delete_entry(name):
    def damage(run):
        with metadata_of(run) as metadata:
            forget(metadata, name)
    return damage


def change_dtype(run):
    with metadata_of(run) as metadata:
        metadata.state_dict_metadata[NORM].properties.dtype = torch.float16


def delete_chunk(run):
    with metadata_of(run) as metadata:
        chunk = metadata.state_dict_metadata[EXPERTS].chunks.pop()
        for index in [i for i in metadata.storage_data if i.fqn == EXPERTS and tuple(i.offset) == tuple(chunk.offsets)]:
            del metadata.storage_data[index]


def cut_in_two(run):
    with metadata_of(run) as metadata:
        tensor = metadata.state_dict_metadata[NORM]
        whole = {NORM: torch.empty(tensor.size, dtype=tensor.properties.dtype)}
        dcp.load(whole, storage_reader=dcp.FileSystemReader(iteration(run)), no_dist=True)
        properties = tensor.properties
        forget(metadata, NORM)
        metadata.state_dict_metadata[NORM] = dataclasses.replace(tensor, properties=properties, chunks=[])
        half = tensor.size[0] // 2
        for start in (0, half):
            offsets, sizes = torch.Size([start]), torch.Size([half])
            metadata.state_dict_metadata[NORM].chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
            store(run, metadata, MetadataIndex(NORM, offsets), whole[NORM][start:start + half].clone())


def flip_weight(run):
    root = iteration(run)
    metadata = dcp.FileSystemReader(root).read_metadata()
    place = next(place for index, place in metadata.storage_data.items() if index.fqn == NORM)
    path = os.path.join(root, place.relative_path)
    with open(path, "rb") as file:
        file.seek(place.offset)
        item = file.read(place.length)
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        record = next(record for record in archive.infolist() if record.filename.endswith("data/0"))
    # A local header is 30 bytes, a name and a padding field whose length the last two of them give.
    head = item[record.header_offset:record.header_offset + 30]
    start = record.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    flip(path, place.offset + start)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def cut_off(run):
    root = iteration(run)
    path = os.path.join(root, next(name for name in sorted(os.listdir(root)) if name.endswith(".distcp")))
    os.truncate(path, os.path.getsize(path) - 1)


def remove(name):
    return lambda run: os.remove(os.path.join(iteration(run), name))


def pickled(name, change):
    def damage(run):
        path = os.path.join(iteration(run), name)
        value = torch.load(path, weights_only=True)
        change(value)
        torch.save(value, path)
    return damage


def description(run):
    with open(os.path.join(iteration(run), "metadata.json"), "w") as file:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1}, file)


def text(pattern, replacement):
    def damage(run):
        path = os.path.join(iteration(run), "run_config.yaml")
        with open(path) as file:
            before = file.read()
        after = re.sub(pattern, replacement, before, count=1, flags=re.MULTILINE)
        assert after != before, pattern
        with open(path, "w") as file:
            file.write(after)
    return damage


def tracker(run):
    with open(os.path.join(run, "latest_checkpointed_iteration.txt"), "w") as file:
        file.write("0\n")


def boxes_of(metadata, name):
    """A tensor's entries of `storage_data`, by offsets."""
    return sorted((index for index in metadata.storage_data if index.fqn == name), key=lambda index: tuple(index.offset))


def swap(name, pairs):
    """Exchanges the data of chunks, by their places in order."""
    def damage(run):
        with metadata_of(run) as metadata:
            indices, places = boxes_of(metadata, name), metadata.storage_data
            for a, b in pairs:
                a, b = indices[a], indices[b]
                places[a], places[b] = places[b], places[a]
    return damage


def chunk_down_a_row(name):
    """A chunk that is said to begin one row further down."""
    def damage(run):
        with metadata_of(run) as metadata:
            tensor, index = metadata.state_dict_metadata[name], boxes_of(metadata, name)[0]
            moved = torch.Size([index.offset[0] + 1, *index.offset[1:]])
            place = metadata.storage_data.pop(index)
            metadata.storage_data[MetadataIndex(name, moved)] = place
            tensor.chunks = [
                dataclasses.replace(chunk, offsets=moved) if tuple(chunk.offsets) == tuple(index.offset) else chunk for chunk in tensor.chunks
            ]
    return damage


def rewrite(name, change, cut=lambda chunks: chunks):
    """A tensor written anew: its values changed, or its chunks, as (offsets, sizes)."""
    def damage(run):
        with metadata_of(run) as metadata:
            tensor = metadata.state_dict_metadata[name]
            whole = {name: torch.empty(tensor.size, dtype=tensor.properties.dtype)}
            dcp.load(whole, storage_reader=dcp.FileSystemReader(iteration(run)), no_dist=True)
            value = change(whole[name])
            chunks = cut(sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks))
            properties = dataclasses.replace(tensor.properties, dtype=value.dtype)
            tensor = dataclasses.replace(tensor, size=value.shape)
            forget(metadata, name)
            chunks = [ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)) for offsets, sizes in chunks]
            metadata.state_dict_metadata[name] = dataclasses.replace(tensor, properties=properties, chunks=chunks)
            for chunk in chunks:
                part = value[tuple(slice(at, at + extent) for at, extent in zip(chunk.offsets, chunk.sizes))]
                store(run, metadata, MetadataIndex(name, chunk.offsets), part.clone())
    return damage


def with_one(row):
    """A value in some row that is another than it was."""
    def change(value):
        value = value.clone()
        value[row, 0] = 1 if value[row, 0] != 1 else 2
        return value
    return change


def shorter(rows):
    """A tensor without its last rows, cut as it was but for these."""
    def change(value):
        return value[:-rows].clone()

    def cut(chunks):
        *rest, (offsets, sizes) = chunks
        return [*rest, (offsets, (sizes[0] - rows, *sizes[1:]))]
    return change, cut


def a_row_off(chunks):
    """The border between the first two chunks, one row further down."""
    (first, sizes), (second, more), *rest = chunks
    return [
        (first, (sizes[0] + 1, *sizes[1:])),
        ((second[0] + 1, *second[1:]), (more[0] - 1, *more[1:])),
        *rest,
    ]


def delete_layer(prefix):
    def damage(run):
        with metadata_of(run) as metadata:
            for name in [name for name in metadata.state_dict_metadata if name.startswith(prefix)]:
                forget(metadata, name)
    return damage


def add_tensor(run):
    with metadata_of(run) as metadata:
        metadata.state_dict_metadata["x.weight"] = dataclasses.replace(metadata.state_dict_metadata[NORM])
        size = metadata.state_dict_metadata["x.weight"].size
        store(run, metadata, MetadataIndex("x.weight", torch.Size([0])), torch.zeros(size, dtype=torch.bfloat16))


def wrong_crc(run):
    """Changes what the central directory of an item says, not its data."""
    root = iteration(run)
    metadata = dcp.FileSystemReader(root).read_metadata()
    place = next(place for index, place in metadata.storage_data.items() if index.fqn == NORM)
    path = os.path.join(root, place.relative_path)
    with open(path, "rb") as file:
        file.seek(place.offset)
        item = file.read(place.length)
    at = item.index(b"PK\x01\x02")
    while not item[at + 46:].split(b"PK\x01\x02")[0].split(b"PK\x06\x06")[0].startswith(b"archive/data/0"):
        at = item.index(b"PK\x01\x02", at + 1)
    flip(path, place.offset + at + 16)


def ranks_file(change):
    def damage(path):
        with gzip.open(path) as file:
            ranks = json.load(file)
        change(ranks)
        with gzip.open(path, "wt") as file:
            json.dump(ranks, file)
    return damage


def silence(count):
    """The last ranks ask for nothing."""
    def change(ranks):
        for rank in ranks[-count:]:
            rank.update(sharded_state_dict=[], parameters={})
    return change


def two_main_replicas(ranks):
    """The prediction layers' copy of the embedding, which is not written, as if it were."""
    for request in ranks[-1]["sharded_state_dict"]:
        if request["key"] == "embedding.word_embeddings.weight":
            request["replica_id"] = [0, 0, 0]


# The FP8 matrices of the source as their codes, in F32, without the scales.
CODES = {}


def plainly(name):
    def change(value):
        return CODES[name].to(value.dtype)
    return change


# --- tools to damage an export ---

def first_shard(exported):
    return os.path.join(exported, next(name for name in sorted(os.listdir(exported)) if name.endswith(".safetensors")))


def shard(change, metadata={"format": "pt"}):
    """Rewrites the first shard; `change` gets its tensors and one name."""
    def damage(exported):
        path = first_shard(exported)
        tensors = safetensors.torch.load_file(path)
        change(tensors, next(name for name in sorted(tensors) if tensors[name].dim() == 2))
        safetensors.torch.save_file(tensors, path, metadata=metadata)
    return damage


def of_source(change):
    """Changes the shards of a Hugging Face directory; `change` gets all tensors and must leave their names."""
    def damage(source):
        names = [name for name in sorted(os.listdir(source)) if name.endswith(".safetensors")]
        held = {name: safetensors.torch.load_file(os.path.join(source, name)) for name in names}
        tensors = {key: tensor for shard in held.values() for key, tensor in shard.items()}
        change(tensors)
        for name, shard in held.items():
            shard = {key: tensors[key].clone() for key in shard if key in tensors}
            if name == names[0]:
                known = {key for shard in held.values() for key in shard}
                shard.update({key: tensor for key, tensor in tensors.items() if key not in known})
            safetensors.torch.save_file(shard, os.path.join(source, name), metadata={"format": "pt"})
    return damage


def exchange(pattern, one, other):
    """Swaps all tensors of one kind in a source with those of another."""
    def change(tensors):
        for name in [name for name in tensors if re.search(pattern, name) and one in name]:
            tensors[name], tensors[name.replace(one, other)] = tensors[name.replace(one, other)], tensors[name]
    return change


def without_scales(tensors):
    for name in tensors:
        if name.endswith(expected.SCALE):
            tensors[name] = torch.ones_like(tensors[name])


def narrow_bias(tensors):
    for name in tensors:
        if name.endswith(expected.BIAS):
            tensors[name] = tensors[name].to(torch.bfloat16)


def config(change):
    def damage(exported):
        path = os.path.join(exported, "config.json")
        with open(path) as file:
            document = json.load(file)
        change(document)
        with open(path, "w") as file:
            json.dump(document, file)
    return damage


def tensors_of(change):
    """Changes tensors of the first shard of an export by name."""
    return shard(lambda tensors, name: change(tensors))


def one_as_codes(tensors):
    name = next(name for name in sorted(CODES) if name in tensors)
    tensors[name] = CODES[name].to(torch.bfloat16)


def a_scale(tensors):
    tensors[next(iter(sorted(CODES))) + expected.SCALE] = torch.ones(1)


def wide_router(tensors):
    name = next(name for name in sorted(tensors) if name.endswith("mlp.gate.weight"))
    tensors[name] = tensors[name].float()


def index(change):
    def damage(exported):
        path = os.path.join(exported, INDEX)
        with open(path) as file:
            document = json.load(file)
        change(document)
        with open(path, "w") as file:
            json.dump(document, file)
    return damage


def rename_key(document):
    name = sorted(document["weight_map"])[0]
    document["weight_map"][name + "x"] = document["weight_map"].pop(name)


def grow(document):
    document["metadata"]["total_size"] += 2


def append(name, data):
    def damage(exported):
        with open(os.path.join(exported, name), "ab") as file:
            file.write(data)
    return damage


def replace_by(make):
    def change(tensors, name):
        tensors[name] = make(tensors[name])
    return change


COMMON_STATE = [{"checkpoint_version": 3.0, "iteration": 0}]
FAULTS = [
    # scene, what the report must say, fault, how
    ("torch_dist", "bits differ", "a bit of a weight", flip_weight),
    ("torch_dist", "another CRC", "a bit of a weight", flip_weight),
    ("torch_dist", "not on a page", "a tensor appended as PyTorch does", cut_in_two),
    ("torch_dist", "expected tensor absent", "a tensor deleted", delete_entry(NORM)),
    ("torch_dist", "unexpected tensor", "a tensor renamed", rename_tensor),
    ("torch_dist", "dtype", "a dtype changed", change_dtype),
    ("torch_dist", "chunks hold", "a chunk deleted", delete_chunk),
    ("torch_dist", "beyond the file", "a data file cut off", cut_off),
    ("torch_dist", "not a distributed checkpoint", "no metadata.json", remove("metadata.json")),
    ("torch_dist", "load failed", "no common.pt", remove("common.pt")),
    ("torch_dist", "load failed", "the common state in both forms", lambda run: set_object(run, check_import.COMMON, COMMON_STATE)),
    ("import", "sha256", "a bit of a weight", flip_weight),
    ("import", "tensor absent", "a tensor deleted", delete_entry(NORM)),
    ("import", "tensor unexpected", "a tensor renamed", rename_tensor),
    ("import", "dtype", "a dtype changed", change_dtype),
    ("import", "chunks otherwise", "a tensor cut otherwise", cut_in_two),
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
    ("export", "side file", "a side file more", append("generation_config.json", b"{}")),
    ("export without mtp", "tensor unexpected", "prediction layers that should be gone", lambda exported: None),
    ("torch_dist", "another CRC", "a CRC of right data", wrong_crc),
    ("torch_dist, cut", "bits differ", "gate and up swapped", swap(GATED, [(0, 2), (1, 3)])),
    ("torch_dist, cut", "bits differ", "two experts swapped", swap(EXPERTS, [(0, 2), (1, 3)])),
    ("torch_dist, cut", "bits differ", "a chunk's data one row off", rewrite(GATED, lambda value: value.roll(1, 0))),
    ("torch_dist, cut", "overlapping", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("torch_dist, cut", "not on a page", "data not aligned", rewrite(EXPERTS, torch.clone)),
    ("torch_dist, cut", "expected tensor absent", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("torch_dist, cut", "unexpected tensor", "a tensor more", add_tensor),
    ("torch_dist, cut", "dtype", "a router bias narrowed", rewrite(ROUTER_BIAS, torch.Tensor.bfloat16)),
    ("import, cut", "sha256", "gate and up swapped", swap(GATED, [(0, 2), (1, 3)])),
    ("import, cut", "sha256", "two experts swapped", swap(EXPERTS, [(0, 2), (1, 3)])),
    ("import, cut", "chunks otherwise", "a border one row off", rewrite(GATED, torch.clone, a_row_off)),
    ("import, cut", "chunks otherwise", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("import, cut", "tensor absent", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("import, cut", "object absent", "an object missing", delete_entry(NORM_STATE)),
    ("import, cut", "tensor unexpected", "a tensor more", add_tensor),
    ("import, cut", "dtype", "a router bias narrowed", rewrite(ROUTER_BIAS, torch.Tensor.bfloat16)),
    ("import, cut", "hybrid_layer_pattern", "stages that end elsewhere", text(r"^( +hybrid_layer_pattern:.*)\|(..)", r"\1\2|")),
    ("import by rule", "chunks otherwise", "a border one row off", rewrite(GATED, torch.clone, a_row_off)),
    ("import by rule", "chunks otherwise", "one chunk for a tensor", rewrite(GATED, torch.clone, lambda chunks: [((0, 0), (chunks[-1][0][0] + chunks[-1][1][0], chunks[0][1][1]))])),
    ("import by rule", "hybrid_layer_pattern", "another layer pattern", text(r"^( +hybrid_layer_pattern: *\S*?)D", r"\1M")),
    ("import by rule", "expected 1 stages", "a stage more", text(r"^( +hybrid_layer_pattern: *\S*?)E", r"\1E|")),
    ("import by rule", "expert_tensor_parallel_size", "another mesh", text(r"^( +expert_tensor_parallel_size:).*$", r"\1 1")),
    ("import, cut", "pipeline_model_parallel_size", "another mesh", text(r"^( +pipeline_model_parallel_size:).*$", r"\1 1")),
    ("import, whole", "chunks otherwise", "a tensor cut in two", cut_in_two),
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
    ("ranks", "bits differ", "a bit of a weight", flip_weight),
    ("ranks", "bits differ", "a chunk one row further down", chunk_down_a_row(GATED)),
    ("ranks", "Unexpected keys", "a layer of a stage missing", delete_layer("decoder.layers.12.")),
    ("ranks", "Unexpected keys", "an object missing", delete_entry(NORM_STATE)),
    ("ranks", "load failed", "the object of one expert missing", delete_entry("decoder.layers.7.mlp.experts.experts.linear_fc1._extra_state/shard_3_8")),
    ("ranks", "Missing keys (for all ranks): {'x.weight'}", "a tensor more", add_tensor),
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
    ("same", "differs", "a bit of a weight", flip_weight),
    ("same", "one side only", "a file missing", remove("common.pt")),
    ("same", "one side only", "a file more", append("iter_0000000/x", b"x")),
    ("same but", "should not be", "a file that should differ", lambda run: None),
]


def judged(check, copy):
    """What the check finds; a check that cannot go on has found something too."""
    report = Collected()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            check(copy, report)
        except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
            report.bad(f"load failed: {type(error).__name__}: {error}")
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    return report.lines


def copied(good, folder):
    copy = os.path.join(folder, os.path.basename(good))
    if os.path.isfile(good):
        shutil.copyfile(good, copy)
    else:
        shutil.copytree(good, copy, copy_function=shutil.copyfile)
    return copy


def main(arguments):
    if len(arguments) != 1:
        print(__doc__)
        return 2
    with open(arguments[0]) as file:
        places = json.load(file)
    codes = expected.stored(places["fp8_source"])
    CODES.update({name: tensor.float() for name, tensor in codes.items() if name + expected.SCALE in codes})
    wrong = 0
    stages = scenes(places)
    for scene, (good, check) in stages.items():
        if scene not in FAILING:
            found = judged(check, good)
            wrong += bool(found)
            print(f"{scene}: undamaged", "is refused: " + "; ".join(found[:3]) if found else "passes")
    for scene, reason, name, damage in FAULTS:
        good, check = stages[scene]
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(good, folder)
            damage(copy)
            found = judged(check, copy)
        seen = [line for line in found if reason in line]
        wrong += not seen
        outcome = "seen: " + " ".join(seen[0].split())[:110] if seen else f"NOT SEEN ({reason!r} not in {found[:3]})"
        print(f"{scene}: {name}: {outcome}", flush=True)
    print("RESULT", f"FAILED ({wrong} checks did not say what they should)" if wrong else f"OK ({len(FAULTS)} planted faults seen)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
