//! man/ has a page for each command, and dist/completions what shells complete, made of the text
//! of `--help`.
//!
//! `ZEROWIRE_UPDATE_MAN=1 cargo test -p zerowire-bench --bins` writes it.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use zerowire_manual::{compare, completions, pages, warnings};

use crate::BenchCli;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn owns(name: &str) -> bool {
    name.starts_with("zerowire-bench") || name == "_zerowire-bench"
}

#[test]
fn pages_and_completions_are_made_of_the_help() {
    let wanted = pages(BenchCli::command(), &["zerowire.1"]).expect("pages");
    compare(&folder("man"), owns, &wanted).unwrap_or_else(|e| panic!("{e}"));
    let wanted = completions(BenchCli::command()).expect("text");
    compare(&folder("dist/completions"), owns, &wanted).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn man_shows_the_pages_without_a_warning() {
    match warnings(&folder("man"), owns).expect("pages") {
        Some(said) => assert_eq!(said, ""),
        None => {
            zerowire_testkit::not_run("manual pages: no man that shows pages is installed (Debian: man-db)")
        }
    }
}
