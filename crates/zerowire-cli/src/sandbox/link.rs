//! Questions to a running child, and its answers.
//!
//! ```text
//! who asks           thread of the VM       child
//!  send ───────────── question n ─────────▶
//!  wait  ◀── place n ── take ◀── answer n ──
//! ```
//!
//! Each question has one place for its answer, as long as somebody waits for it. All else that a
//! child says is dropped, so a child that floods its supervisor fills no memory and keeps nobody
//! waiting.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::channel::Channel;
use super::lock;

/// How long a child may take to answer. One that does not holds up nobody but who asks about it.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// What a child says.
pub(crate) trait ChildAnswer {
    /// The number of the question that it answers, if it answers one.
    fn number(&self) -> Option<u64>;
}

/// A running child, for those who ask it. `W` is what it says.
pub(crate) struct ChildLink<W> {
    pub(crate) channel: Channel,
    places: Mutex<Places<W>>,
    /// An answer has come, or the child is gone.
    changed: Condvar,
}

/// Where answers go.
struct Places<W> {
    /// The number of the last question.
    last: u64,
    /// The questions for whose answers somebody waits. Some: it has come.
    awaited: HashMap<u64, Option<W>>,
    /// True: no answer comes any more.
    closed: bool,
}

impl<W> ChildLink<W> {
    pub(crate) fn new(channel: Channel) -> Self {
        let places = Places { last: 0, awaited: HashMap::new(), closed: false };
        Self { channel, places: Mutex::new(places), changed: Condvar::new() }
    }

    /// A place for the answer to a question that somebody sends.
    pub(crate) fn expect(self: &Arc<Self>) -> Question<W> {
        let mut places = lock(&self.places);
        places.last += 1;
        let number = places.last;
        places.awaited.insert(number, None);
        Question { link: self.clone(), number }
    }

    /// Sends a question, without waiting.
    ///
    /// # Errors
    /// Those of [`Channel::send`].
    pub(crate) fn ask<O: Serialize>(
        self: &Arc<Self>,
        order: impl FnOnce(u64) -> O,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<Question<W>> {
        self.ask_when_few(order, fds, Instant::now())
    }

    /// The same. It waits as [`Channel::send_when_few`] does.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn ask_when_few<O: Serialize>(
        self: &Arc<Self>,
        order: impl FnOnce(u64) -> O,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<Question<W>> {
        let question = self.expect();
        self.channel.send_when_few(&order(question.number), fds, deadline)?;
        Ok(question)
    }

    /// The child has said this. It is dropped unless it is the first answer that somebody waits
    /// for.
    pub(crate) fn take(&self, word: W)
    where
        W: ChildAnswer,
    {
        let Some(number) = word.number() else { return };
        if let Some(place @ None) = lock(&self.places).awaited.get_mut(&number) {
            *place = Some(word);
            self.changed.notify_all();
        }
    }

    /// Leaves the child. Who waits for an answer gets none.
    pub(crate) fn close(&self) {
        self.channel.close();
        lock(&self.places).closed = true;
        self.changed.notify_all();
    }
}

/// A question that was sent, or will be.
pub(crate) struct Question<W> {
    link: Arc<ChildLink<W>>,
    number: u64,
}

impl<W> Question<W> {
    /// The number that the answer has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sends it, as [`Channel::send_until`] does.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn send_until(
        &self,
        order: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        self.link.channel.send_until(order, fds, deadline)
    }

    /// Whether the child was left, and no answer comes any more.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.link.places).closed
    }

    /// Whether it was sent to this child.
    pub(crate) fn was_asked(&self, link: &Arc<ChildLink<W>>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }

    /// Waits for the answer until `deadline`. None: the child does not answer, or has ended.
    pub(crate) fn answer(&self, deadline: Instant) -> Option<W> {
        let mut places = lock(&self.link.places);
        loop {
            if let Some(word) = places.awaited.get_mut(&self.number).and_then(Option::take) {
                return Some(word);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || places.closed {
                return None;
            }
            let waited = self.link.changed.wait_timeout(places, left);
            places = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<W> Drop for Question<W> {
    fn drop(&mut self) {
        lock(&self.link.places).awaited.remove(&self.number);
    }
}

/// Waits until a child has carried out what it was told behind which `asked` was sent; None: no
/// child was there. One that ends is followed by one that knows it from the start.
///
/// # Errors
/// It does not answer until `deadline`.
pub(crate) fn settled<W>(asked: Option<Question<W>>, deadline: Instant) -> Result<(), String> {
    let Some(question) = asked else { return Ok(()) };
    if question.answer(deadline).is_none() && !question.is_closed() {
        return Err("it does not answer: what was changed holds when it does".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to the question of this number, and what it says.
    #[derive(Debug, PartialEq, Eq)]
    struct Answer(u64, u64);

    impl ChildAnswer for Answer {
        fn number(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    fn link() -> (Arc<ChildLink<Answer>>, Channel) {
        let (ours, theirs) = Channel::pair().expect("a pair");
        (Arc::new(ChildLink::new(ours)), Channel::of(theirs))
    }

    fn ask(link: &Arc<ChildLink<Answer>>) -> Option<Question<Answer>> {
        link.ask(|number| number, &[]).ok()
    }

    #[test]
    fn what_nobody_waits_for_is_dropped() {
        let (link, _child) = link();
        let question = ask(&link).expect("sent");
        for number in 0..1000 {
            link.take(Answer(number, 10));
            link.take(Answer(number, 20));
        }
        assert_eq!(lock(&link.places).awaited.len(), 1);
        let answer = question.answer(Instant::now() + ANSWER_PATIENCE);
        assert_eq!(answer, Some(Answer(1, 10)), "the first answer");
        drop(question);
        assert!(lock(&link.places).awaited.is_empty(), "nothing stays");
    }

    /// A child answers other questions all the time.
    #[test]
    fn a_flood_of_answers_keeps_nobody_waiting() {
        let (link, _child) = link();
        let question = ask(&link).expect("sent");
        let begin = Instant::now();
        let answer = std::thread::scope(|scope| {
            let waits = scope.spawn(|| question.answer(begin + ANSWER_PATIENCE / 10));
            while !waits.is_finished() {
                link.take(Answer(7, 7));
                assert!(begin.elapsed() < ANSWER_PATIENCE * 10, "it waits");
            }
            waits.join().expect("no panic")
        });
        assert!(answer.is_none());
    }

    #[test]
    fn the_end_of_a_child_ends_the_wait() {
        let (link, _child) = link();
        let question = ask(&link).expect("sent");
        link.close();
        let begin = Instant::now();
        assert!(question.answer(begin + ANSWER_PATIENCE * 10).is_none());
        assert!(begin.elapsed() < ANSWER_PATIENCE, "{:?}", begin.elapsed());
        assert!(ask(&link).is_none(), "nobody reads it");
    }
}
