#!/usr/bin/env python3
"""Judges an export of rialto against the Hugging Face directory it came from, with the safetensors package and PyTorch.

  check_export.py EXPORTED SOURCE --family NAME [--without-mtp] [--layers RANGES] [--exclude PATTERN]... [--dequantized FILE]

Every tensor must come back with its shape and bits, in the shard that the index names; config.json and the side
files byte for byte; each shard must say that it is PyTorch's. What Megatron does not keep of a GLM-5 comes back otherwise: weights in F32 but the
routers' bias in BF16, weights in FP8 in BF16 and without their scales, and config.json without `quantization_config`. What those
weights stand for is computed here, and must also be what another program wrote into the file of --dequantized.
With --without-mtp the source's prediction layers are expected to be gone and config.json to say so, in nothing else changed. With --layers and
--exclude exactly the tensors of that part of the model must be there, and config.json be that of the whole.
Exit status 0 when nothing differs, 1 otherwise.
"""
import argparse, json, os, sys, traceback

import safetensors.torch
from safetensors import safe_open

import part
from check_torch_dist import raw
from families import FAMILIES
from hf_directory import CONFIG, INDEX
from records import MANIFEST, REPORT
from report import Report

MTP_KEY = "num_nextn_predict_layers"
QUANTIZATION = "quantization_config"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def files_below(root):
    found = set()
    for folder, _, names in os.walk(root):
        found.update(os.path.relpath(os.path.join(folder, name), root) for name in names)
    return found


class Checkpoint:
    """A directory as the index describes it; a shard that does not hold what it should is in `problems`."""

    def __init__(self, root):
        self.root, self.problems, self.tensors, self.formats = root, [], {}, {}
        index = json.loads(read(os.path.join(root, INDEX)))
        self.keys, self.total_size = index["weight_map"], index["metadata"]["total_size"]
        self.shards = sorted(set(self.keys.values()))
        for shard in self.shards:
            with safe_open(os.path.join(root, shard), framework="pt") as file:
                self.formats[shard] = (file.metadata() or {}).get("format")
                held = set(file.keys())
                named = {key for key, where in self.keys.items() if where == shard}
                self.problems += [f"{key}: the index names {shard}, which does not hold it" for key in sorted(named - held)]
                self.problems += [f"{key}: in {shard}, where the index does not look for it" for key in sorted(held - named)]
                self.tensors.update((key, file.get_tensor(key)) for key in held)
        rest = files_below(root) - set(self.shards) - {INDEX, CONFIG}
        self.problems += [f"record absent: {name}" for name in (MANIFEST, REPORT) if name not in rest]
        self.side_files = rest - {MANIFEST, REPORT}

    def bytes(self):
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def check_config(exported, source, without_mtp, report):
    with open(os.path.join(source, CONFIG), "rb") as file, open(os.path.join(exported, CONFIG), "rb") as our_file:
        theirs, ours = file.read(), our_file.read()
    config = json.loads(theirs)
    changes = config.pop(QUANTIZATION, None) is not None
    if without_mtp and config.get(MTP_KEY):
        config[MTP_KEY], changes = 0, True
    if not changes and ours != theirs:
        report.bad(f"{CONFIG} differs")
    elif changes and json.loads(ours) != config:
        report.bad(f"{CONFIG} differs in more than {MTP_KEY} and {QUANTIZATION}, or not in them")


def check(exported, source, family, without_mtp, dequantized, report, chosen=part.Part()):
    """All of it; every difference goes to the report."""
    ours, theirs = Checkpoint(exported), family.plain(source, without_mtp)
    theirs = {name: tensor for name, tensor in theirs.items() if chosen.has(name)}
    whole = family.plain(source)
    dropped = len(whole) - len(theirs)
    for problem in ours.problems:
        report.bad(problem)
    decoded = safetensors.torch.load_file(dequantized) if dequantized else {}
    # The other program decoded all of the source, what is left out here too.
    for key, tensor in decoded.items():
        if key not in whole or bytes(raw(tensor)) != bytes(raw(whole[key])):
            report.bad(f"{key}: dequantized otherwise in {os.path.basename(dequantized)}")
    for what, found in [("tensor", set(ours.tensors)), ("index key", set(ours.keys))]:
        for key in sorted(set(theirs) - found):
            report.bad(f"{what} absent: {key}")
        for key in sorted(found - set(theirs)):
            report.bad(f"{what} unexpected: {key}")
    same = 0
    for key in sorted(set(theirs) & set(ours.tensors)):
        a, b = ours.tensors[key], theirs[key]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            report.bad(f"{key}: {a.dtype} {tuple(a.shape)}, expected {b.dtype} {tuple(b.shape)}")
        elif bytes(raw(a)) != bytes(raw(b)):
            report.bad(f"{key}: bits differ")
        else:
            same += 1
    if ours.total_size != ours.bytes():
        report.bad(f"total_size is {ours.total_size}, the shards hold {ours.bytes()}")
    for shard, form in ours.formats.items():
        if form != "pt":
            report.bad(f"{shard}: format is {form!r}, expected 'pt'")
    check_config(exported, source, without_mtp, report)
    side_files = files_below(source) - {INDEX, CONFIG}
    side_files = {name for name in side_files if not name.endswith(".safetensors")}
    for name in sorted(ours.side_files ^ side_files):
        report.bad(f"side file on one side only: {name}")
    for name in sorted(ours.side_files & side_files):
        if read(os.path.join(exported, name)) != read(os.path.join(source, name)):
            report.bad(f"side file differs: {name}")
    print(f"{same} of {len(theirs)} tensors bit-identical, {ours.bytes()} bytes in {len(ours.shards)} shards, {len(side_files)} side files, "
          f"{dropped} left out, {len(decoded)} dequantized by another program too")


def main(arguments):
    parser = argparse.ArgumentParser(prog="check_export.py")
    parser.add_argument("exported")
    parser.add_argument("source")
    parser.add_argument("--family", required=True, choices=FAMILIES)
    parser.add_argument("--without-mtp", action="store_true")
    part.add_options(parser)
    parser.add_argument("--dequantized")
    arguments = parser.parse_args(arguments)
    report = Report(20)
    try:
        family = FAMILIES[arguments.family]
        check(arguments.exported, arguments.source, family, arguments.without_mtp, arguments.dequantized, report, part.chosen(arguments))
    except Exception as error:
        traceback.print_exc()
        report.bad(f"cannot be checked: {type(error).__name__}: {error}")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
