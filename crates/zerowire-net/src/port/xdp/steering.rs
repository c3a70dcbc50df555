//! The program on an interface: one for all ports of this process that use its queues.

use std::sync::{Arc, Mutex, PoisonError, Weak};

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
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever attaches has the place, too.
            all.retain(|(_, place)| {
                let user =
                    |p: &Mutex<Weak<T>>| p.lock().unwrap_or_else(PoisonError::into_inner).strong_count();
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
        let mut known = place.lock().unwrap_or_else(PoisonError::into_inner);
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
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    fn get(attached: &Attached<u32>, index: u32, value: u32) -> Arc<u32> {
        attached.get_or((0, 0, index), || Ok::<_, Infallible>(value)).unwrap_or_else(|e| match e {})
    }

    #[test]
    fn one_is_made_for_all_users_and_goes_with_the_last() {
        let attached = Attached(Mutex::new(Vec::new()));
        let (first, second) = (get(&attached, 1, 10), get(&attached, 1, 11));
        assert_eq!((*first, *second, *get(&attached, 2, 20)), (10, 10, 20));
        drop(first);
        drop(second);
        assert_eq!(*get(&attached, 1, 12), 12);
        assert_eq!(attached.0.lock().unwrap().len(), 1, "what nobody uses is forgotten");
        assert_eq!(attached.get_or((0, 0, 3), || Err::<u32, _>("refused")), Err("refused"));
    }

    #[test]
    fn an_interface_that_waits_holds_up_no_other() {
        let attached = Attached(Mutex::new(Vec::new()));
        let (begun, begins) = channel();
        let (go, goes) = channel::<()>();
        std::thread::scope(|s| {
            let shared = &attached;
            let slow = s.spawn(move || {
                shared.get_or((0, 0, 1), || {
                    begun.send(()).unwrap();
                    goes.recv_timeout(Duration::from_secs(20)).map(|()| 10)
                })
            });
            begins.recv().unwrap();
            assert_eq!(*get(&attached, 2, 20), 20);
            let _ = go.send(());
            assert_eq!(slow.join().unwrap().map(|v| *v), Ok(10));
        });
    }
}
