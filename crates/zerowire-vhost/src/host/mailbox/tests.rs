//! A mailbox's two ends, in every order of their steps (checked by loom).
//!
//! Each test has a process of its own: what loom switches its threads with takes SIGBUS from
//! [`sigbus`](crate::memory). Other tests of this process rely on that handler.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{post, take_all};

/// An eventfd that is watched edge-triggered and never read: each write is an event, and those that
/// nobody waited for are one.
#[derive(Default)]
struct Edge {
    rung: bool,
    /// Nobody rings any more.
    ended: bool,
}

pub(crate) struct Bell(Mutex<Edge>, Condvar);

impl Bell {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Edge::default()), Condvar::new())
    }

    pub(crate) fn ring(&self) {
        self.0.lock().expect("sound").rung = true;
        self.1.notify_one();
    }

    /// Who would ring has done all it does.
    pub(crate) fn end(&self) {
        self.0.lock().expect("sound").ended = true;
        self.1.notify_one();
    }

    /// Sleeps until it rings. False where it never will: the wake-up is lost.
    pub(crate) fn wait(&self) -> bool {
        let mut edge = self.0.lock().expect("sound");
        while !edge.rung && !edge.ended {
            edge = self.1.wait(edge).expect("sound");
        }
        std::mem::take(&mut edge.rung)
    }
}

/// Runs `body` in every order. Returns in how many of them it was not woken.
pub(crate) fn losses(body: impl Fn() -> bool + Sync + Send + 'static) -> usize {
    let lost = std::sync::Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check({
        let lost = std::sync::Arc::clone(&lost);
        move || {
            lost.fetch_add(usize::from(!body()), Ordering::Relaxed);
        }
    });
    lost.load(Ordering::Relaxed)
}

/// The channel. (loom's own one does not try the orders in which a receiver finds it empty.)
#[derive(Clone)]
struct Queue(Arc<Mutex<VecDeque<u32>>>);

impl Queue {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(VecDeque::new())))
    }

    fn put(&self, command: u32) {
        self.0.lock().expect("sound").push_back(command);
    }
}

/// The thread that sleeps.
struct Worker {
    queue: Queue,
    had: Vec<u32>,
}

impl Worker {
    fn new(queue: Queue) -> Self {
        Self { queue, had: Vec::new() }
    }

    fn next(&mut self) -> Result<u32, TryRecvError> {
        self.queue.0.lock().expect("sound").pop_front().ok_or(TryRecvError::Empty)
    }

    /// Sees to commands until it has had `want`. False where a wake-up is lost.
    fn run(&mut self, bell: &Bell, want: usize, answer: impl Fn()) -> bool {
        while self.had.len() < want {
            if !bell.wait() {
                return false;
            }
            let take = |w: &mut Self, c| {
                w.had.push(c);
                answer();
            };
            assert!(take_all(self, Self::next, take), "its senders are there");
        }
        true
    }
}

fn send(queue: &Queue, bell: &Bell, command: u32) {
    let put = || {
        queue.put(command);
        true
    };
    assert!(post(put, || bell.ring()));
}

/// A worker, and two threads of which the first sends twice. A lost wake-up is a deadlock, which
/// loom reports.
#[test]
fn each_command_is_carried_out_once_and_in_order() {
    zerowire_testkit::own_process!();
    let lost = losses(|| {
        let queue = Queue::new();
        let bell = Arc::new(Bell::new());
        let first = thread::spawn({
            let (queue, bell) = (queue.clone(), Arc::clone(&bell));
            move || [1, 2].into_iter().for_each(|c| send(&queue, &bell, c))
        });
        let second = thread::spawn({
            let (queue, bell) = (queue.clone(), Arc::clone(&bell));
            move || send(&queue, &bell, 10)
        });
        let mut worker = Worker::new(queue);
        let woken = worker.run(&bell, 3, || ());
        let had = worker.had;
        assert!(had.iter().filter(|c| **c < 10).eq(&[1, 2]) && had.contains(&10), "{had:?}");
        first.join().expect("ended");
        second.join().expect("ended");
        woken
    });
    assert_eq!(lost, 0);
}

/// A caller that waits for the answer to each command, as the front ends' sessions do.
#[test]
fn who_waits_for_an_answer_gets_one() {
    zerowire_testkit::own_process!();
    let lost = losses(|| {
        let queue = Queue::new();
        let bells = Arc::new([Bell::new(), Bell::new()]);
        let caller = thread::spawn({
            let (queue, bells) = (queue.clone(), Arc::clone(&bells));
            move || {
                for c in [1, 2] {
                    send(&queue, &bells[0], c);
                    assert!(bells[1].wait(), "nobody ends it");
                }
            }
        });
        let woken = Worker::new(queue).run(&bells[0], 2, || bells[1].ring());
        caller.join().expect("ended");
        woken
    });
    assert_eq!(lost, 0);
}

#[test]
fn a_queue_without_senders_is_told_from_an_empty_one() {
    zerowire_testkit::own_process!();
    let take = |end| take_all(&mut (), |()| Err::<(), _>(end), |(), ()| ());
    assert!(take(TryRecvError::Empty));
    assert!(!take(TryRecvError::Disconnected));
}

/// One sender of two commands, and a receiver that is to have both. Returns in how many orders a
/// wake-up is lost.
fn two(send: fn(&Queue, &Bell, u32), receive: fn(&mut Worker, &Bell) -> bool) -> usize {
    losses(move || {
        let queue = Queue::new();
        let bell = Arc::new(Bell::new());
        let sender = thread::spawn({
            let (queue, bell) = (queue.clone(), Arc::clone(&bell));
            move || {
                [1, 2].into_iter().for_each(|c| send(&queue, &bell, c));
                bell.end();
            }
        });
        let mut worker = Worker::new(queue);
        let woken = receive(&mut worker, &bell);
        sender.join().expect("ended");
        woken
    })
}

/// The tests can fail: where the bell is rung first, or one command is taken each time, wake-ups
/// are lost.
#[test]
fn ringing_first_or_taking_one_at_a_time_loses_a_wake_up() {
    zerowire_testkit::own_process!();
    let all = |w: &mut Worker, bell: &Bell| w.run(bell, 2, || ());
    let rung_first = |queue: &Queue, bell: &Bell, command| {
        let ring = || {
            bell.ring();
            true
        };
        post(ring, || queue.put(command));
    };
    let one = |w: &mut Worker, bell: &Bell| {
        (0..2).all(|_| {
            let woken = bell.wait();
            let _ = w.next();
            woken
        })
    };
    assert_eq!(two(send, all), 0);
    assert_ne!(two(rung_first, all), 0, "the bell before the command");
    assert_ne!(two(send, one), 0, "one command of two");
}
