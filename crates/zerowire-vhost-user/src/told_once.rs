//! No error's text is told twice; see the module of this name in the library.

#[path = "../../zerowire/src/told_once/walk.rs"]
mod walk;

use std::io;

use crate::WireError;

#[test]
fn no_cause_is_told_twice() {
    let cause = io::Error::from(io::ErrorKind::BrokenPipe);
    let text = cause.to_string();
    walk::told_once_with(&WireError::Io(cause), &text);
}
