//! Where a recorded step is cut: experts that are in host memory are chosen on the device, brought to it, and run there.

use rialto_backend::{Backend, Buffer, Recording};
use rialto_program::Dim;

use crate::Error;
use crate::experts::Experts;
use crate::experts::rounds::{Round, Rounds};

/// A call of experts of which not all have slots at once.
pub(crate) struct Cut {
    /// The layer, as [`Experts`] numbers it.
    pub(crate) layer: usize,
    /// The experts that tokens have chosen: I32 `[t, k]`.
    pub(crate) ids: Buffer,
    /// What `t` stands for.
    pub(crate) rows: Option<Dim>,
    /// The same as slots, for tokens that are run now; nobody for others.
    pub(crate) slots: Buffer,
    /// What the call makes: `[t, h]`.
    pub(crate) out: Buffer,
    /// The call, on the slots.
    pub(crate) call: Box<dyn Recording>,
}

impl Cut {
    /// Reads what was chosen, and runs it. Of `rows` rows at most, if that is known: those beyond are padding, which needs no expert.
    ///
    /// Tokens that chose more experts than there are slots go through in several rounds. Each is in one, in which the operation makes
    /// of it what it would have with all experts at hand, and a row of zeros of every other. Rows are put together here and not added
    /// up, so that not even the sign of a zero is another.
    pub(crate) fn run(
        &mut self,
        experts: &Experts,
        backend: &dyn Backend,
        rows: Option<u64>,
    ) -> Result<(), Error> {
        let chosen = read(backend, &self.ids)?;
        let chosen: Vec<i32> = chosen
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(i32::from_le_bytes)
            .collect();
        let tokens = self.ids.tensor().shape.extents()[0];
        let live = rows.unwrap_or(tokens).min(tokens) as usize;
        let k = chosen.len() / (tokens as usize).max(1);
        let mut rounds = Rounds::new(
            chosen.chunks(k.max(1)).take(live),
            experts.count(self.layer),
        );
        let mut held = experts.held(self.layer);
        let mut together: Option<Vec<u8>> = None;
        loop {
            let round = rounds.next(held.slots(), |expert| held.holds(expert));
            tracing::trace!(
                target: "rialto::runtime",
                layer = self.layer,
                tokens = round.tokens.len(),
                experts = round.experts.len(),
                "experts brought"
            );
            let slots = held.bring(&round.experts, backend)?;
            let slots = in_slots(&chosen, k, &round, &slots);
            backend.write(&self.slots, 0, &slots)?;
            self.call.replay()?;
            let is_last = rounds.is_done();
            if is_last && together.is_none() {
                return Ok(());
            }
            let made = read(backend, &self.out)?;
            let together = match &mut together {
                None => together.insert(made),
                Some(together) => {
                    let row = made.len() / tokens as usize;
                    for token in round.tokens {
                        let bytes = token * row..(token + 1) * row;
                        together[bytes.clone()].copy_from_slice(&made[bytes]);
                    }
                    together
                }
            };
            if is_last {
                return Ok(backend.write(&self.out, 0, together)?);
            }
        }
    }
}

/// What tokens of a round chose as slots, little-endian; nobody for all others.
fn in_slots(chosen: &[i32], k: usize, round: &Round, slots: &[usize]) -> Vec<u8> {
    let mut ids = vec![-1i32; chosen.len()];
    for &token in &round.tokens {
        for at in token * k..(token + 1) * k {
            let expert = u32::try_from(chosen[at]).ok();
            let place = expert.and_then(|expert| round.experts.binary_search(&expert).ok());
            if let Some(place) = place {
                ids[at] = slots[place] as i32;
            }
        }
    }
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// All of a buffer.
fn read(backend: &dyn Backend, buffer: &Buffer) -> Result<Vec<u8>, Error> {
    let length = usize::try_from(buffer.tensor().size_bytes()?).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    backend.read(buffer, 0, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stand_where_experts_stood_and_nobody_where_a_token_is_not_in_the_round() {
        let round = Round {
            tokens: vec![0, 2],
            experts: vec![1, 4, 6],
        };
        let bytes = in_slots(&[1, 6, 1, 4, 4, -1], 2, &round, &[2, 0, 1]);
        let found: Vec<i32> = bytes
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(i32::from_le_bytes)
            .collect();
        assert_eq!(found, [2, 1, -1, -1, 0, -1]);
    }
}
