//! What the sources of confined processes must not have.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code runs in confined processes.
const CRATES: [&str; 8] = ["capture", "metadata", "net", "sys", "vhost", "vhost-user", "vsock", "wire"];

/// Code of tests stands in these, or in a module at the end.
const OF_TESTS: [&str; 3] = ["tests", "tests.rs", "testing"];

/// Functions whose system calls are on no list (clock_nanosleep, recvfrom, sendto, poll, lseek).
/// Some are called in rare cases only: the process would end there.
const FORBIDDEN: [&str; 8] = [
    "thread::sleep",
    "nanosleep",
    "net::recv(",
    "net::send(",
    "libc::recv(",
    "libc::send(",
    "libc::poll(",
    "fs::seek",
];

/// Runs in the supervisor: it empties packet sockets that it hands to children.
const OF_THE_SUPERVISOR: &str = "port/packet/handed.rs";

#[test]
fn no_source_of_confined_processes_has_a_call_that_is_on_no_list() {
    for name in CRATES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../zerowire-{name}/src"));
        let files = sources(&folder);
        assert!(!files.is_empty(), "{}", folder.display());
        for file in files.iter().filter(|file| !file.ends_with(OF_THE_SUPERVISOR)) {
            let text = fs::read_to_string(file).expect("a source");
            let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let found: Vec<_> = FORBIDDEN.iter().filter(|word| own.contains(**word)).collect();
            assert!(
                found.is_empty(),
                "{}: {found:?}: take std::thread::park_timeout, rustix's poll, recvmsg, sendmsg",
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
