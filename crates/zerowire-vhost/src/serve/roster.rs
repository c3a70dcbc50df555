//! The VMs of a server, which come and go while it runs.
//!
//! All VMs stand in one roster under a lock. The lock is held to look something up or to enter a
//! result, never while a VM is opened or a thread is waited for. So an operation on one VM holds up
//! neither the other VMs nor the statistics. What a VM alone may have, such as its name and its
//! paths, is taken from the moment that it is entered until everything of it is gone.
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

use std::sync::{Arc, Mutex, Weak};

use serde::Serialize;
use thiserror::Error;
use zerowire_sys::lock;

use super::control::{Backing, Served, stop_all};
use super::orders::{Orders, TakeUpError};
use super::refusal::{RefusalKind, ServerRefusal};
use super::start::StartError;
use super::turn::TurnError;
use crate::session::{HandOverError, SessionImage};

/// What a VM is configured with.
pub trait RosterConfig: Clone {
    /// The VM's name.
    fn name(&self) -> &str;

    /// The VMs are others than before: what they have together is shared anew.
    fn share_out(_all: &[&Self]) {}
}

/// Where a VM is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// What it needs is being opened.
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
pub struct VmInfo<C> {
    /// What it was made with, with what was changed since.
    pub config: C,
    /// Where it is on its way.
    pub state: VmState,
    /// Whether a front end is connected.
    pub connected: bool,
}

/// Why a running server refuses a change. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChangeError<E> {
    /// No VM has this name.
    #[error("no VM is named '{0}'")]
    Unknown(String),
    /// Another change to the VM is under way.
    #[error("VM {0} is just being added or removed: try again when that is done")]
    Busy(String),
    /// It was changed between two looks at it.
    #[error("VM {0} was changed meanwhile: look at it, and try again")]
    Changed(String),
    /// Other changes take too long.
    #[error(transparent)]
    OtherChange(TurnError),
    /// A front end holds up the VM's threads, or of vsock another VM of its groups.
    #[error(
        "VM {0}: its threads did not end in time: its front end holds them up, or a VM that shares vsock groups with it; end \
         that one, and the VM goes by itself"
    )]
    Stuck(String),
    /// The new state can't be had.
    #[error(transparent)]
    Refused(#[from] E),
}

impl<E: ServerRefusal + 'static> ServerRefusal for ChangeError<E> {
    fn kind(&self) -> RefusalKind {
        match self {
            Self::Unknown(_) => RefusalKind::Unknown,
            Self::Busy(_) | Self::Changed(_) => RefusalKind::Conflict,
            Self::Stuck(_) | Self::OtherChange(_) => RefusalKind::Passing,
            Self::Refused(e) => e.kind(),
        }
    }
}

/// What a VM has where it is on its way.
enum VmStage<B> {
    /// `ended`: its control thread is at its end already.
    Opening {
        ended: bool,
    },
    Running(Served<B>),
    /// Somebody waits for its threads. `ended`: its control thread was at its end before.
    Leaving {
        ended: bool,
    },
    /// Its threads were told to end, and nobody waits for them any more.
    Held(Served<B>),
}

/// What adds a VM, or again the one before. Its error says why, for the log.
pub type NextVm = Box<dyn FnOnce() -> Result<(), String> + Send>;

struct RosterEntry<C, B> {
    config: C,
    stage: VmStage<B>,
    /// What is added under this name as soon as the VM has gone.
    next: Option<NextVm>,
}

impl<C, B: Backing> RosterEntry<C, B> {
    fn state(&self) -> VmState {
        match &self.stage {
            VmStage::Opening { .. } => VmState::Opening,
            VmStage::Running(served) if served.vm.control().is_draining() => VmState::Draining,
            VmStage::Running(_) => VmState::Running,
            VmStage::Leaving { .. } | VmStage::Held(_) => VmState::Leaving,
        }
    }

    fn running(&self) -> Option<&Served<B>> {
        match &self.stage {
            VmStage::Running(served) => Some(served),
            VmStage::Opening { .. } | VmStage::Leaving { .. } | VmStage::Held(_) => None,
        }
    }

    /// The VM, where its threads run and nobody waits for their end.
    fn served(&self) -> Option<&Served<B>> {
        match &self.stage {
            VmStage::Running(served) | VmStage::Held(served) => Some(served),
            VmStage::Opening { .. } | VmStage::Leaving { .. } => None,
        }
    }

    /// Takes the VM out of its entry, which says that it leaves. None comes after it.
    fn take(&mut self) -> Option<Served<B>> {
        self.served()?;
        self.next = None;
        match std::mem::replace(&mut self.stage, VmStage::Leaving { ended: false }) {
            VmStage::Running(served) | VmStage::Held(served) => Some(served),
            VmStage::Opening { .. } | VmStage::Leaving { .. } => None,
        }
    }

    /// Nobody waits any more for the threads of a VM that was taken. Returns it where its control
    /// thread is at its end by now, and would not remove it.
    fn hold(&mut self, served: Served<B>) -> Option<Served<B>> {
        if matches!(self.stage, VmStage::Leaving { ended: true }) {
            return Some(served);
        }
        self.stage = VmStage::Held(served);
        None
    }

    /// The VM's control thread is at its end. Returns the VM where the thread has to remove it.
    fn ended(&mut self) -> Option<Served<B>> {
        match &mut self.stage {
            VmStage::Running(served) if !served.vm.control().is_draining() => None,
            VmStage::Running(_) | VmStage::Held(_) => self.take(),
            // Somebody else opens or removes the VM.
            VmStage::Opening { ended } | VmStage::Leaving { ended } => {
                *ended = true;
                None
            }
        }
    }
}

struct RosterEntries<C, B> {
    all: Vec<RosterEntry<C, B>>,
    /// The server stops: nothing may be added.
    closed: bool,
    /// True: another process has handed the VMs over, and says to its log how they go.
    handed: bool,
}

impl<C: RosterConfig, B: Backing> RosterEntries<C, B> {
    fn find<E>(&mut self, name: &str) -> Result<&mut RosterEntry<C, B>, ChangeError<E>> {
        self.entry(name).ok_or_else(|| ChangeError::Unknown(name.to_owned()))
    }

    fn entry(&mut self, name: &str) -> Option<&mut RosterEntry<C, B>> {
        self.all.iter_mut().find(|e| e.config.name() == name)
    }

    fn forget(&mut self, name: &str) {
        self.all.retain(|e| e.config.name() != name);
        C::share_out(&self.all.iter().map(|e| &e.config).collect::<Vec<_>>());
    }
}

/// All VMs of a server. Clones are the same roster.
pub struct Roster<C, B>(Arc<Mutex<RosterEntries<C, B>>>);

impl<C, B> Clone for Roster<C, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: RosterConfig, B: Backing> Default for Roster<C, B> {
    fn default() -> Self {
        Self::new(false)
    }
}

/// A VM has gone, and is forgotten. The log says `how`, unless another process does.
fn gone<C: RosterConfig, B: Backing>(roster: &Mutex<RosterEntries<C, B>>, name: &str, how: &str) {
    let mut entries = lock(roster);
    entries.forget(name);
    let is_handed = entries.handed;
    drop(entries);
    if !is_handed {
        tracing::info!("{name}: {how}");
    }
}

impl<C: RosterConfig, B: Backing> Roster<C, B> {
    fn new(handed: bool) -> Self {
        Self(Arc::new(Mutex::new(RosterEntries { all: Vec::new(), closed: false, handed })))
    }

    /// A roster of VMs that another process hands over. That one says to its log how they go.
    pub fn of_handed() -> Self {
        Self::new(true)
    }

    /// How a VM takes itself out.
    pub fn departure(&self) -> Departure<C, B> {
        Departure(Arc::downgrade(&self.0))
    }

    /// Enters VMs before they are opened.
    ///
    /// # Errors
    /// Those of `check`, to which all VMs are given that there would be; and the server stops.
    pub fn enter<E: From<StartError>>(
        &self,
        configs: &[C],
        check: impl FnOnce(&[&C]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut roster = lock(&self.0);
        if let Some(config) = configs.first().filter(|_| roster.closed) {
            return Err(stopping(config.name()).into());
        }
        let all: Vec<_> = roster.all.iter().map(|e| &e.config).chain(configs).collect();
        check(&all)?;
        C::share_out(&all);
        let entries = configs.iter().map(|c| RosterEntry {
            config: c.clone(),
            stage: VmStage::Opening { ended: false },
            next: None,
        });
        roster.all.extend(entries);
        Ok(())
    }

    /// A VM that was entered runs, or could not be opened and is forgotten. `then` hears of one
    /// that runs. One that was drained before, and has left by now, is forgotten as well.
    ///
    /// # Errors
    /// The one that it has been given; or the server stops.
    pub fn opened<E: From<StartError>>(
        &self,
        name: &str,
        opened: Result<Served<B>, E>,
        then: impl FnOnce(&C, &B),
    ) -> Result<(), E> {
        let mut roster = lock(&self.0);
        let closed = roster.closed;
        match (opened, roster.entry(name)) {
            (Ok(mut served), Some(RosterEntry { stage: VmStage::Opening { ended: true }, .. }))
                if served.vm.control().is_draining() =>
            {
                drop(roster);
                served.stop();
                drop(served);
                gone(&self.0, name, "drained and removed");
            }
            (Ok(served), Some(entry)) if !closed => {
                then(&entry.config, &served.vm);
                entry.stage = VmStage::Running(served);
            }
            (Ok(mut served), _) => {
                roster.forget(name);
                drop(roster);
                served.stop();
                return Err(stopping(name).into());
            }
            (Err(e), _) => {
                roster.forget(name);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Has a VM added as soon as the one of its name has gone, whose removal gave up
    /// ([`ChangeError::Stuck`]). `next` gets what that one was configured with. The log says when,
    /// or why it can't. False: there is none to wait for.
    pub fn add_later(&self, name: &str, next: impl FnOnce(C) -> NextVm) -> bool {
        let mut roster = lock(&self.0);
        let held = roster.entry(name).filter(|entry| matches!(entry.stage, VmStage::Held(_)));
        held.map(|entry| entry.next = Some(next(entry.config.clone()))).is_some()
    }

    /// Removes a VM with its socket; its front end is disconnected. The VM is gone when this
    /// returns.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes. Or it is held up by its front end: it is still
    /// [leaving](VmState::Leaving) then, and goes as soon as its threads end.
    pub fn remove<E>(&self, name: &str) -> Result<(), ChangeError<E>> {
        let taken = lock(&self.0).find(name)?.take();
        let mut served = taken.ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        while !served.stop() {
            match lock(&self.0).find(name)?.hold(served) {
                Some(at_its_end) => served = at_its_end,
                None => return Err(ChangeError::Stuck(name.to_owned())),
            }
        }
        drop(served);
        gone(&self.0, name, "removed");
        Ok(())
    }

    /// Takes no further front end for a VM. The VM is removed when its present front end has left,
    /// without one at once.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn drain<E>(&self, name: &str) -> Result<(), ChangeError<E>> {
        let is_alive = self.change(name, |_, served| {
            served.vm.control().drain();
            served.is_alive()
        })?;
        // A connection that was handed over has ended, and its thread with it.
        if is_alive { Ok(()) } else { self.remove(name) }
    }

    /// Changes a VM that runs, and what it is configured with.
    ///
    /// # Errors
    /// The VM is unknown, or just comes or goes.
    pub fn change<T, E>(
        &self,
        name: &str,
        change: impl FnOnce(&mut C, &Served<B>) -> T,
    ) -> Result<T, ChangeError<E>> {
        let mut roster = lock(&self.0);
        let RosterEntry { config, stage, .. } = roster.find(name)?;
        match stage {
            VmStage::Running(served) => Ok(change(config, served)),
            _ => Err(ChangeError::Busy(name.to_owned())),
        }
    }

    /// Looks at the VMs that run, in the order in which they were added. None begins to run, or
    /// leaves, before `look` has returned.
    pub fn with_running<T>(&self, look: impl FnOnce(&mut dyn Iterator<Item = (&C, &Served<B>)>) -> T) -> T {
        let roster = lock(&self.0);
        look(&mut roster.all.iter().filter_map(|entry| Some((&entry.config, entry.running()?))))
    }

    /// All VMs, in the order in which they were added.
    pub fn vms(&self) -> Vec<VmInfo<C>> {
        let info = |entry: &RosterEntry<C, B>| VmInfo {
            config: entry.config.clone(),
            state: entry.state(),
            connected: entry.served().is_some_and(|s| s.vm.control().is_connected()),
        };
        lock(&self.0).all.iter().map(info).collect()
    }

    /// Stops the rings of a VM's session, and returns what another process goes on with.
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
        Some(lock(&self.0).entry(vm)?.running()?.orders())
    }

    /// Asks the control threads of all VMs for a sign of life, see [`Self::silent`].
    pub fn ask(&self) {
        lock(&self.0).all.iter().filter_map(RosterEntry::running).for_each(Served::ask);
    }

    /// Names of the VMs whose control threads have not answered since they were asked last.
    pub fn silent(&self) -> Vec<String> {
        let roster = lock(&self.0);
        let silent = roster.all.iter().filter(|entry| entry.running().is_some_and(Served::is_silent));
        silent.map(|entry| entry.config.name().to_owned()).collect()
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        lock(&self.0).all.iter().filter_map(RosterEntry::served).any(Served::is_alive)
    }

    /// Stops all VMs; further ones are refused or stopped at once.
    pub fn stop(&self) {
        let mut roster = lock(&self.0);
        roster.closed = true;
        let vms = roster.all.iter_mut().filter_map(RosterEntry::take).collect();
        drop(roster);
        stop_all(vms);
    }
}

/// How a VM takes itself out of the roster that was drained, or whose removal nobody waits for.
pub struct Departure<C, B>(Weak<Mutex<RosterEntries<C, B>>>);

impl<C, B> Clone for Departure<C, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C, B> std::fmt::Debug for Departure<C, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Departure")
    }
}

impl<C: RosterConfig, B: Backing> Departure<C, B> {
    /// The last act of a VM's control thread.
    pub fn leave(&self, vm: Arc<B>) {
        let Some(roster) = self.0.upgrade() else { return };
        let name = vm.control().name.clone();
        let gone = lock(&roster).entry(&name).and_then(|entry| {
            let next = entry.next.take();
            Some((entry.ended()?, next))
        });
        let Some((served, next)) = gone else { return };
        let how = if vm.control().is_draining() { "drained and removed" } else { "removed after all" };
        // What it had closes here. Until then nobody else can have it.
        drop((served, vm));
        self::gone(&roster, &name, how);
        if let Some(Err(e)) = next.map(|add| add()) {
            tracing::error!("{e}");
        }
    }
}

/// Why a VM is not added any more.
fn stopping(vm: &str) -> StartError {
    StartError::Limit { vm: vm.to_owned(), text: "the server stops: it takes no further VM".to_owned() }
}

#[cfg(feature = "testing")]
mod testing;
