//! Compiling C programs as a user does.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use zerowire_testkit::cc::static_library;

/// The crate's folder.
pub fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library, linked as `make build` does, once for all tests of the process. Another
/// process may put an equal file in its place.
pub fn shared_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let part = folder.join(format!("libzerowire.so.0.{}", std::process::id()));
        let mut script = Command::new(here().join("../../scripts/shared.sh"));
        let out = script.arg(static_library()).arg(&part).output().expect("scripts/shared.sh");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let library = folder.join("libzerowire.so.0");
        std::fs::rename(&part, &library).expect("renamed");
        library
    })
}

/// Compiles a program of the crate's folder as a user does, against libraries under the names that
/// they are installed with.
pub fn compile(source: &str, folder: &Path, shared: bool) -> PathBuf {
    compile_with("include", source, folder, shared)
}

/// The same with the header of another folder.
pub fn compile_with(include: &str, source: &str, folder: &Path, shared: bool) -> PathBuf {
    let program = folder.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(here().join(include))
        .arg(here().join(source))
        .arg("-o")
        .arg(&program);
    if shared {
        symlink(shared_library(), folder.join("libzerowire.so.0")).expect("linked");
        symlink("libzerowire.so.0", folder.join("libzerowire.so")).expect("linked");
        cc.arg("-L").arg(folder).arg("-lzerowire").arg(format!("-Wl,-rpath,{}", folder.display()));
    } else {
        symlink(static_library(), folder.join("libzerowire.a")).expect("linked");
        cc.arg(folder.join("libzerowire.a")).args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    }
    let out = cc.output().expect("cc: install a C compiler (Debian: gcc and libc6-dev)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}
