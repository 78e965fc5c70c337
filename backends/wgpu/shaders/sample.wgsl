// A token of each row by chance, a workgroup for each.
//
// Nothing is sorted. What is kept of the tokens in their order, the likeliest first and of equally likely ones the lower, is all from a
// last one on. That is found digit by digit, two at a time: first its likelihood, then its place among those as likely. For each digit
// the row is gone through once, and the tokens that come before are counted and summed. Sums are in one order, that of the places of
// tokens, in which a sum of more tokens is never less: every cut is where it would be if all sums had been made.
//
// Units are rows. params[0]: rows, columns, digits of a place (an even number).
// Floor: the bytes of the logits; here 15 times these and more for each cut, out of a cache.

#include common
#include order
#words logits 1
#words temperatures 2
#words top_k 3
#words top_p 4
#words min_p 5
#words draws 6
// The key of each token's likelihood: its bits and 1; 0 for what is no number. An invocation reads those that it wrote.
#result likely 7
#result tokens 8

override LANES: u32;
const ONE_BITS: u32 = 0x3f800000u;
// Digits of the largest key, that of 1.
const KEY_DIGITS: u32 = 30u;
// More tokens than there are.
const ALL: u32 = 0xffffffffu;

var<workgroup> keys: array<u32, LANES>;
var<workgroup> sums: array<vec3<f32>, LANES>;
var<workgroup> counts: array<vec3<u32>, LANES>;

// Where a cut is: key and place of the last token. Places count down, so that all that are kept are not less.
struct Last {
    key: u32,
    place: u32,
}

struct Measure {
    sum: vec3<f32>,
    count: vec3<u32>,
}

fn largest_of_all(lane: u32, key: u32) -> u32 {
    keys[lane] = key;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        if (lane < step) {
            keys[lane] = max(keys[lane], keys[lane + step]);
        }
        workgroupBarrier();
    }
    return keys[0];
}

fn is_kept(key: u32, place: u32, last: Last) -> bool {
    return key > last.key || (key == last.key && place >= last.place);
}

// What was found, and a token of what is kept, if it is up to any of three others.
fn with_token(found: Measure, row: u32, column: u32, kept: Last, key: vec3<u32>, place: vec3<u32>) -> Measure {
    let columns = params[0].y;
    if (column >= columns) {
        return found;
    }
    let of_token = likely_word((row - first_unit()) * columns + column);
    let its_place = columns - 1u - column;
    if (!is_kept(of_token, its_place, kept)) {
        return found;
    }
    let all = vec3<u32>(of_token);
    let before = (all > key) | ((all == key) & (vec3<u32>(its_place) >= place));
    return Measure(
        found.sum + select(vec3<f32>(0.0), vec3<f32>(bitcast<f32>(of_token - 1u)), before),
        found.count + select(vec3<u32>(0u), vec3<u32>(1u), before),
    );
}

// Of what is kept, that up to each of three others.
fn measure(row: u32, lane: u32, kept: Last, key: vec3<u32>, place: vec3<u32>) -> Measure {
    let columns = params[0].y;
    var found = Measure(vec3<f32>(0.0), vec3<u32>(0u));
    // Four of them, since the number of rounds is limited.
    for (var column = lane; column < columns; column += 4u * LANES) {
        found = with_token(found, row, column, kept, key, place);
        found = with_token(found, row, column + LANES, kept, key, place);
        found = with_token(found, row, column + 2u * LANES, kept, key, place);
        found = with_token(found, row, column + 3u * LANES, kept, key, place);
    }
    // Nobody reads the last result any more.
    workgroupBarrier();
    sums[lane] = found.sum;
    counts[lane] = found.count;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        if (lane < step) {
            sums[lane] += sums[lane + step];
            counts[lane] += counts[lane + step];
        }
        workgroupBarrier();
    }
    return Measure(sums[0], counts[0]);
}

// What a prefix of the tokens in their order has to have: so many tokens, and a sum that is more, or no less. All tokens are enough.
struct Goal {
    count: u32,
    all: u32,
    sum: f32,
    is_more: bool,
}

// How many of three prefixes, the largest first, reach the goal: those that do come first.
fn reached(found: Measure, goal: Goal) -> u32 {
    let enough = select(found.sum >= vec3<f32>(goal.sum), found.sum > vec3<f32>(goal.sum), vec3<bool>(goal.is_more));
    let is_all = found.count >= vec3<u32>(goal.all);
    let are = is_all | ((found.count >= vec3<u32>(goal.count)) & enough);
    return dot(select(vec3<u32>(0u), vec3<u32>(1u), are), vec3<u32>(1u));
}

// The end of the shortest prefix of what is kept that reaches the goal; all that is kept, if none does.
fn cut(row: u32, lane: u32, kept: Last, goal: Goal) -> Last {
    let steps = vec3<u32>(1u, 2u, 3u);
    var key = 0u;
    for (var digit = KEY_DIGITS; digit > 0u; digit -= 2u) {
        let tried = vec3<u32>(key) | (steps << vec3<u32>(digit - 2u));
        let found = measure(row, lane, kept, tried, vec3<u32>(0u));
        key |= reached(found, goal) << (digit - 2u);
    }
    var place = 0u;
    for (var digit = params[0].z; digit > 0u; digit -= 2u) {
        let tried = vec3<u32>(place) | (steps << vec3<u32>(digit - 2u));
        let found = measure(row, lane, kept, vec3<u32>(key), tried);
        place |= reached(found, goal) << (digit - 2u);
    }
    if (is_kept(key, place, kept)) {
        return Last(key, place);
    }
    return kept;
}

// Whether a temperature is no number or none above 0: those below it have the upper bit set.
fn is_greedy(temperature: u32) -> bool {
    return is_nan(temperature) || temperature == 0u || temperature >= 0x80000000u;
}

// The key of the likelihood of a token of which the row has the most likely.
fn likelihood(logit: u32, most: u32, temperature: u32) -> u32 {
    if (is_nan(logit)) {
        return 0u;
    }
    if (key_of(logit) == key_of(most)) {
        return ONE_BITS + 1u;
    }
    if (is_greedy(temperature) || logit == LEAST_BITS || most == INFINITY_BITS) {
        return 1u;
    }
    if (temperature == INFINITY_BITS) {
        return ONE_BITS + 1u;
    }
    // Halves, since the difference may overflow; the exponential of -104 is none in F32.
    let below = 0.5 * bitcast<f32>(most) - 0.5 * bitcast<f32>(logit);
    let by = bitcast<f32>(temperature);
    if (below / 52.0 > by) {
        return 1u;
    }
    return bitcast<u32>(clamp(exp(-2.0 * (below / by)), 0.0, 1.0)) + 1u;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    var most = 0u;
    for (var column = lane; column < columns; column += LANES) {
        let key = key_of(logits_word(row * columns + column));
        most = max(most, select(key, 0u, key == NAN_KEY));
    }
    let most_key = largest_of_all(lane, most);
    for (var column = lane; column < columns; column += LANES) {
        let logit = logits_word(row * columns + column);
        likely_put((row - first_unit()) * columns + column, likelihood(logit, bits_of_key(most_key), temperatures_word(row)));
    }
    var kept = Last(1u, 0u);
    let least = min_p_word(row);
    // Of one that is kept no other is drawn.
    let is_one = is_greedy(temperatures_word(row)) || (least > ONE_BITS && least <= INFINITY_BITS);
    if (is_one) {
        kept = cut(row, lane, kept, Goal(1u, ALL, 0.0, false));
    } else if (i32(top_k_word(row)) > 0) {
        kept = cut(row, lane, kept, Goal(top_k_word(row), ALL, 0.0, false));
    }
    let part = top_p_word(row);
    if (!is_nan(part) && (part >= 0x80000000u || part < ONE_BITS)) {
        let whole = measure(row, lane, kept, vec3<u32>(0u), vec3<u32>(0u)).sum.x;
        kept = cut(row, lane, kept, Goal(1u, ALL, bitcast<f32>(part) * whole, false));
    }
    if (least <= ONE_BITS && least + 1u > kept.key) {
        kept = Last(least + 1u, 0u);
    }
    let all = measure(row, lane, kept, vec3<u32>(0u), vec3<u32>(0u));
    let draw = draws_word(row);
    // A number of 1 or more, or none, is beyond all sums: the last.
    let is_beyond = is_nan(draw) || (draw >= ONE_BITS && draw < 0x80000000u);
    var goal = Goal(1u, all.count.x, bitcast<f32>(draw) * all.sum.x, true);
    if (is_beyond) {
        goal = Goal(all.count.x, all.count.x, 0.0, false);
    }
    let drawn = cut(row, lane, kept, goal);
    if (lane == 0u) {
        tokens_put(row, select(0xffffffffu, columns - 1u - drawn.place, most_key != 0u));
    }
}
