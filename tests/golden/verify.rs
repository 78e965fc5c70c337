//! Two checkpoints of any formats against each other: equal where they must be, and each difference found and described.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::{Bridge, Mesh, MtpPolicy};
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store};
use rialto_engine::verify::{Report, Side};
use rialto_engine::{
    ChunkChoice, Contents, Error, ExportOptions, Options, Progress, Silent, VerifyOptions,
    VerifySource, source_config, verify,
};
use rialto_tensor::Dtype;
use serde_json::Value;

use crate::export::expected;
use crate::world::{
    GOLDENS, Values, both_ways, export, families, fixture, hugging_face, import, in_memory,
    iteration, megatron, on_disk, options, safetensors,
};
use crate::written::{self, Cut};

fn compare(
    family: &dyn Bridge,
    config: &str,
    [ours, theirs]: [Arc<dyn Store>; 2],
    options: &VerifyOptions,
) -> Result<Report, Error> {
    let config = source_config(on_disk(config).as_ref())?;
    let [ours, theirs] = [VerifySource::open(ours)?, VerifySource::open(theirs)?];
    let of = |side| Contents::new(side, &config, family);
    verify(&of(&ours)?, &of(&theirs)?, options, &Silent)
}

fn compared(family: &dyn Bridge, ours: &MemoryStore, theirs: &MemoryStore) -> Report {
    let sides: [Arc<dyn Store>; 2] = [Arc::new(ours.clone()), Arc::new(theirs.clone())];
    compare(family, "glm52-tiny", sides, &VerifyOptions::default()).unwrap()
}

fn strict_dtype() -> VerifyOptions {
    VerifyOptions {
        is_strict_dtype: true,
        ..VerifyOptions::default()
    }
}

fn strict_keys() -> VerifyOptions {
    VerifyOptions {
        is_strict_keys: true,
        ..VerifyOptions::default()
    }
}

/// The same weights in every form there is.
fn forms_of(
    family: &dyn Bridge,
    source: &'static str,
    meshes: &[[u64; 4]],
) -> Vec<(String, Arc<dyn Store>)> {
    let keep = options(MtpPolicy::Keep);
    let mut forms: Vec<(String, Arc<dyn Store>)> = vec![
        ("source".to_owned(), on_disk(source)),
        (
            "decoded".to_owned(),
            Arc::new(written::hugging_face(source, &expected(source, true))),
        ),
    ];
    for &[tp, pp, ep, etp] in meshes {
        let options = Options {
            mesh: Mesh { tp, pp, ep, etp },
            ..keep.clone()
        };
        let run = import(family, on_disk(source), &options).unwrap();
        forms.push((format!("import on {}", options.mesh), Arc::new(run)));
    }
    let whole = Options {
        chunks: ChunkChoice::Whole,
        ..keep
    };
    let run: Arc<dyn Store> = Arc::new(import(family, on_disk(source), &whole).unwrap());
    for (name, form) in [("export", None), ("fused export", Some("fused"))] {
        let options = ExportOptions {
            forms: form.into_iter().map(str::to_owned).collect(),
            ..ExportOptions::default()
        };
        let exported = export(family, Arc::clone(&run), None, &options).unwrap();
        forms.push((name.to_owned(), Arc::new(exported)));
    }
    forms.push(("whole".to_owned(), run));
    let goldens = GOLDENS
        .iter()
        .filter(|golden| golden.source == source && golden.mtp == MtpPolicy::Keep);
    for golden in goldens {
        forms.push((golden.name.to_owned(), golden.run()));
        // The past, in short: a GPT model's keys.
        let mut old = Values::new();
        for (name, value) in megatron(&iteration(golden.run())) {
            let components: Vec<&str> = name.split('.').collect();
            let key = match components.as_slice() {
                ["decoder", "final_norm", ..] => "decoder.final_layernorm.weight".to_owned(),
                ["decoder", "layers", layer, rest @ ..] => {
                    format!(
                        "decoder.layers.{}.{}",
                        layer.parse::<u64>().unwrap() / 2,
                        rest.join(".")
                    )
                }
                ["mtp", _, depth, "mtp_model_layer", _, _, rest @ ..] => {
                    format!("mtp.layers.{depth}.transformer_layer.{}", rest.join("."))
                }
                _ => name,
            };
            old.insert(key, value);
        }
        let old = written::megatron(&old, Cut::Uneven);
        forms.push((format!("{} of old", golden.name), Arc::new(old)));
    }
    forms
}

fn every_pair_is_equal(source: &'static str, meshes: &[[u64; 4]], tensors: u64) {
    let families = families();
    let forms = forms_of(families[0].1.as_ref(), source, meshes);
    let mut digests: BTreeMap<String, String> = BTreeMap::new();
    for (first, (name, ours)) in forms.iter().enumerate() {
        for (second, (other, theirs)) in forms.iter().enumerate().skip(first) {
            let (_, family) = &families[(first + second) % 2];
            let both = [Arc::clone(ours), Arc::clone(theirs)];
            let both = if second % 2 == 0 {
                both
            } else {
                [both[1].clone(), both[0].clone()]
            };
            let report = compare(family.as_ref(), source, both, &strict_dtype()).unwrap();
            let pair = format!("{name}, {other}");
            assert!(report.is_equal, "{pair}: {report:?}");
            assert!(
                report.findings.is_empty() && report.dtypes.is_empty(),
                "{pair}: {report:?}"
            );
            assert_eq!(report.tensors, tensors, "{pair}");
            digests.insert(pair, report.digest.unwrap());
        }
    }
    let first = digests.values().next().unwrap();
    let others = digests.iter().filter(|(_, digest)| *digest != first);
    assert_eq!(others.count(), 0, "{digests:#?}");
}

#[test]
fn fc_16_every_two_forms_of_one_model_are_equal_with_one_digest() {
    every_pair_is_equal("glm52-tiny", &[[1, 1, 1, 1], [4, 4, 8, 4]], 296);
}

#[test]
fn fc_16_encoded_weights_equal_what_they_stand_for_in_every_form() {
    // As stored, less a scale for each encoded tensor.
    let stored = hugging_face(on_disk("glm53-tiny").as_ref());
    let tensors = stored
        .keys()
        .filter(|name| !name.ends_with("_scale_inv"))
        .count();
    every_pair_is_equal("glm53-tiny", &[[1, 2, 5, 2]], tensors as u64);
}

/// The position of an element on each axis.
fn index(shape: &[u64], position: u64) -> Vec<u64> {
    let strides = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<u64>());
    strides
        .zip(shape)
        .map(|(stride, extent)| position / stride % extent)
        .collect()
}

/// A float by its bits, and its place among all floats of its kind, counted from zero.
fn number(dtype: Dtype, bytes: &[u8]) -> (f64, i64) {
    let (value, bits, width) = match dtype {
        Dtype::Bf16 => {
            let bits = u16::from_le_bytes(bytes.try_into().unwrap());
            (f32::from_bits(u32::from(bits) << 16), u32::from(bits), 16)
        }
        Dtype::F32 => {
            let bits = u32::from_le_bytes(bytes.try_into().unwrap());
            (f32::from_bits(bits), bits, 32)
        }
        other => panic!("{other}"),
    };
    let sign = 1u32 << (width - 1);
    let magnitude = i64::from(bits & (sign - 1));
    let place = if bits & sign == 0 {
        magnitude
    } else {
        -magnitude
    };
    (f64::from(value), place)
}

/// Layer, expert and matrix, read off the name as a person would.
fn place(name: &str) -> (Option<u64>, Option<u64>, String) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let components: Vec<&str> = name.split('.').collect();
    let number = |text: &str| Some(text.parse().unwrap());
    match components.as_slice() {
        ["model", "layers", layer, "mlp", "experts", expert, matrix] => {
            (number(layer), number(expert), (*matrix).to_owned())
        }
        ["model", "layers", layer, rest @ ..] => (number(layer), None, rest.join(".")),
        _ => (None, None, name.to_owned()),
    }
}

/// The key of Megatron that holds each tensor, and the byte at which it begins there: by the manifest of the real one.
fn keys(tensors: &Values) -> BTreeMap<String, (String, usize)> {
    let golden = &GOLDENS[0];
    let mut keys = BTreeMap::new();
    for (key, entry) in golden.manifest()["tensors"].as_object().unwrap() {
        let names = match &entry["hf"] {
            Value::String(name) => vec![name.clone()],
            names => serde_json::from_value(names.clone()).unwrap(),
        };
        let experts = match names[0].contains("{e}") {
            true => entry["shape"][0].as_u64().unwrap(),
            false => 1,
        };
        let mut offset = 0;
        for expert in 0..experts {
            for name in &names {
                let name = name.replace("{e}", &expert.to_string());
                let length = tensors[&name].2.len();
                keys.insert(name, (key.clone(), offset));
                offset += length;
            }
        }
    }
    keys
}

#[test]
fn fc_16_a_flipped_bit_in_any_tensor_is_found_and_measured() {
    let source = hugging_face(on_disk("glm52-tiny").as_ref());
    let real = megatron(&iteration(GOLDENS[0].run()));
    let keys = keys(&source);
    assert_eq!((source.len(), keys.len()), (296, 296));
    let whole: [Arc<dyn Store>; 2] = [
        Arc::new(written::hugging_face("glm52-tiny", &source)),
        Arc::new(written::megatron(&real, Cut::Whole)),
    ];
    let families = families();
    let mut kinds = BTreeMap::new();
    for (turn, (name, (dtype, shape, bytes))) in source.iter().enumerate() {
        let width = dtype.size_bytes() as usize;
        let (elements, bits) = (bytes.len() / width, 8 * width);
        // Every place of a tensor and every bit of an element comes up, the last ones too.
        let element = if turn % 5 == 0 {
            elements - 1
        } else {
            turn * 7919 % elements
        };
        let bit = turn * 5 % bits;
        let at = element * width;
        let flip = |bytes: &mut [u8], at: usize| bytes[at + bit / 8] ^= 1 << (bit % 8);
        let is_megatron = turn % 2 == 1;
        let spoiled: Arc<dyn Store> = if is_megatron {
            let mut values = real.clone();
            let (key, begin) = &keys[name];
            flip(&mut values.get_mut(key).unwrap().2, begin + at);
            Arc::new(written::megatron(&values, Cut::Uneven))
        } else {
            let mut values = source.clone();
            flip(&mut values.get_mut(name).unwrap().2, at);
            Arc::new(written::hugging_face("glm52-tiny", &values))
        };
        let other = Arc::clone(&whole[turn / 2 % 2]);
        let is_ours = turn / 4 % 2 == 0;
        let both = if is_ours {
            [spoiled, other]
        } else {
            [other, spoiled]
        };
        let (_, family) = &families[turn / 8 % 2];
        let report = compare(
            family.as_ref(),
            "glm52-tiny",
            both,
            &VerifyOptions::default(),
        )
        .unwrap();

        assert!(!report.is_equal && report.digest.is_none(), "{name}");
        assert!(report.findings.is_empty(), "{name}: {:?}", report.findings);
        let [found] = report.differences.as_slice() else {
            panic!("{name}: {:?}", report.differences)
        };
        let before = &bytes[at..at + width];
        let mut after = before.to_vec();
        flip(&mut after, 0);
        let (before, after) = (number(*dtype, before), number(*dtype, &after));
        let (ours, theirs) = if is_ours {
            (after, before)
        } else {
            (before, after)
        };
        let (layer, expert, matrix) = place(name);
        assert_eq!((&found.tensor, &found.param), (name, &keys[name].0));
        assert_eq!(
            (found.layer, found.expert, &found.matrix),
            (layer, expert, &matrix),
            "{name}"
        );
        assert_eq!((found.elements, found.of), (1, elements as u64), "{name}");
        assert_eq!(found.first, index(shape, element as u64), "{name}");
        assert_eq!(found.dtype, dtype.to_string());
        let shown = (format!("{:?}", ours.0), format!("{:?}", theirs.0));
        assert_eq!(found.values, shown, "{name}");
        let is_number = !ours.0.is_nan() && !theirs.0.is_nan();
        assert_eq!(found.nans, u64::from(!is_number), "{name}");
        let ulps = is_number.then(|| ours.1.abs_diff(theirs.1));
        let absolute = is_number.then(|| (ours.0 - theirs.0).abs());
        assert_eq!(
            (found.largest_ulps, found.largest_absolute),
            (ulps, absolute),
            "{name}"
        );
        *kinds.entry((is_megatron, is_ours)).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 4, "each side in each format: {kinds:?}");
}

/// A copy of the source with one thing changed.
fn spoiled(spoil: impl FnOnce(&mut Values)) -> MemoryStore {
    let mut values = hugging_face(on_disk("glm52-tiny").as_ref());
    spoil(&mut values);
    written::hugging_face("glm52-tiny", &values)
}

const EXPERT: &str = "model.layers.5.mlp.experts.3.down_proj.weight";
const NORM: &str = "model.layers.2.input_layernorm.weight";

#[test]
fn fc_16_what_is_missing_surplus_or_of_another_shape_is_a_line_each_and_the_rest_is_compared() {
    let whole = in_memory("glm52-tiny");
    let missing = spoiled(|values| drop(values.remove(EXPERT)));
    let surplus = spoiled(|values| {
        let value = values[NORM].clone();
        values.insert("model.layers.2.extra.weight".to_owned(), value);
    });
    let reshaped = spoiled(|values| values.get_mut(NORM).unwrap().1 = vec![2, 48]);
    both_ways(|family| {
        for (other, tensors, line) in [
            (&missing, 295, format!("{EXPERT} is missing")),
            (
                &surplus,
                296,
                "model.layers.2.extra.weight (BF16 [96]".to_owned(),
            ),
            (&reshaped, 295, format!("{NORM} has shape [2, 48]")),
        ] {
            for (side, report) in [
                ("theirs", compared(family, &whole, other)),
                ("ours", compared(family, other, &whole)),
            ] {
                assert!(!report.is_equal && report.digest.is_none());
                assert!(report.differences.is_empty(), "{:?}", report.differences);
                assert_eq!(report.tensors, tensors, "{line}");
                let [finding] = report.findings.as_slice() else {
                    panic!("{:?}", report.findings)
                };
                assert!(finding.starts_with(&format!("{side}: {line}")), "{finding}");
            }
        }
    });
}

#[test]
fn fc_16_a_missing_key_of_megatron_is_named_and_its_tensors_are_not_compared() {
    let whole = in_memory("glm52-tiny");
    let mut values = megatron(&iteration(GOLDENS[0].run()));
    let key = "decoder.layers.9.mlp.experts.experts.linear_fc1.weight";
    values.remove(key).unwrap();
    let run = written::megatron(&values, Cut::Whole);
    both_ways(|family| {
        let report = compared(family, &whole, &run);
        // Gate and up of eight experts.
        assert_eq!((report.is_equal, report.tensors), (false, 296 - 16));
        assert!(report.findings[0].starts_with(&format!("theirs: {key} is missing")));
        assert_eq!(report.findings.len(), 1);
    });
}

#[test]
fn fc_16_another_dtype_is_reported_and_a_difference_only_when_asked() {
    let whole = in_memory("glm52-tiny");
    let is_router = |name: &str| name.ends_with("mlp.gate.weight");
    let widen = |values: &mut Values| {
        for (name, (dtype, _, bytes)) in values {
            if is_router(name) {
                *bytes = bytes
                    .chunks(2)
                    .flat_map(|half| [0, 0, half[0], half[1]])
                    .collect();
                *dtype = Dtype::F32;
            }
        }
    };
    let wide = spoiled(widen);
    // The least step above a number of BF16, which rounds back to it.
    let rounded = spoiled(|values| {
        widen(values);
        values.get_mut("model.layers.4.mlp.gate.weight").unwrap().2[8] = 1;
    });
    both_ways(|family| {
        let mut digests = Vec::new();
        for (other, count) in [(&wide, 0), (&rounded, 1)] {
            let report = compared(family, &whole, other);
            assert!(report.is_equal && report.findings.is_empty(), "{report:?}");
            let [dtypes] = report.dtypes.as_slice() else {
                panic!("{:?}", report.dtypes)
            };
            assert_eq!(
                (dtypes.ours.as_str(), dtypes.theirs.as_str()),
                ("BF16", "F32")
            );
            assert_eq!((dtypes.tensors, dtypes.rounded), (6, count));
            assert_eq!(dtypes.first, "model.layers.3.mlp.gate.weight");
            digests.push(report.digest.unwrap());
            let both: [Arc<dyn Store>; 2] = [Arc::new(whole.clone()), Arc::new(other.clone())];
            let report = compare(family, "glm52-tiny", both, &strict_dtype()).unwrap();
            assert!(!report.is_equal && report.differences.is_empty());
        }
        digests.dedup();
        assert_eq!(digests.len(), 1, "what is compared is the same");
    });
}

#[test]
fn fc_16_a_part_that_is_wholly_absent_is_one_line_and_a_difference_only_when_asked() {
    let source = on_disk("glm52-tiny");
    let without = spoiled(|values| values.retain(|name, _| !name.starts_with("model.layers.8.")));
    let golden: Arc<dyn Store> = GOLDENS[1].run();
    both_ways(|family| {
        for other in [
            Arc::new(without.clone()) as Arc<dyn Store>,
            Arc::clone(&golden),
        ] {
            for (side, both) in [
                (Side::Ours, [Arc::clone(&source), Arc::clone(&other)]),
                (Side::Theirs, [Arc::clone(&other), Arc::clone(&source)]),
            ] {
                let report = |options: &VerifyOptions| {
                    compare(family, "glm52-tiny", both.clone(), options).unwrap()
                };
                let lenient = report(&VerifyOptions::default());
                assert!(
                    lenient.is_equal && lenient.findings.is_empty(),
                    "{lenient:?}"
                );
                assert_eq!(lenient.tensors, 296 - 47);
                let [part] = lenient.one_sided.as_slice() else {
                    panic!("{:?}", lenient.one_sided)
                };
                assert_eq!(
                    (part.side, part.params, part.is_difference),
                    (side, 24, false)
                );
                let strict = report(&strict_keys());
                assert!(!strict.is_equal && strict.one_sided[0].is_difference);
            }
        }
        // A part of it is no part that is absent.
        let partly = spoiled(|values| drop(values.remove("model.layers.8.enorm.weight")));
        let report = compared(family, &in_memory("glm52-tiny"), &partly);
        assert!(!report.is_equal && report.one_sided.is_empty());
        assert!(report.findings[0].contains("model.layers.8.enorm.weight is missing"));
    });
}

/// An export in BF16 against the FP8 checkpoint that it came from.
#[test]
fn fc_32_scales_that_one_side_lacks_are_one_line_and_a_missing_weight_is_still_found() {
    let stored = hugging_face(on_disk("glm53-tiny").as_ref());
    let encoded = stored
        .values()
        .filter(|(dtype, ..)| *dtype == Dtype::F8E4m3)
        .count() as u64;
    let mut values = expected("glm53-tiny", true);
    let decoded: Arc<dyn Store> = Arc::new(written::hugging_face("glm53-tiny", &values));
    values
        .remove("model.layers.2.self_attn.o_proj.weight")
        .unwrap();
    let holed: Arc<dyn Store> = Arc::new(written::hugging_face("glm53-tiny", &values));
    both_ways(|family| {
        let report = |other: &Arc<dyn Store>, options: &VerifyOptions| {
            let both = [on_disk("glm53-tiny"), Arc::clone(other)];
            compare(family, "glm53-tiny", both, options).unwrap()
        };
        let lenient = report(&decoded, &VerifyOptions::default());
        assert!(
            lenient.is_equal && lenient.findings.is_empty(),
            "{lenient:?}"
        );
        let [part] = lenient.one_sided.as_slice() else {
            panic!("{:?}", lenient.one_sided)
        };
        assert_eq!((part.side, part.params), (Side::Ours, encoded));
        assert!(part.name.contains("scales"), "{}", part.name);
        assert!(!report(&decoded, &strict_keys()).is_equal);
        let holed = report(&holed, &VerifyOptions::default());
        assert!(!holed.is_equal);
        assert!(holed.findings[0].contains("model.layers.2.self_attn.o_proj.weight is missing"));
    });
}

#[test]
fn fc_16_values_that_equal_each_other_but_not_bit_for_bit_differ() {
    let with = |bits: u16| {
        spoiled(|values| {
            let bytes = &mut values.get_mut(NORM).unwrap().2;
            bytes[10..12].copy_from_slice(&bits.to_le_bytes());
        })
    };
    both_ways(|family| {
        let found = |ours: u16, theirs: u16| {
            let mut report = compared(family, &with(ours), &with(theirs));
            assert!(report.differences.len() <= 1);
            assert_eq!(report.is_equal, report.differences.is_empty());
            report.differences.pop()
        };
        // Zeros of two signs.
        let zeros = found(0x8000, 0).unwrap();
        assert_eq!(
            (zeros.largest_ulps, zeros.largest_absolute),
            (Some(0), Some(0.0))
        );
        assert_eq!((zeros.values.0.as_str(), zeros.first), ("-0.0", vec![5]));
        // NaNs: one with itself, with another, with a number.
        assert_eq!(found(0x7fc0, 0x7fc0), None);
        let two = found(0x7fc0, 0x7fc1).unwrap();
        assert_eq!((two.largest_ulps, two.nans, two.elements), (None, 0, 1));
        let one = found(0x3f80, 0x7fc0).unwrap();
        assert_eq!((one.largest_ulps, one.nans), (None, 1));
        assert_eq!(
            (one.values.0.as_str(), one.values.1.as_str()),
            ("1.0", "NaN")
        );
    });
}

#[test]
fn fc_16_a_side_that_cannot_be_read_is_an_error_and_no_difference() {
    let cut = in_memory("glm52-tiny");
    let shard = "model-00002-of-00003.safetensors";
    let mut bytes = cut.bytes(shard).unwrap();
    bytes.pop();
    cut.insert(shard, bytes).unwrap();
    let error = VerifySource::open(Arc::new(cut)).unwrap_err();
    assert_eq!(error.slug(), "safetensors/truncated");
    assert!(error.to_string().contains(shard), "{error}");
    // Data that are not those of the checksum beside them.
    let values = megatron(&iteration(GOLDENS[0].run()));
    let run = written::megatron(&values, Cut::Whole);
    let data = "iter_0000000/__0_0.distcp";
    let mut bytes = run.bytes(data).unwrap();
    let first = &values["decoder.final_norm.weight"].2;
    let at = bytes
        .windows(first.len())
        .position(|window| window == first)
        .unwrap();
    bytes[at] ^= 1;
    run.insert(data, bytes).unwrap();
    both_ways(|family| {
        let both = || -> [Arc<dyn Store>; 2] { [on_disk("glm52-tiny"), Arc::new(run.clone())] };
        let error = compare(family, "glm52-tiny", both(), &VerifyOptions::default()).unwrap_err();
        assert_eq!(error.slug(), "torch_dist/checksum");
        assert!(
            error.to_string().contains("decoder.final_norm.weight"),
            "{error}"
        );
        let trusting = VerifyOptions {
            verifies_checksums: false,
            ..VerifyOptions::default()
        };
        let report = compare(family, "glm52-tiny", both(), &trusting).unwrap();
        assert_eq!(report.differences[0].tensor, "model.norm.weight");
    });
}

fn torch_dist(name: &str) -> VerifySource {
    let store = LocalStore::open(fixture(&format!("torch-dist/{name}/ckpt"))).unwrap();
    VerifySource::open(Arc::new(store)).unwrap()
}

#[test]
fn fc_16_checkpoints_that_no_family_takes_are_compared_by_name() {
    let of = |name: &str| {
        let file = fixture(&format!("torch-dist/{name}/expected.safetensors"));
        safetensors(&std::fs::read(file).unwrap())
    };
    let [newer, older] = ["plain-r1", "plain-r1-torch241"];
    let by_name = |ours: &str, theirs: &str| {
        let (ours, theirs) = (torch_dist(ours), torch_dist(theirs));
        let [a, b] = Contents::by_name(&ours, &theirs).unwrap();
        verify(&a, &b, &VerifyOptions::default(), &Silent).unwrap()
    };
    let same = by_name(newer, newer);
    assert!(
        same.is_equal && same.digest.is_some() && same.findings.is_empty(),
        "{same:?}"
    );
    assert_eq!(same.tensors, 29);

    let report = by_name(newer, older);
    let (newer, older) = (of(newer), of(older));
    let missing: Vec<&String> = newer
        .keys()
        .filter(|name| !older.contains_key(*name))
        .collect();
    assert!(missing.len() >= 4 && older.keys().all(|name| newer.contains_key(name)));
    assert_eq!(
        report.findings.len(),
        missing.len(),
        "{:?}",
        report.findings
    );
    for name in missing {
        let line = format!("theirs: {name} is missing");
        assert!(
            report.findings.iter().any(|found| found.starts_with(&line)),
            "{name}"
        );
    }
    let differ = older
        .iter()
        .filter(|(name, value)| newer[*name].2 != value.2);
    let differ: Vec<&String> = differ.map(|(name, _)| name).collect();
    let found: Vec<&String> = report
        .differences
        .iter()
        .map(|found| &found.tensor)
        .collect();
    assert_eq!(found, differ);
    assert!(!report.is_equal && report.digest.is_none());
}

#[test]
fn fc_16_two_formats_need_a_family() {
    let source = VerifySource::open(on_disk("glm52-tiny")).unwrap();
    let error = Contents::by_name(&source, &torch_dist("plain-r1"))
        .err()
        .unwrap();
    assert_eq!(error.slug(), "engine/two-formats");
    assert!(error.help().unwrap().contains("plugin"));
}

struct Impatient;

impl Progress for Impatient {
    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_verification_that_is_stopped_says_so() {
    both_ways(|family| {
        let config = source_config(on_disk("glm52-tiny").as_ref()).unwrap();
        let source = VerifySource::open(on_disk("glm52-tiny")).unwrap();
        let contents = Contents::new(&source, &config, family).unwrap();
        let error =
            verify(&contents, &contents, &VerifyOptions::default(), &Impatient).unwrap_err();
        assert_eq!(error.slug(), "engine/cancelled");
    });
}
