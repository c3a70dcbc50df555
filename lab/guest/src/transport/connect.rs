//! Connecting to a back end that may not be there yet.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::GuestError;

/// Connects, again and again while the path is missing or refuses.
pub(super) fn connect_patiently(path: &Path, patience: Duration) -> Result<UnixStream, GuestError> {
    let start = Instant::now();
    loop {
        let error = match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let may_come = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !may_come || start.elapsed() >= patience {
            let what = format!("connecting to the vhost-user socket {}", path.display());
            return Err(GuestError::io(what, error));
        }
        thread::sleep(Duration::from_millis(2));
    }
}
