//! What a child of a sandbox says to its supervisor: any message. What is shown of it has bounds,
//! and sums of it don't overflow.
//!
//! The messages are part of the program `zerowire`, and are built here from their sources.
#![no_main]
#![allow(dead_code, reason = "nothing is sent here, and no child runs")]

#[path = "../../crates/zerowire-cli/src/sandbox/channel.rs"]
mod channel;
#[path = "../../crates/zerowire-cli/src/sandbox/figures.rs"]
mod figures;
#[path = "../../crates/zerowire-cli/src/sandbox/message.rs"]
mod message;
#[path = "../../crates/zerowire-cli/src/net/sandbox/message.rs"]
mod net_message;
#[path = "../../crates/zerowire-cli/src/sandbox/pace.rs"]
mod pace;
#[path = "../../crates/zerowire-cli/src/sandbox/sessions.rs"]
mod sessions;
#[path = "../../crates/zerowire-cli/src/vsock/sandbox/message.rs"]
mod vsock_message;

/// What the messages need of the program beside themselves.
mod sandbox {
    pub(crate) use super::{figures, message, sessions};

    pub(crate) mod link {
        pub(crate) trait ChildAnswer {
            fn number(&self) -> Option<u64>;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

mod vm {
    pub struct Common {
        pub owner: zerowire_confine::Owner,
        pub log: String,
    }
}

use std::sync::{Mutex, MutexGuard, PoisonError};

use figures::{Figures, add};
use libfuzzer_sys::fuzz_target;
use message::{ENTRIES, bounded_report, short};
use net_message::ChildWord;
use sessions::KeptSession;
use vsock_message::{GroupWord, VMS};
use zerowire_confine::ConfineReport;
use zerowire_vhost::session::SessionImage;

fn is_short(text: &str) {
    assert_eq!(text, short(text));
}

fn report(report: &ConfineReport) {
    let once = bounded_report(report);
    assert!(once.layers.iter().all(|layer| layer.missing.as_deref().is_none_or(|why| why.len() < 4000)));
}

/// Sums of it don't overflow.
fn sum(mut figures: impl Figures) {
    let mut sum = figures.clone();
    (0..3).for_each(|_| add(&mut sum, figures.clone()));
    assert!(sum.numbers().iter().zip(figures.numbers()).all(|(sum, n)| **sum >= *n));
    assert!(sum.waited().iter().all(|time| time.is_finite()));
    assert!(sum.kicks().iter().all(|kicks| kicks.sum.is_finite()));
}

fn net(word: ChildWord) {
    match word {
        ChildWord::Ready(said) => report(&said),
        ChildWord::Statistics(_, stats) | ChildWord::Last(stats) => {
            let figures = stats.told();
            let state = &figures.state;
            state.last_error.iter().chain(&state.features).for_each(|text| is_short(text));
            assert!(state.cpu_seconds.is_finite() && state.cpu_seconds >= 0.0);
            for direction in [&figures.transmit, &figures.receive] {
                assert!(direction.frames_by_queue.len() <= ENTRIES);
            }
            sum(figures);
        }
        ChildWord::Session(word) => {
            let mut session = KeptSession::default();
            session.hear(word, Vec::new());
            let _ = session.died();
        }
        _ => {}
    }
}

fn vsock(word: GroupWord) {
    match word {
        GroupWord::Ready(said) => report(&said),
        GroupWord::Statistics(_, stats) => {
            let (cpu_seconds, vms) = stats.told();
            assert!(cpu_seconds.is_finite() && cpu_seconds >= 0.0 && vms.len() <= VMS);
            for (_, mut vm) in vms {
                vm.features.iter().chain(&vm.totals.last_error).for_each(|text| is_short(text));
                sum(vm.clone());
                vm.forget_unused();
            }
        }
        _ => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(word) = serde_json::from_slice(bytes) {
        net(word);
    }
    if let Ok(word) = serde_json::from_slice(bytes) {
        vsock(word);
    }
    let _ = SessionImage::decode(bytes, Vec::new());
});
