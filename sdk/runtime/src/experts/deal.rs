//! How memory for experts is dealt to the layers of a model.
//!
//! Every step goes through all layers, so that a bank which several of them share has, when a layer's turn comes again, what the
//! others needed since. So each layer has a bank of its own as soon as there is room for the experts of one token in each, the
//! first layers first, and those that are left share one. What remains is dealt evenly: chance finds an expert of a token there
//! more often the more of its layer's are there, and the first ones, which are used most, are worth more than the last.

/// A layer's experts, as dealing sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// A number that layers have in common whose experts fit into each other's slots.
    pub(crate) form: usize,
    /// How many there are.
    pub(crate) experts: u64,
    /// How many of them a token has.
    pub(crate) per_token: u64,
    /// Bytes of one.
    pub(crate) expert_bytes: u64,
}

/// A bank of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) slots: u64,
    /// The layers that use it, ascending.
    pub(crate) layers: Vec<usize>,
}

/// Deals so many bytes. Of an error the bytes are those that the experts of one token need.
pub(crate) fn deal(needs: &[Need], bytes: u64) -> Result<Vec<Share>, u64> {
    let mut shares: Vec<Share> = Vec::new();
    for (layer, need) in needs.iter().enumerate() {
        let same = |share: &&mut Share| needs[share.layers[0]].form == need.form;
        match shares.iter_mut().find(same) {
            Some(share) => {
                share.layers.push(layer);
                share.slots = share.slots.max(need.per_token);
            }
            None => shares.push(Share {
                slots: need.per_token,
                layers: vec![layer],
            }),
        }
    }
    let size = |share: &Share| {
        needs[share.layers[0]]
            .expert_bytes
            .saturating_mul(share.slots)
    };
    let least = shares.iter().map(size).fold(0, u64::saturating_add);
    let mut rest = bytes.checked_sub(least).ok_or(least)?;
    let mut own = Vec::new();
    for share in &mut shares {
        while let [layer, _, ..] = *share.layers {
            let alone = Share {
                slots: needs[layer].per_token,
                layers: vec![layer],
            };
            let Some(left) = rest.checked_sub(size(&alone)) else {
                break;
            };
            rest = left;
            own.push(alone);
            share.layers.remove(0);
        }
    }
    shares.extend(own);
    shares.sort_by_key(|share| share.layers[0]);
    let most = |share: &Share| {
        let experts = share.layers.iter().map(|&layer| needs[layer].experts);
        experts.fold(0, u64::saturating_add)
    };
    let mut is_over = false;
    while !is_over {
        is_over = true;
        for share in &mut shares {
            let bytes = needs[share.layers[0]].expert_bytes;
            if share.slots < most(share) && bytes <= rest {
                share.slots += 1;
                rest -= bytes;
                is_over = false;
            }
        }
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need {
        form: 0,
        experts: 8,
        per_token: 2,
        expert_bytes: 10,
    };

    /// Slots and layers of each bank.
    fn dealt(needs: &[Need], bytes: u64) -> Vec<(u64, Vec<usize>)> {
        let shares = deal(needs, bytes).unwrap();
        shares
            .into_iter()
            .map(|share| (share.slots, share.layers))
            .collect()
    }

    #[test]
    fn less_than_a_tokens_experts_is_refused_with_what_they_need() {
        let other = Need {
            form: 1,
            per_token: 3,
            expert_bytes: 5,
            ..NEED
        };
        for bytes in [0, 19] {
            assert_eq!(deal(&[NEED, NEED], bytes), Err(20));
            assert_eq!(deal(&[NEED, other, NEED], bytes), Err(35));
        }
        assert_eq!(deal(&[], 0), Ok(Vec::new()));
    }

    #[test]
    fn layers_share_a_bank_only_where_there_is_no_room_for_one_each() {
        let needs = [NEED; 4];
        assert_eq!(dealt(&needs, 20), [(2, vec![0, 1, 2, 3])]);
        assert_eq!(dealt(&needs, 39), [(3, vec![0, 1, 2, 3])]);
        assert_eq!(dealt(&needs, 40), [(2, vec![0]), (2, vec![1, 2, 3])]);
        assert_eq!(
            dealt(&needs, 75),
            [(3, vec![0]), (2, vec![1]), (2, vec![2, 3])]
        );
        assert_eq!(
            dealt(&needs, 80),
            [0, 1, 2, 3].map(|layer| (2, vec![layer]))
        );
    }

    #[test]
    fn what_remains_is_dealt_evenly_until_all_have_all() {
        let needs = [NEED, Need { experts: 3, ..NEED }, NEED];
        assert_eq!(
            dealt(&needs, 80),
            [(3, vec![0]), (3, vec![1]), (2, vec![2])]
        );
        assert_eq!(
            dealt(&needs, 189),
            [(8, vec![0]), (3, vec![1]), (7, vec![2])]
        );
        let all = [(8, vec![0]), (3, vec![1]), (8, vec![2])];
        assert_eq!(dealt(&needs, 190), all);
        assert_eq!(dealt(&needs, u64::MAX), all);
    }

    #[test]
    fn experts_of_another_form_have_another_bank() {
        let other = Need {
            form: 2,
            expert_bytes: 1,
            ..NEED
        };
        assert_eq!(
            dealt(&[NEED, other, NEED, other], 23),
            [(2, vec![0, 2]), (3, vec![1, 3])]
        );
    }
}
