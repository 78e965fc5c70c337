//! Which tokens of a step go through a bank of slots together, where they chose more experts than it has slots.
//!
//! A token's experts must be there at once, since the operation adds them up and rounds once. So tokens are what is parted, and
//! each is in one round. A round begins with a token of which the least is missing, and takes further ones, always that with the
//! least missing, as long as all of their experts have slots: what is there is used before it makes room.

use std::collections::{BTreeMap, BTreeSet};

/// Tokens that have not been in a round.
pub(crate) struct Rounds {
    /// Experts of each token, ascending, without nobody.
    experts: Vec<Vec<u32>>,
    waiting: BTreeSet<usize>,
}

/// Tokens that go together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Ascending.
    pub(crate) tokens: Vec<usize>,
    /// All of their experts, ascending.
    pub(crate) experts: Vec<u32>,
}

impl Rounds {
    /// Tokens by the experts that they chose, of `count`: what is none of them is nobody.
    pub(crate) fn new<'a>(chosen: impl Iterator<Item = &'a [i32]>, count: u64) -> Rounds {
        let experts: Vec<Vec<u32>> = chosen
            .map(|ids| {
                let ids = ids.iter().filter_map(|&id| u32::try_from(id).ok());
                let set: BTreeSet<u32> = ids.filter(|&id| u64::from(id) < count).collect();
                set.into_iter().collect()
            })
            .collect();
        Rounds {
            waiting: (0..experts.len()).collect(),
            experts,
        }
    }

    /// Whether every token has been in a round.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next tokens, for so many slots, which are as many as a token has experts or more. `is_held` says which experts are there.
    pub(crate) fn next(&mut self, slots: usize, is_held: impl Fn(u32) -> bool) -> Round {
        // For each expert that is not there who waits for it, and for each token how many it waits for.
        let mut wanted_by: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut missing: Vec<usize> = vec![0; self.experts.len()];
        for &token in &self.waiting {
            for &expert in self.experts[token]
                .iter()
                .filter(|&&expert| !is_held(expert))
            {
                wanted_by.entry(expert).or_default().push(token);
                missing[token] += 1;
            }
        }
        let mut order: BTreeSet<(usize, usize)> = self
            .waiting
            .iter()
            .map(|&token| (missing[token], token))
            .collect();
        let mut round = (Vec::new(), BTreeSet::new());
        while let Some((_, token)) = order.pop_first() {
            let (tokens, experts) = &mut round;
            let of_token = &self.experts[token];
            let more: Vec<u32> = of_token
                .iter()
                .copied()
                .filter(|expert| !experts.contains(expert))
                .collect();
            // The round only grows: what does not fit now will not.
            if experts.len() + more.len() > slots {
                continue;
            }
            tokens.push(token);
            for expert in more {
                experts.insert(expert);
                for other in wanted_by.remove(&expert).unwrap_or_default() {
                    if order.remove(&(missing[other], other)) {
                        order.insert((missing[other] - 1, other));
                    }
                    missing[other] -= 1;
                }
            }
        }
        let (mut tokens, experts) = round;
        tokens.sort_unstable();
        for token in &tokens {
            self.waiting.remove(token);
        }
        Round {
            tokens,
            experts: experts.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(chosen: &[[i32; 2]], count: u64) -> Rounds {
        Rounds::new(chosen.iter().map(<[i32; 2]>::as_slice), count)
    }

    #[test]
    fn tokens_whose_experts_all_have_slots_are_one_round() {
        let mut rounds = rounds(&[[0, 3], [3, 1], [0, 1]], 8);
        let round = rounds.next(3, |_| false);
        assert_eq!(
            (round.tokens, round.experts),
            (vec![0, 1, 2], vec![0, 1, 3])
        );
        assert!(rounds.is_done());
    }

    #[test]
    fn a_round_begins_with_what_is_there_and_takes_who_needs_the_least_more() {
        let mut rounds = rounds(&[[0, 1], [6, 7], [1, 2], [5, 6], [2, 3]], 8);
        let held = |expert| [5, 6].contains(&expert);
        let round = rounds.next(3, held);
        assert_eq!((round.tokens, round.experts), (vec![1, 3], vec![5, 6, 7]));
        let round = rounds.next(3, |expert| (5..8).contains(&expert));
        assert_eq!((round.tokens, round.experts), (vec![0, 2], vec![0, 1, 2]));
        let round = rounds.next(3, |expert| expert < 3);
        assert_eq!((round.tokens, round.experts), (vec![4], vec![2, 3]));
        assert!(rounds.is_done());
    }

    #[test]
    fn nobody_needs_no_slot() {
        let mut rounds = rounds(&[[-1, -1], [9, -5], [2, -1]], 9);
        let round = rounds.next(1, |_| false);
        assert_eq!((round.tokens, round.experts), (vec![0, 1, 2], vec![2]));
        let mut none = super::Rounds::new(std::iter::empty(), 9);
        assert!(none.is_done());
        assert_eq!(none.next(1, |_| false).tokens, [] as [usize; 0]);
    }

    proptest::proptest! {
        /// Whatever is chosen and held, each token is in one round, whose experts are those of its tokens and have slots.
        #[test]
        fn each_token_is_in_one_round(
            chosen in proptest::collection::vec(proptest::array::uniform3(-2i32..10), 0..40),
            slots in 3usize..10,
            held in proptest::collection::hash_set(0u32..9, 0..9),
        ) {
            let count = 9;
            let mut rounds = Rounds::new(chosen.iter().map(<[i32; 3]>::as_slice), count);
            let mut seen = vec![0; chosen.len()];
            while !rounds.is_done() {
                let round = rounds.next(slots, |expert| held.contains(&expert));
                proptest::prop_assert!(!round.tokens.is_empty() && round.experts.len() <= slots);
                let mut experts = BTreeSet::new();
                for &token in &round.tokens {
                    seen[token] += 1;
                    experts.extend(chosen[token].iter().filter(|id| (0..9).contains(*id)).map(|&id| id as u32));
                }
                proptest::prop_assert_eq!(experts.into_iter().collect::<Vec<_>>(), round.experts);
            }
            proptest::prop_assert!(seen.iter().all(|&seen| seen == 1));
        }
    }
}
