//! What a child of a sandbox says to its supervisor: any message. What is shown of it has bounds,
//! and sums of it don't overflow.
//!
//! The messages are part of the program `zerowire`, and are built here from their sources.
#![no_main]
#![allow(dead_code, reason = "nothing is sent here, and no child runs")]

#[path = "../../crates/zerowire-cli/src/sandbox/channel.rs"]
mod channel;
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
    pub(crate) use super::{message, sessions};

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

use libfuzzer_sys::fuzz_target;
use message::{ENTRIES, bounded_report, short};
use net_message::{ChildDirection, ChildWord};
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

fn direction(told: &ChildDirection) {
    let stats = told.stats();
    assert!(stats.frames_by_queue.len() <= ENTRIES && stats.limit_wait_seconds.is_finite());
    let mut sum = stats.clone();
    for _ in 0..3 {
        sum.totals.add(&stats.totals);
        sum.kick_seconds.add(&stats.kick_seconds);
        sum = ChildDirection::from(&sum).stats();
    }
    assert!(sum.totals.copied_total() >= stats.totals.copied_total() && sum.kick_seconds.sum.is_finite());
}

fn net(word: ChildWord) {
    match word {
        ChildWord::Ready(said) => report(&said),
        ChildWord::Statistics(_, stats) | ChildWord::Last(stats) => {
            let stats = stats.bounded();
            stats.last_error.iter().chain(&stats.features).for_each(|text| is_short(text));
            assert!(stats.cpu_seconds.is_finite() && stats.cpu_seconds >= 0.0);
            direction(&stats.transmit);
            direction(&stats.receive);
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
                let mut twice = vm.clone();
                let sums = twice.numbers().into_iter().zip(vm.numbers());
                sums.for_each(|(sum, n)| *sum += *n);
                twice.forget_unused();
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
