//! Values behind a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that is whole at any moment. Nothing that this library does under a lock can be
/// left half done, so a panic elsewhere does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
