#!/usr/bin/env python3
"""Judges an export of rialto against the Hugging Face directory it came from, with the safetensors package and PyTorch.

  check_export.py EXPORTED SOURCE [--without-mtp]

Every tensor must come back with its dtype, shape and bits, in the shard that the index names; config.json and the side
files byte for byte; each shard must say that it is PyTorch's. With --without-mtp the source's prediction layers are
expected to be gone and config.json to say so, in nothing else changed. Exit status 0 when nothing differs, 1 otherwise.
"""
import json, os, sys, traceback

from safetensors import safe_open

from check_torch_dist import Report, raw

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MTP_KEY = "num_nextn_predict_layers"


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
        self.side_files = files_below(root) - set(self.shards) - {INDEX, CONFIG}

    def bytes(self):
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def check(exported, source, without_mtp, report):
    """All of it; every difference goes to the report."""
    ours, theirs = Checkpoint(exported), Checkpoint(source)
    config = json.loads(read(os.path.join(source, CONFIG)))
    dropped = set()
    if without_mtp:
        first = config["num_hidden_layers"]
        prefixes = tuple(f"model.layers.{first + layer}." for layer in range(config[MTP_KEY]))
        dropped = {key for key in theirs.keys if key.startswith(prefixes)}
    for problem in ours.problems:
        report.bad(problem)
    expected = set(theirs.tensors) - dropped
    for what, found in [("tensor", set(ours.tensors)), ("index key", set(ours.keys))]:
        for key in sorted(expected - found):
            report.bad(f"{what} absent: {key}")
        for key in sorted(found - expected):
            report.bad(f"{what} unexpected: {key}")
    same = 0
    for key in sorted(expected & set(ours.tensors)):
        a, b = ours.tensors[key], theirs.tensors[key]
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
    if without_mtp:
        config[MTP_KEY] = 0
        if json.loads(read(os.path.join(exported, CONFIG))) != config:
            report.bad(f"{CONFIG} differs in more than {MTP_KEY}")
    elif read(os.path.join(exported, CONFIG)) != read(os.path.join(source, CONFIG)):
        report.bad(f"{CONFIG} differs")
    for name in sorted(ours.side_files ^ theirs.side_files):
        report.bad(f"side file on one side only: {name}")
    for name in sorted(ours.side_files & theirs.side_files):
        if read(os.path.join(exported, name)) != read(os.path.join(source, name)):
            report.bad(f"side file differs: {name}")
    print(f"{same} of {len(expected)} tensors bit-identical in {len(ours.shards)} shards, {len(dropped)} left out")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--without-mtp"]
    if len(arguments) != 2:
        print(__doc__)
        return 2
    report = Report(20)
    try:
        check(*arguments, "--without-mtp" in sys.argv, report)
    except Exception as error:
        traceback.print_exc()
        report.bad(f"cannot be checked: {type(error).__name__}: {error}")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
