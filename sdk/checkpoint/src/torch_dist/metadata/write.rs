//! From [`Metadata`] to a pickle that every supported PyTorch reads.
//!
//! Names of newer PyTorch versions are left out, and `TensorProperties` has five values: a sixth, which PyTorch 2.15
//! writes, makes older ones refuse the file.

use super::{Chunk, FILESYSTEM_MODULE, METADATA_MODULE, Metadata, TensorEntry};
use crate::torch_dist::pickle::PickleWriter;

pub(super) fn encode(metadata: &Metadata) -> Vec<u8> {
    let mut pickle = PickleWriter::new();
    object(
        &mut pickle,
        METADATA_MODULE,
        "Metadata",
        &[
            "state_dict_metadata",
            "planner_data",
            "storage_data",
            "storage_meta",
        ],
        |pickle, field| match field {
            "state_dict_metadata" => contents(pickle, metadata),
            "storage_data" => places(pickle, metadata),
            _ => pickle.none(),
        },
    );
    pickle.finish()
}

/// An object of a class, with its fields as a dict.
fn object(
    pickle: &mut PickleWriter,
    module: &'static str,
    class: &'static str,
    fields: &[&str],
    mut write: impl FnMut(&mut PickleWriter, &str),
) {
    pickle.new_object(module, class);
    pickle.dict(fields, |pickle, field| {
        pickle.shared_text(field);
        write(pickle, field);
    });
    pickle.build();
}

fn contents(pickle: &mut PickleWriter, metadata: &Metadata) {
    let tensors = metadata
        .tensors
        .iter()
        .map(|(name, entry)| (name, Some(entry)));
    let objects = metadata.objects.keys().map(|name| (name, None));
    pickle.dict(tensors.chain(objects), |pickle, (name, entry)| {
        pickle.shared_text(name);
        match entry {
            Some(entry) => tensor(pickle, entry),
            None => pickle.new_object(METADATA_MODULE, "BytesStorageMetadata"),
        }
    });
}

fn tensor(pickle: &mut PickleWriter, entry: &TensorEntry) {
    object(
        pickle,
        METADATA_MODULE,
        "TensorStorageMetadata",
        &["properties", "size", "chunks"],
        |pickle, field| match field {
            "properties" => properties(pickle, entry),
            "size" => pickle.size(entry.shape.extents()),
            _ => pickle.list(&entry.chunks, chunk),
        },
    );
}

fn properties(pickle: &mut PickleWriter, entry: &TensorEntry) {
    pickle.new_object(METADATA_MODULE, "TensorProperties");
    pickle.mark();
    pickle.global("torch", entry.dtype.torch_name());
    pickle.shared("layout", |pickle| {
        pickle.global("torch.serialization", "_get_layout");
        pickle.text("torch.strided");
        pickle.tuple1();
        pickle.reduce();
    });
    pickle.bool(false); // requires_grad
    pickle.shared("memory format", |pickle| {
        pickle.global(METADATA_MODULE, "_MEM_FORMAT_ENCODING");
        pickle.int(0); // contiguous
        pickle.tuple1();
        pickle.reduce();
    });
    pickle.bool(false); // pin_memory
    pickle.tuple();
    pickle.build();
}

fn chunk(pickle: &mut PickleWriter, chunk: &Chunk) {
    object(
        pickle,
        METADATA_MODULE,
        "ChunkStorageMetadata",
        &["offsets", "sizes"],
        |pickle, field| match field {
            "offsets" => pickle.size(chunk.region.offsets()),
            _ => pickle.size(chunk.region.sizes()),
        },
    );
}

fn places(pickle: &mut PickleWriter, metadata: &Metadata) {
    let chunks = metadata.tensors.iter().flat_map(|(name, entry)| {
        let chunks = entry.chunks.iter();
        chunks.map(move |c| (name, Some(c.region.offsets()), &c.file, c.offset, c.len))
    });
    let objects = metadata.objects.iter();
    let objects = objects.map(|(name, o)| (name, None, &o.file, o.offset, o.len));
    pickle.dict(
        chunks.chain(objects),
        |pickle, (name, offsets, file, offset, len)| {
            object(
                pickle,
                METADATA_MODULE,
                "MetadataIndex",
                &["fqn", "offset", "index"],
                |pickle, field| match (field, offsets) {
                    ("fqn", _) => pickle.shared_text(name),
                    ("offset", Some(offsets)) => pickle.size(offsets),
                    _ => pickle.none(),
                },
            );
            object(
                pickle,
                FILESYSTEM_MODULE,
                "_StorageInfo",
                &["relative_path", "offset", "length"],
                |pickle, field| match field {
                    "relative_path" => pickle.shared_text(file),
                    "offset" => pickle.uint(offset),
                    _ => pickle.uint(len),
                },
            );
        },
    );
}
