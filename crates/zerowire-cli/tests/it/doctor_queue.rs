//! `zerowire doctor -i IF -q Q` on interfaces of a namespace of the test's own: each verdict that
//! can be provoked without a special NIC. Run as root.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use zerowire_sys::xdp::program::{Hook, Steering};
use zerowire_sys::xdp::{Socket, SocketOptions, Umem, UmemOptions};
use zerowire_testkit::own_process;

use crate::support::{PATIENCE, program_for_everybody};
use zerowire_testkit::net::{in_netns, ip};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zerowire");

/// Runs the doctor in this thread's namespace.
fn doctor(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("doctor").args(arguments).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The report as JSON, and the exit code.
fn report(arguments: &[&str]) -> (Value, i32) {
    let output = doctor(&[arguments, &["--json"]].concat());
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output), String::from_utf8_lossy(&output.stderr)));
    (value, output.status.code().expect("an exit code"))
}

fn check<'a>(report: &'a Value, id: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list of checks");
    checks.iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no check {id}: {report:#}"))
}

#[track_caller]
fn assert_check(report: &Value, id: &str, outcome: &str, found: &str, remedy: &str) {
    let check = check(report, id);
    assert_eq!(check["outcome"], outcome, "{check:#}");
    assert!(check["found"].as_str().is_some_and(|t| t.contains(found)), "{found}: {check:#}");
    assert!(check["remedy"].as_str().unwrap_or_default().contains(remedy), "{remedy}: {check:#}");
}

/// The pair vq0, vq1 with three queues at vq0, both ends up.
fn veth() {
    let new = ["link", "add", "vq0", "numrxqueues", "3", "numtxqueues", "3"];
    ip(&[&new[..], &["type", "veth", "peer", "name", "vq1"]].concat());
    ip(&["link", "set", "vq0", "up"]);
    ip(&["link", "set", "vq1", "up"]);
}

#[test]
fn an_interface_that_is_not_there() {
    in_netns(|| {
        let (report, code) = report(&["-i", "nowhere0", "-q", "0"]);
        assert_check(&report, "queue.interface", "missing", "no interface nowhere0", "ip link");
        assert_eq!(check(&report, "queue.kernel")["group"], "recv", "the kernel is looked at all the same");
        assert_eq!((report["settings"].is_null(), code), (true, 1));
        for name in ["a/b", "sixteen-bytes-ab", ""] {
            assert_eq!(doctor(&["-i", name, "-q", "0"]).status.code(), Some(1), "{name}");
        }
    });
}

/// A virtual interface: what is right with it is ok, what a NIC would need is missing, each with
/// its remedy.
#[test]
fn a_veth_is_gone_through_one_by_one() {
    in_netns(|| {
        veth();
        let (report, code) = report(&["-i", "vq0", "-q", "2"]);
        assert_eq!(code, 1);
        let ids: Vec<_> =
            report["checks"].as_array().expect("checks").iter().map(|c| c["id"].clone()).collect();
        let order = [
            "interface",
            "up",
            "driver",
            "number",
            "header_split",
            "hds_thresh",
            "xdp",
            "user",
            "admin",
            "kernel",
            "ring",
            "areas",
            "rss",
            "steering",
            "buffer_len",
        ];
        assert_eq!(ids, order.map(|id| Value::from(format!("queue.{id}"))));
        assert_check(&report, "queue.interface", "ok", "a veth", "");
        assert_check(&report, "queue.up", "ok", "up", "");
        assert_check(&report, "queue.driver", "missing", "veth", "bnxt_en, mlx5_core, gve, fbnic");
        assert_check(&report, "queue.number", "ok", "3 receive queues in use: 0 to 2", "");
        assert_check(&report, "queue.header_split", "missing", "driver", "NIC");
        assert_check(&report, "queue.xdp", "ok", "no XDP program", "");
        assert_check(&report, "queue.user", "ok", "own stack", "");
        assert_check(&report, "queue.admin", "ok", "", "");
        assert_check(&report, "queue.ring", "ok", "CQE32", "");
        assert_check(&report, "queue.areas", "ok", "(ZCRX_CTRL_ADD_AREA)", "");
        assert_check(&report, "queue.rss", "degraded", "no indirection table", "");
        assert_check(&report, "queue.steering", "degraded", "EOPNOTSUPP", "");
        assert_eq!(report["verdict"]["outcome"], "missing");
        let commands: Vec<_> =
            report["commands"].as_array().expect("commands").iter().map(|c| c["command"].clone()).collect();
        for command in [
            "ethtool -G vq0 tcp-data-split on",
            "ethtool -X vq0 equal 2",
            "ethtool -N vq0 flow-type tcp6 dst-port PORT action 2",
        ] {
            assert!(commands.contains(&command.into()), "{command}: {commands:?}");
        }
        assert_eq!(report["settings"]["channels"]["rx"], 3);
        assert_eq!(report["queues"].as_array().map(Vec::len), Some(3));
    });
}

#[test]
fn a_queue_beyond_the_last_one() {
    in_netns(|| {
        veth();
        let (report, code) = report(&["-i", "vq0", "-q", "3"]);
        assert_check(&report, "queue.number", "missing", "no queue 3", "Take -q 2");
        assert_check(&report, "queue.user", "degraded", "doesn't list queue 3", "");
        assert_eq!(code, 1);
        let (report, _) = self::report(&["-i", "lo", "-q", "1"]);
        assert_check(&report, "queue.number", "missing", "no queue 1", "Take -q 0");
    });
}

#[test]
fn an_interface_that_is_down() {
    in_netns(|| {
        ip(&["link", "add", "vq0", "type", "veth", "peer", "name", "vq1"]);
        let (down, _) = report(&["-i", "vq0", "-q", "0"]);
        assert_check(&down, "queue.up", "degraded", "down", "ip link set dev vq0 up");
        assert_check(&down, "queue.user", "degraded", "while the interface is down", "");
        ip(&["link", "set", "vq0", "up"]);
        let (carrier, _) = report(&["-i", "vq0", "-q", "0"]);
        assert_check(&carrier, "queue.up", "degraded", "without carrier", "other end");
    });
}

#[test]
fn an_xdp_program_in_the_way() {
    own_process!();
    in_netns(|| {
        veth();
        for (hook, word) in [(Hook::Generic, "xdpgeneric"), (Hook::Native, "xdpdrv")] {
            let steering = Steering::attach("vq0", 1, hook).unwrap_or_else(|e| panic!("{e}"));
            let (report, _) = report(&["-i", "vq0", "-q", "0"]);
            assert_check(&report, "queue.xdp", "missing", word, "bpftool prog show id");
            drop(steering);
        }
        let (report, _) = report(&["-i", "vq0", "-q", "0"]);
        assert_check(&report, "queue.xdp", "ok", "no XDP program", "");
    });
}

#[test]
fn a_queue_that_an_af_xdp_socket_has() {
    in_netns(|| {
        veth();
        let umem = Umem::new(64 * 4096, UmemOptions::default(), false).expect("memory");
        let mut options = SocketOptions::new("vq0");
        options.queue = 1;
        let socket = Socket::bind(&umem, &options).unwrap_or_else(|e| panic!("{e}"));
        let (taken, _) = report(&["-i", "vq0", "-q", "1"]);
        assert_check(&taken, "queue.user", "missing", "an AF_XDP socket", "another queue");
        let (other, _) = report(&["-i", "vq0", "-q", "0"]);
        assert_check(&other, "queue.user", "ok", "own stack", "");
        let (all, _) = report(&["-i", "vq0"]);
        assert_check(&all, "queue.user", "ok", "1 of 3 taken: 1 by an AF_XDP socket", "");
        assert_eq!(all["queues"][1]["user"], "af_xdp");
        drop(socket);
    });
}

#[test]
fn a_tap_and_loopback_have_no_queue_of_a_nic() {
    in_netns(|| {
        ip(&["tuntap", "add", "dev", "tq0", "mode", "tap"]);
        ip(&["link", "set", "tq0", "up"]);
        ip(&["link", "set", "lo", "up"]);
        for (name, driver) in [("tq0", "tun"), ("lo", "no driver name")] {
            let (report, code) = report(&["-i", name, "-q", "0"]);
            assert_check(&report, "queue.driver", "missing", driver, "ZCRX_REG_NODEV");
            assert_check(&report, "queue.number", "ok", "1 receive queue", "");
            assert_eq!(code, 1, "{name}");
        }
    });
}

/// The registration asks for the capability; reading the settings doesn't.
#[test]
fn a_user_without_the_capability() {
    in_netns(|| {
        veth();
        let (_folder, program) = program_for_everybody();
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(["doctor", "-i", "vq0", "-q", "0", "--json"])
            .output()
            .expect("setpriv (util-linux) must be installed");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_check(&report, "queue.admin", "missing", "not held", "cap_net_admin");
        assert_check(&report, "queue.number", "ok", "3 receive queues", "");
        assert_check(&report, "queue.user", "ok", "own stack", "");
        assert_check(&report, "queue.driver", "missing", "veth", "");
    });
}

#[test]
fn all_queues_in_short() {
    in_netns(|| {
        veth();
        let output = doctor(&["-i", "vq0"]);
        let text = text(&output);
        for word in [
            "Receive queues",
            "0 to 2",
            "the kernel's own stack",
            "ethtool -G vq0 tcp-data-split on",
            "back: ",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        assert_eq!(output.status.code(), Some(1), "no queue of a veth can be registered");
    });
}

/// Reading changes nothing: what the kernel shows of the interface before is what it shows after.
#[test]
fn nothing_is_changed() {
    in_netns(|| {
        veth();
        let show = || {
            let shown = Command::new("ip").args(["-d", "link", "show"]).output().expect("ip");
            let counters = std::fs::read_to_string("/proc/thread-self/net/dev").expect("counters");
            (text(&shown), counters)
        };
        // The kernel tells of a link's state some time after it was set up, and on a busy machine
        // later.
        let until = |done: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !done() && begin.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        until(&|| show().0.matches("state UP").count() == 2);
        let before = show();
        for arguments in [&["-i", "vq0"][..], &["-i", "vq0", "-q", "1"], &["-i", "vq0", "-q", "9"]] {
            doctor(arguments);
        }
        until(&|| show() == before);
        assert_eq!(show(), before);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["-q", "0"][..],
        &["-i", "lo", "-q", "-1"],
        &["-i", "lo", "-q", "many"],
        &["-i", "lo", "--path", "net"],
        &["-i"],
    ] {
        assert_eq!(doctor(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let help = text(&doctor(&["--help"]));
    for word in ["--interface", "--queue", "doctor -i eth1 -q 7"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

/// Nothing can be set on these; the message names the reason, and the NICs that can. To see
/// settings changed and set back takes such a NIC.
#[test]
fn configure_changes_nothing_where_nothing_can_be_changed() {
    in_netns(|| {
        veth();
        ip(&["link", "add", "ifq0", "type", "ifb"]);
        for name in ["lo", "vq0", "ifq0"] {
            for command in ["doctor", "recv"] {
                let mut arguments = vec![command, "-i", name, "-q", "0", "--configure"];
                arguments.extend(if command == "recv" { &["-p", "0"][..] } else { &[] });
                let output = Command::new(PROGRAM).args(&arguments).output().expect("the program starts");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
                for word in [name, "changed nothing", "tcp-data-split", "EOPNOTSUPP", "mlx5_core"] {
                    assert!(said.contains(word), "{arguments:?}: no '{word}' in {said}");
                }
            }
        }
        let unprivileged = Command::new("setpriv")
            .args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "--ambient-caps", "-all"])
            .args([PROGRAM, "doctor", "-i", "vq0", "-q", "0", "--configure"])
            .output()
            .expect("setpriv (util-linux) must be installed");
        let said = String::from_utf8_lossy(&unprivileged.stderr).into_owned();
        assert!(!unprivileged.status.success() && said.contains("CAP_NET_ADMIN"), "{said}");
        assert_eq!(doctor(&["-i", "vq0", "--configure"]).status.code(), Some(2), "it needs a queue");
    });
}
