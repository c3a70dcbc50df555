//! Whose turn it is to change the VMs of a server.
//!
//! A VM that becomes another device is away for a moment: it is removed and added again. Nobody
//! else gets its name or what it has then, since that change alone has the turn. All other changes
//! share it.

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::refusal::{RefusalKind, ServerRefusal};

/// How long a change waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts to get it.
const PAUSE: Duration = Duration::from_millis(1);

/// Other changes kept the turn for this long: nothing was begun.
#[derive(Debug, Error)]
#[error("another change is under way, and has not ended within {0:?}: try again when it has")]
pub struct TurnError(Duration);

impl ServerRefusal for TurnError {
    fn kind(&self) -> RefusalKind {
        RefusalKind::Passing
    }
}

/// The turn of a server. It is got by trying again and again: who waits shuts nobody out, and
/// nobody waits for ever behind a change that hangs.
#[derive(Debug)]
pub struct ChangeTurn {
    lock: RwLock<()>,
    patience: Duration,
}

impl Default for ChangeTurn {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl ChangeTurn {
    /// A turn for which changes wait this long.
    pub fn new(patience: Duration) -> Self {
        Self { lock: RwLock::default(), patience }
    }

    /// For a change that others may go beside.
    ///
    /// # Errors
    /// [`TurnError`]
    pub fn shared(&self) -> Result<RwLockReadGuard<'_, ()>, TurnError> {
        self.wait(|| self.lock.try_read())
    }

    /// For a change that no other one may go beside.
    ///
    /// # Errors
    /// [`TurnError`]
    pub fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, TurnError> {
        self.wait(|| self.lock.try_write())
    }

    fn wait<G>(&self, attempt: impl Fn() -> TryLockResult<G>) -> Result<G, TurnError> {
        let begin = Instant::now();
        loop {
            match attempt() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(e)) => return Ok(e.into_inner()),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= self.patience => {
                    return Err(TurnError(self.patience));
                }
                Err(TryLockError::WouldBlock) => std::thread::park_timeout(PAUSE),
            }
        }
    }
}
