//! The network server: VMs come and go while it runs.
//!
//! All VMs stand in one roster under a lock. The lock is held to look something up or to enter a
//! result, never while a port is opened or a thread is waited for. So an operation on one VM holds
//! up neither the other VMs nor the statistics. The name, the socket and the port of a VM are taken
//! from the moment that it is entered until everything of it is gone.
//!
//! ```text
//! add ─▶ Opening ─▶ Running ─▶ Leaving ─▶ (gone)
//!           │          │        │  ▲
//!           ▼          │        ▼  │ it is removed again
//!        (gone)        │       Held ─▶ (gone): its threads ended after all,
//!                      │               and it is added again if that was asked for
//!                      ▼
//!                   draining: its control thread ends with its front end
//! ```

mod arrival;
mod reload;
mod roster;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;
use zerowire_capture::Capture;
use zerowire_metadata::MetadataTree;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::{
    Orders, Served, StartError, TakeUpError, inherit, process_cpu_seconds, stop_all,
};
use zerowire_vhost::session::{HandOverError, SessionImage};

use crate::metadata::MetadataSource;
use crate::stats::{ServerStats, VmStats};
use crate::vm::{self, Handed, ServerError, Source, VmConfig};

use arrival::{add, enter, open};
pub use reload::Reloaded;
pub(crate) use reload::reload;
pub(crate) use roster::Departure;
use roster::{Roster, RosterEntry, lock};

/// Where a VM is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Its port and its socket are being opened.
    Opening,
    /// Front ends can connect.
    Running,
    /// Its present front end is the last one.
    Draining,
    /// Its threads end, or should: its front end can hold them up for long.
    Leaving,
}

/// A VM as it was configured, and where it is on its way.
#[derive(Clone, Debug)]
pub struct VmInfo {
    /// What it was made with, with the metadata and the limits that it has now.
    pub config: VmConfig,
    /// Where it is on its way.
    pub state: VmState,
    /// Whether a front end is connected.
    pub connected: bool,
}

/// Why a running server refuses a change. The text is what the user reads.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// No VM has this name.
    #[error("no VM is named '{0}'")]
    Unknown(String),
    /// Another change to the VM is under way.
    #[error("VM {0} is just being added or removed: try again when that is done")]
    Busy(String),
    /// A front end holds up the VM's threads.
    #[error(
        "VM {0}: its threads did not end in time: its front end holds them up; end that one, and the VM goes by itself"
    )]
    Stuck(String),
    /// The metadata service is a part of the device that a front end has.
    #[error(
        "VM {0}: whether it has metadata, and whether requests need a token, is settled when it is added: remove it and add \
         it again"
    )]
    Settled(String),
    /// The new state can't be had.
    #[error(transparent)]
    Refused(#[from] ServerError),
}

/// A running server. Dropping it stops it: rings stop, sockets are removed, taps that it made go.
pub struct Server {
    roster: Arc<Mutex<Roster>>,
    start: Instant,
}

impl Server {
    /// Opens all ports and sockets and starts to listen. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`ServerError`]. An empty list is one, too.
    pub fn start(configs: Vec<VmConfig>) -> Result<Self, ServerError> {
        Self::start_captured(configs, None)
    }

    /// The same; the frames of all VMs go to a capture as well, if there is one.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_captured(
        configs: Vec<VmConfig>,
        capture: Option<Arc<Capture>>,
    ) -> Result<Self, ServerError> {
        if configs.is_empty() {
            return Err(StartError::Count(0).into());
        }
        let server = Self::empty_captured(capture);
        enter(&server.roster, &configs)?;
        let inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
        for (config, inherited) in configs.into_iter().zip(inherited) {
            open(&server.roster, config, Source::Here(inherited))?;
        }
        Ok(server)
    }

    /// Serves one VM with what another process has opened for it. It opens nothing itself. Its
    /// frames go to a capture as well, if there is one.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start_handed(
        config: VmConfig,
        handed: Handed,
        capture: Option<Arc<Capture>>,
    ) -> Result<Self, ServerError> {
        let server = Self::empty_captured(capture);
        enter(&server.roster, std::slice::from_ref(&config))?;
        open(&server.roster, config, Source::Handed(Box::new(handed)))?;
        Ok(server)
    }

    /// A server without VMs. [`Self::add`] adds them.
    pub fn empty() -> Self {
        Self::empty_captured(None)
    }

    /// The same; the frames of VMs go to a capture as well, if there is one.
    pub fn empty_captured(capture: Option<Arc<Capture>>) -> Self {
        let roster = Roster { capture, ..Roster::default() };
        Self { roster: Arc::new(Mutex::new(roster)), start: Instant::now() }
    }

    /// Adds a VM and begins to listen for its front end. On an error nothing is left behind, and
    /// nothing has changed.
    ///
    /// # Errors
    /// As for [`Self::start`]. A VM on a descriptor is refused: its number may mean something else
    /// by now.
    pub fn add(&self, config: VmConfig) -> Result<(), ServerError> {
        add(&self.roster, config)
    }

    /// Adds a VM as soon as the one of its name has gone, whose removal gave up
    /// ([`ChangeError::Stuck`]). The log says when, or why it can't. One that has gone by now is
    /// not waited for.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn add_later(&self, config: VmConfig) -> Result<(), ServerError> {
        if let Ok(entry) = lock(&self.roster).find(&config.name)
            && entry.is_held()
        {
            entry.next = Some(config);
            return Ok(());
        }
        self.add(config)
    }

    /// Removes a VM with its socket and its port; its front end is disconnected. The VM is gone
    /// when this returns.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes. Or it is held up by its front end: it is still
    /// [leaving](VmState::Leaving) then, and goes as soon as its threads end.
    pub fn remove(&self, name: &str) -> Result<(), ChangeError> {
        let taken = lock(&self.roster).find(name)?.take();
        let mut served = taken.ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        while !served.stop() {
            match lock(&self.roster).find(name)?.hold(served) {
                Some(at_its_end) => served = at_its_end,
                None => return Err(ChangeError::Stuck(name.to_owned())),
            }
        }
        drop(served);
        lock(&self.roster).forget(name);
        tracing::info!("{name}: removed");
        Ok(())
    }

    /// Takes no further front end for a VM. The VM is removed when its present front end has left,
    /// without one at once.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn drain(&self, name: &str) -> Result<(), ChangeError> {
        let mut roster = lock(&self.roster);
        let entry = roster.find(name)?;
        let served = entry.running().ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        served.vm.control.drain();
        let is_alive = served.is_alive();
        drop(roster);
        // A connection that was handed over has ended, and its thread with it.
        if is_alive { Ok(()) } else { self.remove(name) }
    }

    /// Gives a VM other metadata, which its guest sees at once. The same file is read again.
    ///
    /// # Errors
    /// The VM is unknown, just comes or goes, or has no metadata service that can serve them. The
    /// file can't be read. The old metadata stay then.
    pub fn set_metadata(&self, name: &str, source: MetadataSource) -> Result<(), ChangeError> {
        let failed = |text| ServerError::Metadata { vm: name.to_owned(), text };
        // The file may lie on something slow: it is read without the lock.
        let tree = source.load().map_err(failed)?;
        self.set_tree(name, source, tree)
    }

    /// Gives a VM metadata that were read already from `source`, which its guest sees at once.
    ///
    /// # Errors
    /// As for [`Self::set_metadata`].
    pub fn set_tree(
        &self,
        name: &str,
        source: MetadataSource,
        tree: Arc<MetadataTree>,
    ) -> Result<(), ChangeError> {
        let mut roster = lock(&self.roster);
        let entry = roster.find(name)?;
        if entry.config.metadata.as_ref().is_none_or(|m| m.tokens != source.tokens) {
            return Err(ChangeError::Settled(name.to_owned()));
        }
        let served = entry.running().ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        served.vm.set_metadata(source.clone(), tree);
        entry.config.metadata = Some(source);
        Ok(())
    }

    /// Where the frames of all VMs go as well.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.roster).capture.clone()
    }

    /// Has the frames of all VMs go to another capture from now on, or to none. The one before gets
    /// what is under way, and is returned.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        let mut roster = lock(&self.roster);
        for entry in &roster.entries {
            if let Some(served) = entry.running() {
                let VmConfig { name, port, .. } = &entry.config;
                served.vm.set_capture(vm::interface(capture.as_deref(), name, port));
            }
        }
        std::mem::replace(&mut roster.capture, capture)
    }

    /// Gives a VM other limits, which hold at once. A limit that differs begins with full buckets.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn set_limits(&self, name: &str, limits: Limits) -> Result<(), ChangeError> {
        let mut roster = lock(&self.roster);
        let entry = roster.find(name)?;
        let served = entry.running().ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        served.vm.shared.limiters.set(limits);
        entry.config.limits = limits;
        Ok(())
    }

    /// All VMs, in the order in which they were added.
    pub fn vms(&self) -> Vec<VmInfo> {
        let info = |entry: &RosterEntry| VmInfo {
            config: entry.config.clone(),
            state: entry.state(),
            connected: entry.served().is_some_and(|s| s.vm.control.is_connected()),
        };
        lock(&self.roster).entries.iter().map(info).collect()
    }

    /// What was moved so far, of the VMs that run.
    pub fn stats(&self) -> ServerStats {
        let roster = lock(&self.roster);
        let vms = roster.entries.iter().filter_map(|entry| Some((&entry.config, &entry.running()?.vm)));
        ServerStats {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds(),
            vms: vms
                .map(|(config, vm)| {
                    let (socket, port) = (config.endpoint.to_string(), config.port.to_string());
                    VmStats::new(vm, socket, &port)
                })
                .collect(),
        }
    }

    /// Stops the rings of a VM's session, and returns what another process goes on with. From then
    /// on front ends of the VM wait in the socket's backlog, until [`Self::take_up`] brings a
    /// session back. A successor that listens at the same path begins when this server has ended,
    /// or gets the listening socket as a descriptor ([`Endpoint::Fd`]).
    ///
    /// # Errors
    /// [`HandOverError`]; the session goes on here then.
    pub fn hand_over(&self, vm: &str) -> Result<SessionImage, HandOverError> {
        let orders = self.orders(vm).ok_or_else(|| HandOverError::UnknownVm(vm.to_owned()))?;
        orders.hand_over()
    }

    /// Goes on with the session of another process, or with one that it did not take.
    ///
    /// # Errors
    /// [`TakeUpError`], with the image for another attempt.
    pub fn take_up(&self, vm: &str, image: SessionImage) -> Result<(), TakeUpError> {
        match self.orders(vm) {
            Some(orders) => orders.take_up(image),
            None => Err(TakeUpError::unknown(vm, image)),
        }
    }

    /// What gives orders to a VM's control thread. An answer is waited for without the lock.
    fn orders(&self, vm: &str) -> Option<Orders> {
        Some(lock(&self.roster).find(vm).ok()?.running()?.orders())
    }

    /// Asks the control threads of all VMs for a sign of life, see [`Self::silent`].
    pub fn ask(&self) {
        lock(&self.roster).entries.iter().filter_map(RosterEntry::running).for_each(Served::ask);
    }

    /// Names of the VMs whose control threads have not answered since they were asked last.
    pub fn silent(&self) -> Vec<String> {
        let roster = lock(&self.roster);
        let silent = roster.entries.iter().filter(|entry| entry.running().is_some_and(Served::is_silent));
        silent.map(|entry| entry.config.name.clone()).collect()
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        lock(&self.roster).entries.iter().filter_map(RosterEntry::served).any(Served::is_alive)
    }

    /// Stops all VMs; further ones are refused or stopped at once.
    pub fn stop(&self) {
        let mut roster = lock(&self.roster);
        roster.closed = true;
        let mut vms: Vec<_> = roster.entries.iter_mut().filter_map(RosterEntry::take).collect();
        drop(roster);
        stop_all(vms.iter_mut());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
