//! What the sources of confined processes must not have.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code runs in confined processes.
const CRATES: [&str; 8] = ["capture", "metadata", "net", "sys", "vhost", "vhost-user", "vsock", "wire"];

/// Code of tests stands in these, or in a module at the end.
const OF_TESTS: [&str; 3] = ["tests", "tests.rs", "testing"];

/// std's sleep makes a system call that is on no list (clock_nanosleep), and in rare cases only:
/// the process would end there.
#[test]
fn nobody_sleeps_by_a_call_that_is_on_no_list() {
    for name in CRATES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../zerowire-{name}/src"));
        let files = sources(&folder);
        assert!(!files.is_empty(), "{}", folder.display());
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            assert!(
                !own.contains("thread::sleep") && !own.contains("nanosleep"),
                "{}: take std::thread::park_timeout, or poll without descriptors",
                file.display()
            );
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let own = entries.filter(|path| !OF_TESTS.iter().any(|name| path.ends_with(name)));
    own.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}
