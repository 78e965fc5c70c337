//! The results that faults are planted into.

use serde_json::{Value, json};

use super::matrix::{Golden, Layers, MODELS, Model};
use super::{Conversions, of_layers};

impl Conversions<'_> {
    /// Where the results lie that faults are planted into, and what they are held against.
    pub(crate) fn places(&self) -> Value {
        let [glm52, without_mtp, glm5, glm53, _, tied, untied] = &MODELS;
        let result =
            |kind, model: &Model, number: usize| self.named(kind, model, &model.imports[number]);
        let expected = |model| self.expected(model, Layers::Default);
        json!({
            "glm5": {
                "run": result("run", glm52, 0),
                "exported": result("exported", glm52, 0),
                "fixture": glm52.goldens[0].path(),
                "source": self.fixture(glm52.source),
                "expected": expected(glm52),
                "cut_run": result("run", glm52, 1),
                "cut_fixture": glm52.goldens[1].path(),
                "ranks": self.ranks(&glm52.goldens[1]),
                "whole_run": result("run", glm52, 3),
                "padded_run": result("run", glm52, 4),
                "padded_expected": self.expected_of(glm52, &glm52.imports[4]),
                "f32_run": result("run", glm5, 2),
                "f32_exported": result("exported", glm5, 2),
                "f32_fixture": glm5.goldens[0].path(),
                "f32_source": self.fixture(glm5.source),
                "fp8_run": result("run", glm53, 0),
                "fp8_exported": result("exported", glm53, 0),
                "fp8_fixture": glm53.goldens[0].path(),
                "fp8_ranks": self.ranks(&glm53.goldens[0]),
                "fp8_source": self.fixture(glm53.source),
                "fp8_expected": expected(glm53),
                "dequantized": self.fixture(glm53.dequantized.unwrap_or_default()),
            },
            "qwen3": {
                "run": result("run", tied, 0),
                "exported": result("exported", tied, 0),
                "fixture": tied.goldens[0].path(),
                "source": self.fixture(tied.source),
                "expected": expected(tied),
                "cut_run": result("run", tied, 1),
                "cut_fixture": tied.goldens[1].path(),
                "untied_run": result("run", untied, 2),
                "untied_exported": result("exported", untied, 2),
                "untied_fixture": untied.goldens[0].path(),
                "untied_source": self.fixture(untied.source),
                "untied_expected": expected(untied),
                "by_layer_run": result("run", untied, 3),
                "by_layer_exported": result("exported", untied, 3),
                "by_layer_fixture": untied.goldens[2].path(),
                "by_layer_expected": self.expected(untied, Layers::Each),
            },
            // One of each model, and of each course.
            "courses": {
                "together": self.place_of_course(glm52, 1, "together"),
                "resumed": self.place_of_course(glm53, 2, "resumed"),
                "resumed together": self.place_of_course(tied, 1, "resumed-together"),
            },
            "parts": {
                "first": self.place_of_part(glm52, 1),
                "first and headless": self.place_of_part(without_mtp, 0),
                "first of fp8": self.place_of_part(glm53, 0),
                "by layer": self.place_of_part(untied, 3),
            },
        })
    }

    /// What an import wrote in a course, and its export.
    fn place_of_course(&self, model: &Model, number: usize, course: &str) -> Value {
        let import = &model.imports[number];
        let result =
            |kind: &str, course: &str| self.named(&format!("{kind}-{course}"), model, import);
        let mut goldens = of_layers(model, import.layers);
        let golden = goldens.clone().find(|golden| golden.mesh == import.mesh);
        let nearest = golden.or(goldens.next());
        json!({
            "family": model.family.name,
            "run": result("run", course),
            "exported": result("exported", course),
            "alone_run": result("run", "alone"),
            "alone_exported": result("exported", "alone"),
            "expected": self.expected(model, import.layers),
            "fixture": nearest.map(Golden::path),
            // Where there is no real checkpoint of this mesh, chunks follow a rule.
            "mesh": golden.is_none().then_some(import.mesh),
            "ranks": nearest.map(|golden| self.ranks(golden)),
            "source": self.fixture(model.source),
            "dequantized": model.dequantized.map(|name| self.fixture(name)),
        })
    }

    /// What was converted of an import's first part, and the whole.
    fn place_of_part(&self, model: &Model, number: usize) -> Value {
        let import = &model.imports[number];
        let part = &import.parts[0];
        let result = |kind: &str| self.named(&format!("{kind}-{}", part.name), model, import);
        let mut goldens = of_layers(model, import.layers);
        let golden = goldens.clone().find(|golden| golden.mesh == import.mesh);
        json!({
            "family": model.family.name,
            "run": result("run"),
            "exported": result("exported"),
            "whole_run": self.named("run", model, import),
            "whole_exported": self.named("exported", model, import),
            "expected": self.expected_of_part(model, import, part),
            "ranks": golden.or(goldens.next()).map(|golden| self.ranks(golden)),
            "source": self.fixture(model.source),
            "without_mtp": !model.keeps_mtp,
            "dequantized": model.dequantized.map(|name| self.fixture(name)),
            "layers": part.layers,
            "exclude": part.exclude,
        })
    }
}
