"""What somebody who knows PyTorch writes to bring a checkpoint across: the rival of a whole conversion.

    python rival.py SOURCE TARGET import [--dtype bf16]
    python rival.py SOURCE TARGET export [--dtype bf16]

An import opens the shards with safetensors, decodes FP8 by its block scales, and has torch.distributed.checkpoint save the
whole state dict, from one process with two writing threads, synced. An export has it load every tensor of the newest iteration
and saves shards with safetensors. Nothing is mapped: names stay what they are, nothing is fused, stacked or cut for ranks,
no config is read, and nothing is checked. So it does less than a conversion, on the same bytes.

The last line printed is `seconds N`: without the start of Python and the import of PyTorch.
"""

import argparse
import json
import os
import pathlib
import shutil
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

INDEX = "model.safetensors.index.json"
SCALE = "_scale_inv"
BLOCK = 128
MAX_SHARD_BYTES = 5 << 30
THREADS = 2


def dequantize(codes, scales):
    """E4M3 codes times the scale of their block of 128 x 128, in F32, rounded once to BF16."""
    rows, columns = codes.shape
    wide = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return (codes.to(torch.float32) * wide).to(torch.bfloat16)


def narrowed(tensor, dtype):
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def import_checkpoint(source, target, dtype):
    places = json.loads((source / INDEX).read_text())["weight_map"]
    shards = {file: safe_open(source / file, framework="pt") for file in sorted(set(places.values()))}

    def tensor(name):
        return shards[places[name]].get_tensor(name)

    state = {}
    for name in places:
        if name.endswith(SCALE):
            continue
        value = tensor(name)
        if name + SCALE in places:
            value = dequantize(value, tensor(name + SCALE))
        state[name] = narrowed(value, dtype)
    writer = dcp.FileSystemWriter(target, single_file_per_rank=True, thread_count=THREADS, sync_files=True)
    dcp.save(state, storage_writer=writer, no_dist=True)
    shutil.copy(source / "config.json", target)


def newest_iteration(run):
    number = (run / "latest_checkpointed_iteration.txt").read_text().strip()
    return run / (number if number == "release" else f"iter_{int(number):07d}")


def export_checkpoint(source, target, dtype):
    reader = dcp.FileSystemReader(newest_iteration(source))
    stored = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    shards, filled = [{}], 0
    for name, value in state.items():
        value = narrowed(value, dtype)
        if filled and filled + value.nbytes > MAX_SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = value
        filled += value.nbytes
    target.mkdir()
    places = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, target / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
    total = sum(value.nbytes for shard in shards for value in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (target / INDEX).write_text(json.dumps(index))
    for path in [*target.iterdir(), target]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("direction", choices=["import", "export"])
    parser.add_argument("--dtype", choices=["bf16"], help="narrow every floating-point tensor")
    arguments = parser.parse_args()
    dtype = torch.bfloat16 if arguments.dtype else None
    convert = {"import": import_checkpoint, "export": export_checkpoint}[arguments.direction]
    begin = time.perf_counter()
    convert(arguments.source, arguments.target, dtype)
    print(f"seconds {time.perf_counter() - begin:.6f}")


if __name__ == "__main__":
    main()
