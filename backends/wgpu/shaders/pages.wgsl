// Where the rows of a cache are. The shader that includes this has `fn page_shape() -> vec4<u32>`: pages of the cache, positions of a page,
// rows and columns of the page table; and the buffers `row_seq`, `row_pos` and `page_table`.

const NOWHERE: u32 = 0xffffffffu;

// The row of the cache that a position of a sequence has, or NOWHERE. Numbers that are out of range are those of nobody.
fn row_of(sequence: u32, position: u32) -> u32 {
    let shape = page_shape();
    if (sequence >= shape.z || position >= shape.w * shape.y) {
        return NOWHERE;
    }
    let page = page_table[sequence * shape.w + position / shape.y];
    if (page >= shape.x) {
        return NOWHERE;
    }
    return page * shape.y + position % shape.y;
}
