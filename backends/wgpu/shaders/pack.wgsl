// F32 to BF16, two elements a word.
//
// Operations leave F32; a result in BF16 is rounded here, once. An invocation owns a word, so that no two write one.
//
// Units are words. params[0]: elements.
// Floor: 6 bytes an element.

#include common
#words source 1
#result packed 2

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let word = element_of(group, lane);
    let elements = params[0].x;
    let first = 2u * word;
    if (word >= end_unit()) {
        return;
    }
    var bits = bf16_bits(source_word(first));
    if (first + 1u < elements) {
        bits |= bf16_bits(source_word(first + 1u)) << 16u;
    }
    packed_put(word, bits);
}
