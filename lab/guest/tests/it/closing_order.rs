//! In which order the kernel closes the descriptors of a killed process. The driver of a PCI device
//! relies on it: the device is stopped before the memory that it can write is free.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerowire_testkit::own_process;

/// Every process that this one starts meanwhile has the descriptors, too.
#[test]
fn a_killed_process_closes_its_descriptors_from_the_highest_number_down() {
    own_process!();
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll instance");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (near, far): (OwnedFd, OwnedFd) = pair.expect("a pair");
        rustix::io::fcntl_setfd(&far, rustix::io::FdFlags::empty()).expect("inherited");
        let number = epoll::EventData::new_u64(far.as_raw_fd() as u64);
        epoll::add(&events, &near, number, epoll::EventFlags::RDHUP).expect("watched");
        ours.push(near);
        theirs.push(far);
    }
    let mut numbers: Vec<u64> = theirs.iter().map(|fd| fd.as_raw_fd() as u64).collect();
    let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("started");
    drop(theirs);
    child.kill().expect("killed");
    child.wait().expect("ended");
    // The hang-ups are queued in the order in which they came.
    let mut found = Vec::new();
    while found.len() < numbers.len() {
        let mut list = Vec::with_capacity(numbers.len());
        epoll::wait(&events, rustix::buffer::spare_capacity(&mut list), None).expect("it waits");
        for event in list {
            epoll::delete(
                &events,
                &ours[numbers.iter().position(|n| *n == event.data.u64()).expect("known")],
            )
            .expect("watched");
            found.push(event.data.u64());
        }
    }
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(found, numbers);
}
