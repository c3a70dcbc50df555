//! Has a process give up all rights that it does not need.
//!
//! A process that serves a hostile front end calls [`confine`] when it has opened what it needs,
//! and before it starts threads. From then on it has descriptors and nothing else. The [`Layer`]s
//! stand one behind the other: what one lets through, another one refuses.
//!
//! ```text
//! spawn_apart ─▶ the process ─▶ confine ─▶ threads, front ends
//!  processes      opens          ipc, network, files, user, capabilities,
//!                                dumps, no new privileges, landlock, system calls
//! ```
//!
//! Nothing here owns memory or descriptors. All of it belongs to the whole process and can't be
//! taken back.
#![warn(missing_docs)]

mod child;
mod ends;
mod files;
mod namespaces;
mod report;
mod system_calls;
mod user;

pub use child::ChildProcess;
pub use namespaces::spawn_apart;
pub use report::{ConfineError, ConfineReport, Layer, LayerReport};
pub use user::{can_map_users, keep_capabilities, map_users, user_namespace};

use report::Steps;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use serde::{Deserialize, Serialize};
use zerowire_sys::allowed::AllowedCall;
use zerowire_sys::rights::landlock_all;

/// Whom a confined process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// What a process keeps.
#[derive(Clone, Copy, Debug)]
pub struct ConfinePlan<'a> {
    /// Whom it belongs to, if this process may change that.
    pub owner: Owner,
    /// The system calls that it may make, in lists.
    pub calls: &'a [&'a [AllowedCall]],
    /// Layers that are not put up. Only tests name any.
    pub without: &'a [Layer],
}

/// Confines this process, which has one thread. The report says which layers the platform refused.
///
/// The process has another hook for panics and the default action of SIGSEGV from then on. Its
/// handlers of other signals, such as that of lost guest memory, have to be installed before.
///
/// # Errors
/// [`ConfineError`]: the process has several threads, or a layer that every platform has can't be
/// put up. The process must end then: it has lost some of its rights.
pub fn confine(plan: &ConfinePlan<'_>) -> Result<ConfineReport, ConfineError> {
    confine_to(plan, None)
}

/// Which users a process tells apart whose threads are counted. The kernel counts those of a user,
/// so the process needs a user namespace of its own (Linux 5.14), which begins without users.
#[derive(Clone, Copy)]
pub enum KnownUsers<'a> {
    /// Its own: all others are nobody for it.
    Own,
    /// Those that its supervisor knows: this has it [map](map_users) them.
    Mapped(&'a dyn Fn() -> Result<(), String>),
    /// Those of its user namespace, in which no other process is.
    Alone,
    /// All. Its threads are not counted.
    All,
}

/// Confines this process as [`confine`] does, and to this many threads.
///
/// # Errors
/// As there. Or users that were to be known are not.
pub fn confine_threads(
    plan: &ConfinePlan<'_>,
    most: u64,
    users: KnownUsers<'_>,
) -> Result<ConfineReport, ConfineError> {
    confine_to(plan, Some((most, users)))
}

fn confine_to(
    plan: &ConfinePlan<'_>,
    threads: Option<(u64, KnownUsers<'_>)>,
) -> Result<ConfineReport, ConfineError> {
    if let Ok(threads) = std::fs::read_dir("/proc/self/task").map(Iterator::count)
        && threads != 1
    {
        return Err(ConfineError::Threads(threads));
    }
    let had = user::rights_to_change();
    let mut steps = Steps::new(plan.without);
    steps.take(Layer::Processes, namespaces::processes);
    steps.take(Layer::Ipc, namespaces::ipc);
    steps.take(Layer::Network, namespaces::network);
    steps.take(Layer::Files, namespaces::files);
    steps.take(Layer::Capabilities, user::forbid_capabilities);
    let mut is_counted = matches!(threads, Some((_, KnownUsers::Alone)));
    if let Some((_, KnownUsers::Mapped(map))) = threads {
        let mut mapped = Ok(());
        // Nobody but root owns the namespace, which has all users.
        steps.take(Layer::User, || {
            user::count_apart()?;
            (is_counted, mapped) = (true, map());
            Ok(())
        });
        mapped.map_err(|cause| ConfineError::Layer { layer: Layer::User, cause })?;
        // A user namespace has all capabilities.
        steps.take(Layer::Capabilities, user::forbid_capabilities);
    }
    steps.take(Layer::User, || user::change(plan.owner, had));
    if let Some((_, KnownUsers::Own)) = threads {
        steps.take(Layer::User, || user::count_apart().map(|()| is_counted = true));
        steps.take(Layer::Capabilities, user::forbid_capabilities);
    }
    if let (true, Some((most, _))) = (is_counted, threads) {
        steps.take(Layer::User, || user::bound_threads(most));
    }
    steps.take(Layer::Capabilities, user::drop_capabilities);
    // Another user makes a process dumpable or not: this comes behind it.
    steps.take(Layer::Dumps, no_dumps);
    steps.take(Layer::NoNewPrivileges, || {
        rustix::thread::set_no_new_privs(true).map_err(|e| format!("prctl: {e}"))
    });
    steps.take(Layer::Landlock, || landlock_all().map_err(|e| landlock_reason(&e)));
    ends::report_without_calls();
    steps.take(Layer::SystemCalls, || system_calls::restrict(plan.calls));
    steps.finish()
}

/// No core file, which would hold the guest's memory, and no debugger of the same user.
fn no_dumps() -> Result<(), String> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none).map_err(|e| format!("RLIMIT_CORE: {e}"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| format!("prctl: {e}"))
}

/// Why Landlock is missing.
fn landlock_reason(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel was built without it (CONFIG_SECURITY_LANDLOCK)".to_owned(),
        Some(libc::EOPNOTSUPP) => "the kernel was booted without it (lsm=landlock,…)".to_owned(),
        _ => e.to_string(),
    }
}
