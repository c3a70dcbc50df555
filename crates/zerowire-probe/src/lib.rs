//! What this kernel, user and network namespace can do for each path, and how to get the missing
//! part.
//!
//! Each check tries the thing itself: it opens the device, makes the socket, registers the memory.
//! It reads a configuration file or a version number only where a try would disturb something (a
//! NIC's queue) or can't be undone. What a check makes (a tap that is never set up, rings, sockets,
//! mappings) belongs to it and is gone when it returns. No check changes a setting, and none sends
//! a frame.
//!
//! There are two stages, so that tests of the words need no machine. A *probe* runs system calls
//! and returns plain results. A *translation* is a pure function from those results (mostly an
//! errno) to a [`Finding`].
//!
//! [`run`] looks at all jobs; [`queue::run`] at one interface and its queues.
//!
//! [`run`] takes some tens of milliseconds: most of them go into registering memory and starting
//! QEMU for its version.

mod errno;
mod kernel;
mod limits;
mod machine;
mod memory;
mod namespace;
mod nic;
mod packet;
pub mod queue;
mod recv;
mod report;
mod sandbox;
mod send;
mod tap;
mod uring;
mod verdict;
mod vm;
mod vsock;
mod xdp;

pub use limits::MAX_VMS;
pub use machine::MachineFacts;
pub use report::{Check, CheckOutcome, DoctorReport, Finding, Group, Job, Subject, Verdict};

/// What to look at.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Only the checks that this job needs; `None` for all.
    pub job: Option<Job>,
}

impl Options {
    /// All checks of `job`; `None` for all jobs.
    pub fn for_job(job: Option<Job>) -> Self {
        Self { job }
    }
}

/// Looks at the machine as the calling thread sees it: its network namespace, its user, its seccomp
/// filter. What can't be found out is a [`Finding`] too; there are no errors.
pub fn run(options: &Options) -> DoctorReport {
    let machine = MachineFacts::detect();
    let ring = uring::probe();
    let mut todo = Todo { job: options.job, checks: Vec::new() };
    kernel::check(&mut todo, &machine);
    uring::check(&mut todo, &ring);
    memory::check(&mut todo, &machine, ring.is_ok());
    limits::check(&mut todo);
    namespace::check(&mut todo, &machine);
    tap::check(&mut todo, &machine);
    sandbox::check(&mut todo, &machine);
    vm::check(&mut todo);
    send::check(&mut todo, &ring);
    packet::check(&mut todo);
    recv::check(&mut todo, &ring);
    nic::check(&mut todo);
    xdp::check(&mut todo);
    vsock::check(&mut todo);
    let verdicts = verdict::verdicts(&todo.checks, options.job);
    DoctorReport { machine, checks: todo.checks, verdicts }
}

/// Collects the checks that were asked for; the others are not even tried.
struct Todo {
    job: Option<Job>,
    checks: Vec<Check>,
}

impl Todo {
    fn wants(&self, subject: &Subject) -> bool {
        self.job.is_none_or(|job| subject.jobs.contains(&job))
    }

    /// Runs `probe` if `subject` was asked for.
    fn add(&mut self, subject: Subject, probe: impl FnOnce() -> Finding) {
        if self.wants(&subject) {
            let finding = probe();
            self.checks.push(Check { subject, finding });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifiers are what scripts look for; each non-ok line tells what to expect.
    #[test]
    fn every_check_has_its_own_id_and_says_what_follows() {
        let report = run(&Options::default());
        let mut ids: Vec<_> = report.checks.iter().map(|c| c.subject.id).collect();
        assert!(ids.len() >= 20, "{ids:?}");
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all);
        for c in &report.checks {
            assert!(!c.finding.found.is_empty(), "{}", c.subject.id);
            assert!(!c.finding.consequence.is_empty(), "{}", c.subject.id);
            assert!(!c.subject.jobs.is_empty(), "{}", c.subject.id);
        }
    }

    #[test]
    fn a_job_selects_its_checks_and_its_verdict() {
        let report = run(&Options::for_job(Some(Job::Vsock)));
        assert!(report.checks.iter().all(|c| c.subject.jobs.contains(&Job::Vsock)));
        assert!(!report.checks.iter().any(|c| c.subject.id == "net.tap"));
        assert_eq!(report.verdicts.iter().map(|v| v.job).collect::<Vec<_>>(), [Job::Vsock]);
    }
}
