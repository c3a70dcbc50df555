//! One queue of one interface: whether io_uring can receive into it without a copy, and what is
//! missing (`zerowire doctor -i IF -q Q`; Documentation/networking/iou-zcrx.rst).
//!
//! Settings are read by netlink and never changed. The queue is not registered, since that restarts
//! it under traffic. Instead the probe tries a registration for an interface that can't exist,
//! which shows whether kernel and user may.
//!
//! As everywhere in the probe: `facts` runs system calls, `checks` turns their results into
//! findings.

mod advice;
mod checks;
mod explain;
mod facts;

#[cfg(test)]
mod tests;

use serde::Serialize;

use super::{Check, CheckOutcome, Finding, Group, Job, MachineFacts, Subject, Verdict};
use checks::Asked;
use facts::{Facts, Kernel, Ntuple};
use zerowire_sys::netlink::{Channels, Device, LinkInfo, QueueUser, Rings};

pub use advice::Advice;

/// Errors of the registration (IORING_REGISTER_ZCRX_IFQ) in words.
pub mod zcrx_errors {
    pub use super::explain::{Registration, explain};
}

/// What was read of the interface. `None`: neither kernel nor driver tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// The interface itself.
    pub link: LinkInfo,
    /// Its driver.
    pub driver: Option<String>,
    /// Rings and header split.
    pub rings: Option<Rings>,
    /// Channels.
    pub channels: Option<Channels>,
    /// XDP.
    pub xdp: Option<Device>,
    /// Whether steering rules are on, off or can't be had: `on`, `off`, `absent`.
    pub ntuple: Option<&'static str>,
}

/// One receive queue in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueState {
    /// Its number.
    pub queue: u32,
    /// Who has put memory of its own under it; `None`: nobody, as far as the kernel reports.
    pub user: Option<QueueUser>,
    /// Number of the NAPI instance that serves it.
    pub napi: Option<u32>,
    /// Entries of the indirection table that name it, and all of them.
    pub rss: Option<(usize, usize)>,
    /// Steering rules that name it.
    pub rules: Option<usize>,
}

/// All that was found about an interface and, if one was asked about, a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueReport {
    /// The machine and the user.
    pub machine: MachineFacts,
    /// The interface that was asked about.
    pub interface: String,
    /// The queue that was asked about.
    pub queue: Option<u32>,
    /// What was read; `None` where the interface does not exist.
    pub settings: Option<Settings>,
    /// The queues in use.
    pub queues: Vec<QueueState>,
    /// The checks, in the order in which to settle them.
    pub checks: Vec<Check>,
    /// `Ok`: it can be registered and data arrives without a copy; `Degraded`: it can be
    /// registered; `Missing`: it can't.
    pub verdict: Verdict,
    /// The commands that set the interface up. Nobody runs them but the user.
    pub commands: Vec<Advice>,
}

impl QueueReport {
    /// How many checks came out as `outcome`.
    pub fn count(&self, outcome: CheckOutcome) -> usize {
        self.checks.iter().filter(|c| c.finding.outcome == outcome).count()
    }
}

/// Looks at `interface` in the network namespace of the calling thread, and at one of its receive
/// queues or at all. What can't be found out is a [`Finding`] too; there are no errors.
pub fn run(interface: &str, queue: Option<u32>) -> QueueReport {
    report(MachineFacts::detect(), Asked { interface, queue }, Facts::gather(interface), &Kernel::probe())
}

fn report(
    machine: MachineFacts,
    asked: Asked<'_>,
    facts: Result<Facts, i32>,
    kernel: &Kernel,
) -> QueueReport {
    let checks = checks(&machine, &asked, &facts, kernel);
    let verdict = verdict(&asked, &checks);
    let facts = facts.as_ref();
    QueueReport {
        interface: asked.interface.to_owned(),
        queue: asked.queue,
        settings: facts.ok().map(settings),
        queues: facts.map_or_else(|_| Vec::new(), states),
        commands: facts.map_or_else(|_| Vec::new(), |f| advice::commands(f, asked.queue)),
        machine,
        checks,
        verdict,
    }
}

/// The checks one by one, in the order in which to settle them.
fn checks(
    machine: &MachineFacts,
    asked: &Asked<'_>,
    facts: &Result<Facts, i32>,
    kernel: &Kernel,
) -> Vec<Check> {
    let mut list = Vec::with_capacity(15);
    let mut add = |id, title, finding: Finding| {
        let subject = Subject { id, group: Group::Recv, jobs: &[Job::Recv], path: "recv: NIC queue", title };
        list.push(Check { subject, finding });
    };
    add(
        "queue.interface",
        "interface",
        checks::interface(asked, facts.as_ref().map(|f| &f.link).map_err(|e| *e)),
    );
    if let Ok(f) = facts {
        add("queue.up", "link", checks::up(&f.link));
        add("queue.driver", "driver", checks::driver(f));
        add("queue.number", "queue number", checks::queue_number(asked, f));
        add("queue.header_split", "header split", checks::header_split(asked, f));
        add("queue.hds_thresh", "split threshold", checks::split_threshold(asked, f));
        add("queue.xdp", "XDP program", checks::xdp(&f.link));
        add("queue.user", "queue's user", checks::user(asked, f));
    }
    add("queue.admin", "CAP_NET_ADMIN", checks::admin(kernel, machine.has("CAP_NET_ADMIN")));
    add("queue.kernel", "kernel", checks::kernel(kernel, &machine.kernel));
    add("queue.ring", "ring", checks::ring(kernel));
    if kernel.recv_zc {
        add("queue.areas", "areas", checks::areas(kernel));
    }
    if let Ok(f) = facts {
        add("queue.rss", "RSS", checks::rss(asked, f));
        add("queue.steering", "flow steering", checks::steering(asked, f));
        add("queue.buffer_len", "buffer length", checks::buffer_len(f));
    }
    list
}

fn verdict(asked: &Asked<'_>, checks: &[Check]) -> Verdict {
    let what = asked.queue.map_or_else(
        || format!("a queue of {}", asked.interface),
        |q| format!("queue {q} of {}", asked.interface),
    );
    let titles = |outcome| {
        let list: Vec<_> =
            checks.iter().filter(|c| c.finding.outcome == outcome).map(|c| c.subject.title).collect();
        list.join(", ")
    };
    let (missing, degraded) = (titles(CheckOutcome::Missing), titles(CheckOutcome::Degraded));
    let (outcome, text) = if !missing.is_empty() {
        (CheckOutcome::Missing, format!("{what} can't be registered for zero-copy receive: {missing}"))
    } else if !degraded.is_empty() {
        (
            CheckOutcome::Degraded,
            format!("{what} can be registered; to be settled before data comes without a copy: {degraded}"),
        )
    } else {
        (CheckOutcome::Ok, format!("{what} can be registered, and payload arrives without a copy"))
    };
    Verdict { job: Job::Recv, outcome, text }
}

fn settings(facts: &Facts) -> Settings {
    Settings {
        link: facts.link.clone(),
        driver: facts.driver.clone(),
        rings: facts.rings.clone().ok(),
        channels: facts.channels.clone().ok(),
        xdp: facts.device.clone().ok(),
        ntuple: facts.ntuple.map(|n| match n {
            Ntuple::On => "on",
            Ntuple::Off => "off",
            Ntuple::Absent => "absent",
        }),
    }
}

/// More queues than this are not listed: no interface has as many.
const MOST_QUEUES: u32 = 4096;

fn states(facts: &Facts) -> Vec<QueueState> {
    let count = facts.receive_queues().unwrap_or(0).min(MOST_QUEUES);
    (0..count)
        .map(|queue| QueueState {
            queue,
            user: facts.queue(queue).and_then(|q| q.user),
            napi: facts.queue(queue).and_then(|q| q.napi),
            rss: facts.rss.as_ref().ok().filter(|r| !r.table.is_empty()).map(|r| r.share(queue)),
            rules: facts.rules.is_ok().then(|| facts.rules_for(queue).count()),
        })
        .collect()
}
