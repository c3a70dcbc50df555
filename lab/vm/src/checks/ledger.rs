//! What the back end says of its own work (`--json`, SIGUSR1), and what must be true
//! of it after every test.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use zerowire_vmtest::backend::BackendProcess;
use zerowire_vmtest::command::wait_for;

use super::setup::{HostPort, LeftOut, Plan};
use super::traffic::Way;

/// For the counters to come to rest: a frame under way is counted in two steps.
const REST: Duration = Duration::from_secs(10);

/// ACKNOWLEDGE, DRIVER, DRIVER_OK and FEATURES_OK (virtio 1.3, section 2.1).
const RUNNING: u64 = 0xf;

/// Always negotiated by the stock kernels here.
const ALWAYS: [&str; 3] = ["VERSION_1", "RING_EVENT_IDX", "RING_INDIRECT_DESC"];

/// What `csum`, `gso` and their like stand for in QEMU. USO is not among them: QEMU 10
/// knows its properties, but its vhost-user network back end does not announce it.
const OFFLOADS: [&str; 10] = [
    "NET_CSUM",
    "NET_GUEST_CSUM",
    "NET_GUEST_TSO4",
    "NET_GUEST_TSO6",
    "NET_GUEST_ECN",
    "NET_GUEST_UFO",
    "NET_HOST_TSO4",
    "NET_HOST_TSO6",
    "NET_HOST_ECN",
    "NET_HOST_UFO",
];

/// Those that an AF_XDP port does in software.
const IN_SOFTWARE: [&str; 4] = ["NET_CSUM", "NET_HOST_TSO4", "NET_HOST_TSO6", "NET_HOST_ECN"];

/// The statistics of one VM at one moment.
#[derive(Clone, Debug)]
pub struct Ledger(Value);

impl Ledger {
    /// Asks for the statistics and takes those of the VM `name`.
    pub fn read(backend: &mut BackendProcess, name: &str) -> Result<Self> {
        let mut all = backend.statistics()?;
        let vms = all["vms"].as_array_mut().context("statistics without VMs")?;
        let vm = vms.iter_mut().find(|vm| vm["name"] == name);
        Ok(Self(vm.with_context(|| format!("no VM '{name}' in the statistics"))?.take()))
    }

    /// As [`Ledger::read`], as soon as every byte is accounted for.
    pub fn at_rest(backend: &mut BackendProcess, name: &str) -> Result<Self> {
        let mut last = None;
        let found = wait_for("a ledger in which every byte is zero-copied or copied", REST, || {
            let ledger = Self::read(backend, name)?;
            let balanced = ledger.is_balanced()?;
            last = Some(ledger.0.clone());
            Ok(balanced.then_some(ledger))
        });
        found.with_context(|| format!("{}", last.unwrap_or_default()))
    }

    /// A counter of one direction, for instance `frames`.
    pub fn count(&self, way: Way, name: &str) -> Result<u64> {
        self.way(way)[name].as_u64().with_context(|| format!("no number '{name}' in {}", self.0))
    }

    /// How much a counter of one direction has grown by since `before`.
    pub fn grown(&self, before: &Self, way: Way, name: &str) -> Result<u64> {
        Ok(self.count(way, name)? - before.count(way, name)?)
    }

    /// Bytes of one direction that were copied for this reason, 0 if none were.
    pub fn copied(&self, way: Way, reason: &str) -> u64 {
        self.way(way)["copied_bytes"][reason].as_u64().unwrap_or(0)
    }

    /// Frames dropped for this reason.
    pub fn dropped(&self, way: Way, reason: &str) -> u64 {
        self.way(way)["dropped_frames"][reason].as_u64().unwrap_or(0)
    }

    /// A counter of the VM, for instance `connections`.
    pub fn number(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().with_context(|| format!("no number '{name}' in {}", self.0))
    }

    /// What the VM's frames go to.
    pub fn port(&self) -> Result<&str> {
        self.0["port"].as_str().with_context(|| format!("no port in {}", self.0))
    }

    /// Connections that ended since the port's link was down.
    pub fn disconnects(&self) -> Result<u64> {
        self.0["link"]["disconnects"].as_u64().with_context(|| format!("no link in {}", self.0))
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.0["connected"] == true
    }

    /// What went wrong last.
    pub fn last_error(&self) -> Option<String> {
        self.0["last_error"].as_str().map(str::to_owned)
    }

    /// Frames of each queue pair.
    pub fn frames_by_queue(&self, way: Way) -> Vec<u64> {
        let queues = self.way(way)["frames_by_queue"].as_array();
        queues.map(|queues| queues.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
    }

    /// Fails unless the device runs, no rule was broken and no frame dropped, and the
    /// features are those of the plan.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        self.check_sound()?;
        self.check_dropped()?;
        self.expect(&ALWAYS, true)?;
        for name in OFFLOADS {
            let offered = plan.port != HostPort::Xdp || IN_SOFTWARE.contains(&name);
            self.expect(&[name], !plan.left_out.contains(&LeftOut::Offloads) && offered)?;
        }
        self.expect(&["NET_MRG_RXBUF"], !plan.left_out.contains(&LeftOut::Mergeable))?;
        self.expect(&["NET_MQ"], plan.queue_pairs > 1)?;
        self.expect(&["NET_MTU"], plan.mtu != 1500)?;
        // Without a virtual IOMMU QEMU keeps this one to itself, whatever the guest took
        // (`vhost_dev_set_features` in hw/virtio/vhost.c).
        self.expect(&["ACCESS_PLATFORM"], false)
    }

    /// Fails unless a guest's driver runs the device and nobody broke a rule.
    pub fn check_sound(&self) -> Result<()> {
        self.check_clean()?;
        let status = self.number("device_status")?;
        ensure!(status == RUNNING, "the device status is {status:#x}, not {RUNNING:#x}: {}", self.0);
        Ok(())
    }

    /// Fails unless a front end is connected and nobody broke a rule.
    pub fn check_clean(&self) -> Result<()> {
        let all = &self.0;
        ensure!(self.is_connected(), "the back end says that no front end is connected: {all}");
        for name in ["ring_errors", "connection_errors"] {
            ensure!(self.number(name)? == 0, "{name} in {all}");
        }
        ensure!(all["last_error"].is_null(), "an error in {all}");
        ensure!(all["path"].as_str().is_some_and(|path| !path.is_empty()), "no path is named in {all}");
        Ok(())
    }

    /// Fails if frames were dropped. A guest that is slow to post buffers excuses that on an xdp
    /// port alone, which has no queue behind the buffers. On a tap frames wait for the guest in the
    /// queue; a vsock device has no port.
    pub fn check_dropped(&self) -> Result<()> {
        let has_queue = !self.0["port"].as_str().is_some_and(|port| port.starts_with("xdp:"));
        for way in [Way::ToGuest, Way::FromGuest] {
            let dropped = self.way(way)["dropped_frames"].as_object().context("no dropped_frames")?;
            let sound = |reason: &str| way == Way::ToGuest && reason == "no_room" && !has_queue;
            ensure!(dropped.keys().all(|reason| sound(reason)), "dropped frames, {way:?}: {dropped:?}");
        }
        Ok(())
    }

    /// Fails unless these features were negotiated, or none of them was.
    pub fn expect(&self, names: &[&str], on: bool) -> Result<()> {
        let features = self.0["features"].as_array().context("no features in the statistics")?;
        for name in names {
            if features.iter().any(|feature| feature == name) != on {
                bail!("{name} should be {}: {}", if on { "on" } else { "off" }, self.0["features"]);
            }
        }
        Ok(())
    }

    fn is_balanced(&self) -> Result<bool> {
        for way in [Way::ToGuest, Way::FromGuest] {
            let copied = self.way(way)["copied_bytes"].as_object().context("no copied_bytes")?;
            let copied: u64 = copied.values().filter_map(Value::as_u64).sum();
            if self.count(way, "zero_copied_bytes")? + copied != self.count(way, "bytes")? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn way(&self, way: Way) -> &Value {
        &self.0[match way {
            Way::ToGuest => "receive",
            Way::FromGuest => "transmit",
        }]
    }
}

/// Fails unless at least `percent` of the bytes between two moments were zero-copied;
/// returns how many percent were.
pub fn check_zero_copied(before: &Ledger, after: &Ledger, way: Way, percent: u64) -> Result<u64> {
    let grown = |name| after.grown(before, way, name);
    let (bytes, zero_copied) = (grown("bytes")?, grown("zero_copied_bytes")?);
    ensure!(bytes > 0, "no bytes were counted, {way:?}");
    let share = zero_copied * 100 / bytes;
    ensure!(
        share >= percent,
        "{zero_copied} of {bytes} bytes were zero-copied ({share} %), {way:?}: {}",
        after.way(way)["copied_bytes"]
    );
    Ok(share)
}
