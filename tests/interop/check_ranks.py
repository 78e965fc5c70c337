#!/usr/bin/env python3
"""Loads a run of rialto as every rank of a real model would, with Megatron-Core.

  check_ranks.py RUN EXPECTED RANKS --family NAME [--part]

RUN       the run directory that `rialto import` made.
EXPECTED  a safetensors file with the global tensors.
RANKS     for each rank of a real model its parameters, and the sharded state dict that it asked for: `NAME.json.gz`, a list of ranks, or a
          `manifest.json` that has this list as `ranks`.
--family  whose model it is: where Megatron-Core's transformer block names the layers, the content metadata of RUN must make it name them as
          these ranks did.
--part    EXPECTED is a part of the model: of what the ranks asked for they ask only for its tensors, and for the objects of its layers and of none.

The model is not needed: each rank's requests are built again from Megatron-Core's own classes, gated matrices through a factory as the
model does, and loaded with strictness `raise_all`. There are as many processes as ranks, joined by gloo, and they exchange what
they ask for as in training: so Megatron-Core itself sees a key that no rank asks for, one that is not there, and main replicas that do not
cover a tensor once. Every local tensor must have the shape and dtype of the rank's parameter and the bits of its part of the global
one, and every object be what the rank held. Exit status 0 when nothing differs, 1 otherwise.
"""
import argparse, contextlib, datetime, gzip, json, multiprocessing, os, sys, tempfile, traceback
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from check_torch_dist import Expected, poison, raw, resolve
from families import FAMILIES
from part import layer_of
from report import Collected, Report

with contextlib.redirect_stderr(None):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory


def sharded_tensor(request):
    dtype = getattr(torch, request["dtype"])
    return ShardedTensor(
        key=request["key"],
        data=poison(request["local_shape"], dtype),
        dtype=dtype,
        local_shape=tuple(request["local_shape"]),
        global_shape=tuple(request["global_shape"]),
        global_offset=tuple(request["global_offset"]),
        axis_fragmentations=tuple(request["axis_fragmentations"]),
        replica_id=tuple(request["replica_id"]),
        prepend_axis_num=request["prepend_axis_num"],
        allow_shape_mismatch=request["allow_shape_mismatch"],
    )


def sharded(requests):
    """What the model put under one name: an object, a tensor, or a factory whose parts stand one above the other."""
    first = requests[0]
    if first["kind"] == "object":
        shape, offset = tuple(first["global_shape"]), tuple(first["global_offset"])
        return ShardedObject(first["key"], None, shape, offset, tuple(first["replica_id"]))
    parts = [sharded_tensor(request) for request in requests]
    if len(parts) == 1:
        return parts[0]
    data = torch.cat([part.data for part in parts])
    return ShardedTensorFactory(
        first["key"], data, lambda key, tensor, replica, flattened: parts, torch.cat, tuple(first["replica_id"])
    )


def by_name(rank):
    """Requests by the name in the rank's state dict, in the file's order."""
    names = {}
    for request in rank["sharded_state_dict"]:
        names.setdefault(request["name"], []).append(request)
    return names


def part(tensor, request):
    """The request's part of a global tensor."""
    leading = request["prepend_axis_num"]
    place = tuple(request["global_offset"][:leading])
    place += tuple(slice(at, at + extent) for at, extent in zip(request["global_offset"][leading:], request["local_shape"]))
    return tensor[place]


def described(value):
    return f"tensor {value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else str(value)


def parameter(described):
    """Shape and dtype of a parameter, in either form."""
    return described if isinstance(described, list) else [described["shape"], described["dtype"]]


def check_rank(root, rank, stored, expected, report):
    """One rank's load. Returns how many tensors, bytes and objects were as they should be."""
    names = by_name(rank)
    # By number, because a name with dots would be taken for nested dicts.
    state = {str(number): sharded(requests) for number, requests in enumerate(names.values())}
    loaded = dist_checkpointing.load(state, root, validate_access_integrity=True, strict="raise_all")
    counts = [0, 0, 0]
    where = f"rank {rank['rank']}"
    for name in sorted(set(rank["parameters"]) - set(names)):
        report.bad(f"{where}: nothing was asked for {name}")
    for number, (name, requests) in enumerate(names.items()):
        value = loaded[str(number)]
        if requests[0]["kind"] == "object":
            if described(value) != requests[0]["data"]:
                report.bad(f"{where}: {name} is {described(value)}, the model's is {requests[0]['data']}")
            else:
                counts[2] += 1
            continue
        wanted = torch.cat([part(expected[request["key"]], request) for request in requests])
        held = parameter(rank["parameters"][name]) if name in rank["parameters"] else None
        if held and [list(value.shape), str(value.dtype)] != [held[0], "torch." + held[1]]:
            report.bad(f"{where}: {name} is {described(value)}, the parameter is {held}")
        elif stored[requests[0]["key"]].properties.dtype != value.dtype:
            report.bad(f"{where}: {name} is stored as {stored[requests[0]['key']].properties.dtype}, asked for as {value.dtype}")
        elif (value.dtype, value.shape) != (wanted.dtype, wanted.shape) or raw(value) != raw(wanted):
            report.bad(f"{where}: {name}: bits differ from its part of {requests[0]['key']}")
        else:
            counts[0] += 1
            counts[1] += value.numel() * value.element_size()
    return counts


def tensors(expected):
    """The global tensors of a safetensors file, as PyTorch has them."""
    file = Expected(expected)
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    return {
        name: torch.frombuffer(bytearray(file.bits(name)), dtype=dtypes[dtype]).reshape(shape)
        for name, (dtype, shape, *_) in file.t.items()
    }


def join(number, ranks, folder, root, expected, connection):
    """A rank's process: loads, and sends what it counted and what it found."""
    report, counts = Collected(), [0, 0, 0]
    try:
        # What was forked has no threads of its own, and must not look for them.
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        patience = datetime.timedelta(seconds=120)
        group = f"file://{folder}/group"
        dist.init_process_group("gloo", init_method=group, rank=number, world_size=len(ranks), timeout=patience)
        stored = dcp.FileSystemReader(root).read_metadata().state_dict_metadata
        counts = check_rank(root, ranks[number], stored, expected, report)
        dist.barrier()
    except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
        report.bad(f"rank {number}: load failed: {type(error).__name__}: {error}")
        counts = None
    connection.send((counts, report.lines))
    connection.close()
    os._exit(0)


def all_ranks(ranks, root, expected):
    """What each rank sends. After the first that failed the others would wait for it: they are stopped, and heard no more."""
    context = multiprocessing.get_context("fork")
    processes, heard = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(ranks)):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=join, args=(number, ranks, folder, root, expected, theirs))
            process.start()
            theirs.close()
            processes[ours] = (number, process)
        while processes:
            for connection in wait(list(processes)):
                number, process = processes.pop(connection)
                try:
                    heard[number] = connection.recv()
                except EOFError:
                    heard[number] = (None, [f"rank {number}: ended without a word"])
                process.join()
            if any(counts is None for counts, _ in heard.values()):
                for _, process in processes.values():
                    process.terminate()
                    process.join()
                break
    return heard


def read_ranks(path):
    with (gzip.open(path) if path.endswith(".gz") else open(path)) as file:
        document = json.load(file)
    return document["ranks"] if isinstance(document, dict) else document


def check_names(root, ranks, report):
    """A model loads by what it finds in the content metadata: it must lead to the names that these ranks asked for."""
    content = dist_checkpointing.load_content_metadata(root) or {}
    one_by_one = any(bool(content.get(flag)) for flag in ("non_homogeneous_layers", "singleton_local_shards"))
    keys = {request["key"] for rank in ranks for request in rank["sharded_state_dict"]}
    layers = {key for key in keys if key.startswith("decoder.layers.")}
    asked_one_by_one = {key for key in layers if key.split(".")[2].isdigit()}
    if asked_one_by_one != (layers if one_by_one else set()):
        names = ["stacked", "one by one"]
        report.bad(f"the content metadata makes a model ask for its layers {names[one_by_one]}, these ranks ask for them {names[not one_by_one]}: {content}")


def of_part(ranks, tensors):
    """What the ranks ask for of a model that has these tensors alone."""
    layers = {layer_of(key) for key in [*tensors, ""]}

    def is_asked(request):
        return request["key"] in tensors if request["kind"] == "tensor" else layer_of(request["key"]) in layers

    for rank in ranks:
        requests = [request for request in rank["sharded_state_dict"] if is_asked(request)]
        names = {request["name"] for request in requests}
        parameters = {name: held for name, held in rank["parameters"].items() if name in names}
        yield {**rank, "sharded_state_dict": requests, "parameters": parameters}


def check(run, expected, ranks, family, report, is_part=False):
    """All of it; every difference goes to the report."""
    root, ranks, expected = resolve(run), read_ranks(ranks), tensors(expected)
    if is_part:
        ranks = list(of_part(ranks, expected))
        asked = {request["key"] for rank in ranks for request in rank["sharded_state_dict"]}
        for key in sorted(set(expected) - asked):
            report.bad(f"no rank asks for {key}")
    if family.block_modules:
        check_names(root, ranks, report)
    heard = all_ranks(ranks, root, expected)
    right = [0, 0, 0]
    for _, (counts, lines) in sorted(heard.items()):
        for line in lines:
            report.bad(line)
        right = [a + b for a, b in zip(right, counts or [0, 0, 0])]
    asked = [len(requests) for rank in ranks for requests in by_name(rank).values() if requests[0]["kind"] == "tensor"]
    objects = sum(request["kind"] == "object" for rank in ranks for request in rank["sharded_state_dict"])
    print(f"ranks: {len(ranks)} joined, raise_all; {right[0]} of {len(asked)} local tensors bit-identical "
          f"({sum(asked)} requests, {right[1]} bytes), {right[2]} of {objects} objects equal")
    if not report.n_bad and [right[0], right[2]] != [len(asked), objects]:
        report.bad("not everything was compared")


def main(arguments):
    parser = argparse.ArgumentParser(prog="check_ranks.py")
    parser.add_argument("run")
    parser.add_argument("expected")
    parser.add_argument("ranks")
    parser.add_argument("--family", required=True, choices=FAMILIES)
    parser.add_argument("--part", action="store_true")
    arguments = parser.parse_args(arguments)
    report = Report(20)
    try:
        check(arguments.run, arguments.expected, arguments.ranks, FAMILIES[arguments.family], report, arguments.part)
    except (Exception, dcp.CheckpointException) as error:  # PyTorch derives its own from BaseException.
        traceback.print_exc()
        report.bad(f"load failed: {type(error).__name__}: {error}")
    print("RESULT", f"FAILED ({report.n_bad} mismatches)" if report.n_bad else "OK")
    return 1 if report.n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
