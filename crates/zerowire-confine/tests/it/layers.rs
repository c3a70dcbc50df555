//! What the layers refuse, all together and each by itself.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::process::{Pid, Uid};
use rustix::thread::{CapabilitySet, set_thread_res_uid};
use zerowire_confine::{
    ConfineError, ConfinePlan, KnownUsers, Layer, can_map_users, confine, confine_threads, map_users,
};
use zerowire_net::port::{packet, tap, xdp};
use zerowire_sys::allowed::{AllowedCall, OF_A_PROGRAM};
use zerowire_sys::rights::{Namespace, landlock_version, unshare};
use zerowire_testkit::{not_run, own_process};
use zerowire_vsock::system_calls::SYSTEM_CALLS;

use crate::acts::{ACTS, call, named};
use crate::stage::{NOBODY, Seen, Stage, attempt, attempt_by, in_process, own_user_namespace, without};

/// What is left out where another layer is looked at.
const LIST: [Layer; 2] = [Layer::SystemCalls, Layer::Landlock];

#[test]
fn a_confined_process_can_do_none_of_these() {
    own_process!();
    let stage = Stage::new();
    assert!(ACTS.len() >= 40, "{}", ACTS.len());
    for act in ACTS {
        let seen = attempt(&[], || (act.attempt)(&stage));
        let wanted = match act.name {
            // The C library has another way to start threads.
            "start a process by clone3" => Seen::Errno(libc::ENOSYS),
            _ => Seen::Killed(libc::SIGSYS),
        };
        assert_eq!(seen, wanted, "{}", act.name);
    }
}

/// Files and sockets are absent for a child that serves a VM; all else ends it.
fn can_do_none_of_these(calls: &[&[AllowedCall]]) {
    let stage = Stage::new();
    for act in ACTS {
        let seen = attempt_by(calls, &[], || (act.attempt)(&stage));
        let refused = matches!(seen, Seen::Killed(libc::SIGSYS) | Seen::Errno(libc::ENOSYS));
        assert!(refused, "{}: {seen:?}", act.name);
    }
}

#[test]
fn a_child_that_serves_a_tap_can_do_none_of_these() {
    own_process!();
    can_do_none_of_these(tap::SYSTEM_CALLS);
}

#[test]
fn a_child_that_serves_a_packet_port_can_do_none_of_these() {
    own_process!();
    can_do_none_of_these(packet::SYSTEM_CALLS);
}

#[test]
fn a_child_that_serves_an_xdp_port_can_do_none_of_these() {
    own_process!();
    can_do_none_of_these(xdp::SYSTEM_CALLS);
}

#[test]
fn a_child_that_serves_vsock_can_do_none_of_these() {
    own_process!();
    can_do_none_of_these(SYSTEM_CALLS);
}

/// std and the C library go on without those that are absent.
#[test]
fn a_child_has_no_call_that_another_one_does_for() {
    own_process!();
    let by = |number| {
        let act = || call(number, &[usize::MAX; 3]).map(drop);
        attempt_by(SYSTEM_CALLS, &[], act)
    };
    for number in [
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_poll,
        libc::SYS_fstatfs,
        libc::SYS_lseek,
        libc::SYS_timerfd_gettime,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
    ] {
        assert_eq!(by(number), Seen::Killed(libc::SIGSYS), "{number}");
    }
    for number in [
        libc::SYS_mremap,
        libc::SYS_set_robust_list,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
        libc::SYS_gettid,
        libc::SYS_rt_sigaction,
    ] {
        assert_eq!(by(number), Seen::Errno(libc::ENOSYS), "{number}");
    }
}

/// By sendmsg(2) a packet socket sends to any interface.
#[test]
fn a_packet_socket_sends_no_message_and_gets_no_lower_number() {
    own_process!();
    let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let high = rustix::io::fcntl_dupfd_cloexec(&other, 1000).expect("a number");
    let by = |act: &dyn Fn() -> Result<(), i32>| attempt_by(packet::SYSTEM_CALLS, &[], act);
    let message = |on: &dyn AsFd| {
        let (mut none, bytes) = (SendAncillaryBuffer::default(), [IoSlice::new(b"a")]);
        sendmsg(on, &bytes, &mut none, SendFlags::NOSIGNAL).map(drop).map_err(Errno::raw_os_error)
    };
    let copy = |of: &dyn AsFd, from| {
        rustix::io::fcntl_dupfd_cloexec(of, from).map(drop).map_err(Errno::raw_os_error)
    };
    assert_eq!(by(&|| message(&one)), Seen::Done);
    assert_eq!(by(&|| copy(&one, 3)), Seen::Done);
    assert_eq!(by(&|| message(&high)), Seen::Killed(libc::SIGSYS));
    for from in [3, 1000] {
        assert_eq!(by(&|| copy(&high, from)), Seen::Killed(libc::SIGSYS));
    }
    // It is closed, which takes a look at its flags in a debug build.
    let looked = if cfg!(debug_assertions) { Seen::Done } else { Seen::Killed(libc::SIGSYS) };
    assert_eq!(by(&|| rustix::io::fcntl_getfd(&high).map(drop).map_err(Errno::raw_os_error)), looked);
    assert_eq!(by(&|| rustix::io::write(&high, b"a").map(drop).map_err(Errno::raw_os_error)), Seen::Done);
}

#[test]
fn behind_the_list_of_system_calls_another_layer_refuses() {
    own_process!();
    let stage = Stage::new();
    let behind: Vec<_> = ACTS.iter().filter_map(|act| Some((act, act.behind?))).collect();
    assert!(behind.len() >= 35, "{}", behind.len());
    for (act, (layer, errnos)) in behind {
        let seen = attempt(&LIST, || (act.attempt)(&stage));
        let refused = matches!(seen, Seen::Errno(errno) if errnos.contains(&errno));
        assert!(refused, "{}: {seen:?}, and {} should refuse it", act.name, layer.name());
    }
}

/// A layer, an act that it refuses, and what else refuses that.
const ALONE: [(Layer, &str, &[Layer]); 9] = [
    (Layer::Processes, "signal another process", &[Layer::User, Layer::Capabilities]),
    (Layer::Ipc, "attach another's shared memory", &[]),
    (Layer::Network, "reach a program on the loopback", &[]),
    (Layer::Files, "open a file", &[]),
    (Layer::User, "change a file of root's", &[]),
    (Layer::Capabilities, "mount", &[Layer::User]),
    (Layer::Dumps, "leave a core file", &[Layer::User]),
    (Layer::NoNewPrivileges, "gain rights by a program", &[]),
    (Layer::SystemCalls, "start a process", &[]),
];

#[test]
fn each_layer_refuses_something_by_itself() {
    own_process!();
    let stage = Stage::new();
    let landlock = (Layer::Landlock, "open a file", &[Layer::Files][..]);
    let landlock = match landlock_version() {
        Ok(_) => Some(landlock),
        Err(e) => {
            not_run(&format!("Landlock: this kernel does not have it: {e}"));
            None
        }
    };
    let rows: Vec<_> = ALONE.into_iter().chain(landlock).collect();
    for layer in Layer::ALL {
        assert!(layer == Layer::Landlock || rows.iter().any(|row| row.0 == layer), "{layer:?} has no row");
    }
    for (layer, name, others) in rows {
        let act = named(name);
        let beside: Vec<_> = LIST.into_iter().chain(others.iter().copied()).filter(|l| *l != layer).collect();
        let with = attempt(&beside, || (act.attempt)(&stage));
        assert!(matches!(with, Seen::Errno(_) | Seen::Killed(libc::SIGSYS)), "{name} with it: {with:?}");
        let without: Vec<_> = beside.iter().copied().chain([layer]).collect();
        let seen = attempt(&without, || (act.attempt)(&stage));
        assert_eq!(seen, Seen::Done, "{name} without {}", layer.name());
    }
}

#[test]
fn a_confined_process_starts_threads_and_has_memory() {
    own_process!();
    let seen = attempt(&[], || {
        let thread = std::thread::Builder::new().name("worker".to_owned()).stack_size(64 * 1024);
        let thread = thread.spawn(|| {
            let mut bytes = vec![1_u8; 1 << 20];
            bytes.resize(8 << 20, 1);
            std::thread::park_timeout(Duration::from_millis(1));
            bytes.iter().map(|b| usize::from(*b)).sum::<usize>()
        });
        match thread.map(std::thread::JoinHandle::join) {
            Ok(Ok(sum)) if sum == 8 << 20 => Ok(()),
            _ => Err(libc::EAGAIN),
        }
    });
    assert_eq!(seen, Seen::Done);
}

/// Processes of the same user have theirs.
#[test]
fn a_process_has_its_threads_whatever_others_have_and_no_more() {
    own_process!();
    let other = || Command::new("sleep").arg("100").uid(NOBODY.user).spawn().expect("a process");
    let mut others: Vec<_> = (0..20).map(|_| other()).collect();
    let threads = in_process(|| {
        let plan = ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &[] };
        if confine_threads(&plan, 8, KnownUsers::Own).is_err() { 0 } else { threads_to_be_had() }
    });
    others.iter_mut().for_each(|other| other.kill().and_then(|()| other.wait().map(drop)).expect("killed"));
    assert_eq!(threads, 7, "beside the first one");
}

/// How many threads this process can start, of 100.
fn threads_to_be_had() -> i32 {
    let thread = || {
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        thread.spawn(|| std::thread::park_timeout(Duration::from_secs(100))).ok()
    };
    (1..100).take_while(|_| thread().is_some()).last().unwrap_or(0)
}

/// Users that its supervisor maps have their numbers; without that they are nobody.
#[test]
fn a_process_whose_threads_are_counted_tells_users_apart() {
    own_process!();
    assert!(can_map_users(), "run the test as root");
    for (is_mapped, seen) in [(true, 0), (false, NOBODY.user)] {
        let (supervisor, channel) = UnixStream::pair().expect("a pair");
        let (socket, _program) = UnixStream::pair().expect("a pair that root has made");
        let maps = std::thread::spawn(move || {
            let mut process = [0; 4];
            if (&supervisor).read_exact(&mut process).is_ok() {
                let process = Pid::from_raw(i32::from_ne_bytes(process)).expect("a process");
                map_users(process).expect("mapped");
                (&supervisor).write_all(b"m").expect("told");
            }
        });
        let process = || {
            let map = || {
                let asked = (&channel).write_all(&std::process::id().to_ne_bytes());
                asked.and_then(|()| (&channel).read_exact(&mut [0])).map_err(|e| e.to_string())
            };
            let users = if is_mapped { KnownUsers::Mapped(&map) } else { KnownUsers::Own };
            let plan = ConfinePlan { owner: NOBODY, calls: SYSTEM_CALLS, without: &[] };
            if let Err(e) = confine_threads(&plan, 8, users) {
                panic!("{e}");
            }
            let (user, _) = zerowire_sys::socket::peer_owner(&socket).expect("whose it is");
            if user == seen { threads_to_be_had() } else { panic!("user {user}") }
        };
        assert_eq!(in_process(process), 7, "{is_mapped}");
        drop(channel);
        maps.join().expect("no panic");
    }
}

/// A process that knows all users is not counted, unless nobody else is in its user namespace.
#[test]
fn a_process_has_no_user_namespace_that_would_hide_users() {
    own_process!();
    let threads = |users| {
        in_process(|| {
            if matches!(users, KnownUsers::Alone) {
                let user = Uid::from_raw(60_000);
                set_thread_res_uid(user, user, user).expect("another user");
                unshare(Namespace::User).expect("a user namespace");
            }
            let plan = ConfinePlan { owner: NOBODY, calls: SYSTEM_CALLS, without: &[] };
            if confine_threads(&plan, 8, users).is_err() { 0 } else { threads_to_be_had() }
        })
    };
    assert_eq!(threads(KnownUsers::All), 99);
    assert_eq!(threads(KnownUsers::Alone), 7, "beside the first one");
}

/// In a user namespace of one user a process has CAP_SETUID, and no other user. Without a map its
/// own user is unknown there as well.
#[test]
fn a_process_that_stays_its_user_says_what_another_one_takes() {
    own_process!();
    let no_user = || without(CapabilitySet::SETUID | CapabilitySet::SETGID);
    let no_map = || unshare(Namespace::User).expect("a user namespace");
    let unmapped = "the user that started it, which its user namespace could not map";
    for (prepare, user, takes) in [
        (&own_user_namespace as &dyn Fn(), "user 0", "CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN"),
        (&no_user, "user 0", "CAP_SETGID, CAP_SETUID"),
        (&no_map, unmapped, "CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN"),
    ] {
        let status = in_process(|| {
            prepare();
            let plan = ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &LIST };
            let missing = confine(&plan).expect("it is confined").missing().unwrap_or_default();
            let says = missing.contains(&format!("own user (it stays {user}, "))
                && missing.contains(&format!("another one takes {takes})"));
            if says { 0 } else { panic!("{missing}") }
        });
        assert_eq!(status, 0, "{user}: {takes}");
    }
}

/// The harness of tests has a thread beside this one.
#[test]
fn a_process_of_several_threads_is_refused() {
    let plan = ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &[] };
    let refused = confine(&plan);
    assert!(matches!(refused, Err(ConfineError::Threads(2..))), "{refused:?}");
}
