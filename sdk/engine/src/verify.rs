//! Whether two checkpoints, of any two formats and dtypes, hold the same weights.
//!
//! Both sides are read through their weight maps, so that names, spellings, chunks and encodings fall away: what is compared
//! are the rectangles that Hugging Face calls tensors, in the order of the forward pass. Values are compared bit by bit
//! after decoding. Where the two sides have different dtypes the wider one is narrowed as a conversion would, and the
//! report says so; a dtype alone makes no difference unless the user asks for it.

mod contents;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use rialto_bridge::mapping::MTP_GROUP;
use rialto_bridge::{Mapping, Piece};
use rialto_tensor::{Comparison, Dtype, Region, Shape, cast};

use crate::assemble::{Buffers, bands_of};
use crate::{Error, Progress};

pub use contents::{Contents, VerifySource};
use report::Tally;
pub use report::{DtypeDifference, Part, Report, Side, TensorDifference};

/// Bytes of a band that is compared at a time: two of them stay in a core's cache.
const BAND_BYTES: u64 = 1 << 20;

/// What a user may ask of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Whether another dtype is a difference, even where all values are equal.
    pub is_strict_dtype: bool,
    /// Whether a part that one side lacks altogether (multi-token prediction, scales) is a difference.
    pub is_strict_keys: bool,
    /// Whether checksums recorded in a checkpoint are compared before its bytes are used.
    pub verifies_checksums: bool,
}

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            is_strict_dtype: false,
            is_strict_keys: false,
            verifies_checksums: true,
        }
    }
}

/// A rectangle of a param that is (a rectangle of) one Hugging Face tensor.
struct Unit<'a> {
    /// Position of the tensor in the mapping: a tensor may have several units.
    position: usize,
    tensor: &'a str,
    shape: &'a Shape,
    tensor_region: &'a Region,
    param: &'a str,
    param_region: &'a Region,
}

/// Compares two checkpoints. Reads all of both, holds a few bands of a tensor for each thread.
///
/// Differences are the report's, not errors. Errors: a side that cannot be read, [`Error::Cancelled`].
pub fn verify(
    ours: &Contents<'_>,
    theirs: &Contents<'_>,
    options: &VerifyOptions,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let mut report = Report::new(ours, theirs);
    let params = common_params(ours.mapping(), theirs.mapping(), &mut report);
    let mut compared = Vec::new();
    let mut total = 0;
    for unit in units(ours.own_mapping()) {
        let Some(&positions) = params.get(unit.param) else {
            continue;
        };
        let region = unit.param_region;
        if !ours.holds(positions.0, region) || !theirs.holds(positions.1, region) {
            // What is missing is a finding already.
            continue;
        }
        let sides = [
            (Side::Ours, ours, positions.0),
            (Side::Theirs, theirs, positions.1),
        ];
        let dtypes = sides.map(|(side, contents, param)| {
            let dtypes = contents.dtypes(param, region);
            if let [first, second, ..] = dtypes[..] {
                report.findings.push(format!(
                    "{side}: {} is stored in parts of {first} and {second}",
                    unit.tensor
                ));
            }
            dtypes
        });
        if let [[a], [b]] = [&dtypes[0][..], &dtypes[1][..]] {
            total += region.shape().size_bytes(*a)?;
            compared.push((unit, positions, (*a, *b)));
        }
    }
    if options.verifies_checksums {
        ours.source().verify_digests(progress)?;
        theirs.source().verify_digests(progress)?;
    }
    for (side, contents) in [(Side::Ours, ours), (Side::Theirs, theirs)] {
        let lines = contents.differing_copies(progress)?;
        let lines = lines.into_iter().map(|line| format!("{side}: {line}"));
        report.findings.extend(lines);
    }
    progress.begin("verify", total);
    let verifies = options.verifies_checksums;
    let results: Result<Vec<Compared>, Error> = compared
        .par_iter()
        .map(|(unit, (a, b), dtypes)| {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let sides = ((ours, *a), (theirs, *b));
            let result = compare(unit, sides, *dtypes, verifies, progress)?;
            progress.advance(unit.param_region.shape().size_bytes(dtypes.0)?);
            Ok(result)
        })
        .collect();
    progress.end();
    let results = results?;
    ours.finish_checks(progress)?;
    theirs.finish_checks(progress)?;
    let mut digest = blake3::Hasher::new();
    let mut tally = Tally::default();
    for ((unit, ..), result) in compared.iter().zip(results) {
        digest.update(unit.tensor.as_bytes());
        digest.update(
            format!(" {} {} {}\n", result.dtype, unit.shape, unit.tensor_region).as_bytes(),
        );
        digest.update(&result.digest);
        report.add(unit, result, &mut tally)?;
    }
    report.finish(options, digest.finalize().to_hex().as_str());
    Ok(report)
}

/// The params of both mappings by name, with their positions in each. What only one side has goes into the report.
fn common_params<'a>(
    ours: &'a Mapping,
    theirs: &'a Mapping,
    report: &mut Report,
) -> BTreeMap<&'a str, (usize, usize)> {
    let positions = |mapping: &'a Mapping| -> BTreeMap<&'a str, usize> {
        let params = mapping.params().iter().enumerate();
        params
            .map(|(at, param)| (param.name.as_str(), at))
            .collect()
    };
    let (a, b) = (positions(ours), positions(theirs));
    let mut common = BTreeMap::new();
    let mut mtp = BTreeSet::new();
    let names: BTreeSet<&str> = a.keys().chain(b.keys()).copied().collect();
    for name in names {
        match (a.get(name), b.get(name)) {
            (Some(&at), Some(&bt)) => {
                // Padding is no part of the model.
                let (shape, other) = (&ours.params()[at].filled, &theirs.params()[bt].filled);
                if shape == other {
                    common.insert(name, (at, bt));
                } else {
                    let text = format!("{name} has shape {shape} in ours, {other} in theirs");
                    report.findings.push(text);
                }
            }
            (found, _) => {
                let (mapping, at, side) = match found {
                    Some(&at) => (ours, at, Side::Ours),
                    None => (theirs, b[name], Side::Theirs),
                };
                let rule = mapping.rule(mapping.params()[at].rule);
                let other = if side == Side::Ours { theirs } else { ours };
                if rule.group == MTP_GROUP && !has_mtp(other) {
                    mtp.insert((side, at));
                } else {
                    let text = format!("{name} is only in {side}");
                    report.findings.push(text);
                }
            }
        }
    }
    for side in [Side::Ours, Side::Theirs] {
        let count = mtp.iter().filter(|(of, _)| *of == side).count() as u64;
        if count > 0 {
            report.one_sided.push(Part {
                name: "multi-token prediction".to_owned(),
                side,
                params: count,
                is_difference: false,
            });
        }
    }
    common
}

/// Whether any param is of multi-token prediction.
fn has_mtp(mapping: &Mapping) -> bool {
    let mut params = mapping.params().iter();
    params.any(|param| mapping.rule(param.rule).group == MTP_GROUP)
}

/// What there is to compare: the pieces of a mapping, in its order.
fn units(mapping: &Mapping) -> impl Iterator<Item = Unit<'_>> {
    let pieces = mapping.pieces().iter();
    pieces.map(|piece: &Piece| Unit {
        position: piece.tensor,
        tensor: &mapping.tensors()[piece.tensor].name,
        shape: &mapping.tensors()[piece.tensor].shape,
        tensor_region: &piece.tensor_region,
        param: &mapping.params()[piece.param].name,
        param_region: &piece.param_region,
    })
}

/// What became of one unit.
struct Compared {
    /// The dtype in which it was compared.
    dtype: Dtype,
    dtypes: (Dtype, Dtype),
    /// Elements of the wider side that narrowing changed.
    rounded: u64,
    comparison: Comparison,
    digest: [u8; 32],
}

fn compare(
    unit: &Unit<'_>,
    (ours, theirs): ((&Contents<'_>, usize), (&Contents<'_>, usize)),
    dtypes: (Dtype, Dtype),
    verifies: bool,
    progress: &dyn Progress,
) -> Result<Compared, Error> {
    let region = unit.param_region;
    let dtype = common_dtype(dtypes.0, dtypes.1)?;
    let [a, b] = [ours, theirs].map(|(side, param)| side.values(param, region, verifies));
    let (a_parts, b_parts) = (a?, b?);
    let mut comparison = Comparison::new(dtype);
    let mut digest = blake3::Hasher::new();
    let (mut a_bytes, mut b_bytes) = (Buffers::default(), Buffers::default());
    let mut rounded = 0;
    for band in bands_of(BAND_BYTES, region, dtype, &a_parts) {
        if progress.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let found = a_bytes.fill(&band, dtype, &a_parts, 0)?;
        let other = b_bytes.fill(&band, dtype, &b_parts, 0)?;
        comparison.add(found, other)?;
        digest.update(found);
        for (stored, bytes) in [(dtypes.0, &a_bytes), (dtypes.1, &b_bytes)] {
            if stored != dtype {
                rounded += cast::rounded(stored, dtype, bytes.stored())?;
            }
        }
    }
    Ok(Compared {
        dtype,
        dtypes,
        rounded,
        comparison,
        digest: digest.finalize().into(),
    })
}

/// The dtype in which two are compared: the narrower one, or one that holds both.
///
/// Errors: the cast's, if there is none.
fn common_dtype(a: Dtype, b: Dtype) -> Result<Dtype, rialto_tensor::Error> {
    if a == b {
        return Ok(a);
    }
    let (narrow, wide) = if a.size_bytes() < b.size_bytes() {
        (a, b)
    } else {
        (b, a)
    };
    // BF16 and F16 are of one size, and neither holds the other.
    let candidates = [narrow, wide, Dtype::F32, Dtype::F64];
    let holds_both = |dtype: &Dtype| cast::is_defined(a, *dtype) && cast::is_defined(b, *dtype);
    let is_same_size = a.size_bytes() == b.size_bytes();
    let mut candidates = candidates
        .into_iter()
        .skip(if is_same_size { 2 } else { 0 });
    candidates
        .find(holds_both)
        .ok_or(rialto_tensor::Error::NoCast { from: a, to: b })
}
