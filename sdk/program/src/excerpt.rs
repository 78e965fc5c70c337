//! A part of a phase: what lies between values that are given and values that are wanted.
//!
//! So a layer runs alone, on the input and the choices that another program recorded.

use std::collections::HashSet;

use crate::{CacheDecl, Error, ParamDecl, Phase, Program, ValueDecl, step};

impl Program {
    /// A program of one phase with the calls of `phase` that the wanted values need, if the given ones need not be computed, and the
    /// params and caches that these name. A cache is written by what the phase writes it with.
    ///
    /// Errors: [`Error::Absent`] for a phase or value that there is not; those of [`Program::check`].
    pub fn excerpt(&self, phase: &str, given: &[&str], wanted: &[&str]) -> Result<Program, Error> {
        let position = self.phases.iter().position(|known| known.name == phase);
        let whole = self.require(phase)?;
        let types = self.check()?.swap_remove(position.unwrap_or_default());
        for name in given.iter().chain(wanted) {
            if !types.contains_key(*name) {
                return Err(Error::Absent {
                    what: "value",
                    name: (*name).to_owned(),
                    known: types.into_keys().collect(),
                });
            }
        }
        let caches: HashSet<&str> = self
            .caches
            .iter()
            .map(|cache| cache.name.as_str())
            .collect();
        let mut needed: HashSet<&str> = wanted.iter().copied().collect();
        let mut calls = Vec::new();
        for call in whole.calls.iter().rev() {
            let is_given = |name: &String| given.contains(&name.as_str());
            let makes = call
                .outputs
                .iter()
                .any(|name| needed.contains(name.as_str()) && !is_given(name));
            // A call without outputs writes the cache it names.
            let writes = call.outputs.is_empty()
                && call
                    .inputs
                    .iter()
                    .any(|name| caches.contains(name.as_str()) && needed.contains(name.as_str()));
            if makes || writes {
                needed.extend(call.inputs.iter().map(String::as_str));
                let mut call = call.clone();
                for output in &mut call.outputs {
                    if is_given(output) {
                        // The other output of the call is wanted; this one gives way to what is given.
                        output.push_str(".computed");
                    }
                }
                calls.push(call);
            }
        }
        calls.reverse();
        let is_named = |name: &String| calls.iter().any(|call| call.inputs.contains(name));
        let inputs = given
            .iter()
            .map(|name| (*name).to_owned())
            .chain(
                whole
                    .inputs
                    .iter()
                    .map(|input| input.name.clone())
                    .filter(|name| !given.contains(&name.as_str())),
            )
            .filter(|name| is_named(name) && !step::NAMES.contains(&name.as_str()))
            .map(|name| ValueDecl {
                value: types[&name].clone(),
                // There is no other phase any more.
                carried: None,
                name,
            })
            .collect();
        let params: Vec<ParamDecl> = self
            .params
            .iter()
            .filter(|param| is_named(&param.name))
            .cloned()
            .collect();
        let caches: Vec<CacheDecl> = self
            .caches
            .iter()
            .filter(|cache| is_named(&cache.name))
            .cloned()
            .collect();
        let program = Program {
            params,
            caches,
            phases: vec![Phase {
                name: phase.to_owned(),
                inputs,
                calls,
                outputs: wanted.iter().map(|name| (*name).to_owned()).collect(),
                stream: Vec::new(),
            }],
            stop_tokens: self.stop_tokens.clone(),
            block_codecs: self.block_codecs.clone(),
        };
        program.check()?;
        Ok(program)
    }
}
