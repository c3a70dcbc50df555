//! What threads put into a queue, and one thread takes.
//!
//! For each type that it carries, a channel of std has the code of all its kinds: 6 KB.

use std::collections::VecDeque;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use zerowire_sys::lock;

#[derive(Debug)]
struct QueueState<T> {
    waiting: VecDeque<T>,
    inlets: usize,
    /// False: nobody takes anything any more.
    has_outlet: bool,
}

#[derive(Debug)]
struct SharedQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Something came, or the last inlet has gone.
    changed: Condvar,
}

/// By which a thread puts something into a queue.
#[derive(Debug)]
pub struct QueueInlet<T>(Arc<SharedQueue<T>>);

/// By which the thread takes it out.
#[derive(Debug)]
pub struct QueueOutlet<T>(Arc<SharedQueue<T>>);

/// A queue.
pub fn queue<T>() -> (QueueInlet<T>, QueueOutlet<T>) {
    let state = QueueState { waiting: VecDeque::new(), inlets: 1, has_outlet: true };
    let shared = Arc::new(SharedQueue { state: Mutex::new(state), changed: Condvar::new() });
    (QueueInlet(shared.clone()), QueueOutlet(shared))
}

impl<T> QueueInlet<T> {
    /// Puts `value` behind the others.
    ///
    /// # Errors
    /// `value`: nobody takes it any more.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0.state);
        if !state.has_outlet {
            return Err(value);
        }
        state.waiting.push_back(value);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for QueueInlet<T> {
    fn clone(&self) -> Self {
        lock(&self.0.state).inlets += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for QueueInlet<T> {
    fn drop(&mut self) {
        lock(&self.0.state).inlets -= 1;
        self.0.changed.notify_one();
    }
}

impl<T> QueueOutlet<T> {
    /// Takes the next value, if one is there.
    ///
    /// # Errors
    /// None is there, and whether one may come.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = lock(&self.0.state);
        let none = if state.inlets == 0 { TryRecvError::Disconnected } else { TryRecvError::Empty };
        state.waiting.pop_front().ok_or(none)
    }

    /// Waits for the next value. None where no more can come.
    pub fn recv(&self) -> Option<T> {
        let waits = |state: &mut QueueState<T>| state.waiting.is_empty() && state.inlets > 0;
        let state = self.0.changed.wait_while(lock(&self.0.state), waits);
        state.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

impl<T> Drop for QueueOutlet<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.has_outlet = false;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        // Without the lock: what they are may have an inlet.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_until_the_last_inlet_has_gone() {
        let (inlet, outlet) = queue();
        assert_eq!(outlet.try_recv(), Err::<u32, _>(TryRecvError::Empty));
        let other = inlet.clone();
        assert_eq!((inlet.send(1), other.send(2), inlet.send(3)), (Ok(()), Ok(()), Ok(())));
        drop(inlet);
        assert_eq!((outlet.try_recv(), outlet.recv(), outlet.try_recv()), (Ok(1), Some(2), Ok(3)));
        assert_eq!(outlet.try_recv(), Err(TryRecvError::Empty));
        drop(other);
        assert_eq!((outlet.try_recv(), outlet.recv()), (Err(TryRecvError::Disconnected), None));
    }

    #[test]
    fn who_waits_gets_what_comes_or_hears_that_nothing_does() {
        let (inlet, outlet) = queue();
        let thread = std::thread::spawn(move || std::iter::from_fn(|| outlet.recv()).collect::<Vec<_>>());
        inlet.send("first").expect("it waits");
        inlet.send("second").expect("it waits");
        drop(inlet);
        assert_eq!(thread.join().expect("ended"), ["first", "second"]);
    }

    #[test]
    fn nothing_is_kept_that_nobody_takes() {
        let (inlet, outlet) = queue();
        let value = Arc::new(());
        inlet.send(value.clone()).expect("an outlet");
        drop(outlet);
        assert_eq!(Arc::strong_count(&value), 1);
        let back = inlet.send(value).expect_err("no outlet");
        assert_eq!(Arc::strong_count(&back), 1);
    }
}
