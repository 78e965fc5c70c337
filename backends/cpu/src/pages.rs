//! Where the positions of a token's sequence lie in a cache.

use crate::operand::{Tensor, index};

/// The rows of a cache for each token of a step.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    row_seq: &'a [i32],
    row_pos: &'a [i32],
    table: &'a [i32],
    sequences: usize,
    /// Columns of the table.
    columns: usize,
    pool: usize,
    /// Positions of a page.
    page: usize,
}

impl<'a> Pages<'a> {
    /// Those of a cache `[pool, page, width]`.
    pub(crate) fn new(
        cache: &[usize],
        row_seq: Tensor<'a>,
        row_pos: Tensor<'a>,
        page_table: Tensor<'a>,
    ) -> Pages<'a> {
        let [sequences, columns] = page_table.axes();
        let [pool, page, _] = cache else {
            unreachable!("the call has a cache here");
        };
        Pages {
            row_seq: row_seq.ints(),
            row_pos: row_pos.ints(),
            table: page_table.ints(),
            sequences,
            columns,
            pool: *pool,
            page: *page,
        }
    }

    /// What a token sees. Nothing for padding: a sequence that is none, or a position that is none.
    pub(crate) fn of(&self, token: usize) -> Option<Sequence<'a>> {
        let sequence = index(self.row_seq[token], self.sequences)?;
        let position = usize::try_from(self.row_pos[token]).ok()?;
        Some(Sequence {
            table: &self.table[sequence * self.columns..][..self.columns],
            pool: self.pool,
            page: self.page,
            position,
        })
    }
}

/// A sequence up to a token.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a> {
    table: &'a [i32],
    pool: usize,
    page: usize,
    /// The token's own position.
    pub(crate) position: usize,
}

impl Sequence<'_> {
    /// How many positions the token sees that the table has a column for: its own is the last.
    pub(crate) fn positions(&self) -> usize {
        let covered = self.table.len().saturating_mul(self.page);
        self.position.saturating_add(1).min(covered)
    }

    /// The row of a position, counted over all pages. `None` if there is no page for it.
    pub(crate) fn row(&self, position: usize) -> Option<usize> {
        let column = position.checked_div(self.page)?;
        let page = index(*self.table.get(column)?, self.pool)?;
        Some(page * self.page + position % self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_lies_in_its_page_and_nowhere_without_one() {
        let sequence = |table, position| Sequence {
            table,
            pool: 5,
            page: 4,
            position,
        };
        let found = sequence(&[3, 0, -1, 5], 40);
        assert_eq!(found.positions(), 16);
        let rows = [0, 3, 4, 7, 8, 12, 16].map(|position| found.row(position));
        assert_eq!(
            rows,
            [Some(12), Some(15), Some(0), Some(3), None, None, None]
        );
        assert_eq!(sequence(&[3], 2).positions(), 3);
        let empty = Sequence { page: 0, ..found };
        assert_eq!((empty.positions(), empty.row(0)), (0, None));
    }
}
