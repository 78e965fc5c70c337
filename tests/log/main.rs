//! A plugin's log reaches the application's subscriber.
//!
//! One test in a process of its own: whether a line is logged at all is decided once a process, by the first thread that
//! comes to it. Beside tests without a subscriber that would be chance.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use rialto_bridge::{MapOptions, RawConfig};
use rialto_host::load;
use rialto_tests::built_library;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_plugins_log_arrives_at_the_hosts_subscriber() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let config = RawConfig::parse(
        br#"{"architectures": ["ToyForCausalLM"], "num_hidden_layers": 2, "hidden_size": 4,
             "intermediate_size": 8, "vocab_size": 16, "rms_norm_eps": 0.5}"#,
    );
    let plugin = load(&built_library("toy_plugin")).unwrap();
    let options = MapOptions::default();
    plugin
        .bridge()
        .map_config(&config.unwrap(), &options)
        .unwrap();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for word in [
        "DEBUG",
        "rialto::plugin",
        "plugin=\"toy\"",
        "mapping a config",
    ] {
        assert!(text.contains(word), "{text}");
    }
}
