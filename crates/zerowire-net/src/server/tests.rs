use std::path::Path;

use zerowire_capture::Captured;
use zerowire_testkit::net::in_netns;
use zerowire_testkit::wait_until;
use zerowire_vhost::serve::{Endpoint, VmFleet, VmState, VmTurn};

use super::*;
use crate::port::PortSpec;
use crate::port::tap::TapSpec;
use crate::{Fleet, NetChange};

/// A server whose removals give up, as if a front end held up the VM's threads.
struct HeldUp(Server);

impl VmFleet for HeldUp {
    type Config = VmConfig;
    type Error = ServerError;
    type Stats = VmStats;

    fn remove(&self, name: &str) -> Result<(), ChangeError> {
        self.0.parts.roster.hold_up(name)
    }

    fn add_later(&self, config: VmConfig) -> Result<(), ServerError> {
        self.0.add_later(config)
    }

    fn vms(&self) -> Vec<VmInfo> {
        self.0.vms()
    }

    fn stats(&self) -> ServerStats {
        self.0.stats()
    }

    fn add(&self, config: VmConfig, turn: Option<VmTurn<'_>>) -> Result<(), ServerError> {
        VmFleet::add(&self.0, config, turn)
    }

    fn try_open(&self, running: &VmConfig, wanted: &VmConfig) -> Result<(), ServerError> {
        VmFleet::try_open(&self.0, running, wanted)
    }

    fn drain(&self, name: &str) -> Result<(), ChangeError> {
        self.0.drain(name)
    }

    fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    fn stop(&self) {
        self.0.stop();
    }
}

impl Captured for HeldUp {
    fn capture(&self) -> Option<Arc<Capture>> {
        self.0.capture()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        self.0.set_capture(capture)
    }
}

impl Fleet for HeldUp {
    fn change(&self, changes: Vec<NetChange>) -> Vec<ChangeError> {
        self.0.change(changes)
    }
}

fn vm(socket: &Path) -> VmConfig {
    VmConfig::new(
        "zwheld",
        Endpoint::Path(socket.to_owned()),
        PortSpec::Tap(TapSpec { name: "zwheld".to_owned(), queues: 1 }),
    )
}

fn states(server: &Server) -> Vec<VmState> {
    server.vms().iter().map(|vm| vm.state).collect()
}

#[test]
fn a_vm_of_the_file_whose_removal_gives_up_is_added_when_it_has_gone() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (before, first) = (["zwheld".to_owned()], vm(&dir.path().join("first")));
        let server = HeldUp(Server::start(vec![first.clone()]).expect("a server"));
        let second = vm(&dir.path().join("second"));
        let fleet: &dyn Fleet = &server;
        let done = fleet.reload(&before, vec![second.clone()]).expect("a good file");
        assert!(done.replaced.is_empty() && done.errors.len() == 1, "{done:?}");
        assert!(done.errors[0].contains("zwheld") && done.errors[0].contains("added again"), "{done:?}");
        assert_eq!(states(&server.0), [VmState::Leaving]);
        // The file of before: the VM that leaves is not the one that is wanted.
        fleet.reload(&before, vec![first]).expect("a good file");
        fleet.reload(&before, vec![second.clone()]).expect("a good file");
        server.0.parts.roster.let_go("zwheld");
        wait_until("the next one runs", || states(&server.0) == [VmState::Running]);
        assert_eq!(server.vms()[0].config, second);
        assert!(dir.path().join("second").exists() && !dir.path().join("first").exists());
    });
}

#[test]
fn a_vm_that_leaves_is_added_again_by_the_same_file() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (before, config) = (["zwheld".to_owned()], vm(&dir.path().join("socket")));
        let server = HeldUp(Server::start(vec![config.clone()]).expect("a server"));
        server.remove("zwheld").expect_err("it is held up");
        let fleet: &dyn Fleet = &server.0;
        let done = fleet.reload(&before, vec![config]).expect("a good file");
        assert_eq!((done.replaced.as_slice(), done.errors.as_slice()), (before.as_slice(), [].as_slice()));
        assert_eq!(states(&server.0), [VmState::Running]);
    });
}

/// Somebody wants it gone for good.
#[test]
fn nothing_comes_after_a_vm_that_is_removed_again() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = HeldUp(Server::start(vec![vm(&dir.path().join("socket"))]).expect("a server"));
        server.remove("zwheld").expect_err("it is held up");
        server.add_later(vm(&dir.path().join("next"))).expect("it comes later");
        server.remove("zwheld").expect_err("it is held up still");
        assert!(!server.0.parts.roster.has_next("zwheld"));
        server.0.parts.roster.let_go("zwheld");
        wait_until("it is gone", || server.vms().is_empty());
    });
}
