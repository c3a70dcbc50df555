//! The program on an interface: one for all ports of this process that use its queues.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use zerowire::xdp::program::{Hook, Steering};
use zerowire::xdp::{Interface, XdpError};

/// Queues that are steered at most; more than any interface has.
const QUEUES: u32 = 4096;

/// A network namespace, and an interface in it.
type Key = (u64, u64, u32);

static ATTACHED: Mutex<Vec<(Key, Weak<Steering>)>> = Mutex::new(Vec::new());

/// The program on the interface, which is attached where this process has none there yet, and goes with the last user.
///
/// # Errors
/// Those of [`Steering::attach`].
pub(super) fn shared(interface: &Interface) -> Result<Arc<Steering>, XdpError> {
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_err(|e| XdpError::System {
        what: format!("interface {}: its network namespace", interface.name()),
        call: "stat",
        source: e.into(),
    })?;
    let key = (namespace.st_dev, namespace.st_ino, interface.index());
    let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    attached.retain(|(_, s)| s.strong_count() > 0);
    if let Some(known) = attached.iter().find(|(k, _)| *k == key).and_then(|(_, s)| s.upgrade()) {
        return Ok(known);
    }
    let steering = Arc::new(Steering::attach(interface.name(), QUEUES, Hook::Auto)?);
    attached.push((key, Arc::downgrade(&steering)));
    Ok(steering)
}
