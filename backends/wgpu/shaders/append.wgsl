// A row of a cache for each token, at its position in its sequence.
//
// An invocation has an element. Of BF16 two share a word: where rows begin on words, the invocation of the first writes both; else each
// writes its half by atomics, since its neighbor may be another token's, or nobody's, which stays as it is.
//
// Units are elements, and across the rows of the cache that are bound. params[0]: tokens, elements of a row; params[1]: the shape of pages.
// Floor: the bytes of the rows, read and written.

#include common
#include pages
#floats rows 1
#base cache 2
@group(0) @binding(2) var<storage, read_write> cache: array<atomic<u32>>;
override cache_kind: u32;
#words row_seq 3
#words row_pos 4
#words page_table 5

fn page_shape() -> vec4<u32> {
    return params[1];
}

fn page_rows() -> vec2<u32> {
    return params[11].zw;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    let width = params[0].y;
    if (index >= end_unit()) {
        return;
    }
    let token = index / width;
    let row = row_of(row_seq_word(token), row_pos_word(token));
    if (row == NOWHERE || !is_bound(row)) {
        return;
    }
    let place = row * width + index % width + cache_base();
    let bits = rows_bits(index);
    if (cache_kind == F32) {
        atomicStore(&cache[place], bits);
        return;
    }
    let half = place & 1u;
    if ((width & 1u) == 0u) {
        if (half == 0u) {
            atomicStore(&cache[place >> 1u], bf16_bits(bits) | (bf16_bits(rows_bits(index + 1u)) << 16u));
        }
        return;
    }
    // First nothing in this half, then the element: neither is felt by the other half.
    atomicAnd(&cache[place >> 1u], select(0xffff0000u, 0x0000ffffu, half == 1u));
    atomicOr(&cache[place >> 1u], bf16_bits(bits) << (16u * half));
}
