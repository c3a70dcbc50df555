//! Whose turn it is to change the VMs of a server.
//!
//! Two changes of one VM go one behind the other: what a change has looked at stays so until it is
//! done. A VM that becomes another device is away for a moment: it is removed and added again.
//! Nobody else gets what it has then, since no other VM is entered meanwhile. A VM that was entered
//! has its name, its sockets and its port, so whoever adds it gives the turn back before anything
//! is opened. All else goes side by side.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use zerowire_sys::lock;

use super::refusal::{RefusalKind, ServerRefusal};

/// How long a change waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Other changes kept the turn for this long: nothing was begun.
#[derive(Debug, Error)]
#[error("another change is under way, and has not ended within {0:?}: try again when it has")]
pub struct TurnError(Duration);

impl ServerRefusal for TurnError {
    fn kind(&self) -> RefusalKind {
        RefusalKind::Passing
    }
}

/// What else a change keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnScope {
    /// Nothing: it enters no VM.
    Vm,
    /// No VM may be away: it enters some.
    Enters,
    /// No other VM may be entered, or away: the VM is away.
    Away,
}

/// The changes that have their turn.
#[derive(Debug, Default)]
struct TakenTurns {
    /// The VMs that they change.
    vms: HashSet<String>,
    /// How many of them may enter VMs.
    entering: usize,
    /// True: one of these VMs is away.
    is_away: bool,
}

impl TakenTurns {
    /// Takes a turn. False: another change has it.
    fn take(&mut self, vm: &str, scope: TurnScope) -> bool {
        let is_free = match scope {
            TurnScope::Vm => true,
            TurnScope::Enters => !self.is_away,
            TurnScope::Away => !self.is_away && self.entering == 0,
        };
        if !is_free || !self.vms.insert(vm.to_owned()) {
            return false;
        }
        self.entering += usize::from(scope == TurnScope::Enters);
        self.is_away |= scope == TurnScope::Away;
        true
    }
}

/// The turns of a server. Who waits shuts nobody out, and nobody waits for ever behind a change
/// that hangs.
#[derive(Debug)]
pub struct ChangeTurn {
    taken: Mutex<TakenTurns>,
    /// A change has given its turn back.
    freed: Condvar,
    patience: Duration,
}

/// The turn of a change. It is given back on drop.
#[derive(Debug)]
pub struct VmTurn<'a> {
    of: &'a ChangeTurn,
    vm: String,
    scope: TurnScope,
}

impl Default for ChangeTurn {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl ChangeTurn {
    /// Turns for which changes wait this long.
    pub fn new(patience: Duration) -> Self {
        Self { taken: Mutex::default(), freed: Condvar::new(), patience }
    }

    /// For a change of this VM that enters none.
    ///
    /// # Errors
    /// [`TurnError`]
    pub fn of(&self, vm: &str) -> Result<VmTurn<'_>, TurnError> {
        self.take(vm, TurnScope::Vm, Instant::now() + self.patience)
    }

    /// For a change that enters this VM.
    ///
    /// # Errors
    /// [`TurnError`]
    pub fn entering(&self, vm: &str) -> Result<VmTurn<'_>, TurnError> {
        self.take(vm, TurnScope::Enters, Instant::now() + self.patience)
    }

    /// For a change of these VMs that enters none. It waits for all of them together. Returns the
    /// turns, and the VMs whose turn did not come.
    pub fn of_all(
        &self,
        vms: impl IntoIterator<Item = String>,
    ) -> (Vec<VmTurn<'_>>, Vec<(String, TurnError)>) {
        self.take_all(vms, TurnScope::Vm)
    }

    /// The same for a change that may enter any of them.
    pub fn entering_all(
        &self,
        vms: impl IntoIterator<Item = String>,
    ) -> (Vec<VmTurn<'_>>, Vec<(String, TurnError)>) {
        self.take_all(vms, TurnScope::Enters)
    }

    fn take_all(
        &self,
        vms: impl IntoIterator<Item = String>,
        scope: TurnScope,
    ) -> (Vec<VmTurn<'_>>, Vec<(String, TurnError)>) {
        let (mut turns, mut late) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + self.patience;
        for vm in vms {
            match self.take(&vm, scope, deadline) {
                Ok(turn) => turns.push(turn),
                Err(e) => late.push((vm, e)),
            }
        }
        (turns, late)
    }

    /// For a change that removes this VM and adds it again.
    ///
    /// # Errors
    /// [`TurnError`]
    pub fn away(&self, vm: &str) -> Result<VmTurn<'_>, TurnError> {
        self.take(vm, TurnScope::Away, Instant::now() + self.patience)
    }

    fn take(&self, vm: &str, scope: TurnScope, deadline: Instant) -> Result<VmTurn<'_>, TurnError> {
        let mut taken = lock(&self.taken);
        while !taken.take(vm, scope) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TurnError(self.patience));
            }
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(VmTurn { of: self, vm: vm.to_owned(), scope })
    }
}

impl VmTurn<'_> {
    /// The VM.
    pub fn vm(&self) -> &str {
        &self.vm
    }
}

impl Drop for VmTurn<'_> {
    fn drop(&mut self) {
        let mut taken = lock(&self.of.taken);
        taken.vms.remove(&self.vm);
        taken.entering -= usize::from(self.scope == TurnScope::Enters);
        taken.is_away &= self.scope != TurnScope::Away;
        drop(taken);
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_vm_go_one_behind_the_other() {
        let turn = ChangeTurn::new(Duration::ZERO);
        let changes: [fn(&ChangeTurn, &str) -> bool; 3] = [
            |turn, vm| turn.of(vm).is_ok(),
            |turn, vm| turn.entering(vm).is_ok(),
            |turn, vm| turn.away(vm).is_ok(),
        ];
        for has in [ChangeTurn::of, ChangeTurn::entering, ChangeTurn::away] {
            let has = has(&turn, "a").expect("nobody has it");
            assert_eq!(changes.map(|change| change(&turn, "a")), [false; 3]);
            drop(has);
            assert_eq!(changes.map(|change| change(&turn, "a")), [true; 3], "it is given back");
        }
    }

    #[test]
    fn no_vm_is_entered_while_one_is_away() {
        let turn = ChangeTurn::new(Duration::ZERO);
        let away = turn.away("a").expect("nobody has it");
        assert!(turn.entering("b").is_err() && turn.away("b").is_err());
        assert!(turn.of("b").is_ok(), "that enters none");
        let (turns, late) = turn.entering_all(["b".to_owned()]);
        assert!(turns.is_empty() && late.iter().map(|(vm, _)| vm).eq(["b"]));
        let (turns, late) = turn.of_all(["a", "b"].map(str::to_owned));
        assert!(turns.iter().map(VmTurn::vm).eq(["b"]) && late.iter().map(|(vm, _)| vm).eq(["a"]));
        drop(turns);
        drop(away);
        let (turns, late) = turn.entering_all(["a", "b"].map(str::to_owned));
        assert!(turns.iter().map(VmTurn::vm).eq(["a", "b"]) && late.is_empty());
        assert!(turn.away("c").is_err() && turn.entering("c").is_ok());
        drop(turns);
        assert!(turn.away("c").is_ok());
    }

    #[test]
    fn who_waits_goes_on_when_the_turn_is_given_back() {
        let turn = ChangeTurn::new(Duration::from_secs(20));
        let has = turn.of("a").expect("nobody has it");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn.entering_all(["a", "b"].map(str::to_owned)).1.len());
            assert!(turn.of("c").is_ok());
            drop(has);
            assert_eq!(waits.join().expect("no panic"), 0);
        });
    }
}
