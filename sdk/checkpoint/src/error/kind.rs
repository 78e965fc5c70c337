//! The table of codes and slugs.

use super::Error;

/// Gives every variant its code and slug, once: `code`, `slug` and [`Error::KINDS`] are made from this table.
macro_rules! kinds {
    ($($variant:ident $code:literal $slug:literal;)*) => {
        impl Error {
            /// Slug and code of every kind of error of this crate; [`Error::Tensor`] has those of its cause.
            pub const KINDS: &'static [(&'static str, u32)] = &[$(($slug, $code)),*];

            /// The status code that crosses the ABI; see `docs/errors.md`.
            #[must_use]
            pub fn code(&self) -> u32 {
                match self {
                    Error::Tensor { source, .. } => source.code(),
                    $(Error::$variant { .. } => $code,)*
                }
            }

            /// The stable name of this kind of error; see `docs/errors.md`.
            #[must_use]
            pub fn slug(&self) -> &'static str {
                match self {
                    Error::Tensor { source, .. } => source.slug(),
                    $(Error::$variant { .. } => $slug,)*
                }
            }
        }
    };
}

kinds! {
    NotFound 2 "store/not-found";
    Read 5 "store/read";
    Write 5 "store/write";
    ShortRead 4 "store/short-read";
    UnsafeName 4 "store/unsafe-name";
    FileTooLarge 3 "store/file-too-large";
    NotDirectory 1 "store/not-a-directory";
    TargetExists 1 "store/target-exists";
    TargetBusy 5 "store/target-busy";
    ForeignPartial 1 "store/foreign-partial";
    Overlap 1 "store/overlap";
    Truncated 4 "safetensors/truncated";
    TrailingBytes 4 "safetensors/trailing-bytes";
    HeaderLimit 3 "safetensors/header-limit";
    HeaderSyntax 4 "safetensors/header-syntax";
    DuplicateName 4 "safetensors/duplicate-name";
    ReservedName 1 "safetensors/reserved-name";
    DataRange 4 "safetensors/data-range";
    DataLength 4 "safetensors/data-length";
    DataOverlap 4 "safetensors/data-overlap";
    DataHole 4 "safetensors/data-hole";
    IndexSyntax 4 "hf/index-syntax";
    NoWeights 2 "hf/no-weights";
    MissingShards 2 "hf/missing-shards";
    IndexMismatch 4 "hf/index-mismatch";
    ShardSize 1 "hf/shard-size";
    PickleTruncated 4 "torch_dist/pickle-truncated";
    PickleOpcode 4 "torch_dist/pickle-opcode";
    PickleMalformed 4 "torch_dist/pickle-malformed";
    PickleLimit 4 "torch_dist/pickle-limit";
    NotTorchSave 4 "torch_dist/not-torch-save";
    ZipMalformed 4 "torch_dist/zip-malformed";
    ZipEncoded 3 "torch_dist/zip-encoded";
    ZipRecordMissing 4 "torch_dist/zip-record-missing";
    ItemMalformed 4 "torch_dist/item-malformed";
    ItemUnsupported 3 "torch_dist/item-unsupported";
    ObjectOpaque 3 "torch_dist/object-opaque";
    MetadataMalformed 4 "torch_dist/metadata-malformed";
    Tiling 4 "torch_dist/tiling";
    StoragePlaces 4 "torch_dist/storage-places";
    StorageStray 4 "torch_dist/storage-stray";
    Transformed 3 "torch_dist/transformed";
    DataFiles 4 "torch_dist/data-files";
    ItemOverlap 4 "torch_dist/item-overlap";
    ItemMismatch 4 "torch_dist/item-mismatch";
    NoSuchItem 2 "torch_dist/no-such-item";
    ShardedDescription 4 "torch_dist/sharded-description";
    ShardedBackend 3 "torch_dist/sharded-backend";
    IncompleteCheckpoint 2 "torch_dist/incomplete";
    RanksMissing 2 "torch_dist/ranks-missing";
    RanksDisagree 4 "torch_dist/ranks-disagree";
    IntegritySyntax 4 "torch_dist/integrity-syntax";
    IntegrityAlgorithm 3 "torch_dist/integrity-algorithm";
    IntegrityFiles 4 "torch_dist/integrity-files";
    NoDigest 2 "torch_dist/no-digest";
    Digest 4 "torch_dist/digest";
    NoTracker 2 "torch_dist/no-tracker";
    TrackerMalformed 4 "torch_dist/tracker-malformed";
    TrackerDangling 2 "torch_dist/tracker-dangling";
    PlanConflict 1 "torch_dist/plan-conflict";
    Checksum 4 "torch_dist/checksum";
    NotRegular 4 "store/not-regular";
    NoSpace 5 "store/no-space";
    RunConfig 1 "torch_dist/run-config";
    RunConfigSyntax 4 "torch_dist/run-config-syntax";
    TargetJoined 1 "store/target-joined";
    Unsettled 5 "store/unsettled";
}
