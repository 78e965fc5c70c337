//! Metadata written and read back, and metadata that lies.

use proptest::prelude::*;

use super::*;
use crate::torch_dist::pickle::PickleWriter;

fn location() -> Location {
    Location::file("ckpt/.metadata")
}

fn decode(bytes: &[u8]) -> Result<Metadata, Error> {
    Metadata::decode(bytes, &location())
}

fn chunk(region: Region, file: &str, offset: u64) -> Chunk {
    Chunk {
        region: region.into(),
        file: file.into(),
        offset,
        len: 900,
    }
}

/// Two halves, a scalar, an empty tensor and an object.
fn sample() -> Metadata {
    let entry = |dtype, shape, chunks| TensorEntry {
        dtype,
        shape,
        chunks,
    };
    let tensors = [
        (
            "w",
            entry(
                Dtype::Bf16,
                Shape::new([4, 70_000]),
                vec![
                    chunk(Region::new([0, 0], [2, 70_000]), "__0_0.distcp", 0),
                    chunk(Region::new([2, 0], [2, 70_000]), "__0_1.distcp", 5 << 32),
                ],
            ),
        ),
        (
            "s",
            entry(
                Dtype::F8E8m0,
                Shape::new([]),
                vec![chunk(Region::new([], []), "a/b", 1024)],
            ),
        ),
        (
            "e",
            entry(
                Dtype::F32,
                Shape::new([0, 4]),
                vec![chunk(Region::new([0, 0], [0, 4]), "a/b", 2048)],
            ),
        ),
    ];
    let object = ObjectEntry {
        file: "a/b".into(),
        offset: 4096,
        len: 1,
    };
    Metadata {
        tensors: tensors.map(|(name, entry)| (name.to_owned(), entry)).into(),
        objects: [("o/shard_0_1".to_owned(), object)].into(),
        reformulated: BTreeMap::new(),
    }
}

#[test]
fn what_is_written_is_read_back_and_always_the_same() {
    let bytes = sample().encode();
    assert_eq!(decode(&bytes).unwrap(), sample());
    assert_eq!(bytes, sample().encode());
    assert_eq!(
        decode(&Metadata::default().encode()).unwrap(),
        Metadata::default()
    );
}

#[test]
fn a_missing_half_is_named_with_tensor_shape_and_region() {
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().chunks.pop();
    let error = decode(&metadata.encode()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "chunks do not tile their tensors: w [4, 70000]: [2, 0]+[2, 70000] is not covered (ckpt/.metadata)"
    );
    assert_eq!((error.code(), error.slug()), (4, "torch_dist/tiling"));
}

#[test]
fn faults_of_all_tensors_are_listed() {
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().chunks[0].region =
        Region::new([0, 0], [3, 70_000]).into();
    metadata.tensors.get_mut("s").unwrap().chunks.clear();
    let Err(Error::Tiling { faults, .. }) = decode(&metadata.encode()) else {
        panic!()
    };
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "s []: []+[] is not covered",
            "w [4, 70000]: [2, 0]+[1, 70000] is covered twice"
        ]
    );
}

#[test]
fn a_gap_an_overlap_and_a_duplicate_are_named_with_tensor_shape_and_region() {
    let rows = |start: u64, count: u64| {
        chunk(
            Region::new([start, 0], [count, 70_000]),
            "f",
            start * 10_000,
        )
    };
    for (chunks, expected) in [
        (
            vec![rows(0, 1), rows(2, 2)],
            "w [4, 70000]: [1, 0]+[1, 70000] is not covered",
        ),
        (
            vec![rows(0, 3), rows(1, 3)],
            "w [4, 70000]: [1, 0]+[2, 70000] is covered twice",
        ),
        (
            vec![rows(0, 4), rows(3, 2)],
            "w [4, 70000]: [3, 0]+[2, 70000] reaches outside",
        ),
    ] {
        let mut metadata = sample();
        metadata.tensors.get_mut("w").unwrap().chunks = chunks;
        let error = decode(&metadata.encode()).unwrap_err();
        assert_eq!(error.slug(), "torch_dist/tiling");
        assert!(error.to_string().contains(expected), "{error}");
    }
    // The same chunk twice, with one place (a dict cannot hold its key twice) or with two.
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().chunks = vec![rows(0, 2), rows(2, 2), rows(2, 2)];
    let error = decode(&metadata.encode()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 places in data files are recorded for the chunk at [2, 0], expected 1 (ckpt/.metadata, tensor w)"
    );
    let once = Words {
        chunk_sizes: vec![1, 1],
        repeated: true,
        ..Words::default()
    };
    let error = once.decode().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("w [2]: [0]+[1] is covered twice"),
        "{error}"
    );
}

#[test]
fn faults_without_number_are_not_all_listed() {
    // A hundred tensors of which only every second element has a chunk.
    let chunks = (0..300).map(|i| chunk(Region::new([2 * i], [1]), "f", 1000 * i));
    let full_of_gaps = TensorEntry {
        dtype: Dtype::U8,
        shape: Shape::new([600]),
        chunks: chunks.collect(),
    };
    let metadata = Metadata {
        tensors: (0..100)
            .map(|i| (i.to_string(), full_of_gaps.clone()))
            .collect(),
        ..Metadata::default()
    };
    let Err(Error::Tiling { faults, .. }) = decode(&metadata.encode()) else {
        panic!("gaps are faults");
    };
    assert!((MAX_FAULTS..MAX_FAULTS + 300).contains(&faults.len()));
}

#[test]
fn a_place_outside_the_directory_is_refused() {
    for file in [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "",
        "a//b",
        "./a",
        "a\0b",
        "..",
        ".",
        "a/",
        "a/..",
    ] {
        let mut metadata = sample();
        metadata.objects.get_mut("o/shard_0_1").unwrap().file = file.into();
        let error = decode(&metadata.encode()).unwrap_err();
        assert!(
            matches!(error, Error::UnsafeName { .. }),
            "{file:?}: {error}"
        );
    }
}

#[test]
fn numbers_beyond_63_bits_are_refused() {
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().chunks[0].len = 1 << 63;
    assert!(matches!(
        decode(&metadata.encode()),
        Err(Error::MetadataMalformed { .. })
    ));
    let mut metadata = sample();
    metadata.objects.get_mut("o/shard_0_1").unwrap().offset = 1 << 63;
    assert!(matches!(
        decode(&metadata.encode()),
        Err(Error::MetadataMalformed { .. })
    ));
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().shape = Shape::new([1 << 63, 2]);
    assert!(matches!(
        decode(&metadata.encode()),
        Err(Error::MetadataMalformed { .. })
    ));
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().shape = Shape::new([1 << 62, 1 << 62]);
    let error = decode(&metadata.encode()).unwrap_err();
    assert_eq!(error.slug(), "tensor/shape-overflow");
    let mut metadata = sample();
    metadata.tensors.get_mut("w").unwrap().chunks[1].region =
        Region::new([2, i64::MAX as u64], [2, 70_000]).into();
    assert!(matches!(
        decode(&metadata.encode()),
        Err(Error::Tiling { .. })
    ));
}

/// A checkpoint of one tensor `w`, float32 [2], in the words of a writer that may get some wrong.
struct Words {
    class: &'static str,
    dtype: &'static str,
    layout: &'static str,
    strides: usize,
    size: i64,
    chunk_sizes: Vec<i64>,
    index: &'static str,
    doubled: bool,
    /// Whether the first chunk is listed once more, at the end.
    repeated: bool,
    stray: bool,
    transforms: &'static [&'static str],
    reformulated: bool,
}

impl Default for Words {
    fn default() -> Words {
        Words {
            class: "Metadata",
            dtype: "float32",
            layout: "torch.strided",
            strides: 0,
            size: 2,
            chunk_sizes: vec![2],
            index: "w",
            doubled: false,
            repeated: false,
            stray: false,
            transforms: &[],
            reformulated: false,
        }
    }
}

impl Words {
    fn decode(&self) -> Result<Metadata, Error> {
        let mut p = PickleWriter::new();
        let size = |p: &mut PickleWriter, value: i64| {
            p.global("torch", "Size");
            p.int(value);
            p.tuple1();
            p.tuple1();
            p.reduce();
        };
        let index = |p: &mut PickleWriter, name: &str, offset: i64| {
            p.new_object(METADATA_MODULE, "MetadataIndex");
            p.dict(["fqn", "offset"], |p, field| {
                p.text(field);
                if field == "fqn" {
                    p.text(name)
                } else {
                    size(p, offset)
                }
            });
            p.build();
        };
        let mut places: Vec<(&str, i64)> = Vec::new();
        let mut next = 0;
        for &extent in &self.chunk_sizes {
            places.push((self.index, next));
            next += extent;
        }
        let mut chunks: Vec<(i64, i64)> = Vec::new();
        for (&extent, &(_, offset)) in self.chunk_sizes.iter().zip(&places) {
            chunks.push((offset, extent));
        }
        if self.repeated {
            chunks.push(chunks[0]);
        }
        if self.doubled {
            places.push((self.index, 0));
        }
        if self.stray {
            places.push(("v", 0));
        }
        p.new_object(METADATA_MODULE, self.class);
        p.dict(
            ["state_dict_metadata", "storage_data", "mcore_data", "later"],
            |p, field| {
                p.text(field);
                match field {
                    "state_dict_metadata" => p.dict(["w"], |p, name| {
                        p.text(name);
                        p.new_object(METADATA_MODULE, "TensorStorageMetadata");
                        p.dict(["properties", "size", "chunks"], |p, field| {
                            p.text(field);
                            match field {
                                "properties" => {
                                    p.new_object(METADATA_MODULE, "TensorProperties");
                                    p.mark();
                                    p.global("torch", self.dtype);
                                    p.global("torch.serialization", "_get_layout");
                                    p.text(self.layout);
                                    p.tuple1();
                                    p.reduce();
                                    p.bool(false);
                                    p.none();
                                    p.bool(false);
                                    for _ in 0..self.strides {
                                        p.int_tuple(&[1]);
                                    }
                                    p.tuple();
                                    p.build();
                                }
                                "size" => size(p, self.size),
                                _ => {
                                    p.list(&chunks, |p, &(offset, extent)| {
                                        p.new_object(METADATA_MODULE, "ChunkStorageMetadata");
                                        p.dict(["offsets", "sizes"], |p, field| {
                                            p.text(field);
                                            let sizes = field == "sizes";
                                            size(p, if sizes { extent } else { offset });
                                        });
                                        p.build();
                                    });
                                }
                            }
                        });
                        p.build();
                    }),
                    "storage_data" => p.dict(&places, |p, &(name, offset)| {
                        index(p, name, offset);
                        p.new_object(FILESYSTEM_MODULE, "_StorageInfo");
                        p.dict(
                            ["relative_path", "offset", "length", "transform_descriptors"],
                            |p, field| {
                                p.text(field);
                                match field {
                                    "relative_path" => p.text("f"),
                                    "transform_descriptors" => {
                                        p.list(self.transforms, |p, text| p.text(text))
                                    }
                                    _ => p.int(10),
                                }
                            },
                        );
                        p.build();
                    }),
                    "mcore_data" => p.dict(["w"], |p, name| {
                        p.text(name);
                        let facts = self
                            .reformulated
                            .then_some("nd_reformulated_orig_global_shape");
                        p.dict(facts, |p, fact| {
                            p.text(fact);
                            size(p, 2);
                        });
                    }),
                    // Something from a future version, which nobody here knows.
                    _ => p.global("some.module", "SomeClass"),
                }
            },
        );
        p.build();
        decode(&p.finish())
    }
}

#[test]
fn five_and_six_properties_and_subclasses_are_accepted() {
    let plain = Words::default().decode().unwrap();
    assert_eq!(plain.tensors["w"].chunks.len(), 1);
    assert_eq!(
        Words {
            strides: 1,
            ..Words::default()
        }
        .decode()
        .unwrap(),
        plain
    );
    assert_eq!(
        Words {
            class: "MCoreMetadata",
            ..Words::default()
        }
        .decode()
        .unwrap(),
        plain
    );
}

#[test]
fn a_transform_is_refused_by_its_name() {
    let error = Words {
        transforms: &["stream.zstd/1", "other/2"],
        ..Words::default()
    };
    assert_eq!(
        error.decode().unwrap_err().to_string(),
        "item was written through transforms [\"stream.zstd/1\", \"other/2\"], which are not supported \
         (ckpt/.metadata, tensor w)"
    );
}

#[test]
fn empty_chunks_are_passed_over() {
    let words = Words {
        chunk_sizes: vec![1, 1, 0],
        ..Words::default()
    };
    assert_eq!(words.decode().unwrap().tensors["w"].chunks.len(), 2);
    // Here the empty chunk lies at the offset of the one after it, and so has no place of its own.
    let mut metadata = sample();
    let chunks = &mut metadata.tensors.get_mut("w").unwrap().chunks;
    chunks.push(chunk(Region::new([4, 0], [0, 70_000]), "f", 0));
    assert_eq!(decode(&metadata.encode()).unwrap(), sample());
}

#[test]
fn flattened_state_of_an_old_megatron_is_set_aside() {
    let metadata = Words {
        reformulated: true,
        ..Words::default()
    }
    .decode()
    .unwrap();
    assert!(metadata.tensors.is_empty());
    assert_eq!(metadata.reformulated["w"], Shape::new([2]));
}

#[test]
fn wrong_words_are_refused_with_their_reason() {
    for (words, slug) in [
        (
            Words {
                class: "Metadatum",
                ..Words::default()
            },
            "torch_dist/metadata-malformed",
        ),
        (
            Words {
                dtype: "complex64",
                ..Words::default()
            },
            "tensor/unknown-dtype",
        ),
        (
            Words {
                layout: "torch.sparse_coo",
                ..Words::default()
            },
            "torch_dist/metadata-malformed",
        ),
        (
            Words {
                strides: 2,
                ..Words::default()
            },
            "torch_dist/metadata-malformed",
        ),
        (
            Words {
                size: -2,
                ..Words::default()
            },
            "torch_dist/metadata-malformed",
        ),
        (
            Words {
                size: i64::MAX,
                ..Words::default()
            },
            "tensor/shape-overflow",
        ),
        (
            Words {
                chunk_sizes: vec![-2],
                ..Words::default()
            },
            "torch_dist/metadata-malformed",
        ),
        (
            Words {
                chunk_sizes: vec![1],
                ..Words::default()
            },
            "torch_dist/tiling",
        ),
        (
            Words {
                chunk_sizes: vec![3],
                ..Words::default()
            },
            "torch_dist/tiling",
        ),
        (
            Words {
                index: "u",
                ..Words::default()
            },
            "torch_dist/storage-places",
        ),
        (
            Words {
                doubled: true,
                ..Words::default()
            },
            "torch_dist/storage-places",
        ),
        (
            Words {
                stray: true,
                ..Words::default()
            },
            "torch_dist/storage-stray",
        ),
        (
            Words {
                transforms: &["stream.zstd/1"],
                ..Words::default()
            },
            "torch_dist/transformed",
        ),
    ] {
        let error = words.decode().unwrap_err();
        assert_eq!(error.slug(), slug, "{error}");
        assert!(error.to_string().contains("ckpt/.metadata"), "{error}");
    }
}

#[test]
fn a_list_of_chunks_shared_by_many_tensors_is_refused_before_it_is_expanded() {
    // One list of 4000 chunks, named by 4000 tensors: 16 million chunks from some 300 kB.
    let mut p = PickleWriter::new();
    p.new_object(METADATA_MODULE, "Metadata");
    p.dict(["storage_data", "state_dict_metadata"], |p, field| {
        p.text(field);
        let names: Vec<u64> = if field == "storage_data" {
            Vec::new()
        } else {
            (0..4000).collect()
        };
        p.dict(names, |p, name| {
            p.text(&name.to_string());
            p.new_object(METADATA_MODULE, "TensorStorageMetadata");
            p.dict(["properties", "size", "chunks"], |p, field| {
                p.text(field);
                match field {
                    "properties" => p.shared("properties", |p| {
                        p.new_object(METADATA_MODULE, "TensorProperties");
                        p.mark();
                        p.global("torch", "float32");
                        p.global("torch.serialization", "_get_layout");
                        p.text("torch.strided");
                        p.tuple1();
                        p.reduce();
                        p.bool(false);
                        p.none();
                        p.bool(false);
                        p.tuple();
                        p.build();
                    }),
                    "size" => p.size(&[0]),
                    _ => p.shared("chunks", |p| {
                        p.list(0..4000, |p, _| {
                            p.shared("chunk", |p| {
                                p.new_object(METADATA_MODULE, "ChunkStorageMetadata");
                                p.dict(["offsets", "sizes"], |p, field| {
                                    p.text(field);
                                    p.size(&[0]);
                                });
                                p.build();
                            });
                        });
                    }),
                }
            });
            p.build();
        });
    });
    p.build();
    let error = decode(&p.finish()).unwrap_err();
    assert!(
        error.to_string().contains("a list with a place for each"),
        "{error}"
    );
}

#[test]
fn every_cut_is_an_error() {
    let bytes = sample().encode();
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
    }
}

proptest! {
    #[test]
    fn no_changed_byte_makes_the_decoder_panic(position in 0usize..4000, byte in proptest::num::u8::ANY) {
        let mut bytes = sample().encode();
        let len = bytes.len();
        bytes[position % len] = byte;
        let _ = decode(&bytes);
    }

    #[test]
    fn any_row_blocks_are_read_back(heights in proptest::collection::vec(1u64..5, 1..6), columns in 1u64..300) {
        let rows: u64 = heights.iter().sum();
        let mut start = 0;
        let chunks = heights.iter().map(|&height| {
            let region = Region::new([start, 0], [height, columns]);
            start += height;
            chunk(region, "f", start * 1000)
        }).collect();
        let entry = TensorEntry { dtype: Dtype::I64, shape: Shape::new([rows, columns]), chunks };
        let metadata = Metadata { tensors: [("t".to_owned(), entry)].into(), ..Metadata::default() };
        prop_assert_eq!(decode(&metadata.encode()).unwrap(), metadata);
    }
}
