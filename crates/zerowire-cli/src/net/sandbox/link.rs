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
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::keeper::lock;
use super::message::{ChildOrder, ChildWord};

/// How long a child may take to answer. One that does not holds up nobody but who asks about it.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// A running child, for those who ask it.
pub(super) struct ChildLink {
    pub(super) channel: Channel,
    places: Mutex<Places>,
    /// An answer has come, or the child is gone.
    changed: Condvar,
}

/// Where answers go.
#[derive(Default)]
struct Places {
    /// The number of the last question.
    last: u64,
    /// The questions for whose answers somebody waits. Some: it has come.
    awaited: HashMap<u64, Option<ChildWord>>,
    /// True: no answer comes any more.
    closed: bool,
}

impl ChildLink {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, places: Mutex::default(), changed: Condvar::new() }
    }

    /// Sends a question, without waiting. None: the child reads nothing, or is gone.
    pub(super) fn ask(
        self: &Arc<Self>,
        order: impl FnOnce(u64) -> ChildOrder,
        fds: &[BorrowedFd<'_>],
    ) -> Option<Question> {
        let number = {
            let mut places = lock(&self.places);
            places.last += 1;
            let number = places.last;
            places.awaited.insert(number, None);
            number
        };
        let question = Question { link: self.clone(), number };
        self.channel.send(&order(number), fds).ok()?;
        Some(question)
    }

    /// The child has said this. It is dropped unless it is the first answer that somebody waits
    /// for.
    pub(super) fn take(&self, word: ChildWord) {
        let number = match &word {
            ChildWord::Statistics(number, _) | ChildWord::Metadata(number, _) => *number,
            _ => return,
        };
        if let Some(place @ None) = lock(&self.places).awaited.get_mut(&number) {
            *place = Some(word);
            self.changed.notify_all();
        }
    }

    /// Leaves the child. Who waits for an answer gets none.
    pub(super) fn close(&self) {
        self.channel.close();
        lock(&self.places).closed = true;
        self.changed.notify_all();
    }
}

/// A question that was sent.
pub(super) struct Question {
    link: Arc<ChildLink>,
    number: u64,
}

impl Question {
    /// Whether it was sent to this child.
    pub(super) fn was_asked(&self, link: &Arc<ChildLink>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }

    /// Waits for the answer until `deadline`. None: the child does not answer, or has ended.
    pub(super) fn answer(&self, deadline: Instant) -> Option<ChildWord> {
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

impl Drop for Question {
    fn drop(&mut self) {
        lock(&self.link.places).awaited.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> (Arc<ChildLink>, Channel) {
        let (ours, theirs) = Channel::pair().expect("a pair");
        (Arc::new(ChildLink::new(ours)), Channel::of(theirs))
    }

    fn statistics(number: u64) -> ChildWord {
        ChildWord::Statistics(number, Box::default())
    }

    #[test]
    fn what_nobody_waits_for_is_dropped() {
        let (link, _child) = link();
        let question = link.ask(ChildOrder::Statistics, &[]).expect("sent");
        for number in 0..1000 {
            link.take(statistics(number));
            link.take(ChildWord::Metadata(number, None));
        }
        assert_eq!(lock(&link.places).awaited.len(), 1);
        let answer = question.answer(Instant::now() + ANSWER_PATIENCE);
        assert!(matches!(answer, Some(ChildWord::Statistics(1, _))), "the first answer: {answer:?}");
        drop(question);
        assert!(lock(&link.places).awaited.is_empty(), "nothing stays");
    }

    /// A child answers other questions all the time.
    #[test]
    fn a_flood_of_answers_keeps_nobody_waiting() {
        let (link, _child) = link();
        let question = link.ask(ChildOrder::Statistics, &[]).expect("sent");
        let begin = Instant::now();
        let answer = std::thread::scope(|scope| {
            let waits = scope.spawn(|| question.answer(begin + ANSWER_PATIENCE / 10));
            while !waits.is_finished() {
                link.take(statistics(7));
                assert!(begin.elapsed() < ANSWER_PATIENCE * 10, "it waits");
            }
            waits.join().expect("no panic")
        });
        assert!(answer.is_none());
    }

    #[test]
    fn the_end_of_a_child_ends_the_wait() {
        let (link, _child) = link();
        let question = link.ask(ChildOrder::Statistics, &[]).expect("sent");
        link.close();
        let begin = Instant::now();
        assert!(question.answer(begin + ANSWER_PATIENCE * 10).is_none());
        assert!(begin.elapsed() < ANSWER_PATIENCE, "{:?}", begin.elapsed());
        assert!(link.ask(ChildOrder::Statistics, &[]).is_none(), "nobody reads it");
    }
}
