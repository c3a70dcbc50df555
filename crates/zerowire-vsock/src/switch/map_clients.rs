//! Programs at `UDS.map`: what they ask for, and whether they get it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use zerowire_wire::mapped::{MapOp, MapReply, MapRequest};

use super::connect::offer;
use super::mapped::pair;
use super::{Event, Io};
use crate::doors::MAX_CLIENTS;
use crate::mapped::{AskedFor, MapClient, Stage, receive_request, send_reply};
use crate::packet::Kind;
use crate::protocol::ANSWER_PATIENCE;
use crate::table::SlotKey;
use crate::vm::GroupVm;

/// A program has connected at the control socket.
pub(super) fn greet(vm: &mut GroupVm, socket: OwnedFd, io: &mut Io) {
    let user = zerowire_sys::socket::peer_owner(&socket).map(|(user, _)| user);
    let Some(user) = user.as_ref().ok().copied().filter(|u| vm.doors.map_policy.knows(*u)) else {
        let user = user.map_or_else(|e| e.to_string(), |u| u.to_string());
        let text = format!(
            "user {user} may not map receive buffers: start zerowire vsock with --map-allow {user} to let it connect to the \
             guest, or with --map-listen {user}:PORT to let it take connections of the guest"
        );
        vm.counters.bad_handshakes.add(1);
        let _ = send_reply(&socket, &MapReply::error(libc::EPERM as u16, text), &[]);
        return;
    };
    let Some(i) = vm.doors.place_of_map_client() else {
        let text = format!("{MAX_CLIENTS} programs listen or are about to ask: try again later");
        vm.counters.bad_handshakes.add(1);
        let _ = send_reply(&socket, &MapReply::error(libc::EAGAIN as u16, text), &[]);
        return;
    };
    let place = SlotKey { slot: i as u32, tenant: vm.doors.next_tenant() };
    if io.watch.add(&socket, Event::MapClient { vm: vm.id.index, place }).is_err() {
        return;
    }
    let stage = Stage::Asking { deadline: io.timers.now() + ANSWER_PATIENCE };
    vm.doors.map_clients[i] = Some(MapClient { socket, user, stage, tenant: place.tenant });
    io.timers.look_after(ANSWER_PATIENCE);
    heard(vm, place, io);
}

/// A program at the control socket has said something, or hung up.
pub(super) fn heard(vm: &mut GroupVm, place: SlotKey, io: &mut Io) {
    let Some(entry) = vm.doors.map_clients.get_mut(place.slot as usize) else { return };
    let Some(client) = entry.as_ref().filter(|c| c.tenant == place.tenant) else { return };
    let request = match receive_request(&client.socket) {
        Ok(None) => return,
        Ok(Some(r)) if matches!(client.stage, Stage::Asking { .. }) => {
            let user = client.user;
            vm.doors.forget_who_left(r.port);
            vm.doors.check_request(user, r, vm.limits.buffer_bytes)
        }
        Ok(Some(_)) => Err((libc::EINVAL, "a second request on one socket: open another one".to_owned())),
        Err(text) => Err((libc::EINVAL, text)),
    };
    let Some(client) = vm.doors.map_clients[place.slot as usize].take() else { return };
    match request {
        Ok(r) if r.op == MapOp::Connect => {
            io.watch.forget(&client.socket);
            offer_mapped(vm, r, client.socket, io);
        }
        Ok(r) => {
            let kind = Kind::new(r.kind).unwrap_or(Kind::Stream);
            let agreed = MapReply {
                status: 0,
                host_port: r.port,
                guest_port: 0,
                options: r.options,
                regions: 0,
                text: String::new(),
            };
            if send_reply(&client.socket, &agreed, &[]).is_ok() {
                let stage = Stage::Listening { port: r.port, kind, options: r.options };
                vm.doors.map_clients[place.slot as usize] = Some(MapClient { stage, ..client });
            }
        }
        Err((errno, text)) => {
            // Whoever has left is not answered.
            if !text.is_empty() {
                vm.counters.bad_handshakes.add(1);
                let _ = send_reply(&client.socket, &MapReply::error(errno as u16, text), &[]);
            }
        }
    }
}

/// A program asks for a mapped connection to the guest.
fn offer_mapped(vm: &mut GroupVm, r: MapRequest, control: OwnedFd, io: &mut Io) {
    let now = io.timers.now();
    let claim = match vm.claim_map(&r.options) {
        Ok(claim) => claim,
        Err(text) => {
            vm.counters.refused.add(1);
            vm.refuse_map(&text, now);
            let _ = send_reply(&control, &MapReply::error(libc::EDQUOT as u16, text), &[]);
            return;
        }
    };
    let kind = Kind::new(r.kind).unwrap_or(Kind::Stream);
    match pair(kind) {
        Ok((ours, theirs)) => {
            let asked = AskedFor {
                control: Some(control),
                options: r.options,
                timed_out: false,
                theirs: Some(theirs),
                claim: Some(claim),
            };
            offer(vm, kind, r.port, ours, Some(Box::new(asked)), io);
        }
        Err(e) => {
            let text = format!("no socket can be had: {e}; see 'ulimit -n'");
            let _ = send_reply(&control, &MapReply::error(libc::ENFILE as u16, text), &[]);
        }
    }
}

/// Programs that have not said in time what they want go.
pub(super) fn scan(vm: &mut GroupVm, now: Instant) -> bool {
    let mut waiting = false;
    for entry in &mut vm.doors.map_clients {
        let Some(MapClient { stage: Stage::Asking { deadline }, .. }) = entry else { continue };
        if *deadline <= now {
            vm.counters.bad_handshakes.add(1);
            *entry = None;
        } else {
            waiting = true;
        }
    }
    waiting
}
