"""Faults to plant: each function here damages a copy of a result, or returns one that does. No model is known here."""
import contextlib, dataclasses, gzip, io, json, os, pickle, re, zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import yaml
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, MetadataIndex

import check_torch_dist
from hf_directory import CONFIG, INDEX


# --- a run ---

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


def rename_tensor(name, new):
    def damage(run):
        with metadata_of(run) as metadata:
            metadata.state_dict_metadata[new] = metadata.state_dict_metadata.pop(name)
            for index in [index for index in metadata.storage_data if index.fqn == name]:
                metadata.storage_data[dataclasses.replace(index, fqn=new)] = metadata.storage_data.pop(index)
    return damage


def delete_entry(name):
    def damage(run):
        with metadata_of(run) as metadata:
            forget(metadata, name)
    return damage


def change_dtype(name):
    def damage(run):
        with metadata_of(run) as metadata:
            metadata.state_dict_metadata[name].properties.dtype = torch.float16
    return damage


def delete_chunk(name):
    def damage(run):
        with metadata_of(run) as metadata:
            chunk = metadata.state_dict_metadata[name].chunks.pop()
            for index in [i for i in metadata.storage_data if i.fqn == name and tuple(i.offset) == tuple(chunk.offsets)]:
                del metadata.storage_data[index]
    return damage


def cut_in_two(name):
    def damage(run):
        with metadata_of(run) as metadata:
            tensor = metadata.state_dict_metadata[name]
            whole = {name: torch.empty(tensor.size, dtype=tensor.properties.dtype)}
            dcp.load(whole, storage_reader=dcp.FileSystemReader(iteration(run)), no_dist=True)
            properties = tensor.properties
            forget(metadata, name)
            metadata.state_dict_metadata[name] = dataclasses.replace(tensor, properties=properties, chunks=[])
            half = tensor.size[0] // 2
            for start in (0, half):
                offsets, sizes = torch.Size([start]), torch.Size([half])
                metadata.state_dict_metadata[name].chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
                store(run, metadata, MetadataIndex(name, offsets), whole[name][start:start + half].clone())
    return damage


def item_of(run, name):
    """The file, the offset and the bytes of the first item of that name."""
    root = iteration(run)
    metadata = dcp.FileSystemReader(root).read_metadata()
    place = next(place for index, place in metadata.storage_data.items() if index.fqn == name)
    path = os.path.join(root, place.relative_path)
    with open(path, "rb") as file:
        file.seek(place.offset)
        return path, place.offset, file.read(place.length)


def flip_weight(name):
    def damage(run):
        path, offset, item = item_of(run, name)
        with zipfile.ZipFile(io.BytesIO(item)) as archive:
            record = next(record for record in archive.infolist() if record.filename.endswith("data/0"))
        # A local header is 30 bytes, a name and a padding field whose length the last two of them give.
        head = item[record.header_offset:record.header_offset + 30]
        start = record.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        flip(path, offset + start)
    return damage


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


def provider(change):
    """Changes the fields of the model in run_config.yaml, by name."""
    def damage(run):
        path = os.path.join(iteration(run), "run_config.yaml")
        with open(path) as file:
            document = yaml.safe_load(file)
        change(document["model"])
        with open(path, "w") as file:
            yaml.safe_dump(document, file)
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


def add_tensor(name, like):
    """A tensor of zeros, in the chunks of another."""
    def damage(run):
        with metadata_of(run) as metadata:
            tensor = dataclasses.replace(metadata.state_dict_metadata[like])
            metadata.state_dict_metadata[name] = tensor
            for chunk in tensor.chunks:
                store(run, metadata, MetadataIndex(name, chunk.offsets), torch.zeros(chunk.sizes, dtype=torch.bfloat16))
    return damage


def wrong_crc(name):
    def damage(run):
        """Changes what the central directory of an item says, not its data."""
        path, offset, item = item_of(run, name)
        at = item.index(b"PK\x01\x02")
        while not item[at + 46:].split(b"PK\x01\x02")[0].split(b"PK\x06\x06")[0].startswith(b"archive/data/0"):
            at = item.index(b"PK\x01\x02", at + 1)
        flip(path, offset + at + 16)
    return damage


def json_file(change):
    """Changes the document of a JSON file, which may be packed."""
    def damage(path):
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt") as file:
            document = json.load(file)
        change(document)
        with opened(path, "wt") as file:
            json.dump(document, file)
    return damage


def ranks_file(change):
    """Changes the ranks of a packed list of them, or of a manifest."""
    return json_file(lambda document: change(document["ranks"] if isinstance(document, dict) else document))


def silence(count):
    """The last ranks ask for nothing."""
    def change(ranks):
        for rank in ranks[-count:]:
            rank.update(sharded_state_dict=[], parameters={})
    return change


def two_main_replicas(ranks):
    """The copy of the embedding in the last stage, which is not written, as if it were."""
    for request in ranks[-1]["sharded_state_dict"]:
        if request["key"] == "embedding.word_embeddings.weight":
            request["replica_id"] = [0, 0, 0]


# --- a Hugging Face directory ---

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


def config(change):
    return lambda exported: json_file(change)(os.path.join(exported, CONFIG))


def tensors_of(change):
    """Changes tensors of the first shard of an export by name."""
    return shard(lambda tensors, name: change(tensors))


def index(change):
    return lambda exported: json_file(change)(os.path.join(exported, INDEX))


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
