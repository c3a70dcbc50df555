//! Processes that are confined: how they start, what they keep, and what an ordinary user gets.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::{WaitOptions, waitpid};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use zerowire_confine::{ConfinePlan, Layer, confine, spawn_apart};
use zerowire_sys::allowed::OF_A_PROGRAM;
use zerowire_sys::rights::close_others;
use zerowire_testkit::own_process;
use zerowire_testkit::process::become_ordinary;

use crate::stage::{NOBODY, in_process, own_user_namespace, without};

/// What a shell says that is started apart with this command.
fn said_apart(command: &str) -> String {
    let (mut output, theirs) = std::io::pipe().expect("a pipe");
    let (nothing, arguments) = (File::open("/dev/null").expect("a file"), ["shell", "-c", command]);
    let standard = [nothing.as_fd(), theirs.as_fd(), theirs.as_fd()];
    let mut child = spawn_apart(c"/bin/sh", &arguments, standard).expect("a process");
    drop(theirs);
    let mut said = String::new();
    output.read_to_string(&mut said).expect("what it says");
    assert!(child.wait().expect("its end").success(), "{said}");
    said
}

#[test]
fn a_process_that_is_started_apart_is_the_first_of_its_own() {
    for _ in 0..2 {
        assert_eq!(said_apart("echo $0 $$"), "shell 1\n");
    }
}

#[test]
fn a_program_that_cant_be_started_is_an_error_and_leaves_no_process() {
    own_process!();
    let file = File::open("/dev/null").expect("a file");
    let refused = spawn_apart(c"/dev/null", &["null"], [file.as_fd(); 3]).expect_err("no program");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    let none = waitpid(None, WaitOptions::NOHANG).expect_err("no child");
    assert_eq!(none, Errno::CHILD);
}

/// Which users, groups and capabilities a process has that is started apart, and its number.
const LOOK: &str = "echo $$ $(cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups) \
                    $(grep ^CapEff: /proc/self/status)";

/// This process has changed its user, so its files in /proc are root's.
#[test]
fn an_ordinary_user_starts_a_process_in_a_user_namespace() {
    own_process!();
    become_ordinary(1, 8 << 20);
    // CAP_SETPCAP and CAP_SYS_ADMIN.
    assert_eq!(said_apart(LOOK), "1 1 1 1 1 1 1 deny CapEff: 0000000000200100\n");
    assert_eq!(said_apart("id -u; id -g"), "1\n1\n");
}

/// Here are no further namespaces of this kind.
fn exhaust(kind: &str) {
    own_user_namespace();
    std::fs::write(format!("/proc/sys/user/max_{kind}_namespaces"), "0").expect("a limit");
}

#[test]
fn where_no_namespace_can_be_had_a_process_starts_without() {
    own_process!();
    for kind in ["pid", "user"] {
        let status = in_process(|| {
            exhaust(kind);
            without(CapabilitySet::SYS_ADMIN);
            assert_ne!(said_apart("echo $$"), "1\n", "{kind}");
            let outer = std::fs::read_link("/proc/self/ns/user").expect("a namespace");
            let inner = said_apart("readlink /proc/self/ns/user");
            i32::from((outer.to_str() == Some(inner.trim())) != (kind == "user"))
        });
        assert_eq!(status, 0, "{kind}");
    }
}

/// Has clone(2) of a namespace fail with this error, as a security module does.
fn refuse_namespaces(errno: i32) {
    let has = |flag: i32| {
        let masked = SeccompCmpOp::MaskedEq(flag as u64);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, masked, flag as u64)?;
        SeccompRule::new(vec![condition])
    };
    let rules = [libc::CLONE_NEWUSER, libc::CLONE_NEWPID].map(|flag| has(flag).expect("a rule"));
    let rules = [(libc::SYS_clone, rules.to_vec())].into();
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(errno as u32));
    let filter = SeccompFilter::new(rules, allow, refuse, TargetArch::x86_64).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program).expect("it holds");
}

/// SELinux and AppArmor refuse by EACCES, and a BPF program by any error.
#[test]
fn where_a_security_module_refuses_namespaces_a_process_starts_without() {
    own_process!();
    for errno in [libc::EACCES, libc::EPERM, libc::ENOSYS] {
        for is_root in [true, false] {
            let status = in_process(|| {
                if !is_root {
                    without(CapabilitySet::SYS_ADMIN);
                }
                refuse_namespaces(errno);
                assert_ne!(said_apart("echo $$"), "1\n");
                0
            });
            assert_eq!(status, 0, "errno {errno}, root {is_root}");
        }
    }
}

/// It can have its namespaces later, so it does not start without them.
#[test]
fn a_lack_that_passes_starts_no_process_without_namespaces() {
    own_process!();
    for errno in [libc::EAGAIN, libc::ENOMEM] {
        let status = in_process(|| {
            refuse_namespaces(errno);
            let file = File::open("/dev/null").expect("a file");
            let refused = spawn_apart(c"/bin/true", &["true"], [file.as_fd(); 3]).expect_err("no namespace");
            i32::from(refused.raw_os_error() != Some(errno))
        });
        assert_eq!(status, 0, "errno {errno}");
    }
}

#[test]
fn all_descriptors_but_those_that_are_kept_are_closed() {
    own_process!();
    let files: Vec<_> = (0..4).map(|_| File::open("/dev/null").expect("a file")).collect();
    let kept = [files[1].as_raw_fd(), files[3].as_raw_fd()];
    let is_open = |fd: i32| {
        // SAFETY: only asks.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    };
    let status = in_process(|| {
        // SAFETY: this process looks at numbers from here on, and ends.
        if unsafe { close_others(&kept) }.is_err() {
            return 1;
        }
        let open: Vec<_> = (0..1024).filter(|fd| is_open(*fd)).collect();
        i32::from(open != kept)
    });
    assert_eq!(status, 0);
    assert!(files.iter().all(|f| is_open(f.as_raw_fd())), "those of this process stay");
}

/// What needs root is left out and said; the rest is there.
#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    own_process!();
    let status = in_process(|| {
        // SAFETY: the calls take numbers, and change this process alone.
        let changed = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(1, 1, 1) == 0
                && libc::setresuid(1, 1, 1) == 0
        };
        let plan = ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &[Layer::SystemCalls] };
        match confine(&plan) {
            Ok(report) if changed => {
                let missing = report.missing().unwrap_or_default();
                let has = |layer| report.has(layer);
                let rest = has(Layer::Capabilities) && has(Layer::Dumps) && has(Layer::NoNewPrivileges);
                i32::from(!(rest && missing.contains("it stays user") && missing.contains("CAP_SYS_ADMIN")))
            }
            _ => 2,
        }
    });
    assert_eq!(status, 0);
}
