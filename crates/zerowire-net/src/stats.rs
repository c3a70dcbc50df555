//! What the server has to tell.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use zerowire::ledger::{Counters, Totals};
use zerowire_capture::{CaptureInterface, CaptureStats};
use zerowire_sys::lock;
use zerowire_vhost::host::{KickHistogram, KickTimes};
use zerowire_vhost::limit::{Limiter, Limiters, Limits};

use crate::link::{LinkShared, LinkState, LinkStats};
use crate::port::PortSpec;
use crate::vm::VmContext;

/// Counters of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct PairCounters {
    pub transmit: Counters,
    pub receive: Counters,
    /// How long kicks took: of the receive ring, and of the transmit ring.
    pub kicks: [KickTimes; 2],
}

/// What the workers of a VM share with whoever asks for statistics.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub pairs: Vec<PairCounters>,
    /// The longest packet of the guest's interface or the port's when a ring started last, bytes.
    pub mtu: AtomicUsize,
    pub ring_errors: AtomicU64,
    /// A ring broke since the guest reset its device last.
    pub needs_reset: AtomicBool,
    pub unsure: AtomicU64,
    pub out_of_order: Arc<AtomicU64>,
    pub path: Mutex<String>,
    pub last_error: Mutex<Option<String>>,
    /// Where the guest is to see the port's link.
    pub link: Option<Arc<LinkShared>>,
    /// What may pass in a second.
    pub limiters: Limiters,
}

impl Shared {
    pub(super) fn new(pairs: usize, link: Option<Arc<LinkShared>>, limits: Limits) -> Arc<Self> {
        let pairs = (0..pairs).map(|_| PairCounters::default()).collect();
        let shared = Self { pairs, link, ..Self::default() };
        shared.limiters.set(limits);
        Arc::new(shared)
    }

    pub(super) fn set_error(&self, text: String) {
        *lock(&self.last_error) = Some(text);
    }

    pub(super) fn set_path(&self, text: String) {
        *lock(&self.path) = text;
    }
}

/// One direction of a VM's traffic.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DirectionStats {
    /// Sum over the queues.
    #[serde(flatten)]
    pub totals: Totals,
    /// Frames by queue pair.
    pub frames_by_queue: Vec<u64>,
    /// How often a queue waited for its VM's limit.
    pub limit_waits: u64,
    /// How long, the sum over the queues.
    pub limit_wait_seconds: f64,
    /// How long kicks took, from the worker's wake-up until the ring was served.
    pub kick_seconds: KickHistogram,
}

/// What a guest and its front end have agreed on with the device.
#[derive(Clone, Debug, Serialize)]
pub struct Negotiated {
    /// Features that the guest acknowledged.
    pub features: Vec<String>,
    /// vhost-user protocol features that the front end acknowledged.
    pub protocol_features: String,
    /// Device status as the front end last set it (virtio 1.3 §2.1).
    pub device_status: u64,
}

/// A VM's port now.
#[derive(Clone, Debug, Serialize)]
pub struct PortState {
    /// The port's interface, by the name that it has now.
    pub interface: String,
    /// Whether it can carry frames.
    pub interface_state: LinkState,
    /// Whether the guest sees its link up (`link=follow`).
    pub link: Option<LinkStats>,
    /// Copies on the way that this process does not make.
    pub kernel_copies: &'static str,
    /// What a capture has of its frames; None without a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStats>,
}

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmStats {
    /// Its name.
    pub name: String,
    /// Where its front end connects.
    pub socket: String,
    /// Its port.
    pub port: String,
    /// Whether a front end is connected.
    pub connected: bool,
    /// Connections so far.
    pub connections: u64,
    /// Connections that ended by a protocol error.
    pub connection_errors: u64,
    /// Rings that were stopped because the guest broke a rule.
    pub ring_errors: u64,
    /// Frames from the guest that a process before this one was sending when it died: given back,
    /// sent or not.
    pub unsure_frames: u64,
    /// Frames from the guest whose descriptors were given back before those of earlier ones, where
    /// the front end keeps no in-flight region (AF_XDP).
    pub out_of_order_frames: u64,
    /// The last error of either kind.
    pub last_error: Option<String>,
    /// The path that frames take, and why.
    pub path: String,
    /// What guest and front end have agreed on.
    #[serde(flatten)]
    pub negotiated: Negotiated,
    /// The port's interface.
    #[serde(flatten)]
    pub port_state: PortState,
    /// From the guest to the port.
    pub transmit: DirectionStats,
    /// From the port to the guest.
    pub receive: DirectionStats,
}

/// All VMs.
pub type ServerStats = zerowire_vhost::serve::ServerStats<VmStats>;

impl VmStats {
    pub(super) fn new(vm: &VmContext, socket: String, port: &PortSpec) -> Self {
        let VmContext { control, port: interface, shared, .. } = vm;
        let sum = |get: fn(&PairCounters) -> (&Counters, &KickTimes), limiter: &Limiter| {
            let held_up = limiter.stats();
            let mut s = DirectionStats {
                limit_waits: held_up.waits,
                limit_wait_seconds: held_up.waited.as_secs_f64(),
                ..DirectionStats::default()
            };
            for p in &shared.pairs {
                let (counters, kicks) = get(p);
                let t = counters.snapshot();
                s.frames_by_queue.push(t.frames);
                s.totals.add(&t);
                s.kick_seconds.add(&kicks.snapshot());
            }
            s
        };
        Self {
            name: control.name.clone(),
            socket,
            port: port.to_string(),
            connected: control.connected.load(Ordering::Relaxed),
            connections: control.connections.load(Ordering::Relaxed),
            connection_errors: control.connection_errors.load(Ordering::Acquire),
            ring_errors: shared.ring_errors.load(Ordering::Acquire),
            unsure_frames: shared.unsure.load(Ordering::Relaxed),
            out_of_order_frames: shared.out_of_order.load(Ordering::Relaxed),
            last_error: lock(&shared.last_error).clone(),
            path: lock(&shared.path).clone(),
            negotiated: Negotiated {
                features: zerowire_vhost_user::features::names(
                    control.acked_features.load(Ordering::Relaxed),
                ),
                protocol_features: format!("{:#x}", control.protocol_features.load(Ordering::Relaxed)),
                device_status: control.status.load(Ordering::Relaxed),
            },
            port_state: PortState {
                interface_state: interface.link_state(),
                interface: interface.interface(),
                link: shared.link.as_ref().map(|l| l.stats()),
                kernel_copies: port.kernel_copies(),
                capture: vm.capture.get().as_ref().map(CaptureInterface::stats),
            },
            transmit: sum(|p| (&p.transmit, &p.kicks[1]), &shared.limiters.transmit),
            receive: sum(|p| (&p.receive, &p.kicks[0]), &shared.limiters.receive),
        }
    }
}
