//! Messages of host programs, to a guest's receive queue.

use std::io;

use zerowire_vhost::memory::IoList;
use zerowire_vhost::ring::RingError;

use super::current::Current;
use super::receive::{TurnStep, await_room, finish_read};
use super::{Rest, Scratch};
use crate::connection::VsockConnection;
use crate::held::{self, Held};
use crate::packet::{HEADER_LEN, SEQ_EOM};
use crate::rings::Buffers;
use crate::socket;

/// The longest message that a host program may send, bytes.
pub(super) const MAX_MESSAGE: usize = 1 << 20;
// One that waits is read into pieces by one call.
const _: () = assert!(MAX_MESSAGE <= socket::MAX_IOV * held::PIECE);

/// Reads a host program's next message, if the guest may take it whole.
pub(super) fn read_message(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    rest: &mut Rest<'_>,
) -> Result<TurnStep, RingError> {
    if let Some(longest) = at.c.inlet().and_then(|i| i.forecast.expected())
        && let Some(step) = read_expected(at, buffers, longest, rest)?
    {
        return Ok(step);
    }
    let Some(packet_room) = buffers.room(0)? else { return Ok(TurnStep::NoRoom) };
    let counters = &at.counters.receive;
    let most = most(at.c);
    let Some(inlet) = at.c.inlet() else { return Ok(TurnStep::Nothing) };
    counters.system_calls.add(1);
    let len = match socket::peek_message(&inlet.socket) {
        Ok(0) if socket::has_ended(&inlet.socket) => {
            at.c.program_ends(false);
            return Ok(TurnStep::Nothing);
        }
        Ok(len) => len,
        Err(e) => return Ok(failed(at.c, &e)),
    };
    if len > most {
        return Ok(too_long(at, len, most));
    }
    let whole = match at.c.protocol.message_room(len, packet_room, || rest.io.timers.now()) {
        Ok(whole) => whole,
        Err(waits) => return Ok(await_room(waits, &mut rest.io.timers)),
    };
    let Some(inlet) = at.c.inlet() else { return Ok(TurnStep::Nothing) };
    let mut list = IoList::new(&mut rest.io.scratch.iov);
    let offered = buffers.offer(len, &mut list)?;
    // An empty message takes a buffer, too.
    if buffers.room(0)?.is_none() || (offered == 0 && len > 0) {
        return Ok(TurnStep::NoRoom);
    }
    inlet.forecast.came(len as u32);
    counters.system_calls.add(1);
    if offered < len || !whole {
        // Too few buffers or too little credit for the moment, and a socket gives a message whole
        // or not at all.
        return Ok(hold_message(at.c, len, &mut rest.io.scratch.iov));
    }
    match socket::receive(&inlet.socket, &mut list) {
        Ok(r) if r.len == len => {
            finish_read(at, buffers, len, SEQ_EOM, &mut rest.others)?;
            return Ok(TurnStep::Moved(len));
        }
        // After the look at the message, which still waits.
        Err(e) if inlet.closes_unread(&e) => return Ok(TurnStep::Moved(0)),
        _ => {}
    }
    buffers.may_have_written(offered);
    at.c.program_ends(true);
    Ok(TurnStep::Nothing)
}

/// The longest message that goes to the guest, bytes.
fn most(c: &VsockConnection) -> usize {
    (c.protocol.to.alloc as usize).min(MAX_MESSAGE)
}

/// A look at the next message has failed.
fn failed(c: &mut VsockConnection, e: &io::Error) -> TurnStep {
    let Some(inlet) = c.inlet() else { return TurnStep::Nothing };
    if socket::would_block(e) {
        inlet.readable = false;
        return TurnStep::Nothing;
    }
    if inlet.closes_unread(e) {
        return TurnStep::Moved(0);
    }
    c.program_ends(true);
    TurnStep::Nothing
}

/// Reads a message of `len` bytes, which waits for the guest then.
fn hold_message(c: &mut VsockConnection, len: usize, iov: &mut Vec<libc::iovec>) -> TurnStep {
    let Some(inlet) = c.inlet() else { return TurnStep::Nothing };
    let mut held = None;
    let mut list = IoList::new(iov);
    Held::at(&mut held).make_room(len).for_each(|run| list.add_private(run));
    match socket::receive(&inlet.socket, &mut list) {
        Ok(r) if r.len == len => {
            Held::at(&mut held).mark(len as u32, Some(SEQ_EOM));
            c.held = held;
            return TurnStep::Moved(0);
        }
        Err(e) if inlet.closes_unread(&e) => return TurnStep::Moved(0),
        _ => {}
    }
    c.program_ends(true);
    TurnStep::Nothing
}

/// As [`read_message`], by one call in place of two, into buffers for `longest` bytes or more. None
/// if there are too few, or too little credit.
fn read_expected(
    at: &mut Current<'_>,
    buffers: &mut Buffers<'_>,
    longest: usize,
    rest: &mut Rest<'_>,
) -> Result<Option<TurnStep>, RingError> {
    let Some(room) = buffers.room(0)? else { return Ok(Some(TurnStep::NoRoom)) };
    let Scratch { iov, beyond, .. } = &mut rest.io.scratch;
    if beyond.is_empty() {
        // One byte more, so that a message that is too long for all is known by its length.
        *beyond = vec![0; MAX_MESSAGE + 1];
    }
    let (free, most) = (at.c.protocol.to.free() as usize, most(at.c));
    let wanted = room.max(longest);
    let goes = wanted <= free && at.c.protocol.to.message_may_begin(wanted, room);
    let Some(inlet) = at.c.inlet() else { return Ok(None) };
    let mut list = IoList::new(iov);
    let offered = if goes { buffers.offer(wanted, &mut list)? } else { 0 };
    if offered < wanted || list.len() >= socket::MAX_IOV {
        return Ok(None);
    }
    list.add_private(beyond);
    at.counters.receive.system_calls.add(1);
    let len = match socket::receive(&inlet.socket, &mut list) {
        Ok(r) if r.len == 0 && socket::has_ended(&inlet.socket) => {
            at.c.program_ends(false);
            return Ok(Some(TurnStep::Nothing));
        }
        Ok(r) => r.len,
        Err(e) => {
            let step = failed(at.c, &e);
            if step == TurnStep::Nothing && !socket::would_block(&e) {
                buffers.may_have_written(offered);
            }
            return Ok(Some(step));
        }
    };
    if len <= offered {
        finish_read(at, buffers, len, SEQ_EOM, &mut rest.others)?;
        return Ok(Some(TurnStep::Moved(len)));
    }
    buffers.may_have_written(offered);
    if len > most {
        return Ok(Some(too_long(at, len, most)));
    }
    inlet.forecast.came(len as u32);
    let held = Held::at(&mut at.c.held);
    buffers.offered(offered, |segments, n| held.push(segments, HEADER_LEN, n));
    held.push_bytes(&beyond[..len - offered]);
    held.mark(len as u32, Some(SEQ_EOM));
    Ok(Some(TurnStep::Moved(0)))
}

/// A message of `len` bytes or more, of which the guest takes `most`.
fn too_long(at: &Current<'_>, len: usize, most: usize) -> TurnStep {
    let name = &at.id.name;
    tracing::warn!(
        "{name}: a message of {len} bytes or more is longer than the {most} that the guest takes: reset"
    );
    TurnStep::TooLong
}
