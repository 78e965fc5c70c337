//! The contract between rialto and its plugins: frozen C tables, borrowed views, status codes and the handshake.
//!
//! Floor 1 of the house: this crate imports no other crate of rialto. Only `rialto-plugin` (bridge to tables) and
//! `rialto-host` (tables to bridge) import it; an author in C implements it from `include/rialto.h` and `docs/abi.md`.
//!
//! A published table never changes, not even at its end. New ability is a new table with its own id, asked for by name
//! ([`BridgeTable::query_extension`]). Only plain parts cross: pointers, lengths, `u32` codes, and bytes that carry the
//! function which frees them ([`OwnedBytes`]).
//!
//! ```
//! use rialto_abi::{OwnedBytes, Status, code};
//!
//! let status = Status::new(code::UNSUPPORTED, b"only two layers are known".to_vec());
//! assert_eq!((status.code, status.detail.bytes()), (3, &b"only two layers are known"[..]));
//! assert!(OwnedBytes::EMPTY.bytes().is_empty());
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`decl`] | the one exported symbol, readable before anything is trusted |
//! | [`bridge_table`] | `bridge/1`: what every plugin answers |
//! | [`host_table`] | what the host lends to a plugin |
//! | [`extension`] | tables beyond the first: `dequantize/1`, `program/1` |
//! | [`status`] | how a call ended |
//! | [`owned`] | bytes that cross with the function that frees them |
//! | [`view`] | bytes, text and tensors that are lent for one call |
//! | [`layout`] | where every field stands, and whether two sides agree |
//! | [`header`] | the same for authors in C |

pub mod bridge_table;
pub mod decl;
pub mod extension;
pub mod header;
pub mod host_table;
pub mod layout;
pub mod owned;
pub mod status;
mod table;
pub mod view;

pub use bridge_table::{BridgeHandle, BridgeTable};
pub use decl::{MAGIC, PluginDecl, SYMBOL, TARGET};
pub use extension::{DEQUANTIZE, DequantizeTable, EXTENSIONS, PROGRAM, ProgramTable};
pub use host_table::{HostTable, level};
pub use owned::OwnedBytes;
pub use status::{Status, code};
pub use view::{RSlice, RSliceMut, RStr, TensorRef, dtype};
