//! The VMs of a supervisor.
//!
//! They stand in one roster under a lock, which is held to look something up or to enter a result,
//! never while a child is started, asked or waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use zerowire_net::{
    ChangeError, Fleet, Limits, MetadataSource, ServerError, ServerStats, VmConfig, VmInfo, VmState,
    check_vms,
};
use zerowire_vhost::serve::{StartError, process_cpu_seconds};

use super::keeper::{Common, Keeper};

enum KeptStage {
    Opening,
    Running(Arc<Keeper>),
    Leaving,
}

struct KeptVm {
    config: VmConfig,
    stage: KeptStage,
}

impl KeptVm {
    fn running(&self) -> Option<&Arc<Keeper>> {
        match &self.stage {
            KeptStage::Running(keeper) => Some(keeper),
            KeptStage::Opening | KeptStage::Leaving => None,
        }
    }

    fn state(&self) -> VmState {
        match &self.stage {
            KeptStage::Opening => VmState::Opening,
            KeptStage::Running(keeper) if keeper.is_draining() => VmState::Draining,
            KeptStage::Running(_) => VmState::Running,
            KeptStage::Leaving => VmState::Leaving,
        }
    }
}

#[derive(Default)]
struct KeptVms {
    all: Vec<KeptVm>,
    /// The supervisor stops: nothing may be added.
    closed: bool,
}

impl KeptVms {
    fn find(&mut self, name: &str) -> Result<&mut KeptVm, ChangeError> {
        let kept = self.all.iter_mut().find(|kept| kept.config.name == name);
        kept.ok_or_else(|| ChangeError::Unknown(name.to_owned()))
    }

    fn keeper(&mut self, name: &str) -> Result<Arc<Keeper>, ChangeError> {
        let running = self.find(name)?.running().cloned();
        running.ok_or_else(|| ChangeError::Busy(name.to_owned()))
    }

    fn forget(&mut self, name: &str) {
        self.all.retain(|kept| kept.config.name != name);
    }
}

fn lock(vms: &Mutex<KeptVms>) -> MutexGuard<'_, KeptVms> {
    vms.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that serves each VM by a confined child.
pub(in crate::net) struct Supervisor {
    vms: Arc<Mutex<KeptVms>>,
    common: Common,
    start: Instant,
}

impl Supervisor {
    /// Without VMs yet.
    pub(super) fn new(common: Common) -> Self {
        Self { vms: Arc::default(), common, start: Instant::now() }
    }

    fn running(&self) -> Vec<Arc<Keeper>> {
        lock(&self.vms).all.iter().filter_map(KeptVm::running).cloned().collect()
    }

    /// What takes a drained VM out of the roster.
    fn gone(&self) -> impl FnOnce(&str) + Send + use<> {
        let vms: Weak<_> = Arc::downgrade(&self.vms);
        move |name: &str| {
            if let Some(vms) = vms.upgrade() {
                lock(&vms).forget(name);
            }
        }
    }
}

impl Fleet for Supervisor {
    fn vms(&self) -> Vec<VmInfo> {
        let connected = |name: &str| {
            let keeper = lock(&self.vms).keeper(name).ok();
            keeper.is_some_and(|keeper| keeper.stats().0.connected)
        };
        let info = |kept: &KeptVm| {
            let config = kept.running().map_or_else(|| kept.config.clone(), |keeper| keeper.config());
            VmInfo { config, state: kept.state(), connected: false }
        };
        let mut all: Vec<_> = lock(&self.vms).all.iter().map(info).collect();
        for vm in &mut all {
            vm.connected = connected(&vm.config.name);
        }
        all
    }

    fn stats(&self) -> ServerStats {
        let told: Vec<_> = self.running().iter().map(|keeper| keeper.stats()).collect();
        ServerStats {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds() + told.iter().map(|(_, seconds)| seconds).sum::<f64>(),
            vms: told.into_iter().map(|(vm, _)| vm).collect(),
        }
    }

    fn add(&self, config: VmConfig) -> Result<(), ServerError> {
        let name = config.name.clone();
        super::check(&config).map_err(|text| StartError::Limit { vm: name.clone(), text })?;
        {
            let mut vms = lock(&self.vms);
            if vms.closed {
                let text = "the server stops: it takes no further VM".to_owned();
                return Err(StartError::Limit { vm: name, text }.into());
            }
            let all: Vec<_> = vms.all.iter().map(|kept| &kept.config).chain([&config]).collect();
            check_vms(&all)?;
            vms.all.push(KeptVm { config: config.clone(), stage: KeptStage::Opening });
        }
        let started = Keeper::start(config, self.common.clone(), self.gone());
        let mut vms = lock(&self.vms);
        let closed = vms.closed;
        match (started, vms.find(&name)) {
            (Ok(keeper), Ok(kept)) if !closed => kept.stage = KeptStage::Running(keeper),
            (Ok(keeper), _) => {
                vms.forget(&name);
                drop(vms);
                keeper.stop();
            }
            (Err(e), _) => {
                vms.forget(&name);
                return Err(e);
            }
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), ChangeError> {
        let keeper = {
            let mut vms = lock(&self.vms);
            let keeper = vms.keeper(name)?;
            vms.find(name)?.stage = KeptStage::Leaving;
            keeper
        };
        keeper.stop();
        drop(keeper);
        lock(&self.vms).forget(name);
        tracing::info!("{name}: removed");
        Ok(())
    }

    fn drain(&self, name: &str) -> Result<(), ChangeError> {
        let keeper = lock(&self.vms).keeper(name)?;
        keeper.drain();
        Ok(())
    }

    fn set_metadata(&self, name: &str, source: MetadataSource) -> Result<(), ChangeError> {
        let keeper = lock(&self.vms).keeper(name)?;
        if keeper.config().metadata.is_none_or(|now| now.tokens != source.tokens) {
            return Err(ChangeError::Settled(name.to_owned()));
        }
        let failed = |text| ServerError::Metadata { vm: name.to_owned(), text };
        Ok(keeper.set_metadata(source).map_err(failed)?)
    }

    fn set_limits(&self, name: &str, limits: Limits) -> Result<(), ChangeError> {
        lock(&self.vms).keeper(name)?.set_limits(limits);
        Ok(())
    }

    /// A child that does not answer is the matter of its VM alone.
    fn ask(&self) {}

    fn silent(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_alive(&self) -> bool {
        !lock(&self.vms).all.is_empty()
    }

    fn stop(&self) {
        lock(&self.vms).closed = true;
        let running = self.running();
        running.iter().for_each(|keeper| keeper.ask_to_stop());
        running.iter().for_each(|keeper| keeper.stop());
        lock(&self.vms).all.clear();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}
