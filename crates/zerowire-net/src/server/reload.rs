//! The VMs of a configuration file that was read again.

use zerowire_vhost::serve::Endpoint;

use super::{ChangeError, VmInfo, VmState};
use crate::fleet::Fleet;
use crate::vm::{self, ServerError, VmConfig};

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

/// How to get from the VMs that run to those of the file.
struct ReloadPlan {
    /// Names of VMs that go.
    removed: Vec<String>,
    /// What the VMs of the file need.
    steps: Vec<(Step, VmConfig)>,
}

/// What a VM of the file needs.
enum Step {
    /// Its metadata are read again, and its limits set.
    Keep,
    Add,
    Replace,
    /// It would be another device, and its socket can't be made again.
    Restart,
}

impl Step {
    fn from(running: Option<&VmInfo>, wanted: &VmConfig) -> Self {
        let Some(VmInfo { config: running, state, .. }) = running else { return Self::Add };
        let is_served =
            running.metadata.as_ref().map(|m| m.tokens) == wanted.metadata.as_ref().map(|m| m.tokens);
        let (metadata, limits) = (running.metadata.clone(), running.limits);
        let same_device = VmConfig { metadata, limits, ..wanted.clone() } == *running;
        match running.endpoint {
            _ if is_served && same_device && *state != VmState::Leaving => Self::Keep,
            Endpoint::Path(_) => Self::Replace,
            Endpoint::Fd(_) => Self::Restart,
        }
    }
}

/// Makes the VMs of a file those of `wanted` ([`Fleet::reload`]).
pub(crate) fn reload(
    fleet: &(impl Fleet + ?Sized),
    before: &[String],
    wanted: Vec<VmConfig>,
) -> Result<Reloaded, ServerError> {
    for config in &wanted {
        if let Some(source) = &config.metadata {
            let failed = |text| ServerError::Metadata { vm: config.name.clone(), text };
            source.load().map_err(failed)?;
        }
    }
    let ReloadPlan { removed, steps } = plan(&fleet.vms(), before, wanted)?;
    let mut done = Reloaded::default();
    for name in removed {
        match fleet.remove(&name) {
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
            Step::Keep => {
                let source = config.metadata.clone();
                let read = source.map_or(Ok(()), |source| fleet.set_metadata(&config.name, source));
                let set = fleet.set_limits(&config.name, config.limits);
                done.errors.extend([read, set].into_iter().filter_map(|done| done.err().map(|e| e.to_string())));
            }
            Step::Replace => match fleet.remove(&config.name) {
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
                config.name
            )),
        }
    }
    for (was_there, config) in added {
        let name = config.name.clone();
        match fleet.add(config) {
            Ok(()) if was_there => done.replaced.push(name),
            Ok(()) => done.added.push(name),
            Err(e) => done.errors.push(format!("{e}; VM {name} is not served")),
        }
    }
    for config in late {
        let name = config.name.clone();
        if let Err(e) = fleet.add_later(config) {
            done.errors.push(format!("{e}; VM {name} is not served"));
        }
    }
    Ok(done)
}

fn plan(vms: &[VmInfo], before: &[String], wanted: Vec<VmConfig>) -> Result<ReloadPlan, ServerError> {
    let (ours, others): (Vec<_>, Vec<_>) = vms.iter().partition(|vm| before.contains(&vm.config.name));
    vm::check(&others.into_iter().map(|vm| &vm.config).chain(&wanted).collect::<Vec<_>>())?;
    let is_wanted = |vm: &&&VmInfo| wanted.iter().any(|w| w.name == vm.config.name);
    let gone = ours.iter().filter(|vm| !is_wanted(vm));
    let removed = gone.map(|vm| vm.config.name.clone()).collect();
    let running = |w: &VmConfig| ours.iter().find(|vm| vm.config.name == w.name).copied();
    let steps: Vec<_> = wanted.iter().map(|w| Step::from(running(w), w)).collect();
    Ok(ReloadPlan { removed, steps: steps.into_iter().zip(wanted).collect() })
}
