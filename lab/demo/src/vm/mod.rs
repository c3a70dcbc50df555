//! A stock Debian guest under QEMU, attached to `zerowire net` and then
//! to `zerowire vsock`.
//!
//! ```text
//!  guest eth0 10.77.0.2 ── QEMU ── vhost-user ── zerowire net ── tap0 10.77.0.1 (namespace)
//! ```

mod vsock;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use zerowire_vmtest::assets::{Kernel, Qemu};
use zerowire_vmtest::backend::{self, BackendProcess};
use zerowire_vmtest::command::{Running, output, wait_for};
use zerowire_vmtest::device::NetDevice;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::lab::Lab;
use zerowire_vmtest::machine::Machine;
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::{by_hand, interrupt, netns};

use crate::next::{self, Shown};
use crate::story::ledger::{self, Way};
use crate::story::{Story, print_line};

const HOST: &str = "10.77.0.1";
const GUEST: &str = "10.77.0.2";
const TAP: &str = "tap0";

/// What each transfer moves, bytes: some seconds of work for an emulated CPU.
const TRANSFER_BYTES: u64 = 512 << 20;

/// For one transfer on a slow machine.
const TRANSFER: Duration = Duration::from_secs(120);

/// How often the program reads the counters.
const TICK: Duration = Duration::from_millis(100);

/// Steps up to the network's ledger.
const NET_STEPS: u32 = 7;

/// Runs the demo.
pub fn run() -> Result<ExitCode> {
    netns::remove_leftovers()?;
    let lab = Lab::open()?;
    let folder = tempfile::Builder::new().prefix("zw-").tempdir().context("create a folder")?;
    interrupt::remove_on_signal(folder.path().to_owned())?;
    let begin = Instant::now();
    let mut story = Story::new(NET_STEPS + vsock::STEPS, false);
    tell(&mut story, &lab, folder.path())?;
    let took = begin.elapsed().as_secs_f64();
    story.end(
        &format!("The demo took {took:.0} s. Guest, namespace and files are gone."),
        &next::after(Shown::Vm)?,
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes the kernel and the initial RAM disk of a guest that is started by hand.
pub fn write_guest(folder: &Path) -> Result<ExitCode> {
    by_hand::write(&Lab::open()?, Kernel::New, folder)?;
    let folder = folder.display();
    print_line(&format!("{folder}/vmlinuz and {folder}/initrd: go on as in README.md, Quickstart"));
    Ok(ExitCode::SUCCESS)
}

fn tell(story: &mut Story, lab: &Lab, dir: &Path) -> Result<()> {
    let machine = Machine::new(Kernel::New, Qemu::V10);
    let kernel = lab.assets.kernel(machine.kernel)?;
    let qemu = lab.assets.qemu(machine.qemu)?;
    story.step("What runs here");
    let version = output(Command::new(backend::program()?).arg("--version"), COMMAND)?;
    story.say(format!("{} on Linux {}", version.trim(), host_kernel()));
    story.say(&qemu.version);
    story.say(format!(
        "guest: Debian's kernel {}, unchanged, with busybox, curl, iperf3 and a program for vsock",
        kernel.release
    ));
    story.say("The guest's CPU is emulated: it limits the rates below, zerowire does not.");

    story.step("Start zerowire net in a network namespace of its own");
    let namespace = Netns::new()?;
    let mut backend = start_backend(story, &namespace, dir)?;

    story.step("Boot the guest and plug the device");
    let device = NetDevice::new("net0", backend.socket());
    let mut guest = Guest::boot(lab, machine, dir)?;
    plug(story, &device, &mut guest, &mut backend)?;

    story.step("In the guest: ping the host, fetch metadata");
    in_guest(story, &mut guest, &format!("ping -c 3 -i 0.2 {HOST}"))?;
    let base = "http://169.254.169.254/latest";
    in_guest(
        story,
        &mut guest,
        &format!(
            "TOKEN=$(curl -sSf -X PUT -H 'X-metadata-token-ttl-seconds: 60' {base}/api/token); \
             curl -sSf -H \"X-metadata-token: $TOKEN\" {base}/meta-data/instance-id"
        ),
    )?;

    guest.sh("iperf3 -s >/tmp/iperf3.log 2>&1 &")?;
    // Port 5201 in state LISTEN.
    guest.until("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1451 .* 0A '", COMMAND)?;
    let mut cpu = Vec::new();
    for way in Way::BOTH {
        story.step(&format!("TCP, {}: {} MiB by iperf3", way.name(), TRANSFER_BYTES >> 20));
        let before = backend.statistics()?;
        transfer(story, &namespace, &mut backend, way, dir)?;
        let after = backend.statistics()?;
        cpu.push((way, ledger::cpu_seconds_a_gigabyte(&before, &after, way).context("no bytes counted")?));
    }

    story.step("The ledger: what zerowire net did with the bytes");
    device.unplug(&mut guest)?;
    let last = backend.stop()?.context("no statistics at the end")?;
    story.say(ledger::table(&last["vms"][0], &cpu));
    ensure!(last["vms"][0]["ring_errors"] == 0, "ring errors: {}", last["vms"][0]["last_error"]);

    vsock::tell(story, &mut guest, dir)
}

/// The guest gets the device and an address.
fn plug(
    story: &mut Story,
    device: &NetDevice,
    guest: &mut Guest,
    backend: &mut BackendProcess,
) -> Result<()> {
    story.say(format!("booted in {:.1} s", guest.started_in.as_secs_f64()));
    let interface = device.plug(guest)?;
    guest.sh(&format!("ip addr add {GUEST}/24 dev {interface} && ip link set {interface} up"))?;
    guest.sh(&format!("ip route add 169.254.169.254 dev {interface}"))?;
    guest.until(&format!("ping -c 1 -W 1 {HOST}"), COMMAND)?;
    let vm = backend.statistics()?["vms"][0].take();
    story.say(format!("the guest's interface: {interface}, {GUEST}"));
    story.say(format!("path: {}", vm["path"].as_str().unwrap_or("unknown")));
    story.say(format!("features: {}", features(&vm, "NET_")));
    Ok(())
}

/// The features that the guest took, without what all names of the device begin with.
fn features(vm: &Value, prefix: &str) -> String {
    let names = vm["features"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let names: Vec<_> = names.map(|name| name.trim_start_matches(prefix)).collect();
    names.join(", ")
}

fn start_backend(story: &Story, namespace: &Netns, dir: &Path) -> Result<BackendProcess> {
    let socket = dir.join("net");
    let metadata = dir.join("metadata.json");
    let tree = json!({"latest": {"meta-data": {"instance-id": "i-demo", "hostname": "guest.example"}}});
    std::fs::write(&metadata, tree.to_string()).context("write the metadata")?;
    let mut command = namespace.command(backend::program()?);
    command.arg("net").arg("--socket").arg(&socket).args(["--port", &format!("tap:{TAP}")]);
    command.arg("--metadata").arg(&metadata).arg("--json");
    let (socket_text, metadata_text) = (socket.display(), metadata.display());
    story.say(format!(
        "$ zerowire net --socket {socket_text} --port tap:{TAP} --metadata {metadata_text} --json"
    ));
    let backend = BackendProcess::start(&mut command, &socket, dir, "backend")?;
    wait_for("the back end's tap", COMMAND, || {
        Ok(namespace.ip(&["link", "show", "dev", TAP]).is_ok().then_some(()))
    })?;
    namespace.ip(&["link", "set", "dev", TAP, "up"])?;
    namespace.ip(&["addr", "replace", &format!("{HOST}/24"), "dev", TAP])?;
    story.say(format!("the host's interface: {TAP}, {HOST}"));
    Ok(backend)
}

/// Shows a command and what it prints.
fn in_guest(story: &Story, guest: &mut Guest, command: &str) -> Result<()> {
    story.say(format!("guest$ {command}"));
    let result = guest.run(command, COMMAND)?;
    story.say(&result.text);
    if result.status != 0 {
        bail!("in the guest: `{command}` gave status {}", result.status);
    }
    Ok(())
}

/// Runs iperf3 and shows the back end's own byte counter meanwhile.
fn transfer(
    story: &Story,
    namespace: &Netns,
    backend: &mut BackendProcess,
    way: Way,
    dir: &Path,
) -> Result<()> {
    let counted = |backend: &mut BackendProcess| -> Result<u64> {
        way.of(&backend.statistics()?["vms"][0])["bytes"].as_u64().context("no byte counter")
    };
    let report = dir.join("iperf3.out");
    let mut command = namespace.command("iperf3");
    command.args(["-c", GUEST, "-J", "-n", &TRANSFER_BYTES.to_string()]);
    if way == Way::FromGuest {
        command.arg("-R");
    }
    let before = counted(backend)?;
    let mut progress = story.progress(TRANSFER_BYTES);
    let mut iperf = Running::start_logged(&mut command, &report)?;
    let deadline = Instant::now() + TRANSFER;
    let status = loop {
        if let Some(status) = iperf.ended()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "the transfer takes longer than {TRANSFER:?}");
        std::thread::sleep(TICK);
        // Headers are counted as well, so this may end a little early; the bar is capped.
        progress.set(counted(backend)? - before);
    };
    let text = std::fs::read_to_string(&report).context("read iperf3's report")?;
    ensure!(status.success(), "iperf3 failed: {text}");
    let report: Value = serde_json::from_str(&text).context("no JSON from iperf3")?;
    let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
    ensure!(received > 0, "nothing arrived: {text}");
    progress.finish(received);
    Ok(())
}

fn host_kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
