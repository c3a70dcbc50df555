//! What an operator sees of the processes that serve VMs: those that died, those that hang, and
//! whether there are any. Run as root.

use std::process::Command;

use serde_json::Value;

use crate::support::control::Controlled;
use crate::support::modes::{CONFINED, Mode, PLAIN};
use crate::support::processes::{Frozen, child_of, kill};
use crate::support::{in_netns, wait_until};

/// A program that serves VMs of either device.
struct Scene {
    server: Controlled,
    /// What the names of metrics of this device begin with.
    prefix: &'static str,
}

impl Scene {
    fn net(options: Mode, vms: &[&str]) -> Self {
        let scene = Self { server: Controlled::start(options), prefix: "zerowire" };
        vms.iter().for_each(|vm| scene.server.add(vm));
        scene
    }

    /// The last VM is in a group of its own, the others share one.
    fn vsock(options: Mode, vms: &[&str]) -> Self {
        let server = Controlled::start_vsock(options);
        for (cid, vm) in (3..).zip(vms) {
            server.add_vsock(vm, cid, &[if Some(vm) == vms.last() { "alone" } else { "together" }]);
        }
        Self { server, prefix: "zerowire_vsock" }
    }

    /// The value of a series.
    fn series(&self, series: &str) -> u64 {
        let (status, text) = self.server.ask("GET", "/metrics", "");
        assert_eq!(status, 200, "{text}");
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{series}: {text}"))
    }

    fn restarts(&self, vm: &str) -> u64 {
        self.series(&format!("{}_restarts_total{{vm=\"{vm}\"}}", self.prefix))
    }

    fn child_answers(&self, vm: &str) -> bool {
        self.series(&format!("{}_child_answers{{vm=\"{vm}\"}}", self.prefix)) == 1
    }

    /// The state of a VM in a row of `zerowire top`.
    fn top_state(&self, vm: &str) -> String {
        let mut top = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        let top = top.arg("top").arg("--control").arg(self.server.control());
        let output =
            top.args(["--once", "--json", "--interval", "0.1"]).output().expect("the program starts");
        let line: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let row = line["vms"].as_array().expect("rows").iter().find(|row| row["name"] == vm);
        row.and_then(|row| row["state"].as_str()).unwrap_or_else(|| panic!("{vm}: {line}")).to_owned()
    }

    fn wait_for_answers(&self, vms: &[&str]) {
        wait_until("children answer", || vms.iter().all(|vm| self.child_answers(vm)));
    }

    fn signal(&self, vm: &str, signal: i32) {
        kill(child_of(&self.server.program, vm), signal);
    }
}

/// Kills the child of VM `dead` three times. Those of VM `other` see nothing.
fn deaths_are_counted(scene: &Scene, dead: &[&str], other: &str) {
    assert_eq!(scene.series("zerowire_confined"), 1);
    for deaths in 1..=3 {
        scene.signal(dead[0], libc::SIGKILL);
        let is_replaced = |vm: &&str| scene.restarts(vm) == deaths && scene.child_answers(vm);
        wait_until("another child serves its VMs", || dead.iter().all(is_replaced));
    }
    assert_eq!(scene.restarts(other), 0);
    scene.wait_for_answers(&[other]);
    let stats = scene.server.json("/stats");
    let restarts = stats["vms"].as_array().expect("a list").iter().map(|vm| vm["restarts"].as_u64());
    let wanted = dead.iter().map(|_| Some(3)).chain([Some(0)]);
    assert!(restarts.eq(wanted) && stats["confined"] == true, "{stats}");
    assert_eq!(scene.restarts(dead[0]), 3);
}

#[test]
fn deaths_of_children_are_counted() {
    in_netns(|| deaths_are_counted(&Scene::net(CONFINED, &["zwdies", "zwlives"]), &["zwdies"], "zwlives"));
}

/// VMs that share a child share its deaths.
#[test]
fn deaths_of_children_of_vsock_are_counted() {
    deaths_are_counted(&Scene::vsock(CONFINED, &["a", "b", "c"]), &["a", "b"], "c");
}

/// A child that is stopped answers nothing, until it goes on.
fn a_child_that_hangs_is_shown(scene: &Scene, hangs: &[&str], other: &str) {
    scene.wait_for_answers(hangs);
    scene.signal(hangs[0], libc::SIGSTOP);
    wait_until("it is shown", || !hangs.iter().any(|vm| scene.child_answers(vm)));
    scene.wait_for_answers(&[other]);
    let statistics = scene.server.json(&format!("/vms/{}", hangs[0]))["statistics"].clone();
    assert!(statistics["child_answers"] == false && statistics["restarts"] == 0, "{statistics}");
    let states = hangs.iter().chain([&other]).map(|vm| scene.top_state(vm));
    let wanted = hangs.iter().map(|_| "no answer").chain(["waiting"]);
    assert_eq!(states.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    scene.signal(hangs[0], libc::SIGCONT);
    scene.wait_for_answers(hangs);
    assert_eq!(scene.top_state(hangs[0]), "waiting");
}

#[test]
fn a_child_that_hangs_is_shown_as_silent() {
    in_netns(|| {
        let scene = Scene::net(CONFINED, &["zwhangs", "zwruns"]);
        a_child_that_hangs_is_shown(&scene, &["zwhangs"], "zwruns");
    });
}

#[test]
fn a_child_of_vsock_that_hangs_is_shown_as_silent() {
    a_child_that_hangs_is_shown(&Scene::vsock(CONFINED, &["a", "b", "c"]), &["a", "b"], "c");
}

/// One VM's thread: others of the same child go on.
fn a_control_thread_that_hangs_is_shown(scene: &Scene, hangs: &str, other: &str) {
    scene.wait_for_answers(&[hangs]);
    let frozen = Frozen::thread(child_of(&scene.server.program, hangs), &format!("{hangs}-ctl"));
    wait_until("it is shown", || !scene.child_answers(hangs));
    assert!(!scene.child_answers(hangs), "it has not been answered, and is not asked again");
    scene.wait_for_answers(&[other]);
    drop(frozen);
    scene.wait_for_answers(&[hangs]);
}

#[test]
fn a_control_thread_that_hangs_is_shown_as_silent() {
    in_netns(|| {
        let scene = Scene::net(CONFINED, &["zwstands", "zwgoes"]);
        a_control_thread_that_hangs_is_shown(&scene, "zwstands", "zwgoes");
    });
}

#[test]
fn a_control_thread_of_vsock_that_hangs_is_shown_as_silent() {
    a_control_thread_that_hangs_is_shown(&Scene::vsock(CONFINED, &["a", "b", "c"]), "a", "b");
}

#[test]
fn vms_that_are_not_confined_are_shown() {
    let are_not = |scene: &Scene, vm: &str| {
        assert_eq!(scene.series("zerowire_confined"), 0);
        assert!(scene.restarts(vm) == 0 && scene.child_answers(vm));
        assert_eq!(scene.server.json("/stats")["confined"], false);
    };
    in_netns(move || are_not(&Scene::net(PLAIN, &["zwplain"]), "zwplain"));
    // The second one has no confined form, and nobody has said that it needs one.
    for options in [PLAIN, &["--share-guest-memory"]] {
        are_not(&Scene::vsock(options, &["a"]), "a");
    }
}
