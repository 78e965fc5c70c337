//! Whether a program is sound: every name has one meaning, every call has operands that are there and fit, every phase leaves what
//! it promises, and layers that share a selection name one that was made.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::op::Op;
use crate::{
    CacheDecl, Call, Dim, Element, Error, Fault, ParamDecl, Phase, Program, Stored, ValueType, step,
};

/// The types of all values of a phase, by name: those it is given and those it makes.
pub type PhaseTypes = BTreeMap<String, ValueType>;

/// Most tensors that the params of a program come from: a dozen times those of the largest model.
const MOST_TENSORS: u64 = 1 << 20;

/// What a name in a call stands for.
enum Known<'a> {
    Param(&'a ParamDecl),
    Cache(&'a CacheDecl),
    Value(&'a ValueType),
}

impl Known<'_> {
    fn value_type(&self) -> ValueType {
        match self {
            Known::Param(param) => ValueType::new(param.element, param.shape.iter().copied()),
            Known::Cache(cache) => {
                let shape = [Dim::Pool, Dim::Page, Dim::Size(cache.width)];
                ValueType::new(Element::Activation, shape)
            }
            Known::Value(value) => (*value).clone(),
        }
    }
}

impl Program {
    /// Checks all of it. Returns the types of the values of each phase, in order. Errors: [`Error::Unsound`] with everything that is
    /// wrong; [`Error::UnknownOp`] if that is all: an operation of a later version.
    pub fn check(&self) -> Result<Vec<PhaseTypes>, Error> {
        let mut checking = Checking {
            program: self,
            params: HashMap::new(),
            caches: HashMap::new(),
            used: HashSet::new(),
            faults: Vec::new(),
            unknown: None,
        };
        checking.declarations();
        let phases: Vec<PhaseTypes> = self
            .phases
            .iter()
            .map(|phase| checking.phase(phase))
            .collect();
        checking.carried(&phases);
        checking.unused();
        if checking.faults.is_empty() && checking.unknown.is_none() {
            // Where something else is wrong, much is left over that would not be.
            checking.left_over();
        }
        match (checking.faults, checking.unknown) {
            (faults, _) if !faults.is_empty() => Err(Error::Unsound { faults }),
            (_, Some(op)) => Err(Error::UnknownOp { op }),
            _ => Ok(phases),
        }
    }
}

struct Checking<'a> {
    program: &'a Program,
    params: HashMap<&'a str, &'a ParamDecl>,
    caches: HashMap<&'a str, &'a CacheDecl>,
    /// Params and caches that a call names.
    used: HashSet<&'a str>,
    faults: Vec<Fault>,
    unknown: Option<String>,
}

impl<'a> Checking<'a> {
    fn fault(&mut self, phase: Option<&Phase>, call: Option<(usize, &Call)>, reason: String) {
        self.faults.push(Fault {
            phase: phase.map(|phase| phase.name.clone()),
            call: call.map(|(position, call)| (position, call.op.clone())),
            reason,
        });
    }

    fn declarations(&mut self) {
        for param in &self.program.params {
            let name = param.name.as_str();
            if self.is_taken(name) || self.params.insert(name, param).is_some() {
                self.fault(None, None, format!("the name {name:?} is taken"));
            }
            if !param.element.is_float() {
                let element = param.element;
                self.fault(
                    None,
                    None,
                    format!("param {name:?} is {element}, expected F32 or activation"),
                );
            }
            match &param.stored {
                Stored::Each(stored) if stored.matches("{}").count() != 1 => {
                    let reason =
                        format!("param {name:?}: {stored:?} has no single place for a number");
                    self.fault(None, None, reason);
                }
                Stored::Each(_) if param.shape.is_empty() => {
                    self.fault(None, None, format!("param {name:?} has no leading axis"));
                }
                _ => {}
            }
        }
        let tensors = self.program.params.iter().map(|param| match param.stored {
            Stored::Whole(_) => 1,
            Stored::Each(_) => param.shape.first().copied().unwrap_or_default(),
        });
        let tensors = tensors.fold(0, u64::saturating_add);
        if tensors > MOST_TENSORS {
            let reason =
                format!("params come from {tensors} tensors, at most {MOST_TENSORS} are read");
            self.fault(None, None, reason);
        }
        for cache in &self.program.caches {
            let name = cache.name.as_str();
            if self.is_taken(name) || self.caches.insert(name, cache).is_some() {
                self.fault(None, None, format!("the name {name:?} is taken"));
            }
            if cache.width == 0 {
                self.fault(
                    None,
                    None,
                    format!("cache {name:?} has rows of no elements"),
                );
            }
        }
        let mut names = HashSet::new();
        for phase in &self.program.phases {
            if !names.insert(phase.name.as_str()) {
                self.fault(None, None, format!("there are two phases {:?}", phase.name));
            }
        }
        if self.program.phases.is_empty() {
            self.fault(None, None, "it has no phase".to_owned());
        }
    }

    /// Whether a name means something in every phase.
    fn is_taken(&self, name: &str) -> bool {
        self.params.contains_key(name)
            || self.caches.contains_key(name)
            || step::NAMES.contains(&name)
    }

    fn phase(&mut self, phase: &'a Phase) -> PhaseTypes {
        let mut values = PhaseTypes::new();
        for name in step::NAMES {
            values.extend(step::type_of(name).map(|value| (name.to_owned(), value)));
        }
        // Index lists that an indexer made, or that were given.
        let mut selections: HashSet<&str> = HashSet::new();
        for input in &phase.inputs {
            let is_new = values
                .insert(input.name.clone(), input.value.clone())
                .is_none();
            if self.is_taken(&input.name) || !is_new {
                self.fault(
                    Some(phase),
                    None,
                    format!("the name {:?} is taken", input.name),
                );
            }
            if input.value.block.is_some() {
                self.fault(
                    Some(phase),
                    None,
                    format!("input {:?} is in blocks, which only params are", input.name),
                );
            }
            selections.insert(&input.name);
        }
        for (position, call) in phase.calls.iter().enumerate() {
            let made = self.call(phase, (position, call), &values);
            for (at, output) in call.outputs.iter().enumerate() {
                if self.is_taken(output) || values.contains_key(output) {
                    let reason = format!("the name {output:?} is taken");
                    self.fault(Some(phase), Some((position, call)), reason);
                    continue;
                }
                // After a call that does not fit, what would follow from it is passed over.
                if let Some(made) = made.as_ref().and_then(|made| made.get(at)) {
                    values.insert(output.clone(), made.clone());
                }
                if call.op == "rialto.topk/1" {
                    selections.insert(output);
                }
            }
            self.selection(phase, (position, call), (&values, &selections));
        }
        let made: HashSet<&String> = phase.calls.iter().flat_map(|call| &call.outputs).collect();
        for (what, names) in [("output", &phase.outputs), ("stream", &phase.stream)] {
            for name in names.iter().filter(|name| !made.contains(name)) {
                self.fault(
                    Some(phase),
                    None,
                    format!("{what} {name:?} is made by no call"),
                );
            }
        }
        if phase.outputs.is_empty() {
            self.fault(Some(phase), None, "it leaves nothing".to_owned());
        }
        values
    }

    /// The types of what a call makes; none if it cannot be said.
    fn call(
        &mut self,
        phase: &'a Phase,
        (position, call): (usize, &'a Call),
        values: &PhaseTypes,
    ) -> Option<Vec<ValueType>> {
        let mut inputs = Vec::with_capacity(call.inputs.len());
        let mut is_cache = Vec::with_capacity(call.inputs.len());
        let mut absent = false;
        for name in &call.inputs {
            let known = if let Some(param) = self.params.get(name.as_str()) {
                self.used.insert(&param.name);
                Known::Param(param)
            } else if let Some(cache) = self.caches.get(name.as_str()) {
                self.used.insert(&cache.name);
                Known::Cache(cache)
            } else if let Some(value) = values.get(name) {
                Known::Value(value)
            } else {
                absent = true;
                // It is said once, at the call that does not fit.
                if !is_output(phase, name, position) {
                    let reason =
                        format!("{name:?} is no param, no cache, and no value made before");
                    self.fault(Some(phase), Some((position, call)), reason);
                }
                continue;
            };
            is_cache.push(matches!(known, Known::Cache(_)));
            inputs.push(known.value_type());
        }
        let op = match call.operation() {
            Ok(op) => op,
            Err(Error::UnknownOp { op }) => {
                self.unknown.get_or_insert(op);
                return None;
            }
            Err(error) => {
                self.fault(Some(phase), Some((position, call)), reason_of(error));
                return None;
            }
        };
        let expected = op.signature().outputs.len();
        if call.outputs.len() != expected {
            let found = call.outputs.len();
            self.fault(
                Some(phase),
                Some((position, call)),
                format!("{expected} outputs expected, {found} found"),
            );
        }
        if absent {
            return None;
        }
        for ((&is_cache, name), port) in
            is_cache.iter().zip(&call.inputs).zip(op.signature().inputs)
        {
            let expects = matches!(*port, "cache" | "keys" | "values");
            if is_cache != expects {
                let (is, wants) = match expects {
                    true => ("is no cache", "a cache"),
                    false => ("is a cache", "a param or a value"),
                };
                self.fault(
                    Some(phase),
                    Some((position, call)),
                    format!("{port} {name:?} {is}, expected {wants}"),
                );
                return None;
            }
        }
        match op.infer(&inputs) {
            Ok(outputs) => Some(outputs),
            Err(error) => {
                self.fault(Some(phase), Some((position, call)), reason_of(error));
                None
            }
        }
    }

    /// A layer attends to a selection: its own, or that of the layer whose value it names. Anything else, such as a list of
    /// experts, has the right type by accident.
    fn selection(
        &mut self,
        phase: &Phase,
        (position, call): (usize, &Call),
        (values, selections): (&PhaseTypes, &HashSet<&str>),
    ) {
        let Some(at) = Op::signature_of(&call.op)
            .filter(|_| call.op == "rialto.sparse_mla/1")
            .and_then(|signature| signature.input("indices"))
        else {
            return;
        };
        // A name that is nobody's is told as such.
        if let Some(name) = call.inputs.get(at)
            && values.contains_key(name)
            && !selections.contains(name.as_str())
        {
            let reason = format!(
                "indices {name:?} are no selection of an indexer that runs before this layer"
            );
            self.fault(Some(phase), Some((position, call)), reason);
        }
    }

    /// What is carried from a phase is an output of it, and of the same type.
    fn carried(&mut self, types: &[PhaseTypes]) {
        for phase in &self.program.phases {
            for input in &phase.inputs {
                let Some(carried) = &input.carried else {
                    continue;
                };
                let phases = self.program.phases.iter().zip(types);
                let of = phases.into_iter().find(|(of, _)| of.name == carried.phase);
                let found = of.filter(|(of, _)| of.outputs.contains(&carried.value));
                let (name, value) = (&input.name, &carried.value);
                let reason = match found.and_then(|(_, types)| types.get(value)) {
                    Some(found) if *found == input.value => continue,
                    Some(found) => format!(
                        "{name:?} is {}, {value:?} that it is carried from {found}",
                        input.value
                    ),
                    None => format!(
                        "{name:?} is carried from {value:?}, which phase {:?} does not leave",
                        carried.phase
                    ),
                };
                self.fault(Some(phase), None, reason);
            }
        }
    }

    /// What is made, given or kept to no end, and what is read of what nobody wrote.
    fn left_over(&mut self) {
        for phase in &self.program.phases {
            self.dangling(phase);
        }
        let calls = self.program.phases.iter().flat_map(|phase| &phase.calls);
        let written = calls.filter(|call| call.op == "rialto.append/1");
        let written: HashSet<&String> = written.flat_map(|call| &call.inputs).collect();
        for cache in &self.program.caches {
            if !written.contains(&cache.name) {
                self.fault(None, None, format!("no call writes cache {:?}", cache.name));
            }
        }
    }

    /// A call of which nothing is read, left or compared is a mistake of whoever wrote it. Of two outputs one may be.
    fn dangling(&mut self, phase: &'a Phase) {
        let read: HashSet<&String> = phase.calls.iter().flat_map(|call| &call.inputs).collect();
        let is_used = |name: &String| {
            read.contains(name) || phase.outputs.contains(name) || phase.stream.contains(name)
        };
        for (position, call) in phase.calls.iter().enumerate() {
            if !call.outputs.is_empty() && !call.outputs.iter().any(is_used) {
                let names = call.outputs.join(", ");
                let reason = format!("nothing reads {names}, and the phase does not leave it");
                self.fault(Some(phase), Some((position, call)), reason);
            }
        }
    }

    fn unused(&mut self) {
        if self.unknown.is_some() {
            return;
        }
        let params = self
            .program
            .params
            .iter()
            .map(|param| ("param", &param.name));
        let caches = self
            .program
            .caches
            .iter()
            .map(|cache| ("cache", &cache.name));
        let unused: Vec<String> = params
            .chain(caches)
            .filter(|(_, name)| !self.used.contains(name.as_str()))
            .map(|(what, name)| format!("no call names {what} {name:?}"))
            .collect();
        for reason in unused {
            self.fault(None, None, reason);
        }
    }
}

/// Whether an earlier call should have made a value.
fn is_output(phase: &Phase, name: &str, position: usize) -> bool {
    phase.calls[..position]
        .iter()
        .any(|call| call.outputs.iter().any(|output| output == name))
}

/// What is wrong, without the name of the operation, which the fault has.
fn reason_of(error: Error) -> String {
    match error {
        Error::Attributes { reason, .. } | Error::Operands { reason, .. } => reason,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
