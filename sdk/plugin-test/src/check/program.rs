//! Whether the forward pass fits together, and the weights that it names are there.

use std::collections::HashMap;

use rialto_bridge::{Error, ForwardPass, Mapping, ProgramOptions};
use rialto_program::{ParamDecl, Program, Stored};
use rialto_tensor::Shape;
use serde_json::{Map, json};

use crate::check::answers::told;
use crate::finding::{Check, Finding, Findings};
use crate::guarded::Guarded;
use crate::reading::{Reading, readings};
use crate::subject::Subject;

/// A setting that nobody has.
const NOBODYS: &str = "rialto_nobodys_setting";

/// What a family says that has no forward pass of a model.
const NONE: &str = "bridge/no-forward-pass";

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Program);
    for fixture in &test.fixtures {
        for reading in readings(&mut findings, &test.family, fixture) {
            findings.at(reading.place.as_str());
            let asked = test
                .family
                .program(&reading.spec, &ProgramOptions::default());
            if matches!(&asked, Err(error) if error.slug() == NONE) {
                continue;
            }
            let Some(program) = findings.answer("program", asked) else {
                continue;
            };
            check_settings(&mut findings, &test.family, &reading);
            let sound = program.check().map(drop).map_err(Error::from);
            findings.answer("program", sound);
            check_codecs(&mut findings, &reading, &program);
            // A map that is not total is found where totality is.
            if let Ok(mapping) = reading.map.resolve() {
                let there = Named::of(&mapping);
                for param in &program.params {
                    there.check(&mut findings, param);
                }
            }
        }
    }
    findings.into_list()
}

fn check_settings(findings: &mut Findings, family: &Guarded, reading: &Reading) {
    let options = ProgramOptions {
        settings: Map::from_iter([(NOBODYS.to_owned(), json!("no value of anything"))]),
    };
    let (what, expected) = (
        format!("program --set {NOBODYS}"),
        "a refusal that names it",
    );
    match family.program(&reading.spec, &options) {
        Ok(_) => findings.add(what, expected, "a program"),
        Err(error) => {
            let mut said = error.findings();
            said.push(error.to_string());
            if !said.iter().any(|line| line.contains(NOBODYS)) {
                findings.add(what, expected, told(&error));
            }
        }
    }
}

fn check_codecs(findings: &mut Findings, reading: &Reading, program: &Program) {
    let known: Vec<&str> = reading
        .codecs
        .iter()
        .map(|codec| codec.name.as_str())
        .collect();
    for name in &program.block_codecs {
        if !known.contains(&name.as_str()) {
            let expected = match known.is_empty() {
                true => "none, as the family has".to_owned(),
                false => format!("one of {}", known.join(", ")),
            };
            findings.add(
                format!("block codec {name} of the program"),
                expected,
                "no codec",
            );
        }
    }
}

/// Shapes by name, of tensors and params. A name that both have means the tensor's, as it does to whoever reads weights by name.
struct Named<'a>(HashMap<&'a str, &'a Shape>);

impl<'a> Named<'a> {
    fn of(mapping: &'a Mapping) -> Named<'a> {
        let tensors = mapping.tensors().iter();
        let tensors = tensors.map(|tensor| (tensor.name.as_str(), &tensor.shape));
        let params = mapping.params().iter();
        let params = params.map(|param| (param.name.as_str(), &param.shape));
        Named(params.chain(tensors).collect())
    }

    fn check(&self, findings: &mut Findings, param: &ParamDecl) {
        let what = format!("param {} of the program", param.name);
        let shape = match (&param.stored, param.shape.split_first()) {
            (Stored::Whole(_), _) => param.shape.as_slice(),
            (Stored::Each(_), Some((&count, rest))) if count <= self.0.len() as u64 => rest,
            // More than there are names: not to be made one after the other.
            (Stored::Each(_), Some((count, _))) => {
                let expected = format!("at most {} tensors and params", self.0.len());
                findings.add(what, expected, count.to_string());
                return;
            }
            // Not sound, which has been said.
            (Stored::Each(_), None) => return,
        };
        let shape = Shape::new(shape);
        for source in param.sources() {
            let what = format!("{what}, from {source}");
            match self.0.get(source.as_str()) {
                None => findings.add(what, "a tensor or a param of the weight map", "none"),
                Some(found) if **found != shape => {
                    findings.add(what, shape.to_string(), found.to_string());
                }
                Some(_) => {}
            }
        }
    }
}
