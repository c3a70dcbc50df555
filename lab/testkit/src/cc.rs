//! The C library that the tests take.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The static library that cargo built with this test. In its folder there may be older ones, too,
/// whose names have other hashes.
pub fn static_library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let deps = test.parent().expect("a folder").read_dir().expect("a folder").map(|e| e.expect("an entry"));
    deps.filter(|e| {
        let name = e.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libzerowire_c-") && name.ends_with(".a")
    })
    .max_by_key(|e| e.metadata().and_then(|m| m.modified()).expect("its time"))
    .unwrap_or_else(|| panic!("no libzerowire_c-*.a beside {}", test.display()))
    .path()
}

/// The shared library in `folder`, linked as `make build` does, once for all tests of the process.
/// Another process may put an equal file in its place.
pub fn shared_library(folder: &Path) -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let part = folder.join(format!("libzerowire.so.0.{}", std::process::id()));
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/shared.sh"));
        let out = script.arg(static_library()).arg(&part).output().expect("scripts/shared.sh");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let library = folder.join("libzerowire.so.0");
        std::fs::rename(&part, &library).expect("renamed");
        library
    })
}
