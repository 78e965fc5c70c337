//! Which module records which operation.

use rialto_backend::{Error, OpCall};

use crate::NAME;
use crate::recorder::Recorder;
use crate::{attention, cache, experts, indexer, linear, norm, plain, quant, rope, router, sample};

type Record = fn(&OpCall, &mut Recorder) -> Option<Result<(), Error>>;

/// The modules, each with the names of its operations.
const MODULES: &[(&[&str], Record)] = &[
    (plain::OPS, plain::record),
    (linear::OPS, linear::record),
    (router::OPS, router::record),
    (experts::OPS, experts::record),
    (norm::OPS, norm::record),
    (rope::OPS, rope::record),
    (cache::OPS, cache::record),
    (indexer::OPS, indexer::record),
    (attention::OPS, attention::record),
    (quant::OPS, quant::record),
    (sample::OPS, sample::record),
];

/// Names of all operations that are run.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    MODULES.iter().flat_map(|(names, _)| names.iter().copied())
}

/// Records a call. Errors: [`Error::UnsupportedOp`], and what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let mut tried = MODULES
        .iter()
        .filter_map(|(_, record)| record(call, recorder));
    tried.next().unwrap_or_else(|| {
        Err(Error::UnsupportedOp {
            backend: NAME.to_owned(),
            op: call.op().name().to_owned(),
        })
    })
}
