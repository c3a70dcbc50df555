//! Descriptors that a front end sends and shares: eventfds that it fills and makes block, and files
//! that are no memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::support::attack::PLAIN;
use crate::support::cloud_hypervisor::Device;
use crate::support::vsock::{Vm as VsockVm, VsockBackend};
use crate::support::{Backend, Peer, Vm, frames, in_netns, options, wait_until};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl};
use vhost::vhost_user::message::{VhostTransferStateDirection, VhostTransferStatePhase};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo};
use zerowire_guest::features as f;
use zerowire_guest::misbehave::RawDesc;
use zerowire_guest::net::Layout;
use zerowire_testkit::fuse::FuseFile;
use zerowire_testkit::own_process;
use zerowire_vhost_user::{MAX_FDS, MessageSocket, Request};

/// Fills an eventfd, and has who writes to it wait.
fn wedge(fd: &impl AsRawFd) {
    // SAFETY: the descriptor is open as long as its owner is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
    let full = (u64::MAX - 1).to_ne_bytes();
    while rustix::io::write(fd, &full).is_err() {
        let mut count = [0; 8];
        let _ = rustix::io::read(fd, &mut count);
    }
    fcntl_setfl(fd, fcntl_getfl(fd).expect("its mode") - OFlags::NONBLOCK).expect("its mode");
}

/// Whether a thread of this process sleeps in write(2) of 8 bytes, and goes on to do so.
fn somebody_writes() -> bool {
    let writes = |task: &std::fs::DirEntry| {
        let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        let mut words = call.split(' ');
        let is_write = words.next() == Some(&libc::SYS_write.to_string()) && words.nth(2) == Some("0x8");
        is_write.then_some(call)
    };
    std::fs::read_dir("/proc/self/task").expect("/proc").flatten().any(|task| {
        let first = writes(&task);
        std::thread::sleep(std::time::Duration::from_millis(20));
        first.is_some() && first == writes(&task)
    })
}

/// A front end whose call eventfd of queue 1 is full, with the device's thread held up by it.
fn held_up(path: &std::path::Path, features: u64) -> (Device, Frontend, Vec<zerowire_guest::GuestSlice>) {
    let mut device = Device::new(16, features);
    let vu = device.start(path, false, Some(&[0, 0]));
    wedge(&device.queues[1].call);
    let bytes = [&[0; 12][..], &frames::frame(1, 100)].concat();
    let slice = device.memory.allocate(bytes.len(), 16).expect("guest memory");
    slice.write(0, &bytes);
    device.queues[1].offer(0, RawDesc::readable(&slice));
    wait_until("the device's thread waits in write(2)", somebody_writes);
    (device, vu, vec![slice])
}

#[test]
fn a_full_call_eventfd_holds_up_no_front_end_that_comes_next() {
    own_process!();
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwfull")]);
        let mut peer = Peer::new("zwfull");
        let (device, vu, _slices) = held_up(&backend.socket("zwfull"), PLAIN);
        // The process of the front end is gone, and with it its descriptors; those of the test
        // stay, which is worse.
        drop(vu);
        peer.expect();
        backend.guest("zwfull", &options(0, Layout::Split)).ping(&mut peer, 1);
        drop(device);
    });
}

#[test]
fn a_full_call_eventfd_holds_up_no_end() {
    own_process!();
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwend")]);
        let (_device, _vu, _slices) = held_up(&backend.socket("zwend"), PLAIN);
        drop(backend);
        // Threads that have not ended keep it.
        wait_until("the tap is gone", || zerowire_testkit::net::interface("zwend").is_none());
    });
}

#[test]
fn a_full_call_eventfd_of_a_vsock_device_holds_up_no_front_end_that_comes_next() {
    own_process!();
    let backend = VsockBackend::start(&[VsockVm::new("vm", 3)]);
    let (device, vu, _slices) = held_up(&backend.vhost_path("vm"), f::VERSION_1);
    drop(vu);
    let mut guest = backend.guest("vm");
    let listener = backend.listen("vm", 1000);
    let conn = guest.connect(1000);
    let mut stream = guest.with_host(|| crate::support::vsock::accept(&listener));
    guest.ping(conn, &mut stream);
    drop(device);
}

/// All VMs of a group have one thread.
#[test]
fn a_full_call_eventfd_holds_up_no_other_vm_that_connects() {
    own_process!();
    let backend = VsockBackend::start(&[VsockVm::new("bad", 3), VsockVm::new("good", 4)]);
    let (_device, _vu, _slices) = held_up(&backend.vhost_path("bad"), f::VERSION_1);
    let mut guest = backend.guest("good");
    let listener = backend.listen("good", 1000);
    let conn = guest.connect(1000);
    let mut stream = guest.with_host(|| crate::support::vsock::accept(&listener));
    guest.ping(conn, &mut stream);
}

/// Files that may not be mapped, by what they are.
fn no_memory() -> Vec<(&'static str, File)> {
    let on_disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    on_disk.set_len(LEN).expect("its length");
    let open = |path| File::options().read(true).write(true).open(path).expect("it is there");
    vec![
        ("on disk", on_disk),
        ("below /proc", open("/proc/self/oom_score_adj")),
        ("a device", open("/dev/zero")),
    ]
}

const LEN: u64 = 2 << 20;

fn region(file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: LEN,
        userspace_addr: 0x7000_0000_0000,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

#[test]
fn only_files_of_shared_memory_are_mapped() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwfile")]);
        let mut device = Device::new(16, PLAIN);
        let refused = |what: &str| {
            let text = backend.stats("zwfile").last_error.unwrap_or_default();
            assert!(text.contains("neither shared memory nor on hugetlbfs"), "{what}: {text}");
        };
        let dir = tempfile::tempdir().expect("a directory");
        let fuse = FuseFile::new(dir.path());
        let on_fuse = fuse.file.try_clone().expect("a descriptor");
        for (what, file) in no_memory().into_iter().chain([("on FUSE", on_fuse)]) {
            let vu = device.connect(&backend.socket("zwfile"));
            vu.set_mem_table(&[region(&file)]).expect_err(what);
            refused(what);
            let log =
                VhostUserDirtyLogRegion { mmap_size: LEN, mmap_offset: 0, mmap_handle: file.as_raw_fd() };
            vu.set_log_base(0, Some(log)).expect_err(what);
            refused(what);
            drop(vu);
            let mut vu = device.start(&backend.socket("zwfile"), true, Some(&[0, 0]));
            let (info, _) = device.inflight.take().expect("a region");
            for i in 0..2 {
                vu.get_vring_base(i).expect("stopped");
            }
            vu.set_inflight_fd(&info, file.as_raw_fd()).expect_err(what);
            refused(what);
        }
        assert!(!fuse.was_asked(), "a front end's file system is asked nothing about its file");
        let huge = rustix::fs::memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB);
        let shm = tempfile::tempfile_in("/dev/shm").expect("a file on tmpfs");
        for file in [shm, File::from(huge.expect("a memfd"))] {
            file.set_len(LEN).expect("its length");
            let vu = device.connect(&backend.socket("zwfile"));
            vu.set_mem_table(&[region(&file)]).expect("memory");
        }
    });
}

/// What stands in a file's place while that is closed is the connection: it is not read from.
#[test]
fn a_device_state_comes_from_no_file_on_a_disk() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwdisk")]);
        let mut device = Device::new(16, PLAIN);
        for (what, file) in no_memory() {
            let vu = device.start(&backend.socket("zwdisk"), false, None);
            let (load, stopped) = (VhostTransferStateDirection::LOAD, VhostTransferStatePhase::STOPPED);
            vu.set_device_state_fd(load, stopped, file.into()).expect_err(what);
            let text = backend.stats("zwdisk").last_error.unwrap_or_default();
            assert!(text.contains("SET_DEVICE_STATE_FD") && text.contains("use a pipe"), "{text}");
        }
    });
}

/// A file on FUSE is sent as memory and refused. Its file system does not answer who closes it.
fn unclosed(path: &std::path::Path, fuse: &FuseFile) {
    let vu = Device::new(16, PLAIN).connect(path);
    fuse.hold(true);
    vu.set_mem_table(&[region(&fuse.file)]).expect_err("refused");
    wait_until("it is being closed", || fuse.is_being_closed());
    assert!(fuse.holds(), "the answer did not wait for that");
}

#[test]
fn a_file_that_cant_be_closed_holds_up_the_next_front_end_alone() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let fuse = FuseFile::new(dir.path());
        let backend = Backend::start(&[Vm::new("zwbad"), Vm::new("zwgood")]);
        let mut peers = ["zwbad", "zwgood"].map(Peer::new);
        unclosed(&backend.socket("zwbad"), &fuse);
        wait_until("the next front end waits", || {
            backend.stats("zwbad").last_error.is_some_and(|e| e.contains("can't be closed"))
        });
        backend.guest("zwgood", &options(0, Layout::Split)).ping(&mut peers[1], 1);
        assert!(fuse.holds());
        fuse.hold(false);
        backend.guest("zwbad", &options(0, Layout::Split)).ping(&mut peers[0], 1);
    });
}

#[test]
fn a_file_that_cant_be_closed_holds_up_no_end_of_its_vm() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let fuse = FuseFile::new(dir.path());
        let backend = Backend::start(&[Vm::new("zwend")]);
        unclosed(&backend.socket("zwend"), &fuse);
        drop(backend);
        // Threads that have not ended keep it.
        wait_until("the tap is gone", || zerowire_testkit::net::interface("zwend").is_none());
        assert!(fuse.holds());
    });
}

#[test]
fn more_files_than_a_message_may_carry_hold_up_their_own_vm_alone() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let fuse = FuseFile::new(dir.path());
        let backend = Backend::start(&[Vm::new("zwbad"), Vm::new("zwgood")]);
        let mut peer = Peer::new("zwgood");
        let mut front_end = MessageSocket::connect(backend.socket("zwbad")).expect("it listens");
        fuse.hold(true);
        let files = [fuse.file.as_fd(); MAX_FDS + 1];
        front_end.send_request(Request::SetMemTable, false, &[0; 8], &files).expect("sent");
        wait_until("the next front end waits", || {
            backend.stats("zwbad").last_error.is_some_and(|e| e.contains("can't be closed"))
        });
        backend.guest("zwgood", &options(0, Layout::Split)).ping(&mut peer, 1);
        drop(backend);
        // Threads that have not ended keep it.
        wait_until("the tap is gone", || zerowire_testkit::net::interface("zwbad").is_none());
        assert!(fuse.holds());
    });
}

#[test]
fn only_eventfds_are_notified_or_waited_for() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwevent")]);
        let mut device = Device::new(16, PLAIN);
        let other = || {
            let (reader, _) = io::pipe().expect("a pipe");
            let fd = OwnedFd::from(reader);
            // SAFETY: the descriptor belongs to nobody else.
            unsafe { vmm_sys_util::eventfd::EventFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(fd)) }
        };
        let sends: [fn(&Frontend, &vmm_sys_util::eventfd::EventFd) -> bool; 3] = [
            |vu, fd| vu.set_vring_kick(0, fd).is_err(),
            |vu, fd| vu.set_vring_call(0, fd).is_err(),
            |vu, fd| vu.set_vring_err(0, fd).is_err(),
        ];
        for send in sends {
            let vu = device.connect(&backend.socket("zwevent"));
            assert!(send(&vu, &other()));
            wait_until("the reason", || {
                backend.stats("zwevent").last_error.is_some_and(|e| e.contains("is not an eventfd"))
            });
        }
    });
}
