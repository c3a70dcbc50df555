//! `zerowire doctor` as root, as a user without privileges, and under a seccomp filter. Run as
//! root.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use zerowire_testkit::process::limit;
use zerowire_testkit::refuse::refuse_syscall;

use crate::support::program_for_everybody;

/// The user without privileges.
const NOBODY: u32 = 65534;

/// A copy of the program where every user can reach it, shared by the tests that run at a time and
/// gone with the last.
struct Lab(Arc<(tempfile::TempDir, PathBuf)>);

impl Lab {
    fn new() -> Self {
        static SHARED: Mutex<Weak<(tempfile::TempDir, PathBuf)>> = Mutex::new(Weak::new());
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests change user and namespaces: run them as root"
        );
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = shared.upgrade().unwrap_or_else(|| Arc::new(program_for_everybody()));
        *shared = Arc::downgrade(&copy);
        Self(copy)
    }

    fn program(&self) -> &Path {
        &self.0.1
    }

    fn doctor(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.arg("doctor").args(args);
        command
    }

    /// Shell text that runs in its own mount and network namespace, with the program as $PROGRAM.
    fn in_namespaces(&self, script: &str) -> Output {
        Command::new("unshare")
            .args(["--mount", "--net", "--propagation", "private", "sh", "-ec", script])
            .env("PROGRAM", self.program())
            .output()
            .expect("unshare (util-linux) must be installed")
    }
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the report is UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(output), String::from_utf8_lossy(&output.stderr)))
}

fn check<'a>(report: &'a Value, id: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list of checks");
    checks.iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no check {id}"))
}

fn verdict<'a>(report: &'a Value, job: &str) -> &'a Value {
    let verdicts = report["verdicts"].as_array().expect("a list of verdicts");
    verdicts.iter().find(|v| v["job"] == job).unwrap_or_else(|| panic!("no verdict on {job}"))
}

/// A device that everybody may open, as most distributions have it.
const OPEN_TUN: &str = "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200;";
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn root_is_ready() {
    let lab = Lab::new();
    let output = lab.doctor(&["--path", "net", "--json"]).output().expect("run");
    let report = json(&output);
    for id in ["net.tun", "net.tap", "net.queues", "netns.admin", "netns.identity", "memory.userfaultfd"] {
        assert_eq!(check(&report, id)["outcome"], "ok", "{id}");
    }
    assert!(output.status.success());
    let text = text(&lab.doctor(&[]).output().expect("run"));
    assert!(text.contains("What runs here") && !text.contains('\x1b'), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
}

/// The report names what a kernel lacks, with the version that has it.
#[test]
fn areas_beside_the_first_are_told_by_the_kernel() {
    let lab = Lab::new();
    let report = json(&lab.doctor(&["--path", "recv", "--json"]).output().expect("run"));
    let release = report["machine"]["kernel"].as_str().expect("a release");
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().expect("a number"), numbers.next().expect("a number"));
    let areas = check(&report, "recv.areas");
    let wanted = match version {
        (7, 3..) | (8.., _) => "ok",
        (6, 15..) | (7, _) => "degraded",
        _ => "missing",
    };
    assert_eq!(areas["outcome"], wanted, "Linux {release}: {areas}");
    if wanted == "degraded" {
        assert!(areas["remedy"].as_str().is_some_and(|r| r.contains("Boot Linux 7.3")), "{areas}");
    }
}

/// In a namespace of its own, so that other tests' interfaces don't count.
#[test]
fn nothing_stays_and_nothing_is_sent() {
    let lab = Lab::new();
    let output = lab.in_namespaces(
        "ip link set lo up; before=$(cat /proc/net/dev); $PROGRAM doctor > /dev/null; \
         after=$(cat /proc/net/dev); echo \"$after\"; test \"$before\" = \"$after\"",
    );
    assert!(output.status.success(), "{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
    assert!(text(&output).contains("lo:"));
}

#[test]
fn a_user_is_told_what_to_ask_for() {
    let lab = Lab::new();
    let mut command = lab.doctor(&["--json"]);
    command.uid(NOBODY).gid(NOBODY);
    let output = command.output().expect("run");
    let report = json(&output);
    let admin = check(&report, "netns.admin");
    assert_eq!(admin["outcome"], "missing");
    assert!(admin["remedy"].as_str().is_some_and(|r| r.contains("cap_net_admin")), "{admin}");
    assert_eq!(check(&report, "net.tap")["outcome"], "missing");
    assert_eq!(check(&report, "send.packet_ring")["outcome"], "missing");
    assert_eq!(check(&report, "net.packet_port")["outcome"], "missing");
    let later = check(&report, "memory.userfaultfd");
    assert!(later["remedy"].as_str().is_none_or(|r| r.contains("CAP_SYS_PTRACE")), "{later}");
    assert_eq!(check(&report, "send.zerocopy")["outcome"], "ok");
    assert_eq!(verdict(&report, "net")["outcome"], "missing");
    assert_eq!(output.status.code(), Some(1));
    let mut command = lab.doctor(&["--path", "net"]);
    let text = text(&command.uid(NOBODY).gid(NOBODY).output().expect("run"));
    assert!(text.contains("missing   CAP_NET_ADMIN") && text.contains("remedy: "), "{text}");
}

/// Without privileges a tap can't be made; one that an administrator made is enough.
#[test]
fn a_tap_of_the_users_own_is_enough() {
    let lab = Lab::new();
    let none =
        lab.in_namespaces(&format!("{OPEN_TUN} {AS_NOBODY} $PROGRAM doctor --path net --json || exit 3"));
    let report = json(&none);
    assert_eq!(check(&report, "net.tun")["outcome"], "ok");
    assert_eq!(check(&report, "net.tap")["outcome"], "missing");
    assert_eq!(none.status.code(), Some(3));

    let own = lab.in_namespaces(&format!(
        "{OPEN_TUN} mount -t sysfs none /sys; ip tuntap add dev mine0 mode tap user {NOBODY} vnet_hdr; \
         ip tuntap add dev other0 mode tap user 1 vnet_hdr; {AS_NOBODY} $PROGRAM doctor --path net --json"
    ));
    let report = json(&own);
    let tap = check(&report, "net.tap");
    assert_eq!(tap["outcome"], "degraded", "{tap}");
    let found = tap["found"].as_str().unwrap_or_default();
    assert!(found.contains("mine0") && !found.contains("other0"), "{found}");
    assert_eq!(verdict(&report, "net")["outcome"], "degraded");
    assert!(own.status.success());
}

#[test]
fn a_seccomp_filter_is_named_and_net_still_runs() {
    let lab = Lab::new();
    for (errno, word) in [(libc::EPERM, "seccomp filter"), (libc::ENOSYS, "not there")] {
        let mut command = lab.doctor(&["--json"]);
        // SAFETY: the hook makes two system calls on memory of its own stack and allocates nothing.
        unsafe { command.pre_exec(move || refuse_syscall(libc::SYS_io_uring_setup, &[], errno)) };
        let output = command.output().expect("run");
        let report = json(&output);
        let ring = check(&report, "uring.setup");
        assert_eq!(ring["outcome"], "degraded");
        assert!(ring["found"].as_str().is_some_and(|f| f.contains(word)), "{ring}");
        assert!(ring["remedy"].as_str().is_some_and(|r| r.contains("io_uring_setup")), "{ring}");
        assert_eq!(check(&report, "send.uring")["outcome"], "missing");
        assert_eq!(verdict(&report, "net")["outcome"], "ok");
        assert!(output.status.success());
        assert_eq!(report["machine"]["seccomp"], true);
    }
}

/// The device needs no privilege, and says so; without unix sockets it can't run.
#[test]
fn vsock_needs_no_privilege() {
    let lab = Lab::new();
    let mut command = lab.doctor(&["--path", "vsock", "--json"]);
    let output = command.uid(NOBODY).gid(NOBODY).output().expect("run");
    let report = json(&output);
    for id in ["vsock.memory", "vsock.unix"] {
        assert_eq!(check(&report, id)["outcome"], "ok", "{id}");
    }
    let vsock = verdict(&report, "vsock");
    assert_eq!(&vsock["outcome"], "ok", "{vsock}");
    assert!(vsock["text"].as_str().is_some_and(|t| t.contains("no privilege")), "{vsock}");
    assert!(output.status.success());
    let text = text(&lab.doctor(&["--path", "vsock"]).output().expect("run"));
    assert!(text.contains("zerowire vsock is ready."), "{text}");
}

#[test]
fn vsock_is_told_the_limit_of_open_files() {
    let lab = Lab::new();
    let mut command = lab.doctor(&["--path", "vsock", "--json"]);
    // SAFETY: the hook makes one system call on a value of its own.
    unsafe { command.pre_exec(|| limit(libc::RLIMIT_NOFILE, 128, 128)) };
    let output = command.output().expect("run");
    let report = json(&output);
    let descriptors = check(&report, "vsock.descriptors");
    assert_eq!(descriptors["outcome"], "degraded", "{descriptors}");
    assert!(descriptors["found"].as_str().is_some_and(|f| f.starts_with("64 to host")), "{descriptors}");
    assert!(descriptors["remedy"].as_str().is_some_and(|r| r.contains("LimitNOFILE")), "{descriptors}");
    assert_eq!(verdict(&report, "vsock")["outcome"], "degraded");
    assert!(output.status.success(), "it runs all the same");
}

#[test]
fn vsock_can_not_run_without_unix_sockets() {
    let lab = Lab::new();
    let mut command = lab.doctor(&["--path", "vsock", "--json"]);
    // SAFETY: the hook makes two system calls on memory of its own stack and allocates nothing.
    unsafe { command.pre_exec(|| refuse_syscall(libc::SYS_socketpair, &[], libc::EAFNOSUPPORT)) };
    let output = command.output().expect("run");
    let report = json(&output);
    assert_eq!(check(&report, "vsock.unix")["outcome"], "missing");
    assert_eq!(verdict(&report, "vsock")["outcome"], "missing");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_path_selects_checks_and_wrong_arguments_are_refused() {
    let lab = Lab::new();
    let report = json(&lab.doctor(&["--path", "vsock", "--json"]).output().expect("run"));
    let groups: Vec<_> =
        report["checks"].as_array().expect("checks").iter().map(|c| c["group"].clone()).collect();
    assert!(groups.contains(&"vsock".into()) && !groups.contains(&"net".into()), "{groups:?}");
    assert_eq!(lab.doctor(&["--path", "nonsense"]).output().expect("run").status.code(), Some(2));
}

/// The sandbox warns of the same at its start.
#[test]
fn a_vms_process_that_keeps_its_user_is_told() {
    let lab = Lab::new();
    for (without, remedy) in [
        ("unshare --user --map-root-user", "Map user and group 65534"),
        ("setpriv --bounding-set=-setuid", "CAP_SETUID"),
        ("setpriv --bounding-set=-setgid", "CAP_SETGID"),
    ] {
        let report = json(&lab.in_namespaces(&format!("{without} $PROGRAM doctor --json || true")));
        let found = check(&report, "sandbox.namespaces");
        assert_eq!(found["outcome"], "degraded", "{without}: {found}");
        assert!(found["remedy"].as_str().is_some_and(|text| text.contains(remedy)), "{without}: {found}");
    }
}
