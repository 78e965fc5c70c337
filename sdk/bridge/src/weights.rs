//! Weights by name, for whoever runs a model: a checkpoint of either format gives them, and so may an application that has them
//! elsewhere.

use rialto_tensor::{Dtype, Shape};

/// What is known of a weight before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Its elements, decoded.
    pub dtype: Dtype,
    /// Its extents.
    pub shape: Shape,
    /// How it is stored, if that is as codes with one scale for each block.
    pub encoded: Option<EncodedInfo>,
}

/// A matrix stored as E4M3 codes with one F32 scale for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedInfo {
    /// The family's codec, which says what codes and scales stand for.
    pub codec: String,
    /// Rows and columns of a block.
    pub block: [u64; 2],
}

/// Codes and scales of a weight, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    /// E4M3, dense and row-major.
    pub codes: Vec<u8>,
    /// F32, little-endian: one for each block.
    pub scales: Vec<u8>,
}

/// Where weights come from. Names are those of tensors or of params of the weight map, whatever the format: the mapping joins
/// them.
pub trait WeightSource {
    /// What reading says.
    type Error;

    /// What a name stands for, if it is a weight's.
    fn info(&self, name: &str) -> Option<WeightInfo>;

    /// The elements of a weight, decoded: dense, row-major, little-endian, as many bytes as its type and shape need. Of a name that
    /// [`WeightSource::info`] knows.
    fn read(&self, name: &str) -> Result<Vec<u8>, Self::Error>;

    /// Codes and scales of a weight, of which [`WeightInfo::encoded`] says that there are some: a code for each element, and a scale
    /// for each block.
    fn read_codes(&self, name: &str) -> Result<Codes, Self::Error>;
}
