//! A vocabulary longer than the config's: padded with zeros by an import, cut by an export, passed over by a comparison.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_bridge::{Bridge, Mesh, MtpPolicy};
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};
use rialto_engine::verify::Report;
use rialto_engine::{
    ChunkChoice, Contents, Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options,
    Silent, VerifyOptions, VerifySource, source_config, verify,
};
use rialto_tensor::{Dtype, Region};
use serde_json::{Value, json};

use crate::bounded::large;
use crate::decoding;
use crate::export::{expected, stored};
use crate::forms::{PASTS, models};
use crate::world::{
    Values, both_ways, export, families, hugging_face, import, iteration, megatron, on_disk,
    options,
};
use crate::written::{self, Cut};

const EMBEDDING: &str = "embedding.word_embeddings.weight";
const HEAD: &str = "output_layer.weight";
const RUN_CONFIG: &str = "iter_0000000/run_config.yaml";

fn padding(mesh: Mesh, chunks: ChunkChoice) -> Options {
    Options {
        mesh,
        chunks,
        pads_vocabulary: true,
        ..options(MtpPolicy::Keep)
    }
}

fn over(tp: u64) -> Mesh {
    Mesh { tp, ..Mesh::SINGLE }
}

fn padded(family: &dyn Bridge, source: &str, tp: u64) -> MemoryStore {
    let options = padding(over(tp), ChunkChoice::Megatron);
    import(family, on_disk(source), &options).unwrap()
}

fn run_config(run: &MemoryStore) -> Value {
    serde_saphyr::from_slice(&run.bytes(RUN_CONFIG).unwrap()).unwrap()
}

/// A source with fewer tokens than the fixture has: the first rows of both matrices.
fn with_vocabulary(source: &str, rows: u64) -> MemoryStore {
    let mut values = stored(on_disk(source).as_ref());
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let (_, shape, bytes) = values.get_mut(name).unwrap();
        bytes.truncate(bytes.len() / shape[0] as usize * rows as usize);
        shape[0] = rows;
    }
    let store = written::hugging_face(source, &values);
    let config = read_whole(&store, "config.json", 1 << 20).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = json!(rows);
    let config = config.to_string().into_bytes();
    store.insert("config.json", config).unwrap();
    store
}

/// Makes a matrix longer, with bytes that are no zeros and of no row.
fn lengthened(values: &mut Values, name: &str, rows: u64) {
    let (_, shape, bytes) = values.get_mut(name).unwrap();
    let row = bytes.len() / shape[0] as usize;
    let garbage = (0..).map(|at: usize| (at % 251) as u8 | 1);
    let more = garbage.take((rows - shape[0]) as usize * row);
    bytes.extend(more);
    shape[0] = rows;
}

/// What another program might have written, padded to so many rows.
fn by_another(values: &Values, rows: u64, cut: Cut) -> MemoryStore {
    let mut values = values.clone();
    lengthened(&mut values, EMBEDDING, rows);
    lengthened(&mut values, HEAD, rows);
    written::megatron(&values, cut)
}

fn plan(
    family: &dyn Bridge,
    run: &MemoryStore,
    reference: Option<&str>,
) -> Result<ExportPlan, Error> {
    let source = MegatronSource::open(Arc::new(run.clone()), reference.map(on_disk))?;
    ExportPlan::new(family, source, &ExportOptions::default())
}

/// Lines on rows that are not kept.
fn cut_lines(notices: &[String], side: &str) -> Vec<String> {
    let lines = notices.iter().filter(|line| line.contains("pads the"));
    let lines = lines.map(|line| line.strip_prefix(side).expect("of that side").to_owned());
    lines.collect()
}

fn cut_notices(stored: u64, kept: u64) -> Vec<String> {
    let line = |name| {
        format!("{name} has {stored} rows, of which {kept} are kept: the rest pads the vocabulary")
    };
    [EMBEDDING, HEAD].map(line).to_vec()
}

#[test]
fn fc_22_an_import_pads_with_zeros_in_the_chunks_of_megatron() {
    both_ways(|family| {
        // Hidden sizes differ, experts and stages come along, and 255 and 161 rows are divided by no number of ranks.
        for (source, vocabulary, mesh, rows) in [
            ("glm52-tiny", 256, [1, 1, 1, 1], 1280),
            ("glm52-tiny", 256, [2, 1, 1, 1], 2560),
            ("glm52-tiny", 256, [4, 2, 2, 2], 5120),
            ("glm52-tiny", 255, [2, 1, 2, 1], 2560),
            ("glm5-tiny", 161, [4, 3, 1, 1], 5120),
            ("glm53-tiny", 160, [1, 2, 5, 2], 1280),
        ] {
            let [tp, pp, ep, etp] = mesh;
            let mesh = Mesh { tp, pp, ep, etp };
            let store: Arc<dyn Store> = match source {
                "glm53-tiny" => on_disk(source),
                _ => Arc::new(with_vocabulary(source, vocabulary)),
            };
            let plain = import(family, Arc::clone(&store), &options(MtpPolicy::Keep)).unwrap();
            let plain = megatron(&iteration(Arc::new(plain)));
            for chunks in [ChunkChoice::Megatron, ChunkChoice::Whole] {
                let options = padding(mesh, chunks);
                let run = import(family, Arc::clone(&store), &options).unwrap();
                let checkpoint = iteration(Arc::new(run.clone()));
                let mut found = megatron(&checkpoint);
                for name in [EMBEDDING, HEAD] {
                    let (dtype, shape, bytes) = found.get_mut(name).unwrap();
                    assert_eq!((*dtype, shape[0]), (Dtype::Bf16, rows), "{source} {mesh}");
                    let kept = plain[name].2.len();
                    assert_eq!(bytes.len(), 2 * (rows * shape[1]) as usize);
                    assert!(bytes[kept..].iter().all(|byte| *byte == 0), "{name}");
                    bytes.truncate(kept);
                    let count = if chunks == ChunkChoice::Whole { 1 } else { tp };
                    let sizes = [rows / count, shape[1]];
                    let boxes = (0..count).map(|rank| Region::new([rank * sizes[0], 0], sizes));
                    let written = checkpoint.metadata().tensors[name].chunks.iter();
                    let written: Vec<Region> =
                        written.map(|chunk| chunk.region.as_ref().clone()).collect();
                    assert_eq!(written, boxes.collect::<Vec<_>>(), "{source} {mesh}");
                    shape[0] = vocabulary;
                }
                assert_eq!(found, plain, "{source} {mesh}");
                let config = run_config(&run);
                let model = &config["model"];
                assert_eq!(model["should_pad_vocab"], json!(true));
                assert_eq!(model["vocab_size"], json!(vocabulary));
                assert_eq!(model["make_vocab_size_divisible_by"], json!(1280));

                let planned = |options: &Options| {
                    ImportPlan::new(family, Arc::clone(&store), options).unwrap()
                };
                let (with, without) = (
                    planned(&options),
                    planned(&crate::world::options(MtpPolicy::Keep)),
                );
                let (with, without) = (with.summary(), without.summary());
                let width = plain[EMBEDDING].1[1];
                let more = 2 * 2 * (rows - vocabulary) * width;
                assert_eq!(with.target.bytes, without.target.bytes + more);
                let line = format!("vocabulary padded from {vocabulary} to {rows} rows");
                assert_eq!(
                    with.notices.iter().filter(|found| **found == line).count(),
                    1
                );
            }
        }
    });
}

/// Megatron-Bridge's numbers; at one rank the published vocabulary is a multiple already.
#[test]
fn fc_22_the_published_vocabulary_is_planned_as_megatron_pads_it() {
    both_ways(|family| {
        for (tp, expected) in [
            (1, "vocabulary of 154880 rows needs no padding on this mesh"),
            (2, "vocabulary padded from 154880 to 156160 rows"),
            (4, "vocabulary padded from 154880 to 158720 rows"),
        ] {
            let options = padding(over(tp), ChunkChoice::Megatron);
            let plan = ImportPlan::new(family, on_disk("configs/glm-5.2"), &options).unwrap();
            let mut notices = plan.summary().notices.iter();
            assert!(notices.any(|line| line == expected), "{expected}");
        }
        // Not asked for, it is neither done nor said.
        let plan = ImportPlan::new(family, on_disk("glm52-tiny"), &Options::default()).unwrap();
        let mut notices = plan.summary().notices.iter();
        assert!(notices.all(|line| !line.contains("padd")));
        let run = import(family, on_disk("glm52-tiny"), &Options::default()).unwrap();
        assert_eq!(run_config(&run)["model"]["should_pad_vocab"], json!(false));
    });
}

/// A matrix of more than one band: the buffer that the last rows are made in has held others.
#[test]
fn fc_22_padding_after_a_whole_band_is_zeros_too() {
    let (_, family) = &families()[0];
    let source = large(family.as_ref(), 40_000);
    let options = padding(Mesh::SINGLE, ChunkChoice::Whole);
    let run = import(family.as_ref(), Arc::new(source), &options).unwrap();
    let found = megatron(&iteration(Arc::new(run)));
    for name in [EMBEDDING, HEAD] {
        let (_, shape, bytes) = &found[name];
        assert_eq!(shape[0], 40_960);
        assert!(bytes.len() > 8 << 20, "one band: {}", bytes.len());
        let (kept, zeros) = bytes.split_at((2 * 40_000 * shape[1]) as usize);
        assert!(kept.iter().all(|byte| *byte == 0x3f), "{name}");
        assert!(zeros.iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn fc_22_an_export_of_our_padding_gives_the_source_back() {
    both_ways(|family| {
        for (source, tp, kept) in [
            ("glm52-tiny", 1, 256),
            ("glm52-tiny", 4, 256),
            ("glm5-tiny", 2, 256),
            ("glm53-tiny", 1, 160),
        ] {
            for chunks in [ChunkChoice::Megatron, ChunkChoice::Whole] {
                let run = import(family, on_disk(source), &padding(over(tp), chunks)).unwrap();
                let plan = plan(family, &run, None).unwrap();
                let lines = cut_lines(&plan.summary().notices, "");
                assert_eq!(lines, cut_notices(1280 * tp, kept), "{source}");
                let exported = export(family, Arc::new(run), None, &ExportOptions::default());
                let exported = hugging_face(&exported.unwrap());
                let unpadded = import(family, on_disk(source), &options(MtpPolicy::Keep)).unwrap();
                let unpadded = export(family, Arc::new(unpadded), None, &ExportOptions::default());
                assert_eq!(exported, hugging_face(&unpadded.unwrap()), "{source}");
                if source != "glm53-tiny" {
                    assert_eq!(exported, stored(on_disk(source).as_ref()));
                }
            }
        }
    });
}

/// Padding that training has moved, to any number of rows, under the keys of today and of the past.
#[test]
fn fc_22_an_export_cuts_what_another_program_padded() {
    let families = families();
    let mut turn = 0;
    for (source, has_mtp, today) in models() {
        let kept = today[EMBEDDING].1[0];
        let expected = expected(source, has_mtp);
        let mut spellings = vec![today.clone()];
        spellings.extend(PASTS.map(|past| past.of(&today)));
        for values in spellings {
            turn += 1;
            let (_, family) = &families[turn % 2];
            let cut = [Cut::Whole, Cut::Uneven][turn / 2 % 2];
            let rows = [kept + 1, 384, 1280][turn % 3];
            let run = by_another(&values, rows, cut);
            let plan = plan(family.as_ref(), &run, Some(source)).unwrap();
            let lines = cut_lines(&plan.summary().notices, "");
            assert_eq!(lines, cut_notices(rows, kept), "{source}");
            let reference = Some(on_disk(source));
            let options = ExportOptions::default();
            let exported = export(family.as_ref(), Arc::new(run), reference, &options).unwrap();
            assert_eq!(hugging_face(&exported), expected, "{source} {rows} {cut:?}");
        }
    }
}

fn compare(
    family: &dyn Bridge,
    config: &str,
    ours: &Arc<dyn Store>,
    theirs: &Arc<dyn Store>,
) -> Result<Report, Error> {
    let config = source_config(on_disk(config).as_ref())?;
    let sides = [ours, theirs].map(|side| VerifySource::open(Arc::clone(side)));
    let [ours, theirs] = sides;
    let (ours, theirs) = (ours?, theirs?);
    let [a, b] = [&ours, &theirs].map(|side| Contents::new(side, &config, family));
    verify(&a?, &b?, &VerifyOptions::default(), &Silent)
}

#[test]
fn fc_22_padding_makes_no_difference_and_each_side_is_told_of_it() {
    both_ways(|family| {
        let today = models().remove(0).2;
        let sides: [(Arc<dyn Store>, u64); 5] = [
            (on_disk("glm52-tiny"), 256),
            (
                Arc::new(import(family, on_disk("glm52-tiny"), &Options::default()).unwrap()),
                256,
            ),
            (Arc::new(padded(family, "glm52-tiny", 2)), 2560),
            (Arc::new(padded(family, "glm52-tiny", 4)), 5120),
            (Arc::new(by_another(&today, 384, Cut::Uneven)), 384),
        ];
        let mut digests = BTreeSet::new();
        for (ours, our_rows) in &sides {
            for (theirs, their_rows) in &sides {
                let report = compare(family, "glm52-tiny", ours, theirs).unwrap();
                assert!(
                    report.is_equal,
                    "{:?} {:?}",
                    report.findings, report.differences
                );
                assert_eq!((report.tensors, report.findings.len()), (296, 0));
                digests.insert(report.digest.expect("a digest"));
                for (side, rows) in [("ours: ", our_rows), ("theirs: ", their_rows)] {
                    let of_side = report.notices.iter().filter(|line| line.starts_with(side));
                    let of_side: Vec<String> = of_side.cloned().collect();
                    let expected = if *rows == 256 {
                        Vec::new()
                    } else {
                        cut_notices(*rows, 256)
                    };
                    assert_eq!(cut_lines(&of_side, side), expected);
                }
            }
        }
        assert_eq!(digests.len(), 1, "{digests:?}");
        // The rows of the vocabulary are compared as ever: one bit in its last one.
        for name in [EMBEDDING, HEAD] {
            let mut values = today.clone();
            *values.get_mut(name).unwrap().2.last_mut().unwrap() ^= 1;
            let spoiled: Arc<dyn Store> = Arc::new(by_another(&values, 384, Cut::Whole));
            let report = compare(family, "glm52-tiny", &sides[2].0, &spoiled).unwrap();
            assert_eq!((report.is_equal, report.differences.len()), (false, 1));
            assert_eq!(report.differences[0].first[0], 255);
        }
    });
}

/// What the plan of a checkpoint says, which it must not make, and what a comparison with the source finds.
fn refused(family: &dyn Bridge, values: &Values) -> Vec<String> {
    let run = written::megatron(values, Cut::Whole);
    let error = plan(family, &run, Some("glm52-tiny")).expect_err("a plan that must fail");
    assert_eq!(error.slug(), "weight-map/not-total", "{error}");
    let run: Arc<dyn Store> = Arc::new(run);
    let report = compare(family, "glm52-tiny", &run, &on_disk("glm52-tiny")).unwrap();
    let found = error.findings();
    let expected = found.iter().map(|line| format!("ours: {line}"));
    assert!(!report.is_equal);
    assert_eq!(report.findings, expected.collect::<Vec<_>>());
    found
}

#[test]
fn fc_22_what_is_no_padding_is_refused_with_both_shapes() {
    let today = models().remove(0).2;
    both_ways(|family| {
        for (embedding, head) in [(384, 512), (384, 256), (256, 384)] {
            let mut values = today.clone();
            lengthened(&mut values, EMBEDDING, embedding);
            lengthened(&mut values, HEAD, head);
            let expected = format!(
                "{EMBEDDING} has shape [{embedding}, 96] and {HEAD} has [{head}, 96], expected 256 padded alike"
            );
            assert_eq!(refused(family, &values), [expected]);
        }
        let reshaped = |name: &str, change: &dyn Fn(&mut Vec<u64>, &mut Vec<u8>)| {
            let mut values = today.clone();
            let (_, shape, bytes) = values.get_mut(name).unwrap();
            change(shape, bytes);
            refused(family, &values)
        };
        for name in [EMBEDDING, HEAD] {
            let fewer = reshaped(name, &|shape, bytes| {
                shape[0] = 255;
                bytes.truncate(255 * 2 * 96);
            });
            let expected = format!("{name} has shape [255, 96] in ");
            assert!(
                fewer.len() == 1 && fewer[0].starts_with(&expected),
                "{fewer:?}"
            );
            assert!(fewer[0].ends_with("expected [256, 96]"), "{fewer:?}");
            let wider = reshaped(name, &|shape, bytes| {
                shape[1] = 97;
                bytes.resize(256 * 2 * 97, 0);
            });
            let expected = format!("{name} has shape [256, 97] in ");
            assert!(
                wider.len() == 1 && wider[0].starts_with(&expected),
                "{wider:?}"
            );
        }
        // No other param may be longer, and none be padded elsewhere.
        for name in ["decoder.final_norm.weight", "mtp.layers.0.eh_proj.weight"] {
            let longer = reshaped(name, &|shape, bytes| {
                let row = bytes.len() / shape[0] as usize;
                shape[0] += 1;
                bytes.resize(bytes.len() + row, 0);
            });
            assert!(
                longer.len() == 1 && longer[0].starts_with(name),
                "{longer:?}"
            );
        }
    });
}

/// A config of fewer tokens than the model has would have its last ones cut.
#[test]
fn fc_22_a_checkpoint_that_names_another_vocabulary_is_refused_with_both() {
    let today = models().remove(0).2;
    both_ways(|family| {
        let run = by_another(&today, 384, Cut::Whole);
        let attempts = |run: &MemoryStore| {
            let store: Arc<dyn Store> = Arc::new(run.clone());
            let report = compare(family, "glm52-tiny", &store, &on_disk("glm52-tiny"));
            let exported = plan(family, run, Some("glm52-tiny"));
            [exported.map(|_| ()), report.map(|_| ())]
        };
        assert!(attempts(&run).iter().all(Result::is_ok));
        for text in [
            "model:\n  vocab_size: 256\n",
            "model: {vocab_size: null}\n",
            "a: .inf\n",
        ] {
            run.insert(RUN_CONFIG, text.as_bytes()).unwrap();
            assert!(attempts(&run).iter().all(Result::is_ok), "{text}");
        }
        for named in [300, 384, 200] {
            let text = format!("model:\n  a: .inf\n  vocab_size: {named}\n");
            run.insert(RUN_CONFIG, text.into_bytes()).unwrap();
            for error in attempts(&run).map(|result| result.expect_err("a refusal")) {
                assert_eq!(error.slug(), "engine/vocabulary");
                let text = error.to_string();
                let sizes = [named, 256, 384].map(|size| size.to_string());
                assert!(sizes.iter().all(|size| text.contains(size)), "{text}");
                assert!(text.contains(EMBEDDING) && !text.contains('\n'), "{text}");
                assert!(error.help().is_some());
            }
        }
        for text in ["model: {vocab_size: many}\n", "model: [\n"] {
            run.insert(RUN_CONFIG, text.as_bytes()).unwrap();
            for error in attempts(&run).map(|result| result.expect_err("a refusal")) {
                assert_eq!(error.slug(), "torch_dist/run-config-syntax");
                assert!(error.to_string().contains(RUN_CONFIG), "{error}");
            }
        }
        // Without padding nothing is cut, and the file is not asked.
        let exact = written::megatron(&today, Cut::Whole);
        exact
            .insert(RUN_CONFIG, &b"model: {vocab_size: 300}\n"[..])
            .unwrap();
        assert!(attempts(&exact).iter().all(Result::is_ok));
    });
}

#[test]
fn fc_22_a_mesh_that_only_the_vocabulary_hinders_is_refused_with_the_way_out() {
    both_ways(|family| {
        let refusal = |store: Arc<dyn Store>, options: &Options| {
            let error = ImportPlan::new(family, store, options).unwrap_err();
            assert_eq!(error.slug(), "bridge/mesh");
            (error.to_string(), error.help())
        };
        let on = |tp| Options {
            mesh: over(tp),
            ..Options::default()
        };
        let odd: Arc<dyn Store> = Arc::new(with_vocabulary("glm52-tiny", 255));
        let (text, help) = refusal(Arc::clone(&odd), &on(2));
        assert_eq!(
            text,
            "--tp 2 does not divide 255 vocabulary rows; valid for this model: 1"
        );
        assert!(help.unwrap().contains("--pad-vocab"));
        // Padding would not help here, and what it asks for already hinders no size.
        let of_sizes = Some("choose sizes that the message lists");
        let (_, help) = refusal(Arc::clone(&odd), &on(3));
        assert_eq!(help.as_deref(), of_sizes);
        let (text, help) = refusal(odd, &padding(over(3), ChunkChoice::Megatron));
        assert!(!text.contains("vocabulary"), "{text}");
        assert!(text.ends_with("valid for this model: 1, 2, 4"), "{text}");
        assert_eq!(help.as_deref(), of_sizes);
        let (_, help) = refusal(on_disk("glm53-tiny"), &on(2));
        assert_eq!(help.as_deref(), of_sizes);
    });
}

/// A prediction layer's own embedding and head are kept as they are: no Megatron pads them.
#[test]
fn fc_22_what_is_kept_beside_is_not_padded() {
    both_ways(|family| {
        let mut values = hugging_face(on_disk("glm52-tiny").as_ref());
        for (name, copied) in [
            ("embed_tokens", "model.embed_tokens.weight"),
            ("shared_head.head", "lm_head.weight"),
        ] {
            let value = values[copied].clone();
            values.insert(format!("model.layers.8.{name}.weight"), value);
        }
        let source = written::hugging_face("glm52-tiny", &values);
        let options = padding(over(2), ChunkChoice::Megatron);
        let run = import(family, Arc::new(source), &options).unwrap();
        let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        assert_eq!(hugging_face(&exported), values);
    });
}

/// Asked of a family whose rules pad nothing, it is refused and not forgotten.
#[test]
fn fc_22_a_family_that_pads_nothing_says_so() {
    let source = || Arc::new(decoding::checkpoint(&[]));
    let options = padding(Mesh::SINGLE, ChunkChoice::Megatron);
    let family = decoding::toy();
    let error = ImportPlan::new(family.as_ref(), source(), &options).unwrap_err();
    assert_eq!(error.slug(), "bridge/unsupported");
    assert!(
        error
            .to_string()
            .starts_with("a padded vocabulary is not supported")
    );
    let options = Options {
        pads_vocabulary: false,
        ..options
    };
    assert!(ImportPlan::new(family.as_ref(), source(), &options).is_ok());
}
