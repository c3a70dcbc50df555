//! Tests in a process of their own.
//!
//! All tests of a program are threads of one process. A test that depends on what they share runs the
//! program again, with itself as the only test:
//!
//! - who counts descriptors, mappings, threads or memory of the process, or takes most of them
//! - who changes limits, credentials, the log, or the budget of pinned memory
//! - who expects a descriptor that it closes to be closed at once: programs that other tests start
//!   have a copy of it until they are under way

use std::process::Command;

/// Says in the environment of such a process which test it is for.
const ALONE: &str = "ZEROWIRE_TEST_ALONE";

/// Has the rest of a test run in a process of its own: in this one the test returns here, and fails
/// if it failed there. Stands in the test's function itself.
macro_rules! own_process {
    () => {
        if !$crate::support::process::is_own($crate::support::process::this_test!()) {
            return;
        }
    };
}
pub(crate) use own_process;

/// The name of the test in whose function this stands.
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::support::process::test_around(here)
    }};
}
pub(crate) use this_test;

/// The name of the test in whose function `here` stands: its path without the program's name.
pub fn test_around<T>(_here: T) -> &'static str {
    let path = std::any::type_name::<T>();
    let test = path.split_once("::").and_then(|(_program, path)| path.strip_suffix("::here"));
    test.filter(|test| !test.contains('{')).unwrap_or_else(|| panic!("{path} is not in a test's function"))
}

/// This program again, with one test.
pub fn only(test: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", test, "--nocapture"]);
    program
}

/// Whether this process is the test's own; if not, the test has run in one and has passed.
pub fn is_own(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let out = only(test).env(ALONE, test).output().expect("a process");
    let [said, error] = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // A name that no test has runs none, which is no failure by itself.
    assert!(out.status.success() && said.contains(" 1 passed"), "{test}: {}\n{said}\n{error}", out.status);
    false
}
