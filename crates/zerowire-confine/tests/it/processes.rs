//! Processes that are confined: how they start, what they keep, and what an ordinary user gets.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use zerowire_confine::{ConfinePlan, Layer, confine, spawn_apart};
use zerowire_sys::allowed::OF_A_PROGRAM;
use zerowire_sys::rights::close_others;
use zerowire_testkit::own_process;

use crate::stage::{NOBODY, in_process};

#[test]
fn a_process_that_is_started_apart_is_the_first_of_its_own() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$"]).stdout(Stdio::piped());
    for _ in 0..2 {
        let child = spawn_apart(&mut command).expect("a process");
        let out = child.wait_with_output().expect("its output");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "1\n");
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
