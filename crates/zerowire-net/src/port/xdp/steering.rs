//! The program on an interface: one for all ports of this process that use its queues.

use std::sync::{Arc, Mutex, Weak};

use zerowire_sys::lock;
use zerowire_sys::xdp::program::{Hook, Steering};
use zerowire_sys::xdp::{Interface, XdpError};

/// Queues that are steered at most; more than any interface has.
const QUEUES: u32 = 4096;

/// A network namespace, and an interface in it.
type Key = (u64, u64, u32);

static ATTACHED: Attached<Steering> = Attached(Mutex::new(Vec::new()));

/// What is attached to an interface, as long as anybody uses it; locked while it is attached.
type Place<T> = Arc<Mutex<Weak<T>>>;

struct Attached<T>(Mutex<Vec<(Key, Place<T>)>>);

impl<T> Attached<T> {
    /// What is attached to the interface, or what `attach` makes. That may wait for another
    /// process's program to go: ports of the same interface wait with it, those of others don't.
    fn get_or<E>(&self, key: Key, attach: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let place = {
            let mut all = lock(&self.0);
            // Whoever attaches has the place, too.
            all.retain(|(_, place)| {
                let user = |p: &Mutex<Weak<T>>| lock(p).strong_count();
                Arc::strong_count(place) > 1 || user(place) > 0
            });
            match all.iter().find(|(k, _)| *k == key) {
                Some((_, place)) => place.clone(),
                None => {
                    let place = Arc::default();
                    all.push((key, Arc::clone(&place)));
                    place
                }
            }
        };
        let mut known = lock(&place);
        if let Some(known) = known.upgrade() {
            return Ok(known);
        }
        let made = Arc::new(attach()?);
        *known = Arc::downgrade(&made);
        Ok(made)
    }
}

/// The program on the interface, which is attached where this process has none there yet, and goes
/// with the last user.
///
/// # Errors
/// Those of [`Steering::attach`].
pub(super) fn shared(interface: &Interface) -> Result<Arc<Steering>, XdpError> {
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_err(|e| XdpError::System {
        what: format!("interface {}: its network namespace", interface.name()),
        call: "stat",
        cause: e.into(),
    })?;
    let key = (namespace.st_dev, namespace.st_ino, interface.index());
    ATTACHED.get_or(key, || Steering::attach(interface.name(), QUEUES, Hook::Auto))
}

#[cfg(test)]
mod tests;
