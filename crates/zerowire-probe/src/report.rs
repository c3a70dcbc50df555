//! The words of a report: subjects, findings, verdicts.

use serde::Serialize;

use super::MachineFacts;

/// What a user wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// Frames between a VM and the network.
    Net,
    /// A program sends.
    Send,
    /// A program receives.
    Recv,
    /// Streams between a VM and programs.
    Vsock,
}

impl Job {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Net, Self::Send, Self::Recv, Self::Vsock];

    /// The name of the subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Vsock => "vsock",
        }
    }
}

/// Where a check stands in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Several jobs need it.
    Shared,
    /// Frames between a VM and the network.
    Net,
    /// Virtual machines to attach to.
    Vm,
    /// Sending.
    Send,
    /// Receiving.
    Recv,
    /// Streams between a VM and programs.
    Vsock,
}

impl Group {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 6] = [Self::Shared, Self::Net, Self::Vm, Self::Send, Self::Recv, Self::Vsock];
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// The best path can run.
    Ok,
    /// Something slower runs in its place, or it works in part.
    Degraded,
    /// It can't be had.
    Missing,
}

impl CheckOutcome {
    /// The word that the report prints.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// What a check looks at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// Stable name for scripts, such as `net.tap`.
    pub id: &'static str,
    /// Where it stands in the report.
    pub group: Group,
    /// The jobs that use it.
    pub jobs: &'static [Job],
    /// The path in a few words, such as `net: tap`.
    pub path: &'static str,
    /// What the report's line is called; at most 22 characters.
    pub title: &'static str,
}

impl Subject {
    /// The names are its id, its path and its title.
    pub(super) fn new(group: Group, jobs: &'static [Job], [id, path, title]: [&'static str; 3]) -> Self {
        Self { id, group, jobs, path, title }
    }
}

/// What was found, and what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The result.
    pub outcome: CheckOutcome,
    /// What was measured.
    pub found: String,
    /// Which path runs then.
    pub consequence: String,
    /// How to get the missing part; `None` if nothing is missing or nothing can be done.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Ok, found: found.into(), consequence: consequence.into(), remedy: None }
    }

    pub(super) fn degraded(found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Degraded, ..Self::ok(found, consequence) }
    }

    pub(super) fn missing(found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Missing, ..Self::ok(found, consequence) }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    #[serde(flatten)]
    pub subject: Subject,
    /// What was found.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What a job's path comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The job.
    pub job: Job,
    /// `Ok`: the best path; `Degraded`: a lesser one; `Missing`: it can't run.
    pub outcome: CheckOutcome,
    /// The path in words, or why there is none.
    pub text: String,
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The machine and the user.
    pub machine: MachineFacts,
    /// The checks, in the order of the report.
    pub checks: Vec<Check>,
    /// One a job.
    pub verdicts: Vec<Verdict>,
}

impl DoctorReport {
    /// How many checks came out as `outcome`.
    pub fn count(&self, outcome: CheckOutcome) -> usize {
        self.checks.iter().filter(|c| c.finding.outcome == outcome).count()
    }
}
