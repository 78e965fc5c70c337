//! How the next token is chosen.

/// How the next token of a sequence is chosen; see [`Sample`](rialto_program::op::Sample).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all.
    pub top_k: u32,
    /// How much of the probability is kept; 1 for all.
    pub top_p: f32,
    /// How likely a token is at least, as a share of the likeliest; 0 for all.
    pub min_p: f32,
    /// What chance follows from, with the sequence and the position.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, always.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
    };

    /// What is wrong with it, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Some(format!(
                "temperature is {}, expected 0 or more",
                self.temperature
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(format!(
                "top-p is {}, expected more than 0 and at most 1",
                self.top_p
            ));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Some(format!("min-p is {}, expected 0 to 1", self.min_p));
        }
        None
    }

    /// Chance for one token: a number from 0 to less than 1. It follows from seed, stream and position alone, so that a token is
    /// the same whatever the batch, and however the text before it was computed.
    #[must_use]
    pub fn draw(&self, stream: u64, position: u64) -> f32 {
        let mixed = mix(mix(mix(self.seed) ^ stream) ^ position);
        // The 24 bits that an f32 holds exactly.
        (mixed >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// The finalizer of SplitMix64 over a counter: Steele, Lea and Flood 2014.
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_the_published_generator_and_even() {
        // The first output of SplitMix64 from seed 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        let sampling = Sampling {
            seed: 7,
            ..Sampling::GREEDY
        };
        let draws: Vec<f32> = (0..4096)
            .map(|position| sampling.draw(3, position))
            .collect();
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        let mean = draws.iter().sum::<f32>() / 4096.0;
        // Sixteen standard errors of a mean of even numbers.
        assert!(
            (mean - 0.5).abs() < 16.0 * (1.0 / 12.0f32).sqrt() / 64.0,
            "{mean}"
        );
        assert_ne!(sampling.draw(3, 1), sampling.draw(4, 1));
        assert_ne!(
            sampling.draw(3, 1),
            Sampling {
                seed: 8,
                ..sampling
            }
            .draw(3, 1)
        );
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let faulty = [
            Sampling {
                temperature: -1.0,
                ..Sampling::GREEDY
            },
            Sampling {
                temperature: f32::NAN,
                ..Sampling::GREEDY
            },
            Sampling {
                top_p: 0.0,
                ..Sampling::GREEDY
            },
            Sampling {
                top_p: 1.5,
                ..Sampling::GREEDY
            },
            Sampling {
                min_p: -0.1,
                ..Sampling::GREEDY
            },
        ];
        for sampling in faulty {
            assert!(sampling.fault().is_some(), "{sampling:?}");
        }
        assert_eq!(Sampling::GREEDY.fault(), None);
    }
}
