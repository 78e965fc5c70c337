// Chooses experts for each token, and how much of each. A workgroup has a token.
//
// Choices are compared as integers: numbers in their order, 1 for NaN, 0 for an expert whose group does not stay. An expert is chosen if
// fewer than top_k come before it, and its place is the number of chosen experts below it: each lane finds that out for its own.
//
// Units are tokens. params[0]: tokens, experts, top_k, groups; params[1]: groups that stay, whether by softmax, whether there is a bias, whether weights
// are normalized; params[2]: epsilon, scale, as the bits of an F32.
// Floor: the bytes of the logits.

#include common
#include sigmoid
#words logits 1
#words bias 2
// For each token of the dispatch: scores of experts, keys of choices, whether they are chosen, and keys of groups.
#result work 3
#result ids 4
#result weights 5

const NAN: u32 = 0x7fc00000u;
const NAN_KEY: u32 = 1u;
// The exponential of less is no normal number.
const LEAST: f32 = -87.33654;

// For the total of a softmax: the largest key, and whether there is NaN.
var<workgroup> largest: array<u32, 64>;
var<workgroup> total: f32;

// Larger for a larger number; zeros are equal.
fn key_of(bits: u32) -> u32 {
    if (is_nan(bits)) {
        return NAN_KEY;
    }
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

// The number of a key that is none of NaN.
fn number_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}

fn is_infinite(bits: u32) -> bool {
    return (bits & 0x7fffffffu) == 0x7f800000u;
}

fn sigmoid_bits(bits: u32) -> u32 {
    let x = bitcast<f32>(bits);
    if (is_nan(bits)) {
        return NAN;
    }
    if (x < LEAST) {
        return 0u;
    }
    return bitcast<u32>(sigmoid(x));
}

// The key of a group: its two best choices, added. With NaN among them it comes after all without, with two of it last.
fn group_key(begin: u32, each: u32) -> u32 {
    var first = 0u;
    var second = 0u;
    for (var i = 0u; i < each; i += 1u) {
        let key = work_word(begin + i);
        if (key > first) {
            second = first;
            first = key;
        } else if (key > second) {
            second = key;
        }
    }
    if (first == NAN_KEY) {
        return 1u;
    }
    if (second == NAN_KEY) {
        return 2u;
    }
    let sum = bitcast<u32>(number_of(first) + number_of(second));
    return max(key_of(sum), 3u);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let token = unit_of(group);
    let experts = params[0].y;
    let top_k = params[0].z;
    let groups = params[0].w;
    if (token >= end_unit()) {
        return;
    }
    let scores = (token - first_unit()) * (3u * experts + groups);
    let keys = scores + experts;
    let chosen = keys + experts;
    let of_groups = chosen + experts;
    let of_logits = token * experts;
    if (params[1].y == 1u) {
        var most = 0u;
        for (var e = lane; e < experts; e += 64u) {
            let key = key_of(logits_word(of_logits + e));
            // NaN, of which all becomes NaN, before everything.
            most = max(most, select(key, 0xffffffffu, key == NAN_KEY));
        }
        largest[lane] = most;
        workgroupBarrier();
        for (var i = 0u; i < 64u; i += 1u) {
            most = max(most, largest[i]);
        }
        let most_bits = select(bitcast<u32>(number_of(most)), NAN, most == 0xffffffffu);
        let is_none = is_nan(most_bits) || is_infinite(most_bits);
        for (var e = lane; e < experts; e += 64u) {
            let below = bitcast<f32>(logits_word(of_logits + e)) - bitcast<f32>(most_bits);
            var bits = NAN;
            if (!is_none) {
                bits = 0u;
                if (below >= LEAST) {
                    bits = bitcast<u32>(exp(below));
                }
            }
            work_put(scores + e, bits);
        }
        storageBarrier();
        if (lane == 0u) {
            var sum = 0.0;
            for (var e = 0u; e < experts; e += 1u) {
                sum += bitcast<f32>(work_word(scores + e));
            }
            total = sum;
        }
        workgroupBarrier();
        for (var e = lane; e < experts; e += 64u) {
            if (!is_none) {
                work_put(scores + e, bitcast<u32>(bitcast<f32>(work_word(scores + e)) / total));
            }
        }
    } else {
        for (var e = lane; e < experts; e += 64u) {
            work_put(scores + e, sigmoid_bits(logits_word(of_logits + e)));
        }
    }
    // Each lane goes on with the experts that it has written.
    for (var e = lane; e < experts; e += 64u) {
        var choice = work_word(scores + e);
        if (params[1].z == 1u) {
            let added = bias_word(e);
            if (is_nan(choice) || is_nan(added)) {
                choice = NAN;
            } else {
                choice = bitcast<u32>(bitcast<f32>(choice) + bitcast<f32>(added));
            }
        }
        work_put(keys + e, key_of(choice));
    }
    storageBarrier();
    if (groups > 1u) {
        let each = experts / groups;
        for (var g = lane; g < groups; g += 64u) {
            work_put(of_groups + g, group_key(keys + g * each, each));
        }
        storageBarrier();
        for (var g = lane; g < groups; g += 64u) {
            let mine = work_word(of_groups + g);
            var before = 0u;
            for (var other = 0u; other < groups; other += 1u) {
                let key = work_word(of_groups + other);
                before += u32(key > mine || (key == mine && other < g));
            }
            if (before >= params[1].x) {
                for (var i = 0u; i < each; i += 1u) {
                    work_put(keys + g * each + i, 0u);
                }
            }
        }
        storageBarrier();
    }
    for (var e = lane; e < experts; e += 64u) {
        let mine = work_word(keys + e);
        var before = 0u;
        for (var other = 0u; other < experts; other += 1u) {
            let key = work_word(keys + other);
            before += u32(key > mine || (key == mine && other < e));
        }
        work_put(chosen + e, u32(before < top_k));
    }
    storageBarrier();
    if (lane != 0u) {
        return;
    }
    // In ascending order, as the sum of weights goes.
    var count = 0u;
    var sum = 0.0;
    for (var e = 0u; e < experts; e += 1u) {
        if (work_word(chosen + e) == 1u && count < top_k) {
            ids_put(token * top_k + count, e);
            weights_put(token * top_k + count, work_word(scores + e));
            sum += bitcast<f32>(work_word(scores + e));
            count += 1u;
        }
    }
    sum += bitcast<f32>(params[2].x);
    for (var i = 0u; i < count; i += 1u) {
        var weight = bitcast<f32>(weights_word(token * top_k + i));
        if (params[1].w == 1u) {
            weight /= sum;
        }
        weights_put(token * top_k + i, bitcast<u32>(weight * bitcast<f32>(params[2].y)));
    }
}
