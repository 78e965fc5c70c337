//! Runs an operation on a device and says where it differs from its contract.

use rialto_backend::{Backend, Blocks, Buffer, Error, OpCall, Operand, Recording, TensorType};
use rialto_program::value::Dim;
use rialto_program::{Element, Op, ValueType};
use rialto_tensor::Dtype;
use rialto_tests::random::Random;

use crate::input::{Input, Maker, decode, decode_ints};
use crate::numbers::Span;
use crate::oracle::{self, Expected};

/// What a check says of a device.
pub(crate) type Verdict = Result<(), String>;

/// A call and what it is given.
pub(crate) struct Case {
    what: String,
    op: Op,
    outputs: Vec<TensorType>,
    /// Inputs of the same types, one set after the other in one recording.
    sets: Vec<Vec<Input>>,
}

impl Case {
    /// A call with two sets of inputs, made with different seeds. The maker is told which of the sets it makes.
    pub(crate) fn new(
        op: impl Into<Op>,
        activation: Dtype,
        make: impl Fn(&mut Maker, usize) -> Vec<Input>,
    ) -> Case {
        let op = op.into();
        let seed = op.name().bytes().fold(7u64, |seed, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        let set = |number: usize, attempt: u64| {
            let random = Random(seed.wrapping_mul(2 * number as u64 + 1) ^ attempt << 48);
            let mut maker = Maker { random, activation };
            make(&mut maker, number)
        };
        let case = |attempt| {
            Case::of(
                op.clone(),
                activation,
                vec![set(0, attempt), set(1, attempt)],
            )
        };
        // What is chosen by numbers that F32 does not tell apart is no test: other numbers then.
        let chooses = matches!(op, Op::Router(_) | Op::Sample(_));
        let decided = |case: &Case| {
            let mut sets = case.sets.iter();
            sets.all(|set| oracle::answer(&case.op, set, &case.outputs).doubt.is_none())
        };
        let mut attempts = (0..200).map(case);
        let found = attempts.find(|case| !chooses || decided(case));
        found.unwrap_or_else(|| panic!("no inputs that decide what {} chooses", op.name()))
    }

    /// A call with these inputs.
    pub(crate) fn of(op: impl Into<Op>, activation: Dtype, sets: Vec<Vec<Input>>) -> Case {
        let op = op.into();
        let types: Vec<ValueType> = sets[0].iter().map(Input::value_type).collect();
        let made = op.infer(&types).unwrap_or_else(|error| panic!("{error}"));
        let outputs = made.iter().map(|made| concrete(made, activation)).collect();
        let shapes: Vec<String> = types.iter().map(ToString::to_string).collect();
        let what = format!(
            "{} {} of {}",
            op.name(),
            serde_json::Value::Object(op.attributes()),
            shapes.join(", ")
        );
        for set in &sets {
            let others: Vec<ValueType> = set.iter().map(Input::value_type).collect();
            assert_eq!(others, types, "{what}: sets of inputs differ in type");
        }
        Case {
            what,
            op,
            outputs,
            sets,
        }
    }

    /// Compares what a device makes of the inputs with the oracle.
    pub(crate) fn check(&self, backend: &dyn Backend) -> Verdict {
        self.run(backend, |set| oracle::answer(&self.op, set, &self.outputs))
            .map_err(|reason| format!("{}: {reason}", self.what))
    }

    /// Compares what a device makes of the first inputs with numbers that somebody worked out by hand.
    pub(crate) fn expect(&self, backend: &dyn Backend, expected: &[Expected]) -> Verdict {
        self.expect_all(backend, expected, None)
    }

    /// The same for an input that is written, which is given by its position and its bytes after it.
    pub(crate) fn expect_written(
        &self,
        backend: &dyn Backend,
        written: (usize, Vec<u8>),
    ) -> Verdict {
        self.expect_all(backend, &[], Some(written))
    }

    fn expect_all(
        &self,
        backend: &dyn Backend,
        expected: &[Expected],
        written: Option<(usize, Vec<u8>)>,
    ) -> Verdict {
        let by_hand = |_: &[Input]| oracle::Answer {
            outputs: expected.to_vec(),
            written: written.clone(),
            doubt: None,
        };
        self.run(backend, by_hand)
            .map_err(|reason| format!("{}: {reason}", self.what))
    }

    fn run(&self, backend: &dyn Backend, answer: impl Fn(&[Input]) -> oracle::Answer) -> Verdict {
        let Some(mut run) = self.record(backend, &self.sets[0], &self.outputs)? else {
            return Ok(());
        };
        let mut before: Vec<Vec<Vec<u8>>> = Vec::new();
        // Each set once, and the first again: nothing of another replay may be left.
        for round in 0..=self.sets.len() {
            let number = round % self.sets.len();
            let set = &self.sets[number];
            let answer = answer(set);
            if let Some(doubt) = &answer.doubt {
                return Err(format!("the inputs decide nothing, choose others: {doubt}"));
            }
            let say = |reason| format!("replay {round}: {reason}");
            let found = run.replay(backend, set, round).map_err(say)?;
            let poison = Poison::of(round);
            for (position, found) in found.outputs.iter().enumerate() {
                let port = self.op.signature().outputs[position];
                let tensor = &self.outputs[position];
                compare(&answer.outputs[position], tensor, found, poison)
                    .map_err(|reason| say(format!("{port}: {reason}")))?;
            }
            for (position, found) in found.inputs.iter().enumerate() {
                let port = self.op.signature().inputs[position];
                let (expected, done) = match &answer.written {
                    Some((written, bytes)) if *written == position => (bytes, "is wrong"),
                    _ => (&set[position].bytes, "was written to"),
                };
                if let Some(at) = first_difference(expected, found) {
                    let (expected, found) = (expected.get(at), found.get(at));
                    let reason = format!(
                        "{port} {done}: byte {at} is {found:02x?}, expected {expected:02x?}"
                    );
                    return Err(say(reason));
                }
            }
            match before.get(number) {
                Some(known) => self.same(&answer, known, &found.outputs).map_err(say)?,
                None => before.push(found.outputs),
            }
        }
        Ok(())
    }

    /// Whether two replays of the same inputs made the same bits, where these mean anything.
    fn same(&self, answer: &oracle::Answer, known: &[Vec<u8>], found: &[Vec<u8>]) -> Verdict {
        for (position, (known, found)) in known.iter().zip(found).enumerate() {
            let size = self.outputs[position].dtype.size_bytes() as usize;
            let Some(at) = known
                .chunks_exact(size)
                .zip(found.chunks_exact(size))
                .enumerate()
                .position(|(at, (known, found))| {
                    known != found && !answer.outputs[position].is_any(at)
                })
            else {
                continue;
            };
            let port = self.op.signature().outputs[position];
            return Err(format!(
                "{port}: element {at} has other bits than after the same inputs before"
            ));
        }
        Ok(())
    }

    /// Compares each row of a batch with the same row alone, bit for bit; on a device that says so.
    pub(crate) fn rows_alone(&self, backend: &dyn Backend) -> Verdict {
        if !backend.capabilities().is_row_invariant {
            return Ok(());
        }
        let set = &self.sets[0];
        let by_row = oracle::by_row(&self.op, set);
        let Some(&first) = by_row.first() else {
            return Ok(());
        };
        let rows = set[first].extent(0);
        let say = |row: usize, reason: String| format!("{}: row {row} alone: {reason}", self.what);
        let Some(mut batch) = self.record(backend, set, &self.outputs)? else {
            return Ok(());
        };
        let batch = batch.replay(backend, set, 0)?;
        let answer = oracle::answer(&self.op, set, &self.outputs);
        // All rows of few, some of many.
        for row in (0..rows).step_by(rows.div_ceil(6).max(1)) {
            let mut alone = set.clone();
            for &position in &by_row {
                alone[position] = row_of(&set[position], row);
            }
            let outputs: Vec<TensorType> = self.outputs.iter().map(one_row).collect();
            let Some(mut run) = self.record(backend, &alone, &outputs)? else {
                return Ok(());
            };
            let found = run
                .replay(backend, &alone, 1)
                .map_err(|reason| say(row, reason))?;
            for (position, found) in found.outputs.iter().enumerate() {
                let begin = row * found.len();
                let of_batch = &batch.outputs[position][begin..begin + found.len()];
                let size = self.outputs[position].dtype.size_bytes() as usize;
                let elements = found.len() / size;
                let different = (0..elements).find(|&at| {
                    let of = at * size..(at + 1) * size;
                    found[of.clone()] != of_batch[of]
                        && !answer.outputs[position].is_any(row * elements + at)
                });
                if let Some(at) = different {
                    let reason = format!("element {at} has other bits than in a batch of {rows}");
                    return Err(say(row, reason));
                }
            }
        }
        Ok(())
    }

    /// A recording of the call. None if the device says that it cannot do it; then it must refuse it, too.
    fn record(
        &self,
        backend: &dyn Backend,
        set: &[Input],
        outputs: &[TensorType],
    ) -> Result<Option<Run>, String> {
        match self.recorded(backend, set, outputs) {
            Err(Fault::Refused(error))
                if error.slug() == "backend/buffer-size"
                    && self.needs_more_than_a_piece(backend, set, outputs) =>
            {
                Ok(None)
            }
            Err(Fault::Refused(error)) => Err(format!("it is refused: {error}")),
            Err(Fault::Accepted(slug)) => Err(format!(
                "it is recorded, capabilities have it refused as {slug}"
            )),
            Ok(run) => Ok(run),
        }
    }

    fn recorded(
        &self,
        backend: &dyn Backend,
        set: &[Input],
        outputs: &[TensorType],
    ) -> Result<Option<Run>, Fault> {
        let mut operands = Vec::with_capacity(set.len());
        for input in set {
            let blocks = match &input.scales {
                Some(scales) => Some(Blocks {
                    scales: backend.allocate(&TensorType::new(Dtype::F32, scales.shape.clone()))?,
                    block: scales.block,
                }),
                None => None,
            };
            operands.push(Operand {
                values: backend.allocate(&input.tensor)?,
                blocks,
            });
        }
        let made: Result<Vec<Buffer>, Error> = outputs
            .iter()
            .map(|tensor| backend.allocate(tensor))
            .collect();
        let made = made?;
        let call = OpCall::new(self.op.clone(), operands.clone(), made.clone())?;
        let recording = backend.record(vec![call]);
        let refusal = self.refusal(backend, set, outputs);
        match (recording, refusal) {
            (Ok(recording), None) => Ok(Some(Run {
                operands,
                outputs: made,
                recording,
            })),
            (Err(error), Some(slug)) if error.slug() == slug => Ok(None),
            (Err(error), _) => Err(Fault::Refused(error)),
            (Ok(_), Some(slug)) => Err(Fault::Accepted(slug)),
        }
    }

    /// Whether something that the device has to have at once is larger than it says that it may be.
    fn needs_more_than_a_piece(
        &self,
        backend: &dyn Backend,
        set: &[Input],
        outputs: &[TensorType],
    ) -> bool {
        let Some(most) = backend.capabilities().max_piece_bytes else {
            return false;
        };
        let tensors = set.iter().map(|input| &input.tensor).chain(outputs);
        let rows = tensors.map(|tensor| tensor.shape.extents().last().copied().unwrap_or(1));
        let widest = rows.max().unwrap_or_default();
        let elements = match &self.op {
            Op::MlaAbsorb(_) | Op::MlaExpand(_) => {
                let [rows, latent] = [0, 1].map(|axis| set[1].extent(axis) as u64);
                let heads = (set[0].extent(1) as u64).max(1);
                (rows / heads * latent).max(widest)
            }
            Op::QuantizeBlock(op) => {
                let rows = (set[0].extent(0) as u64).min(op.block[0]);
                (rows * widest).max(widest)
            }
            _ => widest,
        };
        4 * elements > most
    }

    /// How a device has to refuse the call, by its capabilities.
    fn refusal(
        &self,
        backend: &dyn Backend,
        set: &[Input],
        outputs: &[TensorType],
    ) -> Option<&'static str> {
        let can = backend.capabilities();
        if !can.ops.contains(self.op.name()) {
            return Some("backend/unsupported-op");
        }
        let has_bf16 = set
            .iter()
            .map(Input::dtype)
            .chain(outputs.iter().map(|tensor| tensor.dtype))
            .any(|dtype| dtype == Dtype::Bf16);
        let has_blocks = set.iter().any(|input| input.scales.is_some());
        let refused = has_bf16 && !can.activations.contains(&Dtype::Bf16)
            || has_blocks && !can.runs_block_weights;
        refused.then_some("backend/unsupported-element")
    }
}

/// Why there is no recording.
enum Fault {
    Refused(Error),
    Accepted(&'static str),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Refused(error)
    }
}

/// The type of an output in a run: extents are numbers.
fn concrete(made: &ValueType, activation: Dtype) -> TensorType {
    let dtype = match made.element {
        Element::Of(dtype) => dtype,
        Element::Activation => activation,
    };
    let extents = made.shape.iter().map(|dim| match dim {
        Dim::Size(size) => *size,
        other => panic!("{other} is no number"),
    });
    TensorType::new(dtype, extents.collect::<Vec<u64>>())
}

fn one_row(tensor: &TensorType) -> TensorType {
    let mut shape = tensor.shape.extents().to_vec();
    shape[0] = 1;
    TensorType::new(tensor.dtype, shape)
}

fn row_of(input: &Input, row: usize) -> Input {
    let size = input.bytes.len() / input.extent(0).max(1);
    Input {
        tensor: one_row(&input.tensor),
        bytes: input.bytes[row * size..(row + 1) * size].to_vec(),
        scales: None,
    }
}

/// What lies in outputs before a replay. Two patterns, as every byte is some code: in F32 and BF16 both are NaN, in I32 both negative
/// and no index.
#[derive(Clone, Copy)]
struct Poison([u8; 4]);

impl Poison {
    fn of(round: usize) -> Poison {
        match round % 2 {
            0 => Poison([0xad, 0xff, 0xad, 0xff]),
            _ => Poison([0x5b, 0xff, 0x5b, 0xff]),
        }
    }

    fn bytes(self, length: usize) -> Vec<u8> {
        self.0.iter().copied().cycle().take(length).collect()
    }
}

/// A recording with its buffers.
struct Run {
    operands: Vec<Operand>,
    outputs: Vec<Buffer>,
    recording: Box<dyn Recording>,
}

struct Found {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Run {
    fn replay(
        &mut self,
        backend: &dyn Backend,
        set: &[Input],
        round: usize,
    ) -> Result<Found, String> {
        self.try_replay(backend, set, round)
            .map_err(|error| error.to_string())
    }

    fn try_replay(
        &mut self,
        backend: &dyn Backend,
        set: &[Input],
        round: usize,
    ) -> Result<Found, Error> {
        for (operand, input) in self.operands.iter().zip(set) {
            backend.write(&operand.values, 0, &input.bytes)?;
            if let (Some(blocks), Some(scales)) = (&operand.blocks, &input.scales) {
                let bytes = crate::input::encode(Dtype::F32, &scales.values);
                backend.write(&blocks.scales, 0, &bytes)?;
            }
        }
        for output in &self.outputs {
            let bytes = Poison::of(round).bytes(output.tensor().size_bytes()? as usize);
            backend.write(output, 0, &bytes)?;
        }
        self.recording.replay()?;
        let outputs = self.outputs.iter().map(|output| read(backend, output));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let inputs = self.operands.iter();
        let inputs = inputs.map(|operand| read(backend, &operand.values));
        Ok(Found {
            inputs: inputs.collect::<Result<_, _>>()?,
            outputs,
        })
    }
}

/// All bytes of a buffer.
pub(crate) fn read(backend: &dyn Backend, buffer: &Buffer) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; buffer.tensor().size_bytes()? as usize];
    backend.read(buffer, 0, &mut bytes)?;
    Ok(bytes)
}

fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    let same = expected.iter().zip(found).take_while(|(a, b)| a == b);
    let same = same.count();
    (same < expected.len().max(found.len())).then_some(same)
}

fn compare(expected: &Expected, tensor: &TensorType, found: &[u8], poison: Poison) -> Verdict {
    let size = tensor.dtype.size_bytes() as usize;
    let poison = poison.bytes(size);
    let is_code = size == 1;
    for (at, element) in found.chunks_exact(size).enumerate() {
        if element == poison && !is_code && !expected.is_any(at) {
            return Err(format!("element {at} of {tensor} was not written"));
        }
    }
    let differs = |at: usize, found: String, expected: String| {
        Err(format!(
            "element {at} of {tensor} is {found}, expected {expected}"
        ))
    };
    match expected {
        Expected::Spans(spans) => {
            let found = decode(tensor.dtype, found);
            assert_eq!(spans.len(), found.len(), "the oracle counts otherwise");
            for (at, (span, &value)) in spans.iter().zip(&found).enumerate() {
                if !span.holds(value) {
                    let Span { low, high } = span;
                    let expected = match low == high {
                        true => format!("{low:e}"),
                        false => format!("{low:e} to {high:e}"),
                    };
                    return differs(at, format!("{value:e}"), expected);
                }
            }
        }
        Expected::Ints(expected) => {
            let found = decode_ints(found);
            assert_eq!(expected.len(), found.len(), "the oracle counts otherwise");
            for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
                if expected != found {
                    return differs(at, found.to_string(), expected.to_string());
                }
            }
        }
        Expected::Codes(expected) => {
            assert_eq!(expected.len(), found.len(), "the oracle counts otherwise");
            for (at, (&expected, &found)) in expected.iter().zip(found).enumerate() {
                // Either code of NaN is one.
                let both_nan = expected & 0x7f == 0x7f && found & 0x7f == 0x7f;
                if expected != found && !both_nan {
                    return differs(at, format!("{found:#04x}"), format!("{expected:#04x}"));
                }
            }
        }
        Expected::Bytes(expected) => {
            if let Some(byte) = first_difference(expected, found) {
                let at = byte / size;
                let of = |bytes: &[u8]| format!("{:02x?}", &bytes[at * size..(at + 1) * size]);
                assert_eq!(expected.len(), found.len(), "the oracle counts otherwise");
                return differs(at, of(found), of(expected));
            }
        }
    }
    Ok(())
}
