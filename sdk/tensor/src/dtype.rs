//! Element types, and the names under which safetensors and PyTorch know them.

use std::fmt;
use std::str::FromStr;

use crate::Error;

macro_rules! dtypes {
    ($($variant:ident $bytes:literal $safetensors:literal $torch:literal $doc:literal;)*) => {
        /// The type of one tensor element. All multi-byte types are little-endian on disk.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = $doc] $variant,)*
        }

        impl Dtype {
            /// Every element type this version knows, in declaration order.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// Bytes of one element.
            #[must_use]
            pub const fn size_bytes(self) -> u64 {
                match self { $(Dtype::$variant => $bytes,)* }
            }

            /// The name in a safetensors header, such as `BF16`. This is also how rialto prints a dtype.
            #[must_use]
            pub const fn safetensors_name(self) -> &'static str {
                match self { $(Dtype::$variant => $safetensors,)* }
            }

            /// The attribute of the `torch` module, such as `bfloat16`.
            #[must_use]
            pub const fn torch_name(self) -> &'static str {
                match self { $(Dtype::$variant => $torch,)* }
            }

            /// Finds the dtype of a `torch` attribute such as `bfloat16`.
            #[must_use]
            pub fn from_torch_name(name: &str) -> Option<Dtype> {
                match name { $($torch => Some(Dtype::$variant),)* _ => None }
            }
        }

        impl FromStr for Dtype {
            type Err = Error;

            /// Parses a safetensors name. Errors: [`Error::UnknownDtype`].
            fn from_str(name: &str) -> Result<Dtype, Error> {
                match name {
                    $($safetensors => Ok(Dtype::$variant),)*
                    _ => Err(Error::UnknownDtype { name: name.to_owned() }),
                }
            }
        }
    };
}

dtypes! {
    Bf16 2 "BF16" "bfloat16" "bfloat16: 8 exponent bits, 7 mantissa bits.";
    F16 2 "F16" "float16" "IEEE 754 half precision.";
    F32 4 "F32" "float32" "IEEE 754 single precision.";
    F64 8 "F64" "float64" "IEEE 754 double precision.";
    F8E4m3 1 "F8_E4M3" "float8_e4m3fn" "8-bit float, 4 exponent bits, no infinity (the OCP `e4m3fn`).";
    F8E5m2 1 "F8_E5M2" "float8_e5m2" "8-bit float, 5 exponent bits.";
    F8E8m0 1 "F8_E8M0" "float8_e8m0fnu" "8-bit power of two, used as a block scale.";
    I8 1 "I8" "int8" "Signed 8-bit integer.";
    I16 2 "I16" "int16" "Signed 16-bit integer.";
    I32 4 "I32" "int32" "Signed 32-bit integer.";
    I64 8 "I64" "int64" "Signed 64-bit integer.";
    U8 1 "U8" "uint8" "Unsigned 8-bit integer.";
    U16 2 "U16" "uint16" "Unsigned 16-bit integer.";
    U32 4 "U32" "uint32" "Unsigned 32-bit integer.";
    U64 8 "U64" "uint64" "Unsigned 64-bit integer.";
    Bool 1 "BOOL" "bool" "One byte, 0 or 1.";
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.safetensors_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_dtype_again() {
        for &dtype in Dtype::ALL {
            assert_eq!(dtype.safetensors_name().parse(), Ok(dtype));
            assert_eq!(Dtype::from_torch_name(dtype.torch_name()), Some(dtype));
        }
    }

    #[test]
    fn an_unknown_name_is_named_in_the_error() {
        let error = "F4".parse::<Dtype>().unwrap_err();
        assert!(error.to_string().contains("F4"), "{error}");
    }
}
