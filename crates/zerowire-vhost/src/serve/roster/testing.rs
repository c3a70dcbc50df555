//! For tests of removals that give up.

use super::*;

impl<C: RosterConfig, B: Backing> Roster<C, B> {
    /// Removes a VM as if a front end held up its threads.
    ///
    /// # Errors
    /// [`ChangeError::Stuck`], if the VM runs.
    pub fn hold_up<E>(&self, name: &str) -> Result<(), ChangeError<E>> {
        let mut roster = lock(&self.0);
        let entry = roster.find(name)?;
        let served = entry.take().ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
        entry.hold(served);
        Err(ChangeError::Stuck(name.to_owned()))
    }

    /// Ends the threads of a VM that is held up.
    pub fn let_go(&self, name: &str) {
        if let Some(served) = lock(&self.0).entry(name).and_then(|entry| entry.served()) {
            served.vm.control().drain();
        }
    }

    /// Whether another one comes when a VM has gone.
    pub fn has_next(&self, name: &str) -> bool {
        lock(&self.0).entry(name).is_some_and(|entry| entry.next.is_some())
    }
}
