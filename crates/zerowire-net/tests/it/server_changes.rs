//! VMs that come, go and change while a server runs.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::support::{PATIENCE, Peer, frames, in_netns, wait_until};
use zerowire_guest::net::{NetDriver, NetOptions, QueuePair, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_metadata::TokenPolicy;
use zerowire_net::port::PortSpec;
use zerowire_net::port::tap::TapSpec;
use zerowire_net::{ChangeError, Fleet, MetadataSource, Server, ServerError, VmConfig};
use zerowire_testkit::net::interface;
use zerowire_testkit::own_process;
use zerowire_vhost::serve::{Endpoint, StartError, VmState};

/// A VM whose socket in `dir` and whose tap have its name.
fn vm(dir: &Path, name: &str) -> VmConfig {
    VmConfig::new(name, Endpoint::Path(dir.join(name)), PortSpec::Tap(TapSpec::new(name)))
}

struct Guest {
    _driver: NetDriver<VhostUser>,
    pairs: Vec<QueuePair>,
}

impl Guest {
    fn start(socket: &Path) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let transport = VhostUser::connect(socket, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        let (driver, pairs) =
            NetDriver::start(transport, &memory, &NetOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        Self { _driver: driver, pairs }
    }

    /// A frame reaches the port.
    fn send(&mut self, peer: &mut Peer, number: u32) {
        let frame = frames::frame(number, 200);
        let tx = &mut self.pairs[0].tx;
        assert!(tx.send(&VirtioNetHdr::default(), &frame).expect("a frame that fits"));
        assert!(tx.drain(PATIENCE).expect("a sound ring"));
        assert_eq!(peer.expect().bytes, frame);
    }
}

fn names(server: &Server) -> Vec<(String, VmState)> {
    server.vms().into_iter().map(|vm| (vm.config.name, vm.state)).collect()
}

// Where a tap must be gone at once, the test has a process of its own: a program that another one
// starts has a copy of its queues until it calls execve(2).

#[test]
fn a_vm_comes_and_goes_while_another_one_moves_frames() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::empty();
        assert!(server.stats().vms.is_empty() && !server.is_alive());
        server.add(vm(dir.path(), "zwone")).expect("added");
        let mut guest = Guest::start(&dir.path().join("zwone"));
        let mut peer = Peer::new("zwone");
        for round in 0..10 {
            server.add(vm(dir.path(), "zwtwo")).expect("added");
            let mut second = Guest::start(&dir.path().join("zwtwo"));
            second.send(&mut Peer::new("zwtwo"), round);
            guest.send(&mut peer, 2 * round);
            let both = ["zwone", "zwtwo"].map(|name| (name.to_owned(), VmState::Running));
            assert_eq!(names(&server), both);
            server.remove("zwtwo").expect("removed");
            // All of it is gone when that returns.
            assert!(interface("zwtwo").is_none() && !dir.path().join("zwtwo").exists());
            guest.send(&mut peer, 2 * round + 1);
        }
        assert_eq!(server.stats().vms.len(), 1);
        assert_eq!(server.stats().vms[0].transmit.totals.frames, 20);
        assert_eq!(server.stats().vms[0].connections, 1, "it was never disconnected");
    });
}

#[test]
fn a_vm_that_cannot_be_added_leaves_nothing_behind() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::start(vec![vm(dir.path(), "zwfirst")]).expect("a server");
        let other = vm(dir.path(), "zwother");
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").expect("a file");
        let cases = [
            (other.clone().name("zwfirst".into()), "two VMs are named 'zwfirst'"),
            (other.clone().name(String::new()), "VM name \"\""),
            (other.clone().endpoint(vm(dir.path(), "zwfirst").endpoint), "is taken by"),
            (other.clone().port(vm(dir.path(), "zwfirst").port), "tap 'zwfirst' is VM zwfirst's"),
            (other.clone().endpoint(Endpoint::Path(file.clone())), "is not a socket"),
            (other.clone().endpoint(Endpoint::Fd(3)), "only be handed over at the start"),
            (
                other
                    .clone()
                    .metadata(Some(MetadataSource { file: file.clone(), tokens: TokenPolicy::Required })),
                "metadata file",
            ),
        ];
        for (config, words) in cases {
            let said = server.add(config).expect_err(words).to_string();
            assert!(said.contains(words), "{said}");
            assert_eq!(names(&server).len(), 1, "{words}");
            assert_eq!(interface("zwother"), None, "{words}");
            assert!(!dir.path().join("zwother").exists(), "{words}");
        }
        assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
        server.add(other).expect("nothing of it is taken");
        assert!(matches!(server.remove("nobody"), Err(ChangeError::Unknown(name)) if name == "nobody"));
        assert!(matches!(server.drain("nobody"), Err(ChangeError::Unknown(_))));
    });
}

#[test]
fn a_process_has_at_most_256_vms() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::empty();
        let on_loopback = |n: usize| {
            vm(dir.path(), &format!("vm{n}"))
                .port("packet:lo,rings=off,receive=socket".parse().expect("a port"))
        };
        // Only the number is asked here, whatever the port makes of its interface.
        let configs: Vec<_> = (0..257).map(on_loopback).collect();
        assert!(matches!(Server::start(configs).err(), Some(ServerError::Start(StartError::Count(257)))));
        assert!(matches!(Server::start(Vec::new()).err(), Some(ServerError::Start(StartError::Count(0)))));
        drop(server);
    });
}

#[test]
fn a_drained_vm_keeps_its_front_end_and_takes_no_other() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server =
            Server::start(vec![vm(dir.path(), "zwdrain"), vm(dir.path(), "zwidle")]).expect("a server");
        let socket = dir.path().join("zwdrain");
        let mut guest = Guest::start(&socket);
        let mut peer = Peer::new("zwdrain");
        server.drain("zwdrain").expect("drained");
        wait_until("connections are refused", || UnixStream::connect(&socket).is_err());
        guest.send(&mut peer, 1);
        assert_eq!(names(&server)[0], ("zwdrain".to_owned(), VmState::Draining));
        assert!(server.add(vm(dir.path(), "zwdrain")).is_err(), "its name is taken until it is gone");
        drop((guest, peer));
        wait_until("it is gone with its front end", || names(&server).len() == 1);
        assert!(interface("zwdrain").is_none() && !socket.exists());
        server.add(vm(dir.path(), "zwdrain")).expect("everything of it is free");
        // Without a front end it goes at once.
        server.drain("zwidle").expect("drained");
        wait_until("it is gone", || names(&server).len() == 1);
        // A VM that is drained can be removed all the same.
        let _guest = Guest::start(&socket);
        server.drain("zwdrain").expect("drained");
        server.remove("zwdrain").expect("removed");
        assert!(server.vms().is_empty() && interface("zwdrain").is_none());
    });
}

#[test]
fn metadata_change_where_there_is_a_service_for_them() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let source = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::write(&file, text).expect("a file");
            MetadataSource { file, tokens: TokenPolicy::Required }
        };
        let with = vm(dir.path(), "zwwith").metadata(Some(source("a.json", "{}")));
        let server = Server::start(vec![with, vm(dir.path(), "zwbare")]).expect("a server");
        let other = source("b.json", "{\"b\": 1}");
        server.set_metadata("zwwith", other.clone()).expect("set");
        assert_eq!(server.vms()[0].config.metadata, Some(other.clone()));
        let broken = source("c.json", "{");
        let said = server.set_metadata("zwwith", broken).expect_err("no JSON").to_string();
        assert!(said.contains("c.json"), "{said}");
        assert_eq!(server.vms()[0].config.metadata, Some(other.clone()), "the old ones stay");
        let open = MetadataSource { tokens: TokenPolicy::Optional, ..other.clone() };
        assert!(matches!(
            server.set_metadata("zwwith", open),
            Err(ChangeError::Refused(ServerError::Settled(_)))
        ));
        assert!(matches!(
            server.set_metadata("zwbare", other),
            Err(ChangeError::Refused(ServerError::Settled(_)))
        ));
    });
}

#[test]
fn a_file_that_is_read_again_changes_what_differs() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| vm(dir.path(), name);
        let server = Server::start(["zwsame", "zwgone", "zwmoved"].map(at).to_vec()).expect("a server");
        server.add(at("zwguest")).expect("added by somebody else");
        let fleet: &dyn Fleet = &server;
        let before = ["zwsame", "zwgone", "zwmoved"].map(str::to_owned);
        let mut guest = Guest::start(&dir.path().join("zwsame"));
        let mut peer = Peer::new("zwsame");
        let moved = at("zwmoved").endpoint(Endpoint::Path(dir.path().join("elsewhere")));

        // What can't be changes nothing.
        for bad in
            [vec![at("zwsame"), at("zwsame")], vec![at("zwguest")], vec![at("zwguest").name("new".into())]]
        {
            assert!(fleet.reload(&before, bad).is_err());
            assert_eq!(server.vms().len(), 4);
        }
        // A VM of the file may take what one that goes has now.
        let new = at("zwgone").name("new".into());
        let done = fleet.reload(&before, vec![at("zwsame"), moved.clone(), new]).expect("a good file");
        assert_eq!(done.added, ["new"]);
        assert_eq!(done.removed, ["zwgone"]);
        assert_eq!(done.replaced, ["zwmoved"]);
        assert!(done.errors.is_empty(), "{done:?}");
        guest.send(&mut peer, 7);
        assert_eq!(server.stats().vms[0].connections, 1, "it keeps its front end");
        assert!(dir.path().join("elsewhere").exists() && !dir.path().join("zwmoved").exists());
        let now: Vec<_> = names(&server).into_iter().map(|(name, _)| name).collect();
        assert_eq!(now, ["zwsame", "zwguest", "zwmoved", "new"]);

        // One whose other port can't be had has its old one again.
        let before = ["zwsame", "zwmoved", "new"].map(str::to_owned);
        let wrong = moved.clone().port("packet:zwnone".parse().expect("a port"));
        let new = at("zwgone").name("new".into());
        let done = fleet.reload(&before, vec![at("zwsame"), wrong, new]).expect("a good file");
        assert!(done.errors.len() == 1 && done.errors[0].contains("zwnone"), "{done:?}");
        assert!(done.errors[0].contains("VM zwmoved has its old settings again"), "{done:?}");
        let now = server.vms().into_iter().find(|vm| vm.config.name == "zwmoved").expect("it is there");
        assert_eq!((now.config, now.state), (moved, VmState::Running));

        // The file's VMs go when it is empty; the other one stays.
        let before = ["zwsame", "zwmoved", "new"].map(str::to_owned);
        fleet.reload(&before, Vec::new()).expect("an empty file");
        let left: Vec<_> = names(&server).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["zwguest"]);
    });
}

#[test]
fn a_vm_on_a_socket_that_was_handed_over_stays_as_it_is() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listening = UnixListener::bind(&socket).expect("a socket");
        let handed = vm(dir.path(), "zwhanded").endpoint(Endpoint::of(listening));
        let server = Server::start(vec![handed.clone()]).expect("a server");
        let fleet: &dyn Fleet = &server;
        let before = ["zwhanded".to_owned()];
        let mut guest = Guest::start(&socket);
        let mut peer = Peer::new("zwhanded");
        let same = fleet.reload(&before, vec![handed.clone()]).expect("a good file");
        assert!(same.errors.is_empty() && same.replaced.is_empty(), "{same:?}");
        // Removed, it could not be added again: its descriptor would be closed.
        let mac = "52:54:00:00:00:01".parse().ok();
        let done = fleet.reload(&before, vec![handed.mac(mac)]).expect("a good file");
        assert!(done.replaced.is_empty(), "{done:?}");
        assert!(done.errors.len() == 1 && done.errors[0].contains("restart the program"), "{done:?}");
        guest.send(&mut peer, 1);
        assert_eq!(server.stats().vms[0].connections, 1, "it keeps its front end");
    });
}

#[test]
fn a_server_that_stops_takes_no_further_vm() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::start(vec![vm(dir.path(), "zwstop")]).expect("a server");
        server.stop();
        assert!(!dir.path().join("zwstop").exists() && interface("zwstop").is_none());
        assert!(server.add(vm(dir.path(), "zwlate")).is_err());
        assert!(!dir.path().join("zwlate").exists() && interface("zwlate").is_none());
    });
}
