//! Which expert is in which slot of a bank.

use std::collections::HashMap;
use std::hash::Hash;

/// Slots, each with the key of what it holds. What was used longest ago makes room for what is needed now.
#[derive(Debug)]
pub(crate) struct Lru<K> {
    slots: Vec<Slot<K>>,
    slot_of: HashMap<K, usize>,
    /// Rises with each use.
    clock: u64,
    hits: u64,
    misses: u64,
}

#[derive(Clone, Debug)]
struct Slot<K> {
    key: Option<K>,
    /// When it was used last; 0 for never.
    used: u64,
}

impl<K: Copy + Eq + Hash> Lru<K> {
    pub(crate) fn new(slots: usize) -> Lru<K> {
        let empty = Slot { key: None, used: 0 };
        Lru {
            slots: vec![empty; slots],
            slot_of: HashMap::new(),
            clock: 0,
            hits: 0,
            misses: 0,
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn holds(&self, key: K) -> bool {
        self.slot_of.contains_key(&key)
    }

    /// How often a key that was needed was there, and how often it was not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// The slots of these keys, which are different ones, and not more than there are slots. `fetch` brings what is missing to the slot
    /// that it is told. All of them are there afterwards; if one cannot be fetched its slot is empty, and those before it are there.
    pub(crate) fn bring<E>(
        &mut self,
        keys: &[K],
        fetch: &mut dyn FnMut(K, usize) -> Result<(), E>,
    ) -> Result<Vec<usize>, E> {
        debug_assert!(keys.len() <= self.slots.len());
        // Used first, so that none of them makes room for another.
        for key in keys {
            self.clock += 1;
            if let Some(&slot) = self.slot_of.get(key) {
                self.slots[slot].used = self.clock;
            }
        }
        let begun = self.clock - keys.len() as u64;
        let mut found = Vec::with_capacity(keys.len());
        for (used, &key) in (begun + 1..).zip(keys) {
            if let Some(&slot) = self.slot_of.get(&key) {
                self.hits += 1;
                found.push(slot);
                continue;
            }
            self.misses += 1;
            let slot = self.longest_ago();
            // What is half written is nobody's.
            if let Some(before) = self.slots[slot].key.take() {
                self.slot_of.remove(&before);
            }
            self.slots[slot].used = 0;
            fetch(key, slot)?;
            self.slots[slot] = Slot {
                key: Some(key),
                used,
            };
            self.slot_of.insert(key, slot);
            found.push(slot);
        }
        Ok(found)
    }

    /// The slot that was used longest ago, the first of those that never were.
    fn longest_ago(&self) -> usize {
        let slots = self.slots.iter().enumerate();
        let oldest = slots.min_by_key(|(_, slot)| slot.used);
        oldest.map_or(0, |(position, _)| position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is held against the reference.
    trait Slots {
        fn bring(&mut self, keys: &[u32], memory: &mut [Option<u32>]) -> Vec<usize>;
        fn counts(&self) -> (u64, u64);
    }

    impl Slots for Lru<u32> {
        fn bring(&mut self, keys: &[u32], memory: &mut [Option<u32>]) -> Vec<usize> {
            let mut fetch = |key, slot: usize| -> Result<(), ()> {
                memory[slot] = Some(key);
                Ok(())
            };
            Lru::bring(self, keys, &mut fetch).unwrap_or_default()
        }

        fn counts(&self) -> (u64, u64) {
            Lru::counts(self)
        }
    }

    type Bring = fn(&mut Lru<u32>, &[u32], &mut [Option<u32>]) -> Vec<usize>;

    /// The same with a mistake.
    struct Faulty(Lru<u32>, Bring);

    impl Slots for Faulty {
        fn bring(&mut self, keys: &[u32], memory: &mut [Option<u32>]) -> Vec<usize> {
            self.1(&mut self.0, keys, memory)
        }

        fn counts(&self) -> (u64, u64) {
            self.0.counts()
        }
    }

    /// The simplest that can be: keys in the order of their last use.
    #[derive(Default)]
    struct Reference {
        order: Vec<u32>,
        hits: u64,
        misses: u64,
    }

    impl Reference {
        fn bring(&mut self, keys: &[u32], slots: usize) {
            for key in keys {
                match self.order.contains(key) {
                    true => self.hits += 1,
                    false => self.misses += 1,
                }
            }
            self.order.retain(|key| !keys.contains(key));
            let spare = (self.order.len() + keys.len()).saturating_sub(slots);
            self.order.drain(..spare);
            self.order.extend(keys);
        }
    }

    /// The first thing that is not as it should be.
    fn fault(slots: &mut dyn Slots, count: usize, steps: &[Vec<u32>]) -> Option<String> {
        let mut reference = Reference::default();
        let mut memory = vec![None; count];
        for (number, keys) in steps.iter().enumerate() {
            let found = slots.bring(keys, &mut memory);
            reference.bring(keys, count);
            let held: Vec<Option<u32>> = found.iter().map(|&slot| memory[slot]).collect();
            let expected: Vec<Option<u32>> = keys.iter().copied().map(Some).collect();
            if held != expected {
                return Some(format!("step {number}: {held:?} for {keys:?}"));
            }
            let mut all: Vec<u32> = memory.iter().flatten().copied().collect();
            let mut expected = reference.order.clone();
            all.sort_unstable();
            expected.sort_unstable();
            if all != expected {
                return Some(format!("step {number}: {all:?} are held, not {expected:?}"));
            }
            let counts = (reference.hits, reference.misses);
            if slots.counts() != counts {
                return Some(format!(
                    "step {number}: {:?}, not {counts:?}",
                    slots.counts()
                ));
            }
        }
        None
    }

    /// Steps of up to `most` different keys.
    fn steps(seed: u64, most: usize) -> Vec<Vec<u32>> {
        let mut state = seed;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 33) % below
        };
        let step = |_| {
            let count = next(most as u64 + 1);
            let mut keys: Vec<u32> = (0..count).map(|_| next(12) as u32).collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        (0..300).map(step).collect()
    }

    #[test]
    fn what_is_held_and_counted_is_what_the_reference_holds_and_counts() {
        for seed in 0..20 {
            for count in 1..=12 {
                let found = fault(&mut Lru::new(count), count, &steps(seed, count));
                assert_eq!(found, None, "{count} slots, seed {seed}");
            }
        }
    }

    #[test]
    fn planted_mistakes_are_seen() {
        let plants: [(&str, Bring); 4] = [
            ("a slot that keeps what it held", |lru, keys, memory| {
                let mut fetch = |key, slot: usize| -> Result<(), ()> {
                    if key % 5 != 3 || memory[slot].is_none() {
                        memory[slot] = Some(key);
                    }
                    Ok(())
                };
                lru.bring(keys, &mut fetch).unwrap()
            }),
            ("a use that is not noticed", |lru, keys, memory| {
                let before: Vec<u64> = lru.slots.iter().map(|slot| slot.used).collect();
                let held: Vec<bool> = lru
                    .slots
                    .iter()
                    .map(|slot| slot.key.is_some_and(|key| keys.contains(&key)))
                    .collect();
                let found = Slots::bring(lru, keys, memory);
                for ((slot, used), held) in lru.slots.iter_mut().zip(before).zip(held) {
                    if held {
                        slot.used = used;
                    }
                }
                found
            }),
            ("a miss that is counted twice", |lru, keys, memory| {
                lru.misses += u64::from(keys.contains(&7) && !lru.holds(7));
                Slots::bring(lru, keys, memory)
            }),
            ("two slots exchanged", |lru, keys, memory| {
                let mut found = Slots::bring(lru, keys, memory);
                found.reverse();
                found
            }),
        ];
        for (what, plant) in plants {
            let mut faulty = Faulty(Lru::new(4), plant);
            assert!(fault(&mut faulty, 4, &steps(1, 4)).is_some(), "{what}");
        }
    }

    #[test]
    fn what_could_not_be_fetched_is_fetched_the_next_time() {
        let mut lru = Lru::new(2);
        let all = lru.bring(&[1, 2], &mut |_, _| Ok::<(), ()>(()));
        assert_eq!(all, Ok(vec![0, 1]));
        let failed = lru.bring(&[2, 3], &mut |_, _| Err(()));
        assert_eq!(failed, Err(()));
        // 1 had to go for it, 2 is still there.
        assert_eq!([1, 2, 3].map(|key| lru.holds(key)), [false, true, false]);
        let mut fetched = Vec::new();
        let again = lru.bring(&[2, 3], &mut |key, slot| {
            fetched.push((key, slot));
            Ok::<(), ()>(())
        });
        assert_eq!((again, fetched), (Ok(vec![1, 0]), vec![(3, 0)]));
        assert_eq!(lru.counts(), (2, 4));
    }
}
