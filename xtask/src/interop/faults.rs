//! The results that faults are planted into.

use serde_json::json;

use super::Conversions;
use super::matrix::{Layers, MODELS, Model};

impl Conversions<'_> {
    /// Where the results lie that faults are planted into, and what they are held against.
    pub(crate) fn places(&self) -> serde_json::Value {
        let [glm52, _, glm5, glm53, _, tied, untied] = &MODELS;
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
        })
    }
}
