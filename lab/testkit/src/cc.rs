//! The C library that the tests take.

use std::path::PathBuf;

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
