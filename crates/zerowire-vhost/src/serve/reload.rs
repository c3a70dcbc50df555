//! VMs that run get other settings: those of a configuration file that was read again, or one VM.
//!
//! What its front end does not notice is set ([`Reloads::update`]). For all else a VM is removed
//! and added again. If its new settings can't be had then, it gets its old ones again.

use thiserror::Error;

use super::control::side_by_side;
use super::fleet::VmFleet;
use super::listen::Endpoint;
use super::roster::{ChangeError, RosterConfig, VmState};
use super::start::StartError;
use super::turn::ChangeTurn;

/// What reading a file again has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Names of VMs that are new.
    pub added: Vec<String>,
    /// Names of VMs that are gone.
    pub removed: Vec<String>,
    /// Names of VMs that were removed and added again, since their device is another one.
    pub replaced: Vec<String>,
    /// Names of VMs that have other settings, and their front ends.
    pub changed: Vec<String>,
    /// What failed. The text names the VM.
    pub errors: Vec<String>,
}

/// VMs that can become those of a file.
pub trait Reloads: VmFleet {
    /// Whether these VMs can be beside each other.
    ///
    /// # Errors
    /// Why they can't.
    fn check(all: &[&Self::Config]) -> Result<(), Self::Error>;

    /// Whether a VM that runs need not be another device for that.
    fn keeps(running: &Self::Config, wanted: &Self::Config) -> bool;

    /// Whether a VM that it keeps gets other settings.
    fn differs(running: &Self::Config, wanted: &Self::Config) -> bool;

    /// Where its front end connects.
    fn endpoint(config: &Self::Config) -> &Endpoint;

    /// Gives VMs that it keeps what differs. Each pair is a VM as it runs, and as it is wanted.
    /// Returns what failed. Those that do not answer cost the time of one.
    fn update(&self, kept: Vec<(Self::Config, Self::Config)>) -> Vec<ChangeError<Self::Error>>;
}

/// Why a VM did not become another device. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplaceError<E> {
    /// Nothing has changed: the VM runs as before, and keeps its front end.
    #[error(transparent)]
    Unchanged(#[from] ChangeError<E>),
    /// Its removal gave up. It is added with its new settings when it has gone.
    #[error("{0}. It is added again then")]
    Later(ChangeError<E>),
    /// It was removed, and was added again as it was before.
    #[error("{cause}; VM {vm} has its old settings again, and its front end has to connect again")]
    Restored {
        /// The VM.
        vm: String,
        /// Why it does not have the new ones.
        cause: E,
    },
    /// It was removed, and somebody else has added one of its name.
    #[error("{cause}; another VM {vm} was added meanwhile, and stays")]
    Overtaken {
        /// The VM.
        vm: String,
        /// Why it does not have the new settings.
        cause: E,
    },
    /// It was removed, and could not be added again.
    #[error("{cause}; VM {vm} is gone: its old settings can't be had again either: {restoring}")]
    Gone {
        /// The VM.
        vm: String,
        /// Why it does not have the new settings.
        cause: E,
        /// Why it does not have the old ones.
        restoring: Box<E>,
    },
}

impl<E> ReplaceError<E> {
    /// Why the new settings can't be had, if it is for that.
    pub fn cause(&self) -> Option<&E> {
        match self {
            Self::Unchanged(ChangeError::Refused(cause))
            | Self::Restored { cause, .. }
            | Self::Overtaken { cause, .. }
            | Self::Gone { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// What a VM of the file needs.
enum Step<C> {
    /// What differs from this one, which runs, is set.
    Keep(C),
    Add,
    /// It is another device than this one, which runs.
    Replace(C),
    /// It would be another device, and its socket can't be made again.
    Restart,
}

/// How to get from the VMs that run to those of the file.
struct ReloadPlan<C> {
    /// Names of VMs that go.
    removed: Vec<String>,
    /// What the VMs of the file need.
    steps: Vec<(Step<C>, C)>,
}

/// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it was
/// read last: those that it has no more are removed. Further VMs, which somebody else has added,
/// stay as they are. Nobody else changes a VM of the file meanwhile
/// ([`ChangeTurn::entering_all`]).
///
/// # Errors
/// The VMs can't be beside each other and those of others. Nothing has changed then.
pub fn reload<S: Reloads + ?Sized>(
    server: &S,
    before: &[String],
    wanted: Vec<S::Config>,
) -> Result<Reloaded, S::Error> {
    let ReloadPlan { removed: mut going, steps } = plan(server, before, wanted)?;
    let mut done = Reloaded::default();
    // What one VM gives up another one may need, so all removals come first.
    let (leaving, is_replaced) = (going.len(), |(step, _): &&(Step<_>, _)| matches!(step, Step::Replace(_)));
    going.extend(steps.iter().filter(is_replaced).map(|(_, config)| config.name().to_owned()));
    let mut gone = remove_all(server, going).into_iter();
    for (name, removed) in gone.by_ref().take(leaving) {
        match removed {
            Ok(()) => done.removed.push(name),
            // It has left by itself.
            Err(ChangeError::Unknown(_)) => {}
            Err(e) => done.errors.push(e.to_string()),
        }
    }
    let (mut kept, mut added, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for (step, config) in steps {
        match step {
            Step::Keep(running) => {
                if S::differs(&running, &config) {
                    done.changed.push(config.name().to_owned());
                }
                kept.push((running, config));
            }
            Step::Replace(before) => match gone.next().map_or(Ok(()), |(_, removed)| removed) {
                Ok(()) | Err(ChangeError::Unknown(_)) => added.push((Some(before), config)),
                Err(e @ ChangeError::Stuck(_)) => {
                    done.errors.push(ReplaceError::Later(e).to_string());
                    late.push(config);
                }
                Err(e) => done.errors.push(e.to_string()),
            },
            Step::Add => added.push((None, config)),
            Step::Restart => done.errors.push(StartError::handed_over(config.name()).to_string()),
        }
    }
    // To open what a VM needs may take long: guards and limits don't wait for it.
    done.errors.extend(server.update(kept).iter().map(ToString::to_string));
    let mut failed = Vec::new();
    for (before, config) in added {
        let name = config.name().to_owned();
        match (server.add(config, None), before) {
            (Ok(()), Some(_)) => done.replaced.push(name),
            (Ok(()), None) => done.added.push(name),
            (Err(cause), Some(before)) => failed.push((before, cause)),
            (Err(e), None) => done.errors.push(format!("{e}; VM {name} is not served")),
        }
    }
    // What the file wants comes first: it may be what another VM had.
    done.errors.extend(failed.into_iter().map(|(before, e)| restore(server, before, e).to_string()));
    for config in late {
        let name = config.name().to_owned();
        if let Err(e) = server.add_later(config) {
            done.errors.push(format!("{e}; VM {name} is not served"));
        }
    }
    Ok(done)
}

/// A VM's name, and how its removal ended.
type Removed<E> = (String, Result<(), ChangeError<E>>);

/// Removes VMs side by side: one that is held up takes its time.
fn remove_all<S: Reloads + ?Sized>(server: &S, vms: Vec<String>) -> Vec<Removed<S::Error>> {
    let mut all: Vec<_> = vms.into_iter().map(|vm| (vm, Ok(()))).collect();
    side_by_side(all.iter_mut().collect(), |(vm, removed)| *removed = server.remove(vm));
    all
}

/// Gives a VM that runs as `before` other settings. If they make it another device, it is removed
/// and added again in a turn of its own, once all has been tried that can be. Else it keeps its
/// front end.
///
/// # Errors
/// [`ReplaceError`].
pub fn replace<S: Reloads + ?Sized>(
    server: &S,
    before: &S::Config,
    wanted: S::Config,
    turn: &ChangeTurn,
) -> Result<(), ReplaceError<S::Error>>
where
    S::Config: PartialEq,
    S::Error: From<StartError>,
{
    let name = before.name();
    if let Step::Replace(_) = step(server, before, &wanted)? {
        // In no turn: it may take long.
        server.try_open(before, &wanted).map_err(ChangeError::Refused)?;
    }
    let _turn = turn.away(name).map_err(ChangeError::OtherChange)?;
    // Others have changed meanwhile.
    match step(server, before, &wanted)? {
        Step::Replace(_) => {}
        Step::Keep(running) => {
            return server
                .update(vec![(running, wanted)])
                .into_iter()
                .next()
                .map_or(Ok(()), |e| Err(e.into()));
        }
        Step::Restart => return Err(ChangeError::Refused(StartError::handed_over(name).into()).into()),
        // It has left meanwhile.
        Step::Add => return Err(ChangeError::Unknown(name.to_owned()).into()),
    }
    let added = match server.remove(name) {
        Ok(()) => server.add(wanted, None),
        Err(e @ ChangeError::Stuck(_)) => match server.add_later(wanted) {
            Ok(()) => return Err(ReplaceError::Later(e)),
            failed => failed,
        },
        Err(e) => return Err(e.into()),
    };
    added.map_err(|cause| restore(server, before.clone(), cause))
}

/// What a VM needs that runs as `before`.
fn step<S: Reloads + ?Sized>(
    server: &S,
    before: &S::Config,
    wanted: &S::Config,
) -> Result<Step<S::Config>, ChangeError<S::Error>>
where
    S::Config: PartialEq,
{
    let name = before.name().to_owned();
    match server.vms().into_iter().find(|vm| vm.config.name() == name) {
        None => return Err(ChangeError::Unknown(name)),
        Some(vm) if vm.state != VmState::Running => return Err(ChangeError::Busy(name)),
        Some(vm) if vm.config != *before => return Err(ChangeError::Changed(name)),
        Some(_) => {}
    }
    let mut plan = plan(server, std::slice::from_ref(&name), vec![wanted.clone()])?;
    plan.steps.pop().map(|(step, _)| step).ok_or(ChangeError::Unknown(name))
}

/// Adds a VM again as it was. Its new settings could not be had because of `cause`.
fn restore<S: Reloads + ?Sized>(server: &S, before: S::Config, cause: S::Error) -> ReplaceError<S::Error> {
    let vm = before.name().to_owned();
    match server.add(before, None) {
        Ok(()) => ReplaceError::Restored { vm, cause },
        Err(_) if server.vms().iter().any(|other| other.config.name() == vm) => {
            ReplaceError::Overtaken { vm, cause }
        }
        Err(e) => ReplaceError::Gone { vm, cause, restoring: Box::new(e) },
    }
}

/// Adds a VM behind one whose removal gave up and that has gone by now, or adds that one again.
///
/// # Errors
/// What to log: the VM does not have its new settings.
pub fn add_or_restore<C: RosterConfig, E: std::error::Error>(
    add: impl Fn(C) -> Result<(), E>,
    wanted: C,
    before: C,
) -> Result<(), String> {
    let vm = wanted.name().to_owned();
    let Err(cause) = add(wanted) else { return Ok(()) };
    let failed = match add(before) {
        Ok(()) => ReplaceError::Restored { vm, cause },
        Err(e) => ReplaceError::Gone { vm, cause, restoring: Box::new(e) },
    };
    Err(failed.to_string())
}

fn plan<S: Reloads + ?Sized>(
    server: &S,
    before: &[String],
    wanted: Vec<S::Config>,
) -> Result<ReloadPlan<S::Config>, S::Error> {
    let vms = server.vms();
    let (ours, others): (Vec<_>, Vec<_>) =
        vms.iter().partition(|vm| before.iter().any(|name| name == vm.config.name()));
    S::check(&others.into_iter().map(|vm| &vm.config).chain(&wanted).collect::<Vec<_>>())?;
    let is_wanted = |name: &str| wanted.iter().any(|w| w.name() == name);
    let names = ours.iter().map(|vm| vm.config.name());
    let removed = names.filter(|name| !is_wanted(name)).map(str::to_owned).collect();
    let step = |wanted: &S::Config| match ours.iter().find(|vm| vm.config.name() == wanted.name()) {
        None => Step::Add,
        Some(vm) if vm.state != VmState::Leaving && S::keeps(&vm.config, wanted) => {
            Step::Keep(vm.config.clone())
        }
        Some(vm) => match S::endpoint(&vm.config) {
            Endpoint::Path(_) => Step::Replace(vm.config.clone()),
            Endpoint::Fd(_) => Step::Restart,
        },
    };
    let steps: Vec<_> = wanted.iter().map(step).collect();
    Ok(ReloadPlan { removed, steps: steps.into_iter().zip(wanted).collect() })
}

#[cfg(test)]
mod tests;
