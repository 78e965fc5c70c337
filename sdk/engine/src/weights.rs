//! A checkpoint's weights by name, for whoever runs the model: of either format, under the names of either side.

use std::collections::HashMap;

use rialto_bridge::{
    Bridge, Codec, Codes, EncodedInfo, ModelSpec, Piece, RawConfig, WeightInfo, WeightSource,
};
use rialto_tensor::{Dtype, Region, Shape};

use crate::array::{Array, Scratch, Values, usize_range};
use crate::assemble::Buffers;
use crate::runs::runs;
use crate::{Contents, Error, Progress, VerifySource};

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// A tensor of the mapping.
    Tensor(usize),
    /// A param of the mapping.
    Param(usize),
}

/// The weights of a checkpoint of either format.
///
/// ```no_run
/// use std::sync::Arc;
/// use rialto_bridge::{Bridge, WeightSource};
/// use rialto_checkpoint::store::LocalStore;
/// use rialto_engine::{VerifySource, Weights};
///
/// fn embedding(family: &dyn Bridge) -> Result<Vec<u8>, rialto_engine::Error> {
///     let source = VerifySource::open(Arc::new(LocalStore::open("glm-5.2")?))?;
///     let config = source.config().expect("a Hugging Face directory has one");
///     let weights = Weights::new(&source, config, family)?;
///     // The same bytes from an import of it, and under the param's name.
///     weights.read("model.embed_tokens.weight")
/// }
/// ```
pub struct Weights<'a> {
    contents: Contents<'a>,
    names: HashMap<String, Side>,
    /// For each tensor, the positions of its pieces in the mapping of the rules' own spelling.
    pieces: Vec<Vec<usize>>,
}

impl<'a> Weights<'a> {
    /// What a family says the checkpoint holds, by the config given, if all of it is there.
    ///
    /// Errors: those of [`Contents::new`]; [`rialto_bridge::Error::NotTotal`] with everything that is missing or superfluous.
    pub fn new(
        source: &'a VerifySource,
        config: &RawConfig,
        family: &'a dyn Bridge,
    ) -> Result<Weights<'a>, Error> {
        let mut contents = Contents::new(source, config, family)?;
        let violations = std::mem::take(&mut contents.violations);
        if !violations.is_empty() {
            return Err(Error::Bridge(rialto_bridge::Error::NotTotal {
                violations,
                advice: None,
            }));
        }
        let mapping = contents.own_mapping();
        let tensors = mapping.tensors().iter().enumerate();
        let tensors = tensors.map(|(at, tensor)| (tensor.name.clone(), Side::Tensor(at)));
        let params = mapping.params().iter().enumerate();
        let params = params.map(|(at, param)| (param.name.clone(), Side::Param(at)));
        // A name that both sides have means the tensor's: params come first and give way.
        let names = params.chain(tensors).collect();
        let mut pieces = vec![Vec::new(); mapping.tensors().len()];
        for (position, piece) in mapping.pieces().iter().enumerate() {
            pieces[piece.tensor].push(position);
        }
        Ok(Weights {
            contents,
            names,
            pieces,
        })
    }

    /// Refuses tensors that are there once more with other bits, such as a head that the config says is the embedding. It reads both.
    ///
    /// Errors: [`Error::Copy`]; what reading says; [`Error::Cancelled`].
    pub fn check_copies(&self, progress: &dyn Progress) -> Result<(), Error> {
        self.contents.check_copies(progress)
    }

    /// Tensors that the checkpoint holds and none of these names stands for, neither as a tensor nor as a part of a param.
    #[must_use]
    pub fn unnamed(&self, names: &[String]) -> Vec<&str> {
        let mapping = self.contents.own_mapping();
        let mut is_named = vec![false; mapping.tensors().len()];
        for name in names {
            match self.side(name) {
                Some(Side::Tensor(at)) => is_named[at] = true,
                Some(Side::Param(at)) => {
                    let pieces = mapping.pieces().iter().filter(|piece| piece.param == at);
                    pieces.for_each(|piece| is_named[piece.tensor] = true);
                }
                None => {}
            }
        }
        let tensors = mapping.tensors().iter().zip(is_named);
        let unnamed =
            tensors.filter(|(tensor, is_named)| !is_named && self.info(&tensor.name).is_some());
        unnamed.map(|(tensor, _)| tensor.name.as_str()).collect()
    }

    /// The model.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        let spec = self.contents.spec();
        spec.expect("contents that a family reads have its model")
    }

    /// What the user should know about the checkpoint.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.contents.notices
    }

    /// Compares recorded checksums of what was read only in part. Errors: those of [`fn@crate::audit`].
    pub fn finish(&self, progress: &dyn Progress) -> Result<(), Error> {
        self.contents.finish_checks(progress)
    }

    fn side(&self, name: &str) -> Option<Side> {
        self.names.get(name).copied()
    }

    fn shape(&self, side: Side) -> &Shape {
        let mapping = self.contents.own_mapping();
        match side {
            Side::Tensor(at) => &mapping.tensors()[at].shape,
            Side::Param(at) => &mapping.params()[at].shape,
        }
    }

    /// The rectangles that something is made of: of itself, and of the param that has them.
    fn rectangles(&self, side: Side) -> Vec<(Region, usize, Region)> {
        match side {
            Side::Param(at) => {
                let whole = Region::whole(self.shape(side));
                vec![(whole.clone(), at, whole)]
            }
            Side::Tensor(at) => {
                let pieces = self.contents.own_mapping().pieces();
                let of = |position: &usize| {
                    let piece: &Piece = &pieces[*position];
                    (
                        piece.tensor_region.clone(),
                        piece.param,
                        piece.param_region.clone(),
                    )
                };
                self.pieces[at].iter().map(of).collect()
            }
        }
    }

    /// The dtype of all of it, decoded: the widest, if parts of it differ.
    fn dtype(&self, side: Side) -> Option<Dtype> {
        let rectangles = self.rectangles(side).into_iter();
        let dtypes = rectangles.flat_map(|(_, param, region)| self.contents.dtypes(param, &region));
        dtypes.max_by_key(|dtype| dtype.size_bytes())
    }

    /// The codec of a tensor that is stored as E4M3 codes with one F32 scale for each block, and both.
    fn codes(&self, side: Side) -> Option<(&Codec, [u64; 2], Array<'_>, Array<'_>)> {
        let Side::Tensor(at) = side else {
            return None;
        };
        let (codec, arrays) = self.contents.encoded(at)?;
        let [codes, scales]: [Array<'_>; 2] = arrays.try_into().ok()?;
        let block: [u64; 2] = codec.block.as_slice().try_into().ok()?;
        let is_block = codes.dtype == Dtype::F8E4m3
            && scales.dtype == Dtype::F32
            && codec.decoded == Dtype::Bf16
            && codec
                .companions
                .iter()
                .all(|companion| companion.block == block)
            && !block.contains(&0);
        is_block.then_some((codec, block, codes, scales))
    }
}

/// All of an array, dense.
fn whole(array: &Array<'_>) -> Result<Vec<u8>, Error> {
    let region = match array.extents.as_slice() {
        [extent] => extent.region.clone(),
        _ => unreachable!("a tensor of a shard is one extent"),
    };
    let shape = region.shape();
    let mut bytes = vec![0; usize_range(0, shape.size_bytes(array.dtype)?).end];
    array.read(
        &region,
        &region,
        &shape,
        &mut bytes,
        &mut Scratch::default(),
    )?;
    Ok(bytes)
}

impl WeightSource for Weights<'_> {
    type Error = Error;

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let side = self.side(name)?;
        let encoded = self.codes(side).map(|(codec, block, ..)| EncodedInfo {
            codec: codec.name.clone(),
            block,
        });
        Some(WeightInfo {
            dtype: self.dtype(side)?,
            shape: self.shape(side).clone(),
            encoded,
        })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let Some((side, dtype)) = self
            .side(name)
            .and_then(|side| Some((side, self.dtype(side)?)))
        else {
            return Err(Error::NoWeight {
                name: name.to_owned(),
                place: self.contents.source().name().to_owned(),
            });
        };
        let shape = self.shape(side);
        let width = dtype.size_bytes();
        let mut bytes = vec![0; usize_range(0, shape.size_bytes(dtype)?).end];
        let mut buffers = Buffers::default();
        for (region, param, of_param) in self.rectangles(side) {
            let parts = self.contents.values(param, &of_param, true)?;
            let mut filled = buffers.fill(&of_param, dtype, &parts, 0)?;
            for (at, length) in runs(&region, shape) {
                let (run, rest) = filled.split_at(usize_range(0, length * width).end);
                bytes[usize_range(at * width, length * width)].copy_from_slice(run);
                filled = rest;
            }
        }
        Ok(bytes)
    }

    fn read_codes(&self, name: &str) -> Result<Codes, Error> {
        let Some((_, _, codes, scales)) = self.side(name).and_then(|side| self.codes(side)) else {
            return Err(Error::NoWeight {
                name: format!("{name} in blocks"),
                place: self.contents.source().name().to_owned(),
            });
        };
        Ok(Codes {
            codes: whole(&codes)?,
            scales: whole(&scales)?,
        })
    }
}
