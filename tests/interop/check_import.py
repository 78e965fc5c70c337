#!/usr/bin/env python3
"""Judges an import of rialto against the checkpoint that the real Megatron-Core wrote for the same model.

  check_import.py RUN FIXTURE --family NAME [--mesh TP,PP,EP,ETP | --whole] [--pad-vocab]

RUN      the run directory that `rialto import` made.
FIXTURE  a directory with `ckpt/` (the real run directory) and `manifest.json` (sha256 of each global tensor).
--family whose model it is: families.py has what the checks must know of it.
--mesh   RUN is of another mesh than FIXTURE: its chunks must be those of the family's rule, its parallel sizes these, and its
         layers the same but for where the stages end.
--whole  each tensor must be one chunk.
--pad-vocab  embedding and head must be as long as Megatron-Bridge pads them for the tensor parallel ranks of --mesh: what FIXTURE
         has, then zeros; and run_config.yaml must say that they are padded.

Everything that check_torch_dist.py does not compare: the set of keys, how each tensor is cut, the value of every object,
the common and the train state, metadata.json, run_config.yaml and the tracker. Everything is read by PyTorch and PyYAML;
unpickling is restricted to weights. Exit status 0 when nothing differs, 1 otherwise.
"""
import argparse, hashlib, io, json, os, sys, traceback

import torch
import torch.distributed.checkpoint as dcp
import yaml
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

from check_torch_dist import poison, raw, resolve
from families import FAMILIES, PARALLEL
from report import Report

# The one object of the fixture that has become a file: Megatron-Core since 0.17 keeps the common state in it.
COMMON = "common_state/shard_0_1"
DESCRIPTION = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}


def read_metadata(root):
    """`.metadata`. PyTorch 2.15, which wrote the fixtures, adds a sixth field that 2.14 cannot take; it is cut off."""
    original = TensorProperties.__setstate__
    TensorProperties.__setstate__ = lambda self, state: original(self, state[:5])
    try:
        return dcp.FileSystemReader(root).read_metadata()
    finally:
        TensorProperties.__setstate__ = original


def unpickled(data):
    return torch.load(io.BytesIO(data), weights_only=True)


def load_file(path):
    with open(path, "rb") as file:
        return unpickled(file.read())


def read_objects(root, metadata):
    """Name to value of everything that is no tensor."""
    objects = {}
    for index, place in metadata.storage_data.items():
        if not isinstance(metadata.state_dict_metadata.get(index.fqn), TensorStorageMetadata):
            with open(os.path.join(root, place.relative_path), "rb") as file:
                file.seek(place.offset)
                objects[index.fqn] = unpickled(file.read(place.length))
    return objects


def difference(ours, theirs, where="value"):
    """Where two values first differ, in type, dtype, shape or content; None if nowhere."""
    if type(ours) is not type(theirs):
        return f"{where} is {ours!r} ({type(ours).__name__}), expected {theirs!r} ({type(theirs).__name__})"
    if isinstance(ours, torch.Tensor):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape) or bytes(raw(ours)) != bytes(raw(theirs)):
            return f"{where} is {ours!r} of {ours.dtype}, expected {theirs!r} of {theirs.dtype}"
    elif isinstance(ours, dict):
        if set(ours) != set(theirs):
            return f"{where} has the keys {sorted(ours)}, expected {sorted(theirs)}"
        return next((found for key in ours if (found := difference(ours[key], theirs[key], f"{where}[{key!r}]"))), None)
    elif isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{where} has {len(ours)} elements, expected {len(theirs)}"
        return next((found for i in range(len(ours)) if (found := difference(ours[i], theirs[i], f"{where}[{i}]"))), None)
    elif ours != theirs:
        return f"{where} is {ours!r}, expected {theirs!r}"
    return None


def compare_names(what, ours, theirs, report):
    for name in sorted(set(theirs) - set(ours)):
        report.bad(f"{what} absent: {name}")
    for name in sorted(set(ours) - set(theirs)):
        report.bad(f"{what} unexpected: {name}")
    return sorted(set(ours) & set(theirs))


def check_tensors(root, ours, theirs, manifest, boxes, padding, ranks, report):
    """`padding` is None where the vocabulary is to be as long as the real one."""
    def tensors(metadata):
        return {k: v for k, v in metadata.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}

    def cut(tensor):
        return sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks)

    ours, theirs = tensors(ours), tensors(theirs)
    compare_names("manifest tensor", theirs, manifest["tensors"], report)
    names = compare_names("tensor", ours, theirs, report)

    def size(name):
        rows, *rest = theirs[name].size
        is_padded = padding and name in padding.keys
        return torch.Size([padding.size(rows, ranks) if is_padded else rows, *rest])

    for name in names:
        if ours[name].size != size(name):
            report.bad(f"{name}: shape {tuple(ours[name].size)}, expected {tuple(size(name))}")
        elif cut(ours[name]) != (boxes(name, tuple(ours[name].size)) if boxes else cut(theirs[name])):
            report.bad(f"{name}: cut into {len(cut(ours[name]))} chunks otherwise than the real one")
        if ours[name].properties.dtype != theirs[name].properties.dtype:
            report.bad(f"{name}: dtype {ours[name].properties.dtype}, expected {theirs[name].properties.dtype}")
    loaded = {name: poison(tensor.size, tensor.properties.dtype) for name, tensor in ours.items()}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(root), planner=planner, no_dist=True)
    for name in padding.keys if padding else ():
        rows = theirs[name].size[0]
        if loaded[name][rows:].view(torch.int16).any():
            report.bad(f"{name}: the padding below row {rows} is not zeros")
        loaded[name] = loaded[name][:rows]
    for name in set(names) & set(manifest["tensors"]):
        if hashlib.sha256(raw(loaded[name])).hexdigest() != manifest["tensors"][name]["sha256"]:
            report.bad(f"{name}: sha256 is not the manifest's")
    chunks = sum(len(ours[name].chunks) for name in names)
    by = "a rule" if boxes else "the real checkpoint"
    print(f"tensors: {len(names)} of {len(theirs)} keys, with shape, dtype and sha256, in {chunks} chunks as by {by}")


def check_objects(root, their_root, ours, theirs, report):
    ours, theirs = read_objects(root, ours), read_objects(their_root, theirs)
    common = theirs.pop(COMMON)
    if COMMON in ours:
        report.bad(f"object beside common.pt, which strict loading refuses: {COMMON}")
        del ours[COMMON]
    for name in compare_names("object", ours, theirs, report):
        if found := difference(ours[name], theirs[name]):
            report.bad(f"object {name}: {found}")
    nothing = sum(value == [None] for value in theirs.values())
    print(f"objects: {len(ours)} of {len(theirs)} compared, {nothing} of them [None]")
    path = os.path.join(root, "common.pt")
    if not os.path.isfile(path):
        report.bad("file absent: common.pt")
    elif found := difference(load_file(path), common[0]):
        report.bad(f"common.pt: {found}")


def check_train_state(pairs, report):
    for ours, theirs in pairs:
        name = os.path.basename(ours)
        if not os.path.isfile(ours):
            report.bad(f"file absent: {name}")
        elif found := difference(load_file(ours), load_file(theirs)):
            report.bad(f"{name}: {found}")


def is_number_as_text(value):
    if not isinstance(value, str):
        return False
    try:
        float(value)
        return True
    except ValueError:
        return False


def check_run_config(path, their_path, family, mesh, padding, report):
    if not os.path.isfile(path):
        report.bad("file absent: run_config.yaml")
        return
    with open(path) as file, open(their_path) as their_file:
        ours, theirs = yaml.safe_load(file), yaml.safe_load(their_file)
    for section, value in ours.items():
        if section == "model":
            continue
        if section not in theirs:
            report.bad(f"run_config.yaml: section {section} is not one of the real ones")
        elif not isinstance(value, dict):
            if found := difference(value, theirs[section], section):
                report.bad(f"run_config.yaml: {found}")
        else:
            for key, entry in value.items():
                if found := difference(entry, theirs[section].get(key), f"{section}.{key}"):
                    report.bad(f"run_config.yaml: {found}")
    ours, theirs = ours["model"], theirs["model"]
    if padding:
        theirs["should_pad_vocab"] = True
        if found := difference(ours.get("make_vocab_size_divisible_by"), padding.divisible_by, "model.make_vocab_size_divisible_by"):
            report.bad(f"run_config.yaml: {found}")
    shared, compared = 0, {*family.same_value, *PARALLEL, *family.stage_fields}
    for field, value in ours.items():
        if is_number_as_text(value):
            report.bad(f"run_config.yaml: model.{field} is the text {value!r}, expected a number")
            continue
        if field not in theirs:
            print(f"  note: run_config.yaml: model.{field} stands only here: {value!r}")
            continue
        shared += 1
        wanted = theirs[field]
        if type(value) is not type(wanted) and wanted is not None and field not in family.other_type:
            report.bad(f"run_config.yaml: model.{field} is {value!r} ({type(value).__name__}), expected {type(wanted).__name__}")
        elif field not in compared and value != wanted:
            print(f"  note: run_config.yaml: model.{field} is {value!r}, in the fixture {wanted!r}")
    for field in family.same_value:
        if field not in ours:
            report.bad(f"run_config.yaml: model.{field} is absent")
        elif found := difference(ours[field], theirs[field], f"model.{field}"):
            report.bad(f"run_config.yaml: {found}")
    # Of the mesh, or where none is given of the fixture.
    for field, size in zip(PARALLEL, family.parallel(mesh) if mesh else [theirs[field] for field in PARALLEL]):
        if found := difference(ours.get(field), size, f"model.{field}"):
            report.bad(f"run_config.yaml: {found}")
    for problem in family.stages(ours, theirs, mesh):
        report.bad(f"run_config.yaml: {problem}")
    present = len(compared & set(ours))
    print(f"run_config.yaml: {shared} fields compared in type, {present} in value")


def check(run, fixture, family, report, mesh=None, boxes=None, is_padded=False):
    """All of it; every difference goes to the report. A mesh that is not the fixture's is given, and so are chunks, by key and shape."""
    if mesh and not boxes:
        boxes = lambda key, shape: family.boxes(key, shape, mesh)
    padding = family.padding if is_padded else None
    if is_padded and not (padding and mesh):
        raise ValueError("a padded vocabulary needs a mesh, and a family that pads")
    root, their_run = resolve(run), os.path.join(fixture, "ckpt")
    their_root = resolve(their_run)
    tracker = "latest_checkpointed_iteration.txt"
    with open(os.path.join(run, tracker), "rb") as file, open(os.path.join(their_run, tracker), "rb") as their_file:
        if found := difference(file.read(), their_file.read(), tracker):
            report.bad(found)
    if os.path.basename(root) != os.path.basename(their_root):
        report.bad(f"iteration directory {os.path.basename(root)}, expected {os.path.basename(their_root)}")
    with open(os.path.join(fixture, "manifest.json")) as file:
        manifest = json.load(file)
    # Ours is read by PyTorch as it is.
    ours, theirs = dcp.FileSystemReader(root).read_metadata(), read_metadata(their_root)
    check_tensors(root, ours, theirs, manifest, boxes, padding, mesh and mesh[0], report)
    check_objects(root, their_root, ours, theirs, report)
    check_train_state([
        (os.path.join(root, "train_state.pt"), os.path.join(their_root, "train_state.pt")),
        (os.path.join(run, "latest_train_state.pt"), os.path.join(their_run, "latest_train_state.pt")),
    ], report)
    with open(os.path.join(root, "metadata.json")) as file:
        if found := difference(json.load(file), DESCRIPTION, "metadata.json"):
            report.bad(found)
    check_run_config(os.path.join(root, "run_config.yaml"), os.path.join(their_root, "run_config.yaml"), family, mesh, padding, report)


def whole(key, shape):
    return [((0,) * len(shape), shape)]


def main(arguments):
    parser = argparse.ArgumentParser(prog="check_import.py")
    parser.add_argument("run")
    parser.add_argument("fixture")
    parser.add_argument("--family", required=True, choices=FAMILIES)
    parser.add_argument("--mesh")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--pad-vocab", action="store_true")
    arguments = parser.parse_args(arguments)
    mesh = [int(size) for size in arguments.mesh.split(",")] if arguments.mesh else None
    report = Report(20)
    try:
        check(arguments.run, arguments.fixture, FAMILIES[arguments.family], report, mesh, whole if arguments.whole else None, arguments.pad_vocab)
    except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
        traceback.print_exc()
        report.bad(f"cannot be checked: {type(error).__name__}: {error}")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
