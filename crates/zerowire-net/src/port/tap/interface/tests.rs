use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use zerowire_testkit::net::{in_netns, ip};

use super::*;
use crate::port::PortText;

#[derive(Debug)]
struct AnyKeeper(OwnedFd);

impl PortKeeper for AnyKeeper {
    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn ask(&self, verb: String, _fds: &[BorrowedFd<'_>]) -> Result<PortText, String> {
        Err(format!("{verb} is not carried out"))
    }

    fn tell(&self, _verb: String) {}
}

/// A process that served the tap before may have changed what all processes share that have it.
#[test]
fn a_tap_that_is_taken_over_is_as_it_was_opened() {
    in_netns(|| {
        let tap = Tap::open(&TapSpec { name: "zwtaken".to_owned(), queues: 2 }).expect("a tap");
        for queue in &tap.queues {
            let _ = tap::attach_queue(queue, false);
            rustix::io::ioctl_fionbio(queue, false).expect("it waits");
        }
        let all = Offloads { csum: true, tso4: true, ..Offloads::default() };
        tap.choose(TapSettings { offloads: all, header_len: 10 }).expect("another header");
        let queues = (0..2).map(|i| tap.queue(i)).collect::<Result<Vec<_>, _>>().expect("queues");
        let keeper = Arc::new(AnyKeeper(netdevice::socket().expect("a socket")));
        let taken = Tap::take_over("zwtaken".to_owned(), queues, tap.facts, keeper).expect("taken over");
        assert_eq!(tap::header_len(&taken.control).ok(), Some(12));
        for (queue, attaches) in taken.queues.iter().zip([false, true]) {
            let flags = rustix::fs::fcntl_getfl(queue).expect("flags");
            assert!(flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
            // What takes part already can't be attached once more.
            assert_eq!(tap::attach_queue(queue, true).is_ok(), attaches);
        }
        taken.send(&[0; 60]).expect("a frame by the first queue");
    });
}

/// Another process that serves the tap asks for it.
#[test]
fn a_tap_that_comes_back_has_what_the_guest_has_chosen() {
    in_netns(|| {
        let tap = Tap::open(&TapSpec { name: "zwtaken".to_owned(), queues: 2 }).expect("a tap");
        let other = tap.queue(0).expect("the other process's");
        let settings = TapSettings { header_len: 10, ..TapSettings::default() };
        tap.take_again(settings, true).expect("nothing to do");
        assert_eq!(tap::header_len(&other).ok(), Some(12), "the tap is there");
        ip(&["link", "del", "zwtaken"]);
        assert!(tap.take_again(TapSettings { header_len: 1 << 30, ..settings }, true).is_err());
        tap.take_again(settings, false).expect("none is there");
        assert!(tap.is_gone());
        tap.take_again(settings, true).expect("made");
        assert_eq!(tap::header_len(&other).ok(), Some(10));
        assert!(tap.state().made && !tap.is_gone());
    });
}

/// Frames go on to pass by its descriptors.
#[test]
fn a_tap_that_is_renamed_or_moved_is_not_gone() {
    in_netns(|| {
        let tap = Tap::open(&TapSpec { name: "zwtaken".to_owned(), queues: 2 }).expect("a tap");
        ip(&["link", "set", "zwtaken", "down"]);
        ip(&["link", "set", "zwtaken", "name", "zwrenamed"]);
        assert_eq!((tap.name_now().as_str(), tap.link_state()), ("zwrenamed", LinkState::Down));
        ip(&["link", "set", "zwrenamed", "up"]);
        tap.raise_mtu(2000).expect("another MTU");
        assert_eq!((tap.mtu(), tap.link_state()), (2000, LinkState::Up));
        let other = in_netns(|| File::open("/proc/thread-self/ns/net").expect("a namespace"));
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), other.as_raw_fd());
        ip(&["link", "set", "zwrenamed", "netns", &namespace]);
        assert_eq!((tap.is_gone(), tap.link_state()), (false, LinkState::Unknown));
        // One of its name here is not it.
        ip(&["link", "add", "zwrenamed", "type", "veth", "peer", "zwpeer"]);
        tap.raise_mtu(3000).expect("it is no error");
        assert_eq!((tap.mtu(), tap.link_state()), (1500, LinkState::Unknown));
        let other = netdevice::mtu(netdevice::socket().expect("a socket"), "zwrenamed");
        assert_eq!(other.expect("it is there"), 1500);
    });
}
