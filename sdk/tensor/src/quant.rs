//! Reference dequantization: from codes and scales to the values they stand for.
//!
//! | module | scales |
//! |---|---|
//! | [`block`] | one for each block of a matrix |

pub mod block;
