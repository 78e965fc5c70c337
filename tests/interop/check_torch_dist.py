#!/usr/bin/env python3
# Judges a torch_dist checkpoint by loading it with the real PyTorch and Megatron-Core; `cargo xtask interop` runs it.
"""Strict checker for torch_dist (PyTorch DCP / Megatron-Core) checkpoints.

  check_torch_dist.py CKPT_DIR EXPECTED [--mcore] [--family NAME] [--pages] [--subset] [--skip-bytes] [--max-report N]

CKPT_DIR  directory with .metadata, or a Megatron root (then latest_checkpointed_iteration.txt picks iter_*).
EXPECTED  a .safetensors file, a directory of them (with or without index), or a fixture directory
          holding expected.safetensors / expected.json.

1. DCP: reads the checkpoint through torch.distributed.checkpoint's FileSystemReader and a strict
   DefaultLoadPlanner, no process group; target tensors are pre-filled with a poison pattern and every
   chunk set is checked to tile its tensor, so an uncovered element can not pass.
2. --mcore: the same through megatron.core.dist_checkpointing.load (1-rank gloo, RAISE/RETURN_ALL strictness).
   With --family, where that family's layers are named by Megatron-Core's transformer block: once more with the requests
   that the block makes by the checkpoint's content metadata, its extra states among them.
Compares name set, shape, dtype and bits. Exit 0 when everything matches, 1 otherwise, 2 on usage errors.
"""
import argparse, io, json, os, struct, sys, tempfile, time, traceback, warnings, zipfile

warnings.filterwarnings("ignore")
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from report import Report

DT = {"BF16": "bfloat16", "F32": "float32", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32",
      "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
      "U16": "uint16", "U32": "uint32", "U64": "uint64", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
      "F4": "float4_e2m1fn_x2"}


class Expected:
    """Our own minimal safetensors reader (handles every dtype, lazily)."""

    def __init__(self, path):
        self.t, self.objects = {}, {}
        if os.path.isdir(path):
            j = os.path.join(path, "expected.json")
            if os.path.exists(j):
                self.objects = json.load(open(j)).get("objects", {})
            files = sorted(os.path.join(path, f) for f in os.listdir(path) if f.endswith(".safetensors"))
        else:
            files = [path]
        if not files:
            raise SystemExit(f"no .safetensors under {path}")
        for f in files:
            with open(f, "rb") as h:
                n = struct.unpack("<Q", h.read(8))[0]
                head = json.loads(h.read(n))
            for k, v in head.items():
                if k == "__metadata__":
                    continue
                if k in self.t:
                    raise SystemExit(f"expected tensor {k!r} appears twice")
                a, b = v["data_offsets"]
                self.t[k] = (v["dtype"], tuple(v["shape"]), f, 8 + n + a, b - a)

    def bits(self, k):
        _, _, f, off, n = self.t[k]
        with open(f, "rb") as h:
            h.seek(off)
            return h.read(n)


def raw(t):
    t = t.detach().cpu().contiguous()
    return b"" if t.numel() == 0 else memoryview(t.reshape(-1).view(torch.uint8).numpy())


def volume(s):
    n = 1
    for x in s:
        n *= x
    return n


def compare(tag, got, exp, rep, subset=False):
    """got: name -> tensor"""
    miss = sorted(set(exp.t) - set(got))
    extra = sorted(set(got) - set(exp.t))
    for k in miss:
        rep.bad(f"{tag}: expected tensor absent from checkpoint: {k}")
    if not subset:
        for k in extra:
            rep.bad(f"{tag}: checkpoint has an unexpected tensor: {k}")
    same = nbytes = 0
    for k in sorted(set(exp.t) & set(got)):
        d, s, *_ = exp.t[k]
        t = got[k]
        want = getattr(torch, DT[d])
        if tuple(t.shape) != s:
            rep.bad(f"{tag}: {k}: shape {tuple(t.shape)} expected {s}")
        elif t.dtype != want:
            rep.bad(f"{tag}: {k}: dtype {t.dtype} expected {want}")
        else:
            a, b = raw(t), exp.bits(k)
            if a != b:
                i = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), -1)
                rep.bad(f"{tag}: {k}: bits differ, first at byte {i} of {len(b)}")
            else:
                same += 1
                nbytes += len(b)
    print(f"{tag}: {same}/{len(exp.t)} expected tensors bit-identical ({nbytes} bytes); {len(miss)} missing, {len(extra)} extra")


def poison(shape, dtype):
    t = torch.empty(shape, dtype=dtype)
    if t.numel():
        t.view(-1).view(torch.uint8).fill_(0xA5)
    return t


def check_layout(md, rep):
    n_chunk = 0
    for k, v in md.state_dict_metadata.items():
        if not isinstance(v, TensorStorageMetadata):
            continue
        tot = 0
        for c in v.chunks:
            n_chunk += 1
            if len(c.offsets) != len(v.size) or len(c.sizes) != len(v.size):
                rep.bad(f"layout: {k}: chunk rank differs from tensor rank: {c}")
                continue
            if any(o < 0 or s < 0 or o + s > d for o, s, d in zip(c.offsets, c.sizes, v.size)):
                rep.bad(f"layout: {k}: chunk out of bounds {c} in {v.size}")
            tot += volume(c.sizes)
        if tot != volume(v.size):
            rep.bad(f"layout: {k}: chunks hold {tot} elements, tensor has {volume(v.size)}")
        if len(v.chunks) > 1:
            cs = [c for c in v.chunks if volume(c.sizes)]
            order = sorted(cs, key=lambda c: tuple(c.offsets))
            if len(order) <= 3000:
                for i, a in enumerate(order):
                    for b in order[i + 1:]:
                        if len(v.size) and b.offsets[0] >= a.offsets[0] + a.sizes[0]:
                            break
                        if all(x < y + m and y < x + n for x, n, y, m in zip(a.offsets, a.sizes, b.offsets, b.sizes)):
                            rep.bad(f"layout: {k}: overlapping chunks {a} {b}")
    return n_chunk


def check_storage(root, md, rep):
    files = {}
    keyed = {(i.fqn, tuple(i.offset) if i.offset is not None else None) for i in md.storage_data}
    for k, v in md.state_dict_metadata.items():
        if isinstance(v, TensorStorageMetadata):
            for c in v.chunks:
                if (k, tuple(c.offsets)) not in keyed:
                    rep.bad(f"storage: no storage_data entry for {k} at {tuple(c.offsets)}")
        elif (k, None) not in keyed:
            rep.bad(f"storage: no storage_data entry for bytes item {k}")
    for i, s in md.storage_data.items():
        if i.fqn not in md.state_dict_metadata:
            rep.bad(f"storage: storage_data names an unknown key {i.fqn}")
        files.setdefault(s.relative_path, []).append((s.offset, s.length, i.fqn))
    for f, items in files.items():
        p = os.path.join(root, f)
        if not os.path.exists(p):
            rep.bad(f"storage: file {f} is missing")
            continue
        size = os.path.getsize(p)
        pos = 0
        for off, ln, k in sorted(items):
            if off + ln > size:
                rep.bad(f"storage: {f}: {k} ends at {off + ln}, beyond the file's {size} bytes")
            if off < pos:
                rep.bad(f"storage: {f}: {k} at {off} overlaps the previous item's end {pos}")
            pos = off + ln
    stray = sorted(f for f in os.listdir(root) if f.endswith(".distcp") and f not in files)
    if stray:
        print("  note: .distcp files without any item:", stray[:5])
    return files


def check_items(root, md, rep, pages):
    """Every item is a zip whose records have the CRCs that it says; with `pages`, tensor data begins on a page of the file."""
    for i, s in md.storage_data.items():
        with open(os.path.join(root, s.relative_path), "rb") as h:
            h.seek(s.offset)
            item = h.read(s.length)
        with zipfile.ZipFile(io.BytesIO(item)) as archive:
            bad = archive.testzip()
            if bad is not None:
                rep.bad(f"items: {i.fqn} at {i.offset}: record {bad} has another CRC")
            data = [r for r in archive.infolist() if r.filename.endswith("/data/0")]
        if not pages or i.offset is None:
            continue
        head = item[data[0].header_offset:data[0].header_offset + 30]
        start = s.offset + data[0].header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
        if start % 4096:
            rep.bad(f"items: {i.fqn} at {i.offset}: data begins at byte {start} of {s.relative_path}, not on a page")
    print(f"items: {len(md.storage_data)} zip archives tested" + (", data on pages" if pages else ""))


def norm(o):
    if isinstance(o, io.BytesIO):
        try:
            return {"bytesio_utf8": o.getvalue().decode()}
        except UnicodeDecodeError:
            return {"bytesio_hex": o.getvalue().hex()}
    if isinstance(o, (list, tuple)):
        return [norm(x) for x in o]
    if isinstance(o, dict):
        return {str(k): norm(v) for k, v in o.items()}
    if o is None or isinstance(o, (bool, int, float, str)):
        return o
    return {"repr": repr(o)}


def resolve(path):
    if os.path.exists(os.path.join(path, ".metadata")):
        return path
    for sub in ("ckpt", ""):
        p = os.path.join(path, sub) if sub else path
        t = os.path.join(p, "latest_checkpointed_iteration.txt")
        if os.path.exists(os.path.join(p, ".metadata")):
            return p
        if os.path.exists(t):
            w = open(t).read().strip()
            d = os.path.join(p, w if w == "release" else f"iter_{int(w):07d}")
            if os.path.exists(os.path.join(d, ".metadata")):
                return d
    raise SystemExit(f"no .metadata under {path}")


def run_dcp(root, exp, rep, a):
    reader = dcp.FileSystemReader(root)
    md = reader.read_metadata()
    nt = sum(isinstance(v, TensorStorageMetadata) for v in md.state_dict_metadata.values())
    nb = sum(isinstance(v, BytesStorageMetadata) for v in md.state_dict_metadata.values())
    nc = check_layout(md, rep)
    files = check_storage(root, md, rep)
    if not rep.n_bad:
        check_items(root, md, rep, a.pages)
    print(f"metadata: {nt} tensors in {nc} chunks, {nb} byte items, {len(files)} data files, "
          f"version={getattr(md, 'version', None)!r}, planner_data={'yes' if md.planner_data else 'no'}, "
          f"extra attrs={sorted(set(md.__dict__) - {'state_dict_metadata', 'planner_data', 'storage_data', 'storage_meta', 'version'})}")
    sd, skipped = {}, []
    for k, v in md.state_dict_metadata.items():
        if isinstance(v, TensorStorageMetadata):
            sd[k] = poison(v.size, v.properties.dtype)
        elif a.skip_bytes:
            skipped.append(k)
        else:
            sd[k] = io.BytesIO()
    t0 = time.time()
    # flatten_state_dict=False: keys are taken literally; any absent key raises
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        dcp.load(sd, storage_reader=dcp.FileSystemReader(root), planner=planner, no_dist=True)
    except TypeError as e:
        if "no_dist" not in str(e):
            raise
        dcp.load(sd, storage_reader=dcp.FileSystemReader(root), planner=planner)
    print(f"dcp: loaded in {time.time() - t0:.2f} s with torch {torch.__version__}")
    compare("dcp", {k: v for k, v in sd.items() if isinstance(v, torch.Tensor) and isinstance(md.state_dict_metadata[k], TensorStorageMetadata)}, exp, rep, a.subset)
    objs = {k: v for k, v in sd.items() if isinstance(md.state_dict_metadata[k], BytesStorageMetadata)}
    if exp.objects:
        ok = 0
        for k, want in exp.objects.items():
            if k not in objs:
                rep.bad(f"dcp: byte item {k} absent")
                continue
            got = norm(objs[k])
            if isinstance(got, list) and len(got) == 1 and "/shard_" in k:
                got = got[0]                 # Megatron stores [obj]
            if got != want:
                rep.bad(f"dcp: byte item {k}: {got!r} expected {want!r}")
            else:
                ok += 1
        print(f"dcp: {ok}/{len(exp.objects)} expected byte items equal; {len(set(objs) - set(exp.objects))} others")
    elif objs:
        print(f"dcp: {len(objs)} byte items loaded (not compared)")
    return md


def run_mcore(root, md, exp, rep, a):
    import torch.distributed as dist
    torch.cuda.current_device = (lambda: torch.device("cpu")) if not torch.cuda.is_available() else torch.cuda.current_device
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *x, **y: None
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    import megatron.core
    from megatron.core import dist_checkpointing as mdc
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedObject
    if not mdc.check_is_distributed_checkpoint(root):
        rep.bad("mcore: metadata.json missing or invalid: not a distributed checkpoint")
        return
    def request():
        sd = {}
        for k, v in md.state_dict_metadata.items():
            if isinstance(v, TensorStorageMetadata):
                sd[k] = ShardedTensor.from_rank_offsets(k, poison(v.size, v.properties.dtype))
            elif not k.startswith("common_state/"):
                sd[k] = ShardedObject.empty_from_unique_key(k)
        return sd
    sd = request()
    n_obj = sum(isinstance(x, ShardedObject) for x in sd.values())
    keys = list(sd)
    # '.'-joined keys would collide with nesting when unflattened, so wrap every entry under an index
    t0 = time.time()
    try:
        out = mdc.load({str(i): sd[k] for i, k in enumerate(keys)}, root, validate_access_integrity=True, strict="raise_all")
        strict = "raise_all"
    except TypeError as e:      # megatron-core <= 0.16 + torch >= 2.15: load_sharded_metadata passes TensorProperties.strides to torch.empty
        if "strides" not in str(e):
            raise
        print("mcore: note: strict='raise_all' is impossible with this torch/megatron pair:", str(e).splitlines()[0][:120])
        sd = request()
        out = mdc.load({str(i): sd[k] for i, k in enumerate(keys)}, root, validate_access_integrity=True)
        strict = "assume_ok_unexpected (key sets compared by this tool)"
    print(f"mcore: loaded in {time.time() - t0:.2f} s with megatron-core {megatron.core.__version__}, strict={strict}")
    got = {k: out[str(i)] for i, k in enumerate(keys) if isinstance(sd[k], ShardedTensor)}
    compare("mcore", got, exp, rep, a.subset)
    # a second pass with every leading axis prepended one slice at a time, as a layer-stacked model asks
    sl = {}
    for k, v in md.state_dict_metadata.items():
        if isinstance(v, TensorStorageMetadata) and len(v.size) >= 2 and 1 < v.size[0] <= 64 and k in exp.t:
            for i in range(v.size[0]):
                sl[f"{len(sl)}"] = ShardedTensor.from_rank_offsets(
                    k, poison(v.size[1:], v.properties.dtype), (0, i, v.size[0]), prepend_axis_num=1)
    if sl:
        plan = {n: (s.key, s.global_offset[0]) for n, s in sl.items()}
        res = mdc.load(sl, root, validate_access_integrity=True)
        bad = 0
        for n, (k, i) in plan.items():
            d, s, *_ = exp.t[k]
            want = exp.bits(k)
            step = len(want) // s[0]
            if raw(res[n]) != want[i * step:(i + 1) * step]:
                bad += 1
                rep.bad(f"mcore: {k}[{i}] differs when loaded with a prepended axis")
        print(f"mcore: {len(sl) - bad}/{len(sl)} prepended-axis slices bit-identical")
    if a.block_modules:
        run_block(root, a.block_modules, exp, rep)
    common = mdc.load_common_state_dict(root)
    print(f"mcore: common state has {len(common)} keys: {sorted(map(str, common))[:12]}; {n_obj} sharded objects loaded")
    try:
        n = len(mdc.load_tensors_metadata(root))
        print(f"mcore: load_tensors_metadata lists {n} tensors")
    except Exception as e:
        print(f"mcore: note: load_tensors_metadata fails here: {type(e).__name__}: {str(e).splitlines()[0][:140]}")
    dist.destroy_process_group()


def run_block(root, modules, exp, rep):
    """Loads what a GPT model of the expected params asks for, strictly: also a key that it does not ask for is an error."""
    from megatron.core import dist_checkpointing as mdc
    import transformer_block
    tensors = {k: (getattr(torch, DT[d]), s) for k, (d, s, *_) in exp.t.items()}
    metadata = mdc.load_content_metadata(root)
    named, places = transformer_block.requests(tensors, modules, metadata, poison)
    order = list(named)
    out = mdc.load({str(i): named[n] for i, n in enumerate(order)}, root, validate_access_integrity=True, strict="raise_all")
    same = objects = 0
    for i, n in enumerate(order):
        if n not in places:
            objects += 1
            if (out[str(i)].dtype, tuple(out[str(i)].shape)) != (torch.uint8, (0,)):
                rep.bad(f"block: {n} is {out[str(i)]!r}, expected no bytes")
            continue
        k, index = places[n]
        want = exp.bits(k)
        if index is not None:
            step = len(want) // exp.t[k][1][0]
            want = want[index * step:(index + 1) * step]
        if raw(out[str(i)]) != want:
            rep.bad(f"block: {n} differs from its part of {k}")
        else:
            same += 1
    print(f"block: {same}/{len(places)} params bit-identical and {objects} extra states loaded as a transformer block asks for them, strict=raise_all, "
          f"content metadata {metadata}")


def check(run, expected, report, block_modules=None):
    """All of it, of an import of ours; every difference goes to the report."""
    arguments = argparse.Namespace(subset=False, skip_bytes=False, pages=True, block_modules=block_modules)
    root, expected = resolve(run), Expected(expected)
    metadata = run_dcp(root, expected, report, arguments)
    run_mcore(root, metadata, expected, report, arguments)


def main(arguments):
    from families import FAMILIES       # here, because what it knows of GLM-5 needs this file
    p = argparse.ArgumentParser()
    p.add_argument("ckpt"); p.add_argument("expected")
    p.add_argument("--mcore", action="store_true")
    p.add_argument("--family", choices=FAMILIES)
    p.add_argument("--pages", action="store_true", help="tensor data must begin on multiples of 4096 in the files")
    p.add_argument("--subset", action="store_true", help="allow checkpoint tensors that EXPECTED does not name")
    p.add_argument("--skip-bytes", action="store_true", help="do not load byte items (loading them unpickles)")
    p.add_argument("--max-report", type=int, default=20)
    a = p.parse_args(arguments)
    a.block_modules = FAMILIES[a.family].block_modules if a.family else None
    rep = Report(a.max_report)
    root = resolve(a.ckpt)
    exp = Expected(a.expected)
    print("checkpoint", root)
    try:
        md = run_dcp(root, exp, rep, a)
        if a.mcore:
            run_mcore(root, md, exp, rep, a)
    except Exception as e:
        traceback.print_exc()
        rep.bad(f"load failed: {type(e).__name__}: {e}")
    print("RESULT", "OK" if rep.n_bad == 0 else f"FAILED ({rep.n_bad} mismatches)")
    return 0 if rep.n_bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
