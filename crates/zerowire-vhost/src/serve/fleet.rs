//! What serves VMs that come and go, whatever its device.

use super::roster::{ChangeError, RosterConfig, VmInfo};
use super::stats::ServerStats;
use super::turn::VmTurn;

/// VMs that are served: by threads of a server, or by processes of a supervisor. Calls come from
/// several threads at once.
pub trait VmFleet: Send + Sync {
    /// What a VM is configured with.
    type Config: RosterConfig;
    /// Why a VM can't be served.
    type Error: std::error::Error + Send;
    /// What a VM has to tell.
    type Stats;

    /// All VMs, in the order in which they were added.
    fn vms(&self) -> Vec<VmInfo<Self::Config>>;

    /// What was moved so far, of the VMs that run.
    fn stats(&self) -> ServerStats<Self::Stats>;

    /// Adds a VM and begins to listen for its front end. `turn` is given back as soon as no other
    /// VM can have what is this one's. What it needs is opened behind that, which may take long.
    ///
    /// # Errors
    /// Why it can't be served. Nothing is left behind, and nothing has changed.
    fn add(&self, config: Self::Config, turn: Option<VmTurn<'_>>) -> Result<(), Self::Error>;

    /// Adds a VM as soon as the one of its name has gone, whose removal gave up
    /// ([`ChangeError::Stuck`]). The log says when, or why it can't. Where no removal gives up it
    /// is just added.
    ///
    /// # Errors
    /// As for [`Self::add`].
    fn add_later(&self, config: Self::Config) -> Result<(), Self::Error> {
        self.add(config, None)
    }

    /// Opens what a VM would need that `running` does not have, a VM which would go for it, and
    /// lets go of it again. What `running` has can't be tried.
    ///
    /// # Errors
    /// Why it can't be had.
    fn try_open(&self, running: &Self::Config, wanted: &Self::Config) -> Result<(), Self::Error>;

    /// Removes a VM with its sockets and its port. It is gone when this returns.
    ///
    /// # Errors
    /// [`ChangeError`]. The VM stays, but for [`ChangeError::Stuck`]: it is not served any more
    /// then, and goes as soon as its threads end.
    fn remove(&self, name: &str) -> Result<(), ChangeError<Self::Error>>;

    /// Takes no further front end for a VM, and removes it when the present one has left.
    ///
    /// # Errors
    /// [`ChangeError`].
    fn drain(&self, name: &str) -> Result<(), ChangeError<Self::Error>>;

    /// Asks the threads that serve the VMs for a sign of life, see [`Self::silent`]. A process that
    /// serves some of them and does not answer is the matter of these alone.
    fn ask(&self) {}

    /// Names of the VMs for which there was none since it was asked for last.
    fn silent(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether a connection is there or may still come, and can be served.
    fn is_alive(&self) -> bool;

    /// Stops all VMs; further ones are refused or stopped at once.
    fn stop(&self);
}

/// Gives a server the methods that go by its roster, and has it be a [`VmFleet`]. Its field `parts`
/// has the roster and adds VMs; `try_open`, `stats` and `is_alive` are its own.
#[doc(hidden)]
#[macro_export]
macro_rules! serve_by_roster {
    ($server:ty, $config:ty, $error:ty, $stats:ty, try_open: $try_open:path) => {
        impl $server {
            /// Adds a VM and begins to listen for its front end. On an error nothing is left
            /// behind, and nothing has changed.
            ///
            /// # Errors
            /// As for [`Self::start`], or the VM can't be beside the others. A VM on a descriptor
            /// is refused: its number may mean something else by now.
            pub fn add(&self, config: $config) -> Result<(), $error> {
                self.parts.add(config, None)
            }

            /// Adds a VM as soon as the one of its name has gone, whose removal gave up
            /// ([`ChangeError::Stuck`](zerowire_vhost::serve::ChangeError::Stuck)). The log says
            /// when, or why it can't. One that has gone by now is not waited for.
            ///
            /// # Errors
            /// As for [`Self::add`].
            pub fn add_later(&self, config: $config) -> Result<(), $error> {
                let next = |before| -> $crate::serve::NextVm {
                    let (parts, config) = (self.parts.clone(), config.clone());
                    let add = move |config| parts.add(config, None);
                    Box::new(move || $crate::serve::add_or_restore(add, config, before))
                };
                if self.parts.roster.add_later(&config.name, next) {
                    return Ok(());
                }
                self.add(config)
            }

            /// Removes a VM with all that it has on the host; its front end is disconnected. The VM
            /// is gone when this returns.
            ///
            /// # Errors
            /// The VM is unknown, or just comes or goes. Or it is held up by its front end: it is
            /// still [leaving](zerowire_vhost::serve::VmState::Leaving) then, and goes as soon as
            /// its threads end.
            pub fn remove(&self, name: &str) -> Result<(), $crate::serve::ChangeError<$error>> {
                self.parts.roster.remove(name)
            }

            /// Takes no further front end for a VM. The VM is removed when its present front end
            /// has left, without one at once.
            ///
            /// # Errors
            /// The VM is unknown, or just comes or goes.
            pub fn drain(&self, name: &str) -> Result<(), $crate::serve::ChangeError<$error>> {
                self.parts.roster.drain(name)
            }

            /// All VMs, in the order in which they were added.
            pub fn vms(&self) -> Vec<$crate::serve::VmInfo<$config>> {
                self.parts.roster.vms()
            }

            /// Stops the rings of a VM's session, and returns what another process goes on with.
            /// From then on front ends of the VM wait in the socket's backlog, until
            /// [`Self::take_up`] brings a session back. A successor that listens at the same path
            /// begins when this server has ended, or gets the listening socket as a descriptor
            /// ([`Endpoint::Fd`](zerowire_vhost::serve::Endpoint::Fd)).
            ///
            /// # Errors
            /// [`HandOverError`](zerowire_vhost::session::HandOverError); the session goes on here
            /// then.
            pub fn hand_over(
                &self,
                vm: &str,
            ) -> Result<$crate::session::SessionImage, $crate::session::HandOverError> {
                self.parts.roster.hand_over(vm)
            }

            /// Goes on with the session of another process, or with one that it did not take.
            ///
            /// # Errors
            /// [`TakeUpError`](zerowire_vhost::serve::TakeUpError), with the image for another
            /// attempt.
            pub fn take_up(
                &self,
                vm: &str,
                image: $crate::session::SessionImage,
            ) -> Result<(), $crate::serve::TakeUpError> {
                self.parts.roster.take_up(vm, image)
            }

            /// Asks the control threads of all VMs for a sign of life, see [`Self::silent`].
            pub fn ask(&self) {
                self.parts.roster.ask();
            }

            /// Names of the VMs whose control threads have not answered since they were asked last.
            pub fn silent(&self) -> Vec<String> {
                self.parts.roster.silent()
            }

            /// Stops all VMs; further ones are refused or stopped at once.
            pub fn stop(&self) {
                self.parts.roster.stop();
            }
        }

        impl Drop for $server {
            fn drop(&mut self) {
                self.stop();
            }
        }

        impl $crate::serve::VmFleet for $server {
            type Config = $config;
            type Error = $error;
            type Stats = $stats;

            fn vms(&self) -> Vec<$crate::serve::VmInfo<$config>> {
                self.vms()
            }

            fn stats(&self) -> $crate::serve::ServerStats<$stats> {
                self.stats()
            }

            fn add(&self, config: $config, turn: Option<$crate::serve::VmTurn<'_>>) -> Result<(), $error> {
                self.parts.add(config, turn)
            }

            fn add_later(&self, config: $config) -> Result<(), $error> {
                self.add_later(config)
            }

            fn try_open(&self, running: &$config, wanted: &$config) -> Result<(), $error> {
                $try_open(running, wanted)
            }

            fn remove(&self, name: &str) -> Result<(), $crate::serve::ChangeError<$error>> {
                self.remove(name)
            }

            fn drain(&self, name: &str) -> Result<(), $crate::serve::ChangeError<$error>> {
                self.drain(name)
            }

            fn ask(&self) {
                self.ask();
            }

            fn silent(&self) -> Vec<String> {
                self.silent()
            }

            fn is_alive(&self) -> bool {
                self.is_alive()
            }

            fn stop(&self) {
                self.stop();
            }
        }
    };
}
