//! The vocabulary of a model as Megatron pads it: rows of zeros that an import adds and an export leaves behind.

use rialto_bridge::{Mapping, Mesh, ModelSpec, Placement};
use rialto_checkpoint::run_config;
use rialto_checkpoint::store::Store;
use rialto_tensor::Shape;

use crate::{Error, Options};

/// The mapping with the vocabulary padded for a mesh, and a line for each length it has got.
///
/// Errors: [`rialto_bridge::Error::Unsupported`] for a family that pads nothing: it would be promised and not done.
pub(crate) fn pad(mapping: Mapping, mesh: &Mesh) -> Result<(Mapping, Vec<String>), Error> {
    if mapping.paddings().next().is_none() {
        return Err(Error::Bridge(rialto_bridge::Error::Unsupported {
            what: "a padded vocabulary".to_owned(),
            found: "a family without params that may be padded".to_owned(),
            supported: "families whose rules have a padding".to_owned(),
        }));
    }
    let mapping = mapping.padded(mesh)?;
    let mut lines = Vec::new();
    for (param, padding) in mapping.paddings() {
        let param = &mapping.params()[param];
        let line = match param.excess(padding.axis) {
            Some((filled, padded)) => format!("vocabulary padded from {filled} to {padded} rows"),
            None => {
                let filled = param.filled.extents()[padding.axis];
                format!("vocabulary of {filled} rows needs no padding on this mesh")
            }
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    Ok((mapping, lines))
}

/// Refuses a mesh that does not divide the params, and says so if a padded vocabulary would let it.
pub(crate) fn check_mesh(
    placement: &Placement,
    mapping: &Mapping,
    params: &[usize],
    options: &Options,
) -> Result<(), Error> {
    let check = |pads: bool| placement.check(divided(mapping, params, pads), &options.mesh);
    let mut result = check(options.pads_vocabulary);
    if let Err(rialto_bridge::Error::Mesh { advice, .. }) = &mut result
        && check(true).is_ok()
    {
        *advice =
            Some("`--pad-vocab` pads the vocabulary to rows that this size divides".to_owned());
    }
    Ok(result?)
}

/// What must divide of these params. What is padded for a mesh is divided by it, and leaves all other sizes valid.
pub(crate) fn divided<'a>(
    mapping: &'a Mapping,
    params: &'a [usize],
    pads: bool,
) -> impl Iterator<Item = (&'a str, &'a Shape)> {
    let params = params.iter().map(|&param| &mapping.params()[param]);
    let params = params.filter(move |param| !pads || mapping.rule(param.rule).padding.is_none());
    params.map(|param| (param.name.as_str(), &param.shape))
}

/// The names and shapes of these params, all of them.
pub(crate) fn named<'a>(
    mapping: &'a Mapping,
    params: &'a [usize],
) -> impl Iterator<Item = (&'a str, &'a Shape)> {
    divided(mapping, params, false)
}

/// Lines that name what a checkpoint holds beyond the vocabulary and what is read of it.
///
/// Errors: [`Error::Vocabulary`] if the iteration's run config names another vocabulary than the model that it is read as:
/// rows of tokens would be taken for padding.
pub(crate) fn left_out(
    mapping: &Mapping,
    spec: &ModelSpec,
    iteration: &dyn Store,
) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let mut longest = None;
    for (param, padding) in mapping.paddings() {
        let param = &mapping.params()[param];
        if let Some((kept, stored)) = param.excess(padding.axis) {
            let name = &param.name;
            lines.push(format!(
                "{name} has {stored} rows, of which {kept} are kept: the rest pads the vocabulary"
            ));
            longest.get_or_insert((name, stored));
        }
    }
    let Some((param, rows)) = longest else {
        return Ok(lines);
    };
    let config = spec.dims.vocab;
    match run_config::read_vocab_size(iteration)? {
        Some(named) if named != config => {
            return Err(Error::Vocabulary {
                place: iteration.name().to_owned(),
                param: param.clone(),
                rows,
                named,
                config,
            });
        }
        Some(_) => {}
        None => lines.push(format!(
            "only the config says that the vocabulary has {config} rows: the checkpoint names no vocab_size in {}",
            run_config::RUN_CONFIG
        )),
    }
    Ok(lines)
}
