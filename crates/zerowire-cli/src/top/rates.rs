//! What two samples make: rates, shares, and the reasons that count most.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sample::{DirectionSample, ServerSample, VmSample};

/// Rates of all VMs.
#[derive(Clone, Debug)]
pub struct ServerRates {
    pub version: String,
    pub uptime_seconds: f64,
    /// Between the two samples; None if there is only one of this server.
    pub seconds: Option<f64>,
    /// CPU time for each second: 1 is one CPU.
    pub cpus: Option<f64>,
    pub vms: Vec<VmRates>,
}

/// Rates of a VM.
#[derive(Clone, Debug)]
pub struct VmRates {
    /// The later sample.
    pub now: VmSample,
    /// None for a VM that was not there before.
    pub rates: Option<BothRates>,
}

/// Rates of both directions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BothRates {
    pub transmit: DirectionRates,
    pub receive: DirectionRates,
}

/// Rates of one direction, for each second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DirectionRates {
    #[serde(rename = "frames_per_second")]
    pub frames: f64,
    #[serde(rename = "bytes_per_second")]
    pub bytes: f64,
    #[serde(rename = "zero_copied_bytes_per_second")]
    pub zero_copied_bytes: f64,
    /// Bytes by reason, without those of which there were none.
    #[serde(rename = "copied_bytes_per_second")]
    pub copied_bytes: BTreeMap<String, f64>,
    /// Frames by reason.
    #[serde(rename = "dropped_frames_per_second")]
    pub dropped_frames: BTreeMap<String, f64>,
    #[serde(rename = "system_calls_per_second")]
    pub system_calls: f64,
    #[serde(rename = "kicks_per_second")]
    pub kicks: f64,
    #[serde(rename = "calls_per_second")]
    pub calls: f64,
}

/// Rates between two samples; without an earlier one, or with one of another process, all are
/// unknown.
pub fn rates(before: Option<&ServerSample>, now: &ServerSample) -> ServerRates {
    let before = before.filter(|before| before.uptime_seconds < now.uptime_seconds);
    let seconds = before.map(|before| now.uptime_seconds - before.uptime_seconds);
    let vm = |now: &VmSample| {
        let earlier = before.and_then(|before| before.vms.iter().find(|vm| vm.name == now.name));
        let rates = earlier.zip(seconds).and_then(|(earlier, seconds)| {
            let transmit = direction(&earlier.transmit, &now.transmit, seconds)?;
            Some(BothRates { transmit, receive: direction(&earlier.receive, &now.receive, seconds)? })
        });
        VmRates { now: now.clone(), rates }
    };
    ServerRates {
        version: now.version.clone(),
        uptime_seconds: now.uptime_seconds,
        seconds,
        cpus: before.zip(seconds).map(|(before, seconds)| {
            let spent = now.cpu_seconds - before.cpu_seconds;
            (spent / seconds).max(0.0)
        }),
        vms: now.vms.iter().map(vm).collect(),
    }
}

/// None if a counter went back: the VM was removed and another one has its name.
fn direction(before: &DirectionSample, now: &DirectionSample, seconds: f64) -> Option<DirectionRates> {
    let rate = |before: u64, now: u64| Some(now.checked_sub(before)? as f64 / seconds);
    let by_reason = |before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>| {
        let mut rates = BTreeMap::new();
        for (reason, count) in now {
            let rate = rate(before.get(reason).copied().unwrap_or(0), *count)?;
            if rate > 0.0 {
                rates.insert(reason.clone(), rate);
            }
        }
        Some(rates)
    };
    Some(DirectionRates {
        frames: rate(before.frames, now.frames)?,
        bytes: rate(before.bytes, now.bytes)?,
        zero_copied_bytes: rate(before.zero_copied_bytes, now.zero_copied_bytes)?,
        copied_bytes: by_reason(&before.copied_bytes, &now.copied_bytes)?,
        dropped_frames: by_reason(&before.dropped_frames, &now.dropped_frames)?,
        system_calls: rate(before.system_calls, now.system_calls)?,
        kicks: rate(before.kicks, now.kicks)?,
        calls: rate(before.calls, now.calls)?,
    })
}

impl DirectionRates {
    /// The share of bytes that were not copied in user space; None if nothing moved.
    pub fn zero_copied_ratio(&self) -> Option<f64> {
        ratio(self.zero_copied_bytes, self.bytes)
    }
}

impl BothRates {
    /// The same of both directions.
    pub fn zero_copied_ratio(&self) -> Option<f64> {
        let sum = |get: fn(&DirectionRates) -> f64| get(&self.transmit) + get(&self.receive);
        ratio(sum(|d| d.zero_copied_bytes), sum(|d| d.bytes))
    }

    /// Frames dropped, for whatever reason.
    pub fn dropped_frames(&self) -> f64 {
        let both = self.transmit.dropped_frames.values().chain(self.receive.dropped_frames.values());
        // The sum of nothing would be -0.
        both.fold(0.0, |sum, frames| sum + frames)
    }

    /// The reason for which most bytes were copied.
    pub fn reason(&self) -> Option<&str> {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (reason, bytes) in self.transmit.copied_bytes.iter().chain(&self.receive.copied_bytes) {
            *sums.entry(reason).or_default() += bytes;
        }
        sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(reason, _)| reason)
    }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A direction that has moved `frames` of 1000 bytes, of which `small` bytes were copied.
    pub fn moved(frames: u64, small: u64) -> DirectionSample {
        let bytes = frames * 1000;
        let copied_bytes =
            if small > 0 { BTreeMap::from([("small".to_owned(), small)]) } else { BTreeMap::new() };
        DirectionSample {
            frames,
            bytes,
            zero_copied_bytes: bytes - small,
            copied_bytes,
            ..Default::default()
        }
    }

    /// A VM that has moved this, and nothing to the guest.
    pub fn vm(name: &str, transmit: DirectionSample) -> VmSample {
        VmSample {
            name: name.to_owned(),
            state: "running".to_owned(),
            interface_state: "up".to_owned(),
            connected: true,
            transmit,
            ..VmSample::default()
        }
    }

    /// A server with this uptime.
    pub fn server(uptime_seconds: f64, vms: Vec<VmSample>) -> ServerSample {
        ServerSample { version: "1.2.3".to_owned(), uptime_seconds, cpu_seconds: uptime_seconds / 4.0, vms }
    }

    #[test]
    fn rates_are_differences_by_the_servers_clock() {
        let before = server(10.0, vec![vm("a", moved(1000, 500))]);
        let mut later = vm("a", moved(1600, 60_500));
        later.receive.copied_bytes.insert("held".to_owned(), 100_000);
        later.receive.bytes = 100_000;
        later.receive.dropped_frames.insert("no_room".to_owned(), 8);
        let rates = rates(Some(&before), &server(12.0, vec![later]));
        assert_eq!((rates.seconds, rates.cpus), (Some(2.0), Some(0.25)));
        let both = rates.vms[0].rates.as_ref().expect("rates");
        assert_eq!((both.transmit.frames, both.transmit.bytes), (300.0, 300_000.0));
        assert_eq!(both.transmit.zero_copied_ratio(), Some(0.9));
        assert_eq!(both.receive.zero_copied_ratio(), Some(0.0));
        assert_eq!(both.zero_copied_ratio(), Some(540_000.0 / 700_000.0));
        assert_eq!((both.reason(), both.dropped_frames()), (Some("held"), 4.0));
        assert_eq!(both.transmit.copied_bytes, BTreeMap::from([("small".to_owned(), 30_000.0)]));
    }

    #[test]
    fn what_did_not_move_has_no_share_and_no_reason() {
        let idle = server(1.0, vec![vm("a", moved(10, 10))]);
        let rates = rates(Some(&idle), &server(2.0, idle.vms.clone()));
        let both = rates.vms[0].rates.as_ref().expect("rates");
        assert_eq!((both.zero_copied_ratio(), both.reason()), (None, None));
        assert!(both.dropped_frames().is_sign_positive(), "it is shown as 0");
    }

    #[test]
    fn a_rate_that_can_not_be_known_is_not_zero() {
        let now = server(5.0, vec![vm("a", moved(5, 0)), vm("b", moved(5, 0))]);
        let unknown = |before: Option<&ServerSample>| -> Vec<bool> {
            rates(before, &now).vms.iter().map(|vm| vm.rates.is_none()).collect()
        };
        assert_eq!(unknown(None), [true, true]);
        assert_eq!(unknown(Some(&server(4.0, vec![vm("b", moved(4, 0))]))), [true, false], "a has come");
        assert_eq!(
            unknown(Some(&server(4.0, vec![vm("a", moved(9, 0)), vm("b", moved(4, 0))]))),
            [true, false]
        );
        assert_eq!(unknown(Some(&server(9.0, now.vms.clone()))), [true, true], "the server began anew");
        assert_eq!(rates(Some(&now), &now).seconds, None, "no time has passed");
    }
}
