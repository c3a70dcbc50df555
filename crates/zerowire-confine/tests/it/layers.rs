//! What the layers refuse, all together and each by itself.

use zerowire_confine::{ConfineError, ConfinePlan, Layer, confine};
use zerowire_net::port::tap::SYSTEM_CALLS;
use zerowire_sys::allowed::OF_A_PROGRAM;
use zerowire_sys::rights::landlock_version;
use zerowire_testkit::{not_run, own_process};

use crate::acts::{ACTS, named};
use crate::stage::{NOBODY, Seen, Stage, attempt, attempt_by};

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

/// Files and sockets are absent for a child that serves a tap; all else ends it.
#[test]
fn a_child_that_serves_a_tap_can_do_none_of_these() {
    own_process!();
    let stage = Stage::new();
    for act in ACTS {
        let seen = attempt_by(&[OF_A_PROGRAM, SYSTEM_CALLS], &[], || (act.attempt)(&stage));
        let refused = matches!(seen, Seen::Killed(libc::SIGSYS) | Seen::Errno(libc::ENOSYS));
        assert!(refused, "{}: {seen:?}", act.name);
    }
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
            let bytes = vec![1_u8; 8 << 20];
            std::thread::sleep(std::time::Duration::from_millis(1));
            bytes.iter().map(|b| usize::from(*b)).sum::<usize>()
        });
        match thread.map(std::thread::JoinHandle::join) {
            Ok(Ok(sum)) if sum == 8 << 20 => Ok(()),
            _ => Err(libc::EAGAIN),
        }
    });
    assert_eq!(seen, Seen::Done);
}

/// The harness of tests has a thread beside this one.
#[test]
fn a_process_of_several_threads_is_refused() {
    let plan = ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &[] };
    let refused = confine(&plan);
    assert!(matches!(refused, Err(ConfineError::Threads(2..))), "{refused:?}");
}
