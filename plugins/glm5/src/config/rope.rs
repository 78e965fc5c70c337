//! The width that the rotary embedding turns.

use rialto_plugin::prelude::*;

/// The widths of a query's two parts: without position, and with.
///
/// The sum decides when it is there. On loading a config, some versions of transformers write `head_dim` over
/// `qk_rope_head_dim` and leave the other two alone, and releases fill `head_dim` differently; so a width that contradicts
/// the sum and equals `head_dim` is that trap and no width. A contradiction that it does not explain is refused: either
/// number could be the wrong one. No tensor is of a guessed shape in any case, because every one is held against the result.
pub(super) fn query_widths(
    config: &RawConfig,
    notices: &mut Vec<String>,
) -> Result<(u64, u64), Error> {
    let nope = config.size("qk_nope_head_dim")?;
    let width = "qk_rope_head_dim";
    let Some(sum) = config.optional_integer("qk_head_dim")? else {
        return Ok((nope, even(config, width, config.size(width)?)?));
    };
    let given = config.optional_integer(width)?;
    let by_sum = sum.checked_sub(nope).filter(|&rope| rope > 0);
    match (by_sum, given) {
        (Some(rope), None) => Ok((nope, even(config, "qk_head_dim", rope)?)),
        (Some(rope), Some(given)) if rope == given => Ok((nope, even(config, width, rope)?)),
        (Some(rope), Some(given)) if config.optional_integer("head_dim") == Ok(Some(given)) => {
            notices.push(format!(
                "config.json: qk_rope_head_dim {given} is head_dim and contradicts qk_head_dim {sum} - qk_nope_head_dim {nope}; \
                 the difference {rope} decides"
            ));
            Ok((nope, even(config, "qk_head_dim", rope)?))
        }
        (_, Some(given)) => Err(config.wrong(
            "qk_head_dim",
            &format!("qk_nope_head_dim + qk_rope_head_dim = {nope} + {given}"),
        )),
        (None, None) => {
            Err(config.wrong("qk_head_dim", &format!("more than qk_nope_head_dim {nope}")))
        }
    }
}

/// The embedding turns pairs.
fn even(config: &RawConfig, key: &str, width: u64) -> Result<u64, Error> {
    if width.is_multiple_of(2) && width <= MOST_SIZE {
        Ok(width)
    } else {
        Err(config.wrong(
            key,
            &format!("an even rotary width up to {}, not {width}", MOST_SIZE),
        ))
    }
}
