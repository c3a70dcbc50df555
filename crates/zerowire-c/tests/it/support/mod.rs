//! Compiling C programs as a user does.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use zerowire_testkit::cc::{self, static_library};

/// The crate's folder.
pub fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library, linked once for all tests of the process.
pub fn shared_library() -> &'static Path {
    cc::shared_library(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Compiles a program of the crate's folder as a user does, against a library under the name that
/// it is installed with. Does so once for all tests of the process.
pub fn compile(source: &'static str, shared: bool) -> PathBuf {
    compile_with("include", source, shared)
}

/// The same with the header of another folder.
pub fn compile_with(include: &'static str, source: &'static str, shared: bool) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<(&str, &str, bool)>> = Mutex::new(BTreeSet::new());
    let library = if shared { "shared" } else { "static" };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{include}-{source}-{library}").replace('/', "-"));
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains(&(include, source, shared)) {
        // Another process may run, or make, an equal file.
        let own = tempfile::tempdir_in(folder).expect("a folder");
        let part = own.path().join("program");
        run_cc(include, source, shared, &part);
        std::fs::rename(&part, &program).expect("renamed");
        compiled.insert((include, source, shared));
    }
    program
}

fn run_cc(include: &str, source: &str, shared: bool, program: &Path) {
    let folder = program.parent().expect("a folder");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(here().join(include))
        .arg(here().join(source))
        .arg("-o")
        .arg(program);
    if shared {
        let library = shared_library();
        symlink(library, folder.join("libzerowire.so")).expect("linked");
        let found_in = library.parent().expect("a folder").display();
        cc.arg("-L").arg(folder).arg("-lzerowire").arg(format!("-Wl,-rpath,{found_in}"));
    } else {
        symlink(static_library(), folder.join("libzerowire.a")).expect("linked");
        cc.arg(folder.join("libzerowire.a")).args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    }
    let out = cc.output().expect("cc: install a C compiler (Debian: gcc and libc6-dev)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
