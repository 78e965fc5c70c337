//! `rialto verify OURS THEIRS`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rialto_bridge::layout::counted;
use rialto_bridge::{Bridge, RawConfig};
use rialto_engine::verify::{Report as Found, TensorDifference};
use rialto_engine::{
    Audit, Contents, Manifest, VerifyOptions, VerifySource, audit, source_config, verify,
};
use serde::Serialize;

use crate::arguments::{Common, Verify};
use crate::bar::Bar;
use crate::failure::{DIFFERS, Failure};
use crate::output::{Output, Report, bytes, count};
use crate::{families, interrupt, places};

/// How many lines of a kind are printed; a document has all of them.
const SHOWN: usize = 20;

pub(crate) fn run(asked: &Verify, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let begin = Instant::now();
    let theirs = match &asked.theirs {
        Some(theirs) if !asked.manifest => theirs,
        file => return against_manifest(&asked.ours, file.as_deref(), begin, output),
    };
    let ours = VerifySource::open(places::open(&asked.ours)?)?;
    let theirs = VerifySource::open(places::open(theirs)?)?;
    let reference = asked.reference.as_deref().map(read_config).transpose()?;
    interrupt::check()?;
    let options = VerifyOptions {
        is_strict_dtype: asked.strict_dtype,
        is_strict_keys: asked.strict_keys,
        verifies_checksums: !asked.ignore_checksums,
    };
    let configs = [(&ours, &theirs), (&theirs, &ours)].map(|(side, other)| {
        let given = (reference.as_ref()).zip(asked.reference.as_deref().and_then(Path::to_str));
        let own = side.config().map(|config| (config, side.name()));
        let others = other.config().map(|config| (config, other.name()));
        own.or(given).or(others)
    });
    let families = configs.map(|config| family(config, common, output));
    let found = match families {
        [Ok(Some((family, config))), Ok(Some((other, other_config)))] => {
            let a = Contents::new(&ours, config, family.as_ref())?;
            let b = Contents::new(&theirs, other_config, other.as_ref())?;
            verify(&a, &b, &options, &Bar::new(output))?
        }
        [Err(failure), _] | [_, Err(failure)] if !is_unclaimed(&failure) => return Err(failure),
        _ => {
            let [a, b] = Contents::by_name(&ours, &theirs)?;
            let mut found = verify(&a, &b, &options, &Bar::new(output))?;
            let why = "compared name by name: no plugin takes both sides".to_owned();
            found.notices.insert(0, why);
            found
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    let failure = (!found.is_equal).then(|| {
        let (differ, others) = (found.differences.len(), found.findings.len());
        let mut message = format!("{} and {} differ", found.ours, found.theirs);
        let dtypes = if asked.strict_dtype {
            found.dtypes.len()
        } else {
            0
        };
        let parts = found.one_sided.iter().filter(|part| part.is_difference);
        let counts = [
            (differ, "tensor", "in values"),
            (others, "finding", "in names and shapes"),
            (dtypes, "pair", "of dtypes"),
            (parts.count(), "part", "that one side lacks"),
        ];
        for (number, thing, what) in counts.into_iter().filter(|(number, ..)| *number > 0) {
            let counted = counted(number as u64, thing);
            message.push_str(&format!(", {counted} {what}"));
        }
        let mut failure = Failure::own(DIFFERS, message);
        failure.findings = found.findings.clone();
        failure
    });
    output.checked(&Verified { found, seconds }, failure)
}

/// `rialto verify OURS --manifest`, with a copy of the manifest if it is elsewhere.
fn against_manifest(
    ours: &Path,
    file: Option<&Path>,
    begin: Instant,
    output: &Output,
) -> Result<(), Failure> {
    let store = places::open(ours)?;
    let manifest = match file {
        None => Manifest::of(store.as_ref())?,
        Some(path) => {
            let directory = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let directory = places::open(directory.unwrap_or(Path::new(".")))?;
            let name = path.file_name().and_then(|name| name.to_str());
            Manifest::read(directory.as_ref(), name.unwrap_or_default())?
        }
    };
    let audit = audit(&store, &manifest, &Bar::new(output))?;
    let failure = (!audit.findings.is_empty()).then(|| {
        let findings = counted(audit.findings.len() as u64, "finding");
        let message = format!("{} is not what its manifest says: {findings}", audit.place);
        let mut failure = Failure::own(DIFFERS, message);
        failure.findings = audit.findings.clone();
        failure
    });
    let seconds = begin.elapsed().as_secs_f64();
    output.checked(&Audited { audit, seconds }, failure)
}

/// What an audit found, printed.
#[derive(Serialize)]
struct Audited {
    #[serde(flatten)]
    audit: Audit,
    seconds: f64,
}

impl Report for Audited {
    fn lines(&self) -> Vec<String> {
        let audit = &self.audit;
        let mut lines: Vec<String> = audit.findings.iter().take(SHOWN).cloned().collect();
        let more = audit.findings.len().saturating_sub(SHOWN);
        if more > 0 {
            lines.push(format!("and {more} findings more"));
        }
        lines.push(format!(
            "read {} tensors and {} other files, {} in {:.1} s: {}",
            count(audit.tensors),
            count(audit.files),
            bytes(audit.bytes),
            self.seconds,
            if audit.findings.is_empty() {
                "as written"
            } else {
                "not as written"
            }
        ));
        lines
    }
}

fn read_config(path: &Path) -> Result<RawConfig, Failure> {
    Ok(source_config(places::open(path)?.as_ref())?)
}

/// The family of a side and the config it goes by, if there is one.
type Described<'a> = Option<(Arc<dyn Bridge>, &'a RawConfig)>;

/// The family of a side, if it has a config, which comes with the place it is from: there are several, and a fault is in one.
fn family<'a>(
    config: Option<(&'a RawConfig, &str)>,
    common: &Common,
    output: &Output,
) -> Result<Described<'a>, Failure> {
    let claimed = config.map(|(config, place)| {
        let claimed = families::claim(common, config, output);
        let claimed = claimed.map_err(|mut failure| {
            if failure.slug.starts_with("config/") {
                failure.message.push_str(&format!(" ({place})"));
            }
            failure
        });
        Ok((claimed?, config))
    });
    claimed.transpose()
}

fn is_unclaimed(failure: &Failure) -> bool {
    failure.slug == "plugin/unclaimed"
}

/// What was found, printed.
#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    found: Found,
    seconds: f64,
}

impl Report for Verified {
    fn lines(&self) -> Vec<String> {
        let found = &self.found;
        let mut lines = vec![
            format!("ours:   {}", found.ours),
            format!("theirs: {}", found.theirs),
        ];
        for difference in found.differences.iter().take(SHOWN) {
            lines.push(String::new());
            lines.extend(difference_lines(difference));
        }
        let more = found.differences.len().saturating_sub(SHOWN);
        if more > 0 {
            lines.push(format!("and {more} tensors more"));
        }
        if !found.findings.is_empty() || !found.differences.is_empty() {
            lines.push(String::new());
        }
        lines.extend(found.findings.iter().take(SHOWN).cloned());
        let more = found.findings.len().saturating_sub(SHOWN);
        if more > 0 {
            lines.push(format!("and {more} findings more"));
        }
        for part in &found.one_sided {
            lines.push(format!(
                "{} only in {}: {}",
                part.name,
                part.side,
                count(part.params)
            ));
        }
        for dtype in &found.dtypes {
            lines.push(format!(
                "dtype {} in ours, {} in theirs: {} tensors, {} elements rounded to compare; {} is the first",
                dtype.ours,
                dtype.theirs,
                count(dtype.tensors),
                count(dtype.rounded),
                dtype.first
            ));
        }
        lines.extend(found.notices.iter().map(|notice| format!("note: {notice}")));
        let (tensors, elements) = (count(found.tensors), count(found.elements));
        lines.push(format!(
            "compared {tensors} tensors, {elements} elements in {:.1} s: {}",
            self.seconds,
            if found.is_equal { "equal" } else { "different" }
        ));
        if let Some(digest) = &found.digest {
            lines.push(format!("digest {digest}"));
        }
        lines
    }
}

fn difference_lines(difference: &TensorDifference) -> [String; 2] {
    let place = [("layer", difference.layer), ("expert", difference.expert)];
    let place = place
        .into_iter()
        .filter_map(|(what, number)| Some(format!("{what} {}, ", number?)));
    let place: String = place.collect();
    let index: Vec<String> = difference.first.iter().map(u64::to_string).collect();
    let (ours, theirs) = &difference.values;
    let mut text = format!(
        "  {} of {} elements differ, first at [{}]: {ours} in ours, {theirs} in theirs",
        count(difference.elements),
        count(difference.of),
        index.join(", ")
    );
    if let (Some(ulps), Some(absolute)) = (difference.largest_ulps, difference.largest_absolute) {
        text.push_str(&format!("; at most {} ulp, {absolute:e}", count(ulps)));
    }
    if difference.nans > 0 {
        text.push_str(&format!(
            "; {} not a number on one side",
            count(difference.nans)
        ));
    }
    [
        format!("{place}{}: {}", difference.matrix, difference.tensor),
        text,
    ]
}
