//! The region in which chains in flight are marked: how it comes and goes between front end and
//! back end, and what is refused. Deaths are in the program's tests, and one by one beside the
//! code.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::support::vsock::{Guest, VsockBackend};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{StackOptions, VsockDriver, VsockOptions, VsockStack};
use zerowire_guest::{GuestError, InflightArea, Transport, VhostUser, VhostUserOptions, protocol};
use zerowire_vhost_user::{Inflight, Request, WireError};

/// Bytes of a region for three queues of 128 entries.
const BYTES: u64 = 3 * (16 + 16 * 128_u64).next_multiple_of(64);

fn socket(backend: &VsockBackend) -> PathBuf {
    backend.uds("vm").with_extension("vhost")
}

fn connect_with(backend: &VsockBackend, more: u64) -> VhostUser {
    let options = VhostUserOptions::default();
    let options = VhostUserOptions { protocol: options.protocol | more, ..options };
    VhostUser::connect_with(socket(backend), PATIENCE, &options).unwrap_or_else(|e| panic!("{e}"))
}

fn connect(backend: &VsockBackend) -> VhostUser {
    connect_with(backend, protocol::INFLIGHT_SHMFD)
}

fn guest(backend: &VsockBackend) -> Guest {
    let memory = crate::support::guest_memory();
    let (driver, queues) = VsockDriver::start(connect(backend), &memory, &VsockOptions::default())
        .unwrap_or_else(|e| panic!("{e}"));
    Guest { driver, stack: VsockStack::new(queues, StackOptions::default()), memory }
}

/// The version in the place of a queue.
fn version(area: &InflightArea, queue: u64) -> u16 {
    let file = std::fs::File::from(area.file.try_clone().expect("a descriptor"));
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, queue * BYTES / 3 + 8).expect("in the file");
    u16::from_ne_bytes(bytes)
}

#[test]
fn a_front_end_gets_a_region_in_the_form_in_which_it_asks() {
    let backend = VsockBackend::one();
    let mut front = connect(&backend);
    let wanted = Inflight { mmap_size: 77, mmap_offset: 88, num_queues: 3, queue_size: 128 };
    for padding in [0, 4] {
        let mut body = wanted.encode().to_vec();
        body.resize(20 + padding, 0);
        let request = Request::GetInflightFd;
        front.connection().send_request(request, false, &body, &[]).expect("sent");
        let mut reply = front.connection().recv_reply(request).expect("answered");
        assert_eq!(reply.body().len(), body.len());
        let place = reply.inflight().expect("a region");
        assert_eq!(place, Inflight { mmap_size: BYTES, mmap_offset: 0, ..wanted });
        let file = reply.take_fd().expect("its file");
        assert_eq!(rustix::fs::fstat(&file).expect("a file").st_size as u64, BYTES);
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it stays as long as it is");
    }
}

#[test]
fn a_region_is_in_use_while_rings_run_and_means_nothing_when_they_have_stopped() {
    let backend = VsockBackend::one();
    let mut guest = guest(&backend);
    let (conn, mut program) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut program);
    let area = guest.driver.transport().inflight().cloned().expect("it asked for one");
    assert_eq!(area.place.mmap_size, BYTES);
    assert_eq!([version(&area, 0), version(&area, 1)], [1, 1]);
    guest.driver.stop().expect("stopped");
    assert_eq!([version(&area, 0), version(&area, 1)], [0, 0]);
    guest.driver.resume(guest.stack.queues()).expect("started");
    assert_eq!([version(&area, 0), version(&area, 1)], [1, 1]);
    guest.ping(conn, &mut program);

    // A front end that goes away, and comes back with it.
    let stream = guest.driver.transport().connection().stream().try_clone().expect("a socket");
    stream.shutdown(std::net::Shutdown::Both).expect("shut down");
    wait_until("the rings have stopped", || version(&area, 0) + version(&area, 1) == 0);
    let mut next = connect(&backend);
    next.set_inflight(Some(area.clone()));
    guest.driver.reconnect(next, guest.stack.queues()).unwrap_or_else(|e| panic!("{e}"));
    guest.stack.reset_connections();
    assert_eq!([version(&area, 0), version(&area, 1)], [1, 1]);
    let (conn, mut stream) = backend.open("vm", &mut guest, 2);
    guest.ping(conn, &mut stream);
    assert_eq!(backend.stats("vm").connection_errors, 0);
}

#[test]
fn a_reset_of_the_device_ends_what_was_in_flight() {
    let backend = VsockBackend::one();
    let mut guest = guest(&backend);
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut stream);
    let area = guest.driver.transport().inflight().cloned().expect("it asked for one");
    let queues = guest.driver.reset(&VsockOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    guest.stack = VsockStack::new(queues, StackOptions::default());
    let renewed = guest.driver.transport().inflight().cloned().expect("it asked for another one");
    assert_eq!([version(&area, 1), version(&renewed, 1)], [0, 1]);
    let (conn, mut stream) = backend.open("vm", &mut guest, 2);
    guest.ping(conn, &mut stream);

    // Whatever it says.
    let file = std::fs::File::from(renewed.file.try_clone().expect("a descriptor"));
    file.write_all_at(&[1; 16], BYTES / 3 + 16).expect("written");
    guest.driver.transport().reset().expect("reset");
    assert_eq!([version(&renewed, 0), version(&renewed, 1)], [0, 0]);
}

#[test]
fn what_lies_in_a_region_that_is_handed_over_is_checked() {
    let backend = VsockBackend::one();
    let mut donor = connect(&backend);
    let area = donor.get_inflight(128).expect("a region");
    drop(donor);
    let file = std::fs::File::from(area.file.try_clone().expect("a descriptor"));
    let header = |version: u16, entries: u16, last: u16, used: u16| {
        let words = [0, 0, 0, 0, version, entries, last, used];
        words.map(u16::to_ne_bytes).concat()
    };
    for (bytes, word) in [
        (header(7, 128, 0, 0), "version 7"),
        (header(1, 64, 0, 0), "64 entries"),
        (header(1, 128, 0, 5), "left at used index 5"),
        (header(1, 128, 500, 65_535), "names head 500"),
    ] {
        file.write_all_at(&bytes, 0).expect("written");
        let mut transport = connect(&backend);
        transport.set_inflight(Some(area.clone()));
        let memory = crate::support::guest_memory();
        let refused = VsockDriver::start(transport, &memory, &VsockOptions::default()).err();
        assert!(matches!(refused, Some(GuestError::Wire(WireError::Refused { .. }))), "{word}: {refused:?}");
        wait_until("the reason is told", || {
            backend.stats("vm").totals.last_error.is_some_and(|e| e.contains(word) && e.contains("queue 0"))
        });
    }
    // Another front end is served all the same.
    let mut guest = guest(&backend);
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut stream);
}

#[test]
fn a_driver_that_a_dead_back_end_did_not_come_to_notify_is_notified_by_the_next_one() {
    let backend = VsockBackend::one();
    let mut guest = guest(&backend);
    let (conn, mut program) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut program);
    guest.driver.stop().expect("stopped");
    // Each start has descriptors of its own, that nobody has written to.
    guest.driver.resume(guest.stack.queues()).expect("started");
    let queues = guest.stack.queues();
    for interrupt in [&queues.rx.handle().interrupt, &queues.tx.handle().interrupt] {
        assert!(interrupt.wait(PATIENCE).expect("it waits"), "whatever there was to tell");
    }
}

fn memfd(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    rustix::fs::ftruncate(&file, len).expect("its length");
    file
}

#[test]
fn a_region_that_can_not_be_is_refused() {
    let backend = VsockBackend::one();
    let mut front = connect(&backend);
    let sound = Inflight { mmap_size: BYTES, mmap_offset: 0, num_queues: 3, queue_size: 128 };
    let mut refusals = 0;
    for (place, file_len) in [
        (Inflight { mmap_size: BYTES - 1, ..sound }, BYTES),
        (Inflight { mmap_size: u64::MAX, ..sound }, BYTES - 1),
        (Inflight { mmap_offset: 1, ..sound }, 1 << 20),
        (Inflight { mmap_offset: 4096, ..sound }, BYTES),
        (Inflight { mmap_offset: u64::MAX - 4095, ..sound }, BYTES),
    ] {
        let file = memfd(file_len);
        let refused = front.tell(Request::SetInflightFd, &place.encode(), &[file.as_fd()]);
        assert!(
            matches!(refused, Err(GuestError::Wire(WireError::Refused { .. }))),
            "{place:?}: {refused:?}"
        );
        refusals += 1;
        let last = backend.stats("vm").totals.last_error.unwrap_or_default();
        assert!(last.contains("SET_INFLIGHT_FD"), "{last}");
    }
    assert_eq!(refusals, 5);
    // A descriptor that isn't a file and has no pages.
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let refused = front.tell(Request::SetInflightFd, &sound.encode(), &[pipe.as_fd()]);
    assert!(matches!(refused, Err(GuestError::Wire(WireError::Refused { .. }))), "{refused:?}");
    // The connection is as good as before.
    let file = memfd(BYTES);
    front.tell(Request::SetInflightFd, &sound.encode(), &[file.as_fd()]).expect("taken");
}

#[test]
fn messages_that_break_the_protocol_end_the_connection() {
    let backend = VsockBackend::one();
    let sound = Inflight { mmap_size: BYTES, mmap_offset: 0, num_queues: 3, queue_size: 128 };
    let get = Request::GetInflightFd;
    let set = Request::SetInflightFd;
    let all = protocol::INFLIGHT_SHMFD;
    for (n, (features, request, place, files, running)) in [
        (all, get, Inflight { num_queues: 0, ..sound }, 0, false),
        (all, get, Inflight { num_queues: 4, ..sound }, 0, false),
        (all, get, Inflight { queue_size: 0, ..sound }, 0, false),
        (all, get, Inflight { queue_size: 100, ..sound }, 0, false),
        (all, get, sound, 1, false),
        (all, get, sound, 0, true),
        (all, set, Inflight { num_queues: u16::MAX, ..sound }, 1, false),
        (all, set, Inflight { queue_size: 32769, ..sound }, 1, false),
        (all, set, sound, 0, false),
        (all, set, sound, 2, false),
        (all, set, sound, 1, true),
        (0, get, sound, 0, false),
        (0, set, sound, 1, false),
    ]
    .into_iter()
    .enumerate()
    {
        let memory = crate::support::guest_memory();
        let transport = connect_with(&backend, features);
        let (mut front, queues) = if running {
            let (driver, queues) = VsockDriver::start(transport, &memory, &VsockOptions::default())
                .unwrap_or_else(|e| panic!("{e}"));
            (driver.into_transport(), Some(queues))
        } else {
            (transport, None)
        };
        let files: Vec<OwnedFd> = (0..files).map(|_| memfd(BYTES)).collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        front.connection().send_request(request, false, &place.encode(), &fds).expect("sent");
        wait_until("the connection ends", || !front.is_alive());
        wait_until("it is counted", || backend.stats("vm").connection_errors == n as u64 + 1);
        drop(queues);
    }
}
