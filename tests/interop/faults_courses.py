"""Faults in what several processes wrote, or one that went on where another was killed, and the checks that must see them."""
import os

import check_export, check_import, check_ranks, check_same, check_torch_dist
from damage import *
from families import FAMILIES

# One of each model, of each course that is not undisturbed.
CASES = ["together", "resumed", "resumed together"]
EMBEDDING = "embedding.word_embeddings.weight"


# --- the checks ---

def scenes(at):
    """What is damaged, and the check that must see it: scene to (good result, check of a copy of it)."""
    return {f"{check}, {name}": scene for name, case in at.items() for check, scene in of_case(case).items()}


def of_case(case):
    family = FAMILIES[case["family"]]
    by = (case["source"], family, False, case["dequantized"])
    return {
        "torch_dist": (case["run"], lambda copy, report: check_torch_dist.check(copy, case["expected"], report, family.block_modules)),
        "import": (case["run"], lambda copy, report: check_import.check(copy, case["fixture"], family, report, case["mesh"])),
        "ranks": (case["run"], lambda copy, report: check_ranks.check(copy, case["expected"], case["ranks"], family, report)),
        "same": (case["run"], lambda copy, report: check_same.check(case["alone_run"], [copy], [], report)),
        "export": (case["exported"], lambda copy, report: check_export.check(copy, *by, report)),
        "same export": (case["exported"], lambda copy, report: check_same.check(case["alone_exported"], [copy], [], report)),
    }


# No undamaged result is a fault.
FAILING = []


# --- faults that only files of several processes, or of several attempts, can have ---

def data_files(run):
    root = iteration(run)
    return [os.path.join(root, name) for name in sorted(os.listdir(root)) if name.endswith(".distcp")]


def places_of(metadata):
    """Entries of chunks that are no extra states, the largest first: (index, place)."""
    entries = [(index, place) for index, place in metadata.storage_data.items() if index.offset is not None]
    return sorted(entries, key=lambda entry: (-entry[1].length, entry[0].fqn, tuple(entry[0].offset)))


def chunk_of_another_file(run):
    """Two chunks of a tensor that lie in different files, each with the data of the other."""
    with metadata_of(run) as metadata:
        entries = places_of(metadata)
        one, other = next(
            (one, other)
            for one, place in entries
            for other, there in entries
            if one.fqn == other.fqn and place.length == there.length and place.relative_path != there.relative_path
        )
        places = metadata.storage_data
        places[one], places[other] = places[other], places[one]


def same_place_in_another_file(run):
    """A chunk that is looked for in a file of another process."""
    with metadata_of(run) as metadata:
        index, place = places_of(metadata)[0]
        other = next(entry for _, entry in places_of(metadata) if entry.relative_path != place.relative_path)
        metadata.storage_data[index] = dataclasses.replace(place, relative_path=other.relative_path)


def zeroed(path, begin, length):
    with open(path, "r+b") as file:
        file.seek(begin)
        assert any(file.read(length)), "zeros already"
        file.seek(begin)
        file.write(bytes(length))


def unit_as_reserved(run):
    """A unit that was never written: its item is a hole."""
    path, offset, item = item_of(run, EMBEDDING)
    zeroed(path, offset, len(item))


def data_as_reserved(run):
    """A unit of which only head and tail were written."""
    path, offset, item = item_of(run, EMBEDDING)
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        record = next(record for record in archive.infolist() if record.filename.endswith("data/0"))
    head = item[record.header_offset:record.header_offset + 30]
    start = record.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    zeroed(path, offset + start, record.file_size)


def file_lost(run):
    os.remove(data_files(run)[-1])


def files_exchanged(run):
    exchange_files(*data_files(run)[:2])


def file_cut_off(run):
    os.truncate(data_files(run)[-1], os.path.getsize(data_files(run)[-1]) - 1)


def exchange_files(one, other):
    os.rename(one, one + ".x")
    os.rename(other, one)
    os.rename(one + ".x", other)


def shards(exported):
    return [os.path.join(exported, name) for name in sorted(os.listdir(exported)) if name.endswith(".safetensors")]


def shards_exchanged(exported):
    exchange_files(*shards(exported)[:2])


def shard_lost(exported):
    os.remove(shards(exported)[-1])


def shard_as_reserved(exported):
    """A shard of which only the header was written."""
    path = shards(exported)[-1]
    with open(path, "rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
    zeroed(path, begin, os.path.getsize(path) - begin)


def shard_too_long(exported):
    """A shard that is longer than what was written."""
    with open(shards(exported)[-1], "ab") as file:
        file.write(bytes(4096))


def tensor_of_another_shard(exported):
    """A tensor that the index looks for in a shard of another process."""
    def change(document):
        key, shard = sorted(document["weight_map"].items())[0]
        document["weight_map"][key] = next(other for other in document["weight_map"].values() if other != shard)
    index(change)(exported)


FAULTS_OF_A_CASE = [
    # check, what the report must say, fault, how
    ("torch_dist", "bits differ", "a chunk of another process's file", chunk_of_another_file),
    ("torch_dist", "dcp: embedding.word_embeddings.weight: bits differ", "a unit's data left as zeros", data_as_reserved),
    ("torch_dist", "another CRC", "a unit's data left as zeros", data_as_reserved),
    ("torch_dist", "BadZipFile", "a unit left as zeros", unit_as_reserved),
    ("torch_dist", "storage: ", "a chunk looked for in another process's file", same_place_in_another_file),
    ("torch_dist", "is missing", "a process's file missing", file_lost),
    ("torch_dist", "beyond the file", "a process's file cut off", file_cut_off),
    ("torch_dist", "expected tensor absent", "a key missing", delete_entry(EMBEDDING)),
    ("import", "sha256", "a chunk of another process's file", chunk_of_another_file),
    ("import", "sha256", "a unit's data left as zeros", data_as_reserved),
    ("import", "tensor absent", "a key missing", delete_entry(EMBEDDING)),
    ("ranks", "bits differ", "a chunk of another process's file", chunk_of_another_file),
    ("ranks", "bits differ", "a unit's data left as zeros", data_as_reserved),
    ("ranks", "load failed", "a unit left as zeros", unit_as_reserved),
    ("ranks", "load failed", "two processes' files exchanged", files_exchanged),
    ("ranks", "Unexpected keys", "a key missing", delete_entry(EMBEDDING)),
    ("same", "differs", "a unit left as zeros", unit_as_reserved),
    ("same", "one side only", "a process's file missing", file_lost),
    ("export", "which does not hold it", "two processes' shards exchanged", shards_exchanged),
    ("export", "which does not hold it", "a tensor looked for in another process's shard", tensor_of_another_shard),
    ("export", "load failed", "a process's shard missing", shard_lost),
    ("export", "bits differ", "a shard's data left as zeros", shard_as_reserved),
    ("export", "load failed", "a shard longer than what was written", shard_too_long),
    ("export", "tensor absent", "a tensor missing", shard(lambda tensors, name: tensors.pop(name))),
    ("same export", "differs", "a shard's data left as zeros", shard_as_reserved),
]
FAULTS = [(f"{check}, {case}", *rest) for case in CASES for check, *rest in FAULTS_OF_A_CASE]


def prepare(at):
    """Nothing is needed."""
