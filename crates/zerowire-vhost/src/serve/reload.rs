//! The VMs of a configuration file that was read again.

use super::fleet::VmFleet;
use super::listen::Endpoint;
use super::roster::{ChangeError, RosterConfig, VmState};

/// What reading a file again has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Names of VMs that are new.
    pub added: Vec<String>,
    /// Names of VMs that are gone.
    pub removed: Vec<String>,
    /// Names of VMs that were removed and added again, since their device is another one.
    pub replaced: Vec<String>,
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

    /// Where its front end connects.
    fn endpoint(config: &Self::Config) -> &Endpoint;

    /// Gives a VM that it keeps what can change in it. Returns what failed.
    fn update(&self, wanted: &Self::Config) -> Vec<ChangeError<Self::Error>>;
}

/// What a VM of the file needs.
enum Step {
    /// What can change in it is set.
    Keep,
    Add,
    Replace,
    /// It would be another device, and its socket can't be made again.
    Restart,
}

/// How to get from the VMs that run to those of the file.
struct ReloadPlan<C> {
    /// Names of VMs that go.
    removed: Vec<String>,
    /// What the VMs of the file need.
    steps: Vec<(Step, C)>,
}

/// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it was
/// read last: those that it has no more are removed. Further VMs, which somebody else has added,
/// stay as they are.
///
/// # Errors
/// The VMs can't be beside each other and those of others. Nothing has changed then.
pub fn reload<S: Reloads + ?Sized>(
    server: &S,
    before: &[String],
    wanted: Vec<S::Config>,
) -> Result<Reloaded, S::Error> {
    let ReloadPlan { removed, steps } = plan(server, before, wanted)?;
    let mut done = Reloaded::default();
    for name in removed {
        match server.remove(&name) {
            Ok(()) => done.removed.push(name),
            // It has left by itself.
            Err(ChangeError::Unknown(_)) => {}
            Err(e) => done.errors.push(e.to_string()),
        }
    }
    // What one VM gives up another one may need, so all removals come first.
    let (mut added, mut late) = (Vec::new(), Vec::new());
    for (step, config) in steps {
        match step {
            Step::Keep => done.errors.extend(server.update(&config).iter().map(ToString::to_string)),
            Step::Replace => match server.remove(config.name()) {
                Ok(()) | Err(ChangeError::Unknown(_)) => added.push((true, config)),
                Err(e @ ChangeError::Stuck(_)) => {
                    done.errors.push(format!("{e}. It is added again then"));
                    late.push(config);
                }
                Err(e) => done.errors.push(e.to_string()),
            },
            Step::Add => added.push((false, config)),
            Step::Restart => done.errors.push(format!(
                "VM {}: its socket was handed over at the start, so its device can't change while the program runs: it \
                 stays as it is; restart the program",
                config.name()
            )),
        }
    }
    for (was_there, config) in added {
        let name = config.name().to_owned();
        match server.add(config) {
            Ok(()) if was_there => done.replaced.push(name),
            Ok(()) => done.added.push(name),
            Err(e) => done.errors.push(format!("{e}; VM {name} is not served")),
        }
    }
    for config in late {
        let name = config.name().to_owned();
        if let Err(e) = server.add_later(config) {
            done.errors.push(format!("{e}; VM {name} is not served"));
        }
    }
    Ok(done)
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
        Some(vm) if vm.state != VmState::Leaving && S::keeps(&vm.config, wanted) => Step::Keep,
        Some(vm) => match S::endpoint(&vm.config) {
            Endpoint::Path(_) => Step::Replace,
            Endpoint::Fd(_) => Step::Restart,
        },
    };
    let steps: Vec<_> = wanted.iter().map(step).collect();
    Ok(ReloadPlan { removed, steps: steps.into_iter().zip(wanted).collect() })
}
