//! The values that every step brings. They lie on the device, so that a recorded step stays valid while they change.
//!
//! A step computes `tokens` of some `sequences`, in any mixture: whole prompts, pieces of prompts, single tokens. One sequence is
//! not special. A row whose sequence is -1 is padding: it reads and writes no cache, and what is computed of it means nothing.
//!
//! | name | shape | element | says |
//! |---|---|---|---|
//! | `tokens` | `[tokens]` | I32 | token ids |
//! | `row_seq` | `[tokens]` | I32 | for each token the row of the page table of its sequence, or -1 |
//! | `row_pos` | `[tokens]` | I32 | its position in the sequence, from 0; ascending for the tokens of one sequence |
//! | `page_table` | `[sequences, pages]` | I32 | for each sequence its pages in order, -1 beyond them |
//! | `rows` | `[rows]` | I32 | the tokens whose logits are wanted, as positions in `tokens` |
//!
//! Position `p` of a sequence lies in row `p % page` of the page `page_table[sequence][p / page]` of each cache.

use crate::{Dim, Element, ValueType};

/// Token ids.
pub const TOKENS: &str = "tokens";
/// Sequences of the tokens.
pub const ROW_SEQ: &str = "row_seq";
/// Positions of the tokens.
pub const ROW_POS: &str = "row_pos";
/// Pages of the sequences.
pub const PAGE_TABLE: &str = "page_table";
/// Tokens whose logits are wanted.
pub const ROWS: &str = "rows";

/// All of them.
pub const NAMES: [&str; 5] = [TOKENS, ROW_SEQ, ROW_POS, PAGE_TABLE, ROWS];

/// The type of one of them.
#[must_use]
pub fn type_of(name: &str) -> Option<ValueType> {
    let shape: &[Dim] = match name {
        TOKENS | ROW_SEQ | ROW_POS => &[Dim::Tokens],
        PAGE_TABLE => &[Dim::Sequences, Dim::Pages],
        ROWS => &[Dim::Rows],
        _ => return None,
    };
    Some(ValueType::new(Element::I32, shape.iter().copied()))
}
