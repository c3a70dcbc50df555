//! No error's text is told twice; see the module of this name in the library.

#[path = "../../zerowire/src/told_once/walk.rs"]
mod walk;

use std::io;

use zerowire_vhost_user::WireError;

use crate::GuestError;

#[test]
fn no_cause_is_told_twice() {
    let cause = || io::Error::from(io::ErrorKind::BrokenPipe);
    for error in [GuestError::io("an ioctl", cause()), GuestError::from(WireError::Io(cause()))] {
        walk::told_once_with(&error, &cause().to_string());
    }
}
