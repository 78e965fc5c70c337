//! How much memory a value takes, as far as anybody can tell without asking the allocator.

use std::collections::BTreeMap;
use std::mem::size_of;

use crate::{Dtype, Region, Shape};

/// What an allocator hands out at least, and keeps for itself of it, in bytes: those of the C library on 64-bit machines.
const SMALLEST: u64 = 32;
const STEP: u64 = 16;
const HEAD: u64 = 8;

/// Memory that an allocation of so many bytes takes; none for none.
#[must_use]
pub fn allocated(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => (bytes + HEAD).next_multiple_of(STEP).max(SMALLEST),
    }
}

/// A value that knows what it holds beside its own `size_of`: text, extents, elements.
///
/// ```
/// use rialto_tensor::held::Held;
///
/// assert_eq!("model.norm.weight".to_owned().held_bytes(), 32);
/// assert_eq!(vec![1u64; 100].held_bytes(), 816);
/// ```
pub trait Held {
    /// The bytes that it holds elsewhere. What it shares is counted by whoever made it.
    fn held_bytes(&self) -> u64;
}

macro_rules! hold_nothing {
    ($($type:ty),*) => {
        $(impl Held for $type {
            fn held_bytes(&self) -> u64 {
                0
            }
        })*
    };
}

hold_nothing!(u8, u64, usize, Dtype);

impl Held for String {
    fn held_bytes(&self) -> u64 {
        allocated(self.len() as u64)
    }
}

impl Held for str {
    /// Of a shared text: with its two counts.
    fn held_bytes(&self) -> u64 {
        allocated((self.len() + 2 * size_of::<usize>()) as u64)
    }
}

impl<T: Held> Held for [T] {
    fn held_bytes(&self) -> u64 {
        let elements: u64 = self.iter().map(Held::held_bytes).sum();
        allocated(size_of_val(self) as u64) + elements
    }
}

impl<T: Held> Held for Vec<T> {
    fn held_bytes(&self) -> u64 {
        self.as_slice().held_bytes()
    }
}

impl<T: Held> Held for Option<T> {
    fn held_bytes(&self) -> u64 {
        self.as_ref().map_or(0, Held::held_bytes)
    }
}

impl<A: Held, B: Held> Held for (A, B) {
    fn held_bytes(&self) -> u64 {
        self.0.held_bytes() + self.1.held_bytes()
    }
}

impl<K: Held, V: Held> Held for BTreeMap<K, V> {
    /// Its nodes are filled to two thirds, as a tree's are.
    fn held_bytes(&self) -> u64 {
        let entries = self.len() * size_of::<(K, V)>() * 3 / 2;
        let held = |(key, value): (&K, &V)| key.held_bytes() + value.held_bytes();
        allocated(entries as u64) + self.iter().map(held).sum::<u64>()
    }
}

impl Held for Shape {
    fn held_bytes(&self) -> u64 {
        self.extents().held_bytes()
    }
}

impl Held for Region {
    fn held_bytes(&self) -> u64 {
        self.offsets().held_bytes() + self.sizes().held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_takes_whole_steps_and_more_than_was_asked_for() {
        for (bytes, expected) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64)] {
            assert_eq!(allocated(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn a_container_counts_its_elements_and_what_they_hold() {
        let shape = Shape::new([2, 3, 4]);
        assert_eq!(shape.held_bytes(), 32);
        assert_eq!(Region::whole(&shape).held_bytes(), 64);
        let named = vec![("a".repeat(30), shape)];
        let own = allocated(size_of::<(String, Shape)>() as u64);
        assert_eq!(named.held_bytes(), own + 48 + 32);
        assert_eq!(Some(named.clone()).held_bytes(), named.held_bytes());
        assert_eq!(None::<String>.held_bytes(), 0);
        let tree: BTreeMap<String, u64> = (0..100).map(|n| (format!("{n:030}"), n)).collect();
        assert_eq!(tree.held_bytes(), allocated(100 * 32 * 3 / 2) + 100 * 48);
    }
}
