#!/usr/bin/env python3
"""Shows that the checks of this folder can fail: plants one fault at a time into copies of good results.

  plant_faults.py RUN FIXTURE EXPORTED SOURCE

The arguments are those of check_import.py and check_export.py. Undamaged copies must pass; every damaged one must fail, and
for the reason planted. Exit status 0 if that is so, 1 otherwise.
"""
import argparse, contextlib, dataclasses, io, json, os, pickle, re, shutil, sys, tempfile, zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, MetadataIndex

import check_export, check_import, check_torch_dist

NORM = "decoder.final_norm.weight"
EXPERTS = "decoder.layers.7.mlp.experts.experts.linear_fc1.weight"
NORM_STATE = "decoder.final_norm._extra_state/shard_0_1"
HEAD_STATE = "output_layer._extra_state/shard_0_1"
INDEX = "model.safetensors.index.json"


class Collected(check_torch_dist.Report):
    """A report that keeps what it is told."""

    def __init__(self):
        super().__init__(0)

    def bad(self, message):
        super().bad(message)
        self.lines.append(message)


# --- the three checks, on (run, fixture, exported, source) ---

def by_torch_dist(run, fixture, exported, source, report):
    arguments = argparse.Namespace(subset=False, skip_bytes=False, pages=True)
    expected = check_torch_dist.Expected(os.path.join(fixture, "expected.safetensors"))
    root = check_torch_dist.resolve(run)
    metadata = check_torch_dist.run_dcp(root, expected, report, arguments)
    check_torch_dist.run_mcore(root, metadata, expected, report, arguments)


def by_import(run, fixture, exported, source, report):
    check_import.check(run, fixture, report)


def by_export(run, fixture, exported, source, report):
    check_export.check(exported, source, False, report)


def by_export_without_mtp(run, fixture, exported, source, report):
    check_export.check(exported, source, True, report)


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
RUN_FAULTS = [
    # check, what the report must say, fault, how
    (by_torch_dist, "bits differ", "a bit of a weight", flip_weight),
    (by_torch_dist, "another CRC", "a bit of a weight", flip_weight),
    (by_torch_dist, "not on a page", "a tensor appended as PyTorch does", cut_in_two),
    (by_torch_dist, "expected tensor absent", "a tensor deleted", delete_entry(NORM)),
    (by_torch_dist, "unexpected tensor", "a tensor renamed", rename_tensor),
    (by_torch_dist, "dtype", "a dtype changed", change_dtype),
    (by_torch_dist, "chunks hold", "a chunk deleted", delete_chunk),
    (by_torch_dist, "beyond the file", "a data file cut off", cut_off),
    (by_torch_dist, "not a distributed checkpoint", "no metadata.json", remove("metadata.json")),
    (by_torch_dist, "load failed", "no common.pt", remove("common.pt")),
    (by_torch_dist, "load failed", "the common state in both forms", lambda run: set_object(run, check_import.COMMON, COMMON_STATE)),
    (by_import, "sha256", "a bit of a weight", flip_weight),
    (by_import, "tensor absent", "a tensor deleted", delete_entry(NORM)),
    (by_import, "tensor unexpected", "a tensor renamed", rename_tensor),
    (by_import, "dtype", "a dtype changed", change_dtype),
    (by_import, "chunks otherwise", "a tensor cut otherwise", cut_in_two),
    (by_import, "object absent", "an object deleted", delete_entry(NORM_STATE)),
    (by_import, "object unexpected", "an object more", lambda run: set_object(run, "x._extra_state/shard_0_1", [None])),
    (by_import, NORM_STATE, "an extra state without its tensor", lambda run: set_object(run, NORM_STATE, [None])),
    (by_import, NORM_STATE, "an extra state that is not empty", lambda run: set_object(run, NORM_STATE, [torch.zeros(1, dtype=torch.uint8)])),
    (by_import, NORM_STATE, "an extra state of another dtype", lambda run: set_object(run, NORM_STATE, [torch.zeros(0)])),
    (by_import, HEAD_STATE, "a head with an extra state", lambda run: set_object(run, HEAD_STATE, [torch.zeros(0, dtype=torch.uint8)])),
    (by_import, "beside common.pt", "the common state in both forms", lambda run: set_object(run, check_import.COMMON, COMMON_STATE)),
    (by_import, "common.pt", "another iteration", pickled("common.pt", lambda value: value.update(iteration=1))),
    (by_import, "common.pt", "no content metadata", pickled("common.pt", lambda value: value.pop("content_metadata"))),
    (by_import, "common.pt", "no common.pt", remove("common.pt")),
    (by_import, "train_state.pt", "a counter that is no tensor", pickled("train_state.pt", lambda value: value.update(step=0))),
    (by_import, "train_state.pt", "a counter of another width", pickled("train_state.pt", lambda value: value.update(step=torch.tensor(0, dtype=torch.int32)))),
    (by_import, "latest_train_state.pt", "no train state in the run", lambda run: os.remove(os.path.join(run, "latest_train_state.pt"))),
    (by_import, "metadata.json", "two of four keys in metadata.json", description),
    (by_import, "latest_checkpointed_iteration.txt", "another tracker", tracker),
    (by_import, "layernorm_epsilon is the text", "a number that YAML reads as text", text(r"^( +layernorm_epsilon:).*$", r"\1 1e-05")),
    (by_import, "hidden_size", "another width", text(r"^( +hidden_size:).*$", r"\1 97")),
    (by_import, "bf16", "a flag as text", text(r"^( +bf16:).*$", r"\1 'yes'")),
    (by_import, "hybrid_layer_pattern is absent", "no layer pattern", text(r"^ +hybrid_layer_pattern:.*\n", "")),
    (by_import, "ckpt_format", "another format", text(r"^( +ckpt_format:).*$", r"\1 zarr")),
]
EXPORT_FAULTS = [
    (by_export, "bits differ", "a bit of a weight", lambda exported: flip(first_shard(exported), os.path.getsize(first_shard(exported)) - 1)),
    (by_export, "tensor absent", "a tensor deleted", shard(lambda tensors, name: tensors.pop(name))),
    (by_export, "tensor unexpected", "a tensor renamed", shard(lambda tensors, name: tensors.update({name + "x": tensors.pop(name)}))),
    (by_export, "float16", "a dtype changed", shard(replace_by(lambda tensor: tensor.view(torch.float16)))),
    (by_export, "expected torch.bfloat16", "a tensor widened", shard(replace_by(lambda tensor: tensor.float()))),
    (by_export, "expected torch.bfloat16 (", "a tensor transposed", shard(replace_by(lambda tensor: tensor.T.contiguous()))),
    (by_export, "bits differ", "rows in another order", shard(replace_by(lambda tensor: tensor.flip(0).contiguous()))),
    (by_export, "format", "no format in a shard", shard(lambda tensors, name: None, metadata=None)),
    (by_export, "index key", "an index key renamed", index(rename_key)),
    (by_export, "total_size", "another total size", index(grow)),
    (by_export, "config.json", "a byte more in config.json", append("config.json", b"\n")),
    (by_export, "side file", "a side file more", append("generation_config.json", b"{}")),
    (by_export_without_mtp, "tensor unexpected", "prediction layers that should be gone", lambda exported: None),
]


def judged(check, folders):
    """What the check finds; a check that cannot go on has found something too."""
    report = Collected()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            check(*folders, report)
        except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
            report.bad(f"load failed: {type(error).__name__}: {error}")
    return report.lines


def main():
    if len(sys.argv) != 5:
        print(__doc__)
        return 2
    run, fixture, exported, source = sys.argv[1:]
    wrong = 0
    for check in (by_torch_dist, by_import, by_export):
        found = judged(check, (run, fixture, exported, source))
        wrong += bool(found)
        print(f"{check.__name__[3:]}: undamaged", "is refused: " + "; ".join(found[:3]) if found else "passes")
    for faults, good in ((RUN_FAULTS, run), (EXPORT_FAULTS, exported)):
        for check, expected, name, damage in faults:
            with tempfile.TemporaryDirectory() as folder:
                copy = os.path.join(folder, "copy")
                shutil.copytree(good, copy)
                damage(copy)
                folders = (copy, fixture, exported, source) if good == run else (run, fixture, copy, source)
                found = judged(check, folders)
            seen = [line for line in found if expected in line]
            wrong += not seen
            outcome = "seen: " + " ".join(seen[0].split())[:110] if seen else f"NOT SEEN ({expected!r} not in {found[:3]})"
            print(f"{check.__name__[3:]}: {name}: {outcome}")
    count = len(RUN_FAULTS) + len(EXPORT_FAULTS)
    print("RESULT", f"FAILED ({wrong} checks did not say what they should)" if wrong else f"OK ({count} planted faults seen)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
