//! Programs at `UDS.map`: which there are, and whether one gets what it asks for.

use zerowire_wire::mapped::{MapOp, MapRequest};

use super::{Doors, MAX_HANDSHAKES, free_place};
use crate::mapped::{MapClient, Stage};
use crate::packet::Kind;
use crate::socket::has_ended;

/// Programs that listen for mapped connections, and those that are about to ask, of a VM.
pub(crate) const MAX_CLIENTS: usize = 2 * MAX_HANDSHAKES;

/// The most credit that a program may ask for, bytes.
const MAX_CREDIT: u32 = 16 << 20;

impl Doors {
    /// A place for a program that has connected. None where too many listen or are about to ask.
    pub(crate) fn place_of_map_client(&mut self) -> Option<usize> {
        free_place(&mut self.map_clients, MAX_CLIENTS)
    }

    /// Programs that listen at a port and have left do not have it any more: the next one may come
    /// before that is noticed.
    pub(crate) fn forget_who_left(&mut self, at: u32) {
        for entry in &mut self.map_clients {
            let listens = |c: &MapClient| matches!(c.stage, Stage::Listening { port, .. } if port == at);
            if entry.as_ref().is_some_and(|c| listens(c) && has_ended(&c.socket)) {
                *entry = None;
            }
        }
    }

    /// Whether a program's request can be granted, with what is granted; `buffer`: the credit where
    /// it asks for none. The error has its number, and says what to do.
    pub(crate) fn check_request(
        &self,
        user: u32,
        mut r: MapRequest,
        buffer: u32,
    ) -> Result<MapRequest, (i32, String)> {
        match r.op {
            MapOp::Connect if !self.map_policy.may_connect(user) => {
                let text = format!(
                    "user {user} may not connect to the guest with mapped receive: start zerowire vsock with --map-allow {user}"
                );
                return Err((libc::EPERM, text));
            }
            MapOp::Listen if !self.map_policy.may_listen(user, r.port) => {
                let port = r.port;
                let text = format!(
                    "user {user} may not listen on port {port} with mapped receive: start zerowire vsock with --map-listen \
                     {user}:{port}"
                );
                return Err((libc::EPERM, text));
            }
            _ => {}
        }
        let (asked, policy) = (r.options.total_len(), &self.map_policy);
        for (most, flag) in [(policy.max_bytes, "--map-max"), (policy.max_total_bytes, "--map-total")] {
            if asked > most {
                let text = format!(
                    "{asked} bytes of windows are more than the {most} of {flag}: take fewer or smaller windows, or give it more"
                );
                return Err((libc::EINVAL, text));
            }
        }
        if r.options.credit > MAX_CREDIT {
            return Err((libc::EINVAL, format!("credit: {} is more than {MAX_CREDIT}", r.options.credit)));
        }
        if r.options.credit == 0 {
            r.options.credit = buffer;
        }
        if r.options.direct && !self.map_policy.share_guest_memory {
            let text = "direct windows: zerowire vsock was started without --share-guest-memory".to_owned();
            return Err((libc::EPERM, text));
        }
        let kind = Kind::new(r.kind);
        let taken = |c: &MapClient| matches!(c.stage, Stage::Listening { port, kind: k, .. } if port == r.port && Some(k) == kind);
        if r.op == MapOp::Listen && self.map_clients.iter().flatten().any(taken) {
            return Err((libc::EADDRINUSE, format!("port {}: another program listens there", r.port)));
        }
        Ok(r)
    }

    /// The program that takes the guest's connections to a port in windows.
    pub(crate) fn map_listener_at(&self, port: u32, kind: Kind) -> Option<usize> {
        self.map_clients.iter().position(|c| {
            c.as_ref().is_some_and(
                |c| matches!(c.stage, Stage::Listening { port: p, kind: k, .. } if (p, k) == (port, kind)),
            )
        })
    }
}
