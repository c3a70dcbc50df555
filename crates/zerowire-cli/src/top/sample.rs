//! What a server says of its VMs at one moment: `GET /stats` and `GET /vms`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::ctl::client::Client;
use crate::ctl::refusal;

/// All VMs of a server.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ServerSample {
    pub version: String,
    /// Since the start of the server. It is the clock of rates: it stops when the server does, and
    /// begins anew with another server.
    pub uptime_seconds: f64,
    /// CPU time of all its threads.
    pub cpu_seconds: f64,
    pub vms: Vec<VmSample>,
}

/// One VM. Counters are those since it was added.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VmSample {
    pub name: String,
    pub socket: String,
    pub port: String,
    /// The guest's address, of a vsock device.
    pub cid: Option<u64>,
    /// Where it is on its way, as `GET /vms` says: `running`, …
    pub state: String,
    /// Whether a front end is connected.
    pub connected: bool,
    pub connections: u64,
    #[serde(flatten)]
    pub faults: FaultSample,
    /// The path that frames take, and why.
    pub path: String,
    pub interface: String,
    pub interface_state: String,
    /// With `link=follow`.
    pub link: Option<LinkSample>,
    /// From the guest to the port.
    pub transmit: DirectionSample,
    /// From the port to the guest.
    pub receive: DirectionSample,
}

/// What has gone wrong with a VM.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FaultSample {
    pub connection_errors: u64,
    pub ring_errors: u64,
    /// Processes of the VM that died and were replaced.
    pub restarts: u64,
    /// Whether the process that serves it has answered. None: the VM comes or goes.
    pub child_answers: Option<bool>,
    pub last_error: Option<String>,
}

/// What the guest sees of its link.
#[derive(Clone, Debug, Deserialize)]
pub struct LinkSample {
    pub up: bool,
}

/// Counters of one direction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DirectionSample {
    pub frames: u64,
    pub bytes: u64,
    pub zero_copied_bytes: u64,
    /// Bytes by reason.
    pub copied_bytes: BTreeMap<String, u64>,
    /// Frames by reason.
    pub dropped_frames: BTreeMap<String, u64>,
    pub system_calls: u64,
    pub kicks: u64,
    pub calls: u64,
}

/// `GET /vms`.
#[derive(Deserialize)]
struct VmList {
    vms: Vec<ListedVm>,
}

#[derive(Deserialize)]
struct ListedVm {
    name: String,
    state: String,
    config: ListedConfig,
}

#[derive(Deserialize)]
struct ListedConfig {
    socket: String,
    #[serde(default)]
    port: String,
    cid: Option<u64>,
}

/// Asks the server.
pub fn fetch(client: &Client<'_>) -> Result<ServerSample> {
    let mut sample: ServerSample = get(client, "/stats")?;
    let list: VmList = get(client, "/vms")?;
    add_states(&mut sample, list);
    Ok(sample)
}

fn get<T: DeserializeOwned>(client: &Client<'_>, path: &str) -> Result<T> {
    let answer = client.ask("GET", path, "application/json", None)?;
    if answer.status != 200 {
        return Err(refusal(&answer));
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("GET {path}: the answer is not understood"))
}

/// VMs that come or go have no statistics; the list names them.
fn add_states(sample: &mut ServerSample, list: VmList) {
    for listed in list.vms {
        match sample.vms.iter_mut().find(|vm| vm.name == listed.name) {
            Some(vm) => vm.state = listed.state,
            None => sample.vms.push(VmSample {
                name: listed.name,
                state: listed.state,
                socket: listed.config.socket,
                port: listed.config.port,
                cid: listed.config.cid,
                ..VmSample::default()
            }),
        }
    }
}

impl VmSample {
    /// What keeps frames from passing, or `connected`. Of a process that does not answer nothing
    /// newer is known.
    pub fn condition(&self) -> &str {
        let is_link_up = self.link.as_ref().is_none_or(|link| link.up);
        match (self.state.as_str(), self.interface_state.as_str()) {
            (state @ ("opening" | "leaving"), _) => state,
            _ if self.faults.child_answers == Some(false) => "no answer",
            (_, "gone") => "gone",
            (_, "no_carrier") => "no carrier",
            (_, "down") => "link down",
            _ if !is_link_up => "link down",
            ("draining", _) => "draining",
            _ if self.connected => "connected",
            _ => "waiting",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(state: &str, interface: &str, connected: bool) -> VmSample {
        VmSample {
            state: state.to_owned(),
            interface_state: interface.to_owned(),
            connected,
            ..VmSample::default()
        }
    }

    /// The same, whose process does not answer.
    fn silent(mut vm: VmSample) -> VmSample {
        vm.faults.child_answers = Some(false);
        vm
    }

    #[test]
    fn what_keeps_frames_from_passing_is_shown() {
        for (vm, want) in [
            (vm("running", "up", true), "connected"),
            (vm("running", "up", false), "waiting"),
            (vm("draining", "up", true), "draining"),
            (vm("opening", "", false), "opening"),
            (vm("leaving", "up", true), "leaving"),
            (vm("running", "down", true), "link down"),
            (vm("running", "no_carrier", true), "no carrier"),
            (vm("draining", "gone", true), "gone"),
            (VmSample { link: Some(LinkSample { up: false }), ..vm("running", "up", true) }, "link down"),
            (VmSample { link: Some(LinkSample { up: true }), ..vm("running", "up", true) }, "connected"),
            (silent(vm("running", "up", true)), "no answer"),
            (silent(vm("running", "", false)), "no answer"),
            (silent(vm("draining", "down", true)), "no answer"),
            (silent(vm("leaving", "up", true)), "leaving"),
        ] {
            assert_eq!(vm.condition(), want, "{vm:?}");
        }
    }

    #[test]
    fn a_vm_without_statistics_is_there() {
        let text = r#"{"version": "1", "uptime_seconds": 2.5, "cpu_seconds": 0.5, "vms": [{"name": "a",
            "connected": true, "restarts": 3, "child_answers": false,
            "transmit": {"frames": 7, "copied_bytes": {"small": 64}}, "unknown": [1]}]}"#;
        let mut sample: ServerSample = serde_json::from_str(text).expect("a sample");
        let text = r#"{"vms": [{"name": "b", "state": "opening", "config": {"socket": "/b", "port": "tap:b"}},
            {"name": "a", "state": "draining", "config": {"socket": "/a", "port": "tap:a"}}]}"#;
        add_states(&mut sample, serde_json::from_str(text).expect("a list"));
        let vms: Vec<_> = sample.vms.iter().map(|vm| (&*vm.name, &*vm.state, vm.transmit.frames)).collect();
        assert_eq!(vms, [("a", "draining", 7), ("b", "opening", 0)]);
        assert_eq!(sample.vms[0].transmit.copied_bytes["small"], 64);
        assert_eq!(sample.vms[1].socket, "/b");
        let faults = |vm: usize| (sample.vms[vm].faults.restarts, sample.vms[vm].faults.child_answers);
        assert_eq!([faults(0), faults(1)], [(3, Some(false)), (0, None)]);
    }
}
