//! The answer of another thread.
//!
//! One side has a [`Reply`] and gives the answer, the other side has the [`Answer`] and waits for
//! it. Each side learns when the other one is gone, so no answer is lost between them: it is taken,
//! or comes back to who gave it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use zerowire_sys::lock;

/// What both sides share.
#[derive(Debug)]
struct Shared<T> {
    place: Mutex<AnswerPlace<T>>,
    /// The place is not empty any more.
    changed: Condvar,
}

#[derive(Debug)]
enum AnswerPlace<T> {
    /// The answer may still come.
    Empty,
    Full(T),
    /// One side is gone, or the answer was taken.
    Closed,
}

/// Gives the answer. Dropping it says that none comes.
#[derive(Debug)]
pub struct Reply<T>(Arc<Shared<T>>);

/// Waits for the answer.
#[derive(Debug)]
pub struct Answer<T>(Arc<Shared<T>>);

/// Why an answer does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It has not come in time, and may still come.
    Late,
    /// It does not come any more.
    Gone,
}

/// The two sides of an answer.
pub fn one_answer<T>() -> (Reply<T>, Answer<T>) {
    let shared = Arc::new(Shared { place: Mutex::new(AnswerPlace::Empty), changed: Condvar::new() });
    (Reply(shared.clone()), Answer(shared))
}

impl<T> Reply<T> {
    /// Gives the answer, and does not wait.
    ///
    /// # Errors
    /// Nobody waits for it any more: it comes back.
    pub fn send(self, answer: T) -> Result<(), T> {
        let mut place = lock(&self.0.place);
        if matches!(*place, AnswerPlace::Closed) {
            return Err(answer);
        }
        *place = AnswerPlace::Full(answer);
        Ok(())
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let mut place = lock(&self.0.place);
        if matches!(*place, AnswerPlace::Empty) {
            *place = AnswerPlace::Closed;
        }
        drop(place);
        self.0.changed.notify_one();
    }
}

impl<T> Answer<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`NoAnswer`]. One that is late can be waited for again.
    pub fn wait(&self, patience: Duration) -> Result<T, NoAnswer> {
        let is_empty = |place: &mut AnswerPlace<T>| matches!(place, AnswerPlace::Empty);
        let waited = self.0.changed.wait_timeout_while(lock(&self.0.place), patience, is_empty);
        let mut place = waited.unwrap_or_else(PoisonError::into_inner).0;
        match &*place {
            AnswerPlace::Empty => Err(NoAnswer::Late),
            _ => Self::take(&mut place).ok_or(NoAnswer::Gone),
        }
    }

    /// Waits no longer. Returns the answer if it has come meanwhile; one that comes later goes back
    /// to who gives it.
    pub fn close(self) -> Option<T> {
        Self::take(&mut lock(&self.0.place))
    }

    fn take(place: &mut AnswerPlace<T>) -> Option<T> {
        match std::mem::replace(place, AnswerPlace::Closed) {
            AnswerPlace::Full(answer) => Some(answer),
            AnswerPlace::Empty | AnswerPlace::Closed => None,
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let unread = Self::take(&mut lock(&self.0.place));
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn an_answer_is_taken_once() {
        let (reply, answer) = one_answer();
        assert_eq!(answer.wait(Duration::ZERO), Err(NoAnswer::Late));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| answer.wait(Duration::MAX));
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(reply.send(7), Ok(()));
            assert_eq!(waits.join().expect("no panic"), Ok(7));
        });
        assert_eq!(answer.wait(PATIENCE), Err(NoAnswer::Gone));
    }

    #[test]
    fn who_waits_learns_that_no_answer_comes() {
        let (reply, answer) = one_answer::<()>();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| answer.wait(Duration::MAX));
            std::thread::sleep(Duration::from_millis(10));
            drop(reply);
            assert_eq!(waits.join().expect("no panic"), Err(NoAnswer::Gone));
        });
    }

    /// What comes between the end of the patience and the end of the wait is not lost.
    #[test]
    fn an_answer_is_taken_or_comes_back() {
        let (reply, answer) = one_answer();
        assert_eq!(answer.wait(Duration::ZERO), Err(NoAnswer::Late));
        assert_eq!(reply.send("late"), Ok(()));
        assert_eq!(answer.close(), Some("late"));
        let (reply, answer) = one_answer();
        assert_eq!(answer.close(), None);
        assert_eq!(reply.send("too late"), Err("too late"));
        let (reply, answer) = one_answer();
        drop(answer);
        assert_eq!(reply.send("too late"), Err("too late"));
    }

    #[test]
    fn an_answer_that_nobody_reads_is_dropped_with_its_reader() {
        let (reply, answer) = one_answer();
        let unread = Arc::new(());
        assert!(reply.send(unread.clone()).is_ok());
        assert_eq!(Arc::strong_count(&unread), 2);
        drop(answer);
        assert_eq!(Arc::strong_count(&unread), 1);
    }
}
