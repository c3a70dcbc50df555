use std::io::Read as _;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::Pid;

use super::{ALONE, catch, children, is_listening, is_own, kill_with, kill_with_thread};

#[test]
fn what_follows_runs_elsewhere() {
    crate::own_process!();
    assert_eq!(std::env::var(ALONE).as_deref(), Ok("process::tests::what_follows_runs_elsewhere"));
}

#[test]
fn what_fails_there_fails_here() {
    let test = crate::this_test!();
    match std::panic::catch_unwind(|| is_own(test)) {
        Ok(true) => panic!("on purpose"),
        Ok(false) => unreachable!("it passed"),
        Err(_) => {}
    }
}

#[test]
#[should_panic(expected = "is not in a test function")]
fn a_closure_is_no_test() {
    let closure = || crate::this_test!();
    closure();
}

#[test]
#[should_panic(expected = "no::such_test, alone")]
fn a_path_that_no_test_has_fails() {
    is_own("no::such_test");
}

#[test]
fn a_program_that_was_started_is_a_child_until_it_ends() {
    let own = std::process::id();
    let mut program = Command::new("sleep").arg("60").spawn().unwrap();
    assert!(children(own).contains(&program.id()));
    program.kill().unwrap();
    crate::wait_until("the zombie is no child", || !children(own).contains(&program.id()));
    program.wait().unwrap();
}

#[test]
fn a_program_is_killed_with_the_thread_that_started_it() {
    let start = || kill_with_thread(Command::new("sleep").arg("60")).spawn().unwrap();
    let mut program = std::thread::spawn(start).join().unwrap();
    assert_eq!(program.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn a_program_does_not_start_when_its_parent_has_ended() {
    // As if another process had started it.
    let error = kill_with(&mut Command::new("true"), Pid::INIT).spawn().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn signals_come_through_the_pipe_and_leave_errno_alone() {
    crate::own_process!();
    let (mut reader, writer) = std::io::pipe().unwrap();
    catch(&[libc::SIGUSR1], writer.into()).unwrap();
    let raise_with_errno = || {
        // SAFETY: errno is this thread's; raise takes a number, and its handler is there.
        unsafe {
            *libc::__errno_location() = libc::ERANGE;
            libc::raise(libc::SIGUSR1);
            *libc::__errno_location()
        }
    };
    assert_eq!(raise_with_errno(), libc::ERANGE);
    let mut signal = [0];
    reader.read_exact(&mut signal).unwrap();
    assert_eq!(libc::c_int::from(signal[0]), libc::SIGUSR1);

    // Nobody reads any more: the handler's write fails.
    drop(reader);
    assert_eq!(raise_with_errno(), libc::ERANGE);
}

#[test]
fn a_socket_that_is_bound_does_not_listen_yet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a name");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    assert!(!is_listening("thread-self", &path).unwrap());
    rustix::net::listen(&socket, 1).unwrap();
    assert!(is_listening("thread-self", &path).unwrap());
    assert!(!is_listening("self", &folder.path().join("name")).unwrap());
    assert!(is_listening("0", &path).unwrap_err().to_string().contains("/proc/0/net/unix"));
}
