// Where the rows of a cache are. The shader that includes this has `fn page_shape() -> vec4<u32>`: pages of the cache, positions of a page,
// rows and columns of the page table; and
// `#words` of `row_seq`, `row_pos` and `page_table`. A part of the cache may be bound: `page_rows() -> vec2<u32>` is the first row of it and
// the end.

const NOWHERE: u32 = 0xffffffffu;

// Whether a row is in the part that is bound.
fn is_bound(row: u32) -> bool {
    return row >= page_rows().x && row < page_rows().y;
}

// The row of the cache that a position of a sequence has, or NOWHERE. Numbers that are out of range are those of nobody.
fn row_of(sequence: u32, position: u32) -> u32 {
    let shape = page_shape();
    if (sequence >= shape.z || position >= shape.w * shape.y) {
        return NOWHERE;
    }
    let page = page_table_word(sequence * shape.w + position / shape.y);
    if (page >= shape.x) {
        return NOWHERE;
    }
    return page * shape.y + position % shape.y;
}

// The same, or NOWHERE if it is not bound.
fn bound_row_of(sequence: u32, position: u32) -> u32 {
    let row = row_of(sequence, position);
    return select(NOWHERE, row, is_bound(row));
}
