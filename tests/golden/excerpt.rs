//! Excerpts of the published models are checkpoints of their own: the family plans and converts them as it does the whole.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{LocalStore, Store};
use rialto_engine::{ExportOptions, ImportPlan, Options, Summary};
use rialto_tests::excerpt::Excerpt;
use rialto_tests::published::{self, Tensor};
use rialto_tests::sparse;
use rialto_tests::weights::Weights;

use crate::world::{both_ways, export, fixture, hugging_face, import, options};

/// Config and tensors of chosen layers.
fn cut(name: &str, layers: &[u64], experts: Option<u64>) -> (Vec<u8>, Vec<Tensor>) {
    let whole = std::fs::read(fixture(name).join("config.json")).unwrap();
    let excerpt = Excerpt {
        layers: layers.to_vec(),
        experts,
        vocabulary: None,
    };
    let config = excerpt
        .config(&serde_json::from_slice(&whole).unwrap())
        .unwrap();
    let tensors = published::tensors(&config);
    (config.to_string().into_bytes(), tensors)
}

fn plan(family: &dyn Bridge, directory: &Path) -> Summary {
    let store = Arc::new(LocalStore::open(directory).unwrap());
    let plan = ImportPlan::new(family, store, &Options::default()).unwrap();
    plan.summary().clone()
}

#[test]
fn an_excerpt_of_every_release_is_planned_whole_and_says_nothing_twice() {
    let room = tempfile::tempdir().unwrap();
    for name in ["glm-5", "glm-5.1", "glm-5.2", "glm-5.2-fp8", "glm-5.3"] {
        let (config, tensors) = cut(&format!("configs/{name}"), &[0, 3, 6, 77, 78], Some(8));
        let directory = room.path().join(name);
        sparse::write_tensors(&config, &tensors, &directory).unwrap();
        both_ways(|family| {
            let summary = plan(family, &directory);
            let weights = tensors.iter().filter(|tensor| !tensor.is_scale);
            assert_eq!(summary.source.tensors, weights.count() as u64, "{name}");
            assert_eq!((summary.layers, summary.mtp_layers), (4, 1), "{name}");
            // No key contradicts another; that there are no side files is all there is to say.
            let about: Vec<&String> = summary
                .notices
                .iter()
                .filter(|notice| !notice.contains("side files"))
                .collect();
            assert!(about.is_empty(), "{name}: {about:?}");
        });
    }
}

#[test]
fn weights_of_an_excerpt_come_back_as_they_were_made() {
    let room = tempfile::tempdir().unwrap();
    let (config, tensors) = cut("glm52-tiny", &[0, 3, 6, 8], Some(4));
    let directory = room.path().join("made");
    Weights::new(7)
        .write_checkpoint(&config, &tensors, &directory)
        .unwrap();
    both_ways(|family| {
        let source: Arc<dyn Store> = Arc::new(LocalStore::open(&directory).unwrap());
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        let (found, made) = (hugging_face(&exported), hugging_face(source.as_ref()));
        assert_eq!(made.len(), tensors.len());
        let contents: BTreeSet<_> = made.values().map(|(_, _, bytes)| bytes).collect();
        assert_eq!(contents.len(), tensors.len(), "two tensors are equal");
        assert!(found == made);
    });
}
