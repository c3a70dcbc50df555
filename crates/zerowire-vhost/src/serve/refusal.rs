//! What kind of refusal an error is, for programs that answer by a status.
//!
//! Each error enum of a server says it beside its reasons, by a match without a default. A new
//! reason can't be forgotten there.

/// What an error tells the caller to do. A program can match on all kinds: a new one is a change
/// that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// No VM has the name that was given.
    Unknown,
    /// A value that is wrong for every VM: give another one.
    Malformed,
    /// Other VMs, or the VM's own device, stand against it: change one of them.
    Conflict,
    /// A setting that this server does not serve: give another one.
    Unsupported,
    /// What the configuration names can't be opened or read: mend that, or name another thing.
    Unavailable,
    /// The process or the system can't do it at present: try again.
    Passing,
}

/// An error of a server that refuses something.
pub trait ServerRefusal: std::error::Error {
    /// What kind of refusal it is.
    fn kind(&self) -> RefusalKind;
}
