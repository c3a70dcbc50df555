//! The ends of connections: they linger, drain, are reset, or go.

use super::mapped::let_go;
use super::sibling::tell;
use super::{Current, Rest, Timers};
use crate::connection::End;
use crate::protocol::{CLOSE_PATIENCE, Fate, LINGER, Signal};
use crate::vm::GroupVm;

/// Does what a connection asks for.
#[inline]
pub(super) fn apply(vm: &mut GroupVm, slot: u32, fate: Fate, rest: &mut Rest<'_>) {
    if fate != Fate::Stays {
        change(vm, slot, fate, rest);
    }
}

fn change(vm: &mut GroupVm, slot: u32, fate: Fate, rest: &mut Rest<'_>) {
    match fate {
        Fate::Stays => {}
        Fate::Lingers => rest.io.timers.look_after(LINGER),
        Fate::Drains => {
            vm.connections.forget_name(slot);
            rest.io.timers.look_after(LINGER);
        }
        Fate::Closes => {
            end_of(vm, slot, rest);
            rest.io.timers.look_after(CLOSE_PATIENCE);
            settle(vm, slot, rest);
        }
        Fate::Resets => {
            if let Some(mut at) = vm.current(slot) {
                reset(&mut at, &mut rest.io.timers);
            }
            end_of(vm, slot, rest);
        }
        Fate::Broken => abort(vm, slot, rest),
        Fate::Gone => {
            end_of(vm, slot, rest);
            remove(vm, slot);
        }
    }
}

/// Does what is due once all that the guest sent has reached the host program.
pub(super) fn settle(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) {
    let Some(c) = vm.connections.get(slot) else { return };
    let fate = c.settle(|| rest.io.timers.now());
    apply(vm, slot, fate, rest);
}

/// Ends a connection whose guest broke a rule, or whose other end did: nothing that waits is
/// delivered.
pub(super) fn abort(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) {
    let Some(mut at) = vm.current(slot) else { return };
    if at.c.protocol.is_draining() {
        // Its guest has ended it, and may have given its ports to another one.
        end_of(vm, slot, rest);
        return remove(vm, slot);
    }
    at.c.held = None;
    at.counters.resets.add(1);
    reset(&mut at, &mut rest.io.timers);
    end_of(vm, slot, rest);
}

/// The connection is over: its guest gets RST behind what waits for it, if it takes that within a
/// while.
pub(super) fn reset(at: &mut Current<'_>, timers: &mut Timers) {
    if at.c.protocol.reset(timers.now()) {
        // Who receives no more makes no room for what waits, and would wait for the reset behind
        // it.
        if at.c.protocol.guest().receives_no_more() {
            at.c.held = None;
        }
        timers.look_after(CLOSE_PATIENCE);
    }
    at.mark_ready();
}

/// Lets go of a connection's other end: a host program sees its socket closed, a sibling is reset.
pub(super) fn end_of(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) {
    let Some(c) = vm.connections.get(slot) else { return };
    if let Some(mapped) = c.mapped() {
        mapped.cut_held();
    }
    c.end_windows();
    if let Some(windows) = c.mapped().and_then(|mapped| mapped.take_windows()) {
        let_go(&mut vm.rings, &mut vm.loans, windows, &rest.io.watch);
    }
    tell(c, Signal::Reset, rest);
    c.end = End::Gone;
}

/// Takes a connection out. Its other end was let go of before.
pub(super) fn remove(vm: &mut GroupVm, slot: u32) {
    vm.names.leave(slot);
    if let Some(c) = vm.connections.remove(slot)
        && c.counted
    {
        vm.counters.closed.add(1);
    }
}

/// Ends all connections of a VM whose driver begins anew or is gone. What it sent before still goes
/// to host programs.
pub(super) fn drop_connections(vm: &mut GroupVm, rest: &mut Rest<'_>) {
    for slot in 0..vm.connections.slots() {
        let Some(c) = vm.connections.get(slot) else { continue };
        let fate = c.guest_ended(rest.io.timers.now());
        apply(vm, slot, fate, rest);
    }
    vm.lists.ready.clear();
    vm.lists.limited.clear();
    vm.paces.receive.end(&vm.counters.limiters.receive);
    vm.lists.quiet.clear();
    vm.resets.clear();
    vm.doors.handshakes.clear();
}

/// Ends all connections of a VM that leaves, those that drain included.
pub(super) fn end_connections(vm: &mut GroupVm, rest: &mut Rest<'_>) {
    for slot in 0..vm.connections.slots() {
        end_of(vm, slot, rest);
        remove(vm, slot);
    }
}
