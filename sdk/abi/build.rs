//! Tells the crate which target triple it is built for; only build scripts know it.

fn main() {
    let target = std::env::var("TARGET").unwrap_or_default();
    // The one way to speak to cargo.
    #[allow(clippy::print_stdout, reason = "cargo reads a build script's output")]
    {
        println!("cargo::rerun-if-changed=build.rs");
        println!("cargo::rustc-env=RIALTO_TARGET={target}");
    }
}
