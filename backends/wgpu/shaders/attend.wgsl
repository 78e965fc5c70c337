// A head of a token that attends to positions.
//
// The shader that includes this has `fn place_of(token: u32, at: u32) -> u32`, the row of the cache of the position that is attended to at
// this place, or NOWHERE; `query_at(head_row, column)`, `key_at(row, head, column)`, `value_at(row, head, column)`; and `#result result`.
//
// A workgroup has a head of a token, or 512 columns of its result, and goes along the positions, 128 at a time: an invocation has one of
// them for its logit, then four columns for the sum of values. What was summed is scaled wherever the largest logit grows; it begins as a
// finite number, and positions that are none have neither weight nor value. Sums go in the order of positions.
//
// Where a dispatch has only some of the positions, or some of the cache, what is summed stays in `result` from one to the next, in 516
// words for each workgroup: sums of 512 columns, the largest logit, the total, and what was seen. `attended.wgsl` makes results of it.
//
// params[3]: the first position and the end, whether it is the first dispatch, whether there are several; units are workgroups.

const LANES: u32 = 128u;
const START: f32 = -3e38;
const PIECE: u32 = 1024u;

// A piece of the query.
var<workgroup> query: array<f32, 1024>;
var<workgroup> places: array<u32, 128>;
var<workgroup> logits: array<f32, 128>;
var<workgroup> shares: array<f32, 128>;

struct Part {
    // Its token, and its number there.
    token: u32,
    head: u32,
    // Counted over all tokens.
    row: u32,
    // The first column.
    begin: u32,
}

const STATE: u32 = 516u;

fn attend(part: Part, number: u32, positions: u32, width: u32, value_width: u32, scale: f32, lane: u32) {
    var largest = START;
    var total = 0.0;
    var sums = vec4<f32>();
    // Whether there is any position, and whether a logit is none.
    var any = false;
    var spoiled = false;
    let state = (number - first_unit()) * STATE;
    if (params[3].z == 0u) {
        for (var four = 0u; four < 4u; four++) {
            sums[four] = bitcast<f32>(result_word(state + four * LANES + lane));
        }
        largest = bitcast<f32>(result_word(state + 512u));
        total = bitcast<f32>(result_word(state + 513u));
        any = result_word(state + 514u) != 0u;
        spoiled = result_word(state + 514u) == 2u;
        storageBarrier();
    }
    let end = min(positions, params[3].y);
    for (var first = params[3].x; first < end; first += LANES) {
        var place = NOWHERE;
        if (first + lane < end) {
            place = place_of(part.token, first + lane);
        }
        var sum = 0.0;
        for (var begin = 0u; begin < width; begin += PIECE) {
            let columns = min(PIECE, width - begin);
            workgroupBarrier();
            for (var column = lane; column < columns; column += LANES) {
                query[column] = query_at(part.row, begin + column);
            }
            workgroupBarrier();
            if (place != NOWHERE) {
                for (var column = 0u; column < columns; column++) {
                    sum += query[column] * key_at(place, part.head, begin + column);
                }
            }
        }
        workgroupBarrier();
        let logit = scale * sum;
        places[lane] = place;
        logits[lane] = logit;
        workgroupBarrier();

        let count = min(LANES, end - first);
        var next = largest;
        for (var at = 0u; at < count; at++) {
            if (places[at] == NOWHERE) {
                continue;
            }
            any = true;
            // Infinity above and NaN make NaN of the head; infinity below has no weight.
            let bits = bitcast<u32>(logits[at]);
            if ((bits & 0x7f800000u) == 0x7f800000u) {
                spoiled = spoiled || bits != 0xff800000u;
            } else {
                next = max(next, logits[at]);
            }
        }
        var share = 0.0;
        if (place != NOWHERE && bitcast<u32>(logit) != 0xff800000u) {
            share = exp(logit - next);
        }
        shares[lane] = share;
        workgroupBarrier();

        if (next > largest) {
            let factor = exp(largest - next);
            total *= factor;
            sums *= factor;
            largest = next;
        }
        for (var at = 0u; at < count; at++) {
            let row = places[at];
            if (row == NOWHERE) {
                continue;
            }
            let share = shares[at];
            total += share;
            for (var four = 0u; four < 4u; four++) {
                let column = part.begin + four * LANES + lane;
                if (column < value_width) {
                    sums[four] += share * value_at(row, part.head, column);
                }
            }
        }
    }
    if (params[3].w == 1u) {
        for (var four = 0u; four < 4u; four++) {
            result_put(state + four * LANES + lane, bitcast<u32>(sums[four]));
        }
        if (lane == 0u) {
            result_put(state + 512u, bitcast<u32>(largest));
            result_put(state + 513u, bitcast<u32>(total));
            result_put(state + 514u, select(select(0u, 1u, any), 2u, spoiled));
        }
        return;
    }
    for (var four = 0u; four < 4u; four++) {
        let column = part.begin + four * LANES + lane;
        if (column < value_width) {
            var bits = bitcast<u32>(sums[four] / total);
            if (spoiled || total == 0.0) {
                // Without any position 0.
                bits = select(0u, 0x7fc00000u, any);
            }
            result_put(part.row * value_width + column, bits);
        }
    }
}
