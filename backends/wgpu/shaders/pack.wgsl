// F32 to BF16, two elements a word.
//
// Operations leave F32; a result in BF16 is rounded here, once. An invocation owns a word, so that no two write one.
//
// params[0]: elements.
// Floor: 6 bytes an element.

#include common
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> packed: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let word = (group.y * FOLD + group.x) * 64u + lane;
    let elements = params[0].x;
    let first = 2u * word;
    if (first >= elements) {
        return;
    }
    var bits = bf16_bits(source[first]);
    if (first + 1u < elements) {
        bits |= bf16_bits(source[first + 1u]) << 16u;
    }
    packed[word] = bits;
}
