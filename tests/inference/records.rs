//! What transformers computed.

use std::collections::BTreeMap;

use rialto_runtime::Tensor;
use rialto_tensor::{Dtype, Shape};
use rialto_tests::golden;
use safetensors::SafeTensors;

/// The tensors of a golden file, by name.
pub(crate) struct Golden(BTreeMap<String, (safetensors::Dtype, Vec<u64>, Vec<u8>)>);

impl Golden {
    pub(crate) fn open(name: &str) -> Golden {
        let bytes = std::fs::read(golden(name)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let shape = view.shape().iter().map(|&extent| extent as u64).collect();
            (name.to_owned(), (view.dtype(), shape, view.data().to_vec()))
        });
        Golden(tensors.collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Names that begin so, with the number that follows: `fp32.hidden.` gives 0, 1, 2.
    pub(crate) fn numbers(&self, prefix: &str) -> Vec<usize> {
        let names = self.0.keys().filter_map(|name| name.strip_prefix(prefix));
        let mut numbers: Vec<usize> = names.filter_map(|rest| rest.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let (dtype, shape, bytes) = self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no golden {name}"));
        let dtype = match dtype {
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::BF16 => Dtype::Bf16,
            safetensors::Dtype::I32 => Dtype::I32,
            other => panic!("{name} is {other:?}"),
        };
        Tensor::new(dtype, Shape::new(shape.clone()), bytes.clone()).unwrap()
    }

    pub(crate) fn f32s(&self, name: &str) -> Vec<f32> {
        self.tensor(name).to_f32()
    }

    /// Token ids, which are 64-bit.
    pub(crate) fn tokens(&self, name: &str) -> Vec<u32> {
        let (dtype, _, bytes) = &self.0[name];
        assert_eq!(*dtype, safetensors::Dtype::I64);
        let ids = bytes.as_chunks().0.iter();
        ids.map(|&id| u32::try_from(i64::from_le_bytes(id)).unwrap())
            .collect()
    }
}

/// Rows of a value.
pub(crate) fn rows<T>(values: &[T], count: usize) -> impl Iterator<Item = &[T]> {
    values.chunks(values.len() / count)
}
