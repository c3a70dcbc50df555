//! The life of a connection, as its guest sees it: what packets may come, and which control packets are due.
//!
//! Plain code: it knows nothing of rings and sockets. A *far side* is a host program, or the other guest.

use super::packet::{Op, SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The guest asked; the far side has not answered yet.
    Asked,
    /// The far side asked; the guest has not answered yet.
    Offered,
    /// Both agreed.
    Open,
    /// It is over, and the guest is to be told by RST once what it has still to receive is delivered.
    Resetting,
    /// It is over for the guest; what it sent before still goes to the host program.
    Draining,
}

/// What a packet does to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing beyond its credit fields.
    None,
    /// Its payload is to be passed on.
    Payload,
    /// The guest accepted the offer.
    Accepted,
    /// The guest will not send, or not receive, any more: see [`Lifecycle::guest_ended`].
    Shutdown,
    /// The guest refused the offer.
    Refused,
    /// The guest ended the connection: no answer is due.
    Ended,
    /// The guest begins anew with the same ports: the old connection is gone.
    Renewed,
    /// The packet breaks a rule in this phase: the connection is to be reset.
    Violation,
    /// The packet is late or has no meaning here: dropped.
    Stray,
}

/// Control packets for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// REQUEST.
    Request,
    /// RESPONSE.
    Response,
    /// CREDIT_UPDATE.
    CreditUpdate,
    /// CREDIT_REQUEST.
    CreditRequest,
    /// SHUTDOWN with these flags.
    Shutdown(u32),
    /// RST; the connection is gone with it.
    Rst,
}

const OWED_REQUEST: u8 = 1;
const OWED_RESPONSE: u8 = 2;
const OWED_UPDATE: u8 = 4;
const OWED_ASK: u8 = 8;

/// The state machine.
#[derive(Clone, Copy, Debug)]
pub struct Lifecycle {
    phase: Phase,
    owed: u8,
    /// What the guest has ended, in SHUTDOWN's flags.
    guest: u32,
    /// What the far side has ended.
    far: u32,
    /// What the guest was told of that.
    told: u32,
    /// A CREDIT_REQUEST is under way.
    asked: bool,
}

impl Lifecycle {
    fn new(phase: Phase, owed: u8) -> Self {
        Self { phase, owed, guest: 0, far: 0, told: 0, asked: false }
    }

    /// The guest asked for a connection.
    pub fn asked() -> Self {
        Self::new(Phase::Asked, 0)
    }

    /// A connection is to be offered to the guest.
    pub fn offered() -> Self {
        Self::new(Phase::Offered, OWED_REQUEST)
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What the guest has ended, in SHUTDOWN's flags.
    pub fn guest_ended(&self) -> u32 {
        self.guest
    }

    /// What the far side has ended, in SHUTDOWN's flags.
    pub fn far_ended(&self) -> u32 {
        self.far
    }

    /// Whether both ends said that nothing will move any more.
    pub fn is_over(&self) -> bool {
        self.guest == SHUT_BOTH
    }

    /// Whether the guest knows that the far side is gone, so that its answer is due.
    pub fn awaits_end(&self) -> bool {
        self.phase == Phase::Open && self.told == SHUT_BOTH
    }

    /// Whether the guest takes payload.
    pub fn takes_payload(&self) -> bool {
        self.phase == Phase::Open && self.guest & SHUT_RECEIVE == 0
    }

    /// The far side accepted what the guest asked for.
    pub fn accepted(&mut self) {
        if self.phase == Phase::Asked {
            self.phase = Phase::Open;
            self.owed |= OWED_RESPONSE;
        }
    }

    /// The far side has ended what the flags say.
    pub fn far_ends(&mut self, flags: u32) {
        self.far |= flags & SHUT_BOTH;
    }

    /// The connection is over; the guest gets RST behind what is still to be delivered.
    pub fn reset(&mut self) {
        self.phase = Phase::Resetting;
        self.owed = 0;
    }

    /// The connection is over for the guest.
    pub fn drain(&mut self) {
        self.phase = Phase::Draining;
        self.owed = 0;
    }

    /// The guest should be told the credit that it has.
    pub fn owe_update(&mut self) {
        self.owed |= OWED_UPDATE;
    }

    /// Another packet told it.
    pub fn update_told(&mut self) {
        self.owed &= !OWED_UPDATE;
    }

    /// The guest takes more than before.
    pub fn credit_came(&mut self) {
        self.asked = false;
    }

    /// There is something for the guest and no credit: it is asked, once, until some comes. A guest whose program does not
    /// read would otherwise be asked again with each of its answers.
    pub fn owe_credit_request(&mut self) {
        if !self.asked {
            self.asked = true;
            self.owed |= OWED_ASK;
        }
    }

    /// The sibling asks for the guest's credit. The guest is asked however often it was before: an answer that brought nothing
    /// may have come too early, and one that was not out of room then says nothing more by itself.
    pub fn pass_credit_request(&mut self) {
        self.owed |= OWED_ASK;
    }

    /// Takes a packet from the guest.
    pub fn take(&mut self, op: Op, flags: u32) -> Effect {
        let effect = self.judge(op);
        if effect == Effect::Shutdown {
            self.guest |= flags & SHUT_BOTH;
        }
        if effect == Effect::Accepted {
            self.phase = Phase::Open;
        }
        // Before that, RESPONSE tells it.
        if op == Op::CreditRequest && self.phase == Phase::Open {
            self.owed |= OWED_UPDATE;
        }
        effect
    }

    fn judge(&self, op: Op) -> Effect {
        match (self.phase, op) {
            (Phase::Draining, _) => Effect::Stray,
            (_, Op::Request) => Effect::Renewed,
            (Phase::Offered, Op::Rst) => Effect::Refused,
            (_, Op::Rst) => Effect::Ended,
            // Credit may be what the last bytes wait for.
            (_, Op::CreditUpdate | Op::CreditRequest) => Effect::None,
            (Phase::Resetting, _) => Effect::Stray,
            (Phase::Offered, Op::Response) => Effect::Accepted,
            (Phase::Open, Op::Rw) if self.guest & SHUT_SEND != 0 => Effect::Violation,
            (Phase::Open, Op::Rw) => Effect::Payload,
            (Phase::Open, Op::Shutdown) => Effect::Shutdown,
            (Phase::Open, Op::Response) => Effect::Stray,
            // A driver that gives up before the answer.
            (Phase::Asked, Op::Shutdown) => Effect::Ended,
            (Phase::Asked | Phase::Offered, _) => Effect::Violation,
        }
    }

    /// The next control packet that is due, given whether all payload for the guest has been delivered. It counts as sent.
    pub fn next_control(&mut self, delivered: bool) -> Option<Control> {
        let may = match self.phase {
            Phase::Resetting => return delivered.then_some(Control::Rst),
            // The guest knows of it no more, and may have given its ports to another one.
            Phase::Draining => return None,
            // A guest that connects takes nothing but the answer (Linux,
            // `virtio_transport_recv_connecting`), and one that is asked knows of no connection
            // yet.
            Phase::Asked => return None,
            Phase::Offered => OWED_REQUEST,
            Phase::Open => u8::MAX,
        };
        for (bit, control) in [
            (OWED_REQUEST, Control::Request),
            (OWED_RESPONSE, Control::Response),
            (OWED_ASK, Control::CreditRequest),
            (OWED_UPDATE, Control::CreditUpdate),
        ] {
            if self.owed & bit & may != 0 {
                self.owed &= !bit;
                if bit != OWED_ASK {
                    self.owed &= !OWED_UPDATE;
                }
                return Some(control);
            }
        }
        if self.phase != Phase::Open {
            return None;
        }
        // That it receives no more can be said at once, that it sends no more only behind its last byte.
        let now = if delivered { self.far } else { self.far & SHUT_RECEIVE };
        if now & !self.told == 0 {
            return None;
        }
        self.told |= now;
        Some(Control::Shutdown(self.told))
    }

    /// Whether the guest is still to be told of the connection, so that payload can't go yet.
    pub fn owes_beginning(&self) -> bool {
        self.owed & (OWED_REQUEST | OWED_RESPONSE) != 0
    }

    /// Whether [`Self::next_control`] would give anything.
    pub fn has_control(&self, delivered: bool) -> bool {
        let mut copy = *self;
        copy.next_control(delivered).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_connects_sends_and_closes() {
        let mut l = Lifecycle::asked();
        assert_eq!(l.next_control(true), None);
        l.accepted();
        assert_eq!(l.next_control(true), Some(Control::Response));
        assert_eq!(l.take(Op::Rw, 0), Effect::Payload);
        assert_eq!(l.take(Op::Shutdown, SHUT_SEND), Effect::Shutdown);
        assert_eq!(l.take(Op::Rw, 0), Effect::Violation, "after it said that it would not");
        assert!(l.takes_payload(), "the reply still comes");
        assert_eq!(l.take(Op::Shutdown, SHUT_BOTH), Effect::Shutdown);
        assert!(l.is_over());
        l.reset();
        assert_eq!(l.next_control(true), Some(Control::Rst));
    }

    #[test]
    fn the_end_is_told_behind_the_last_byte() {
        let mut l = Lifecycle::offered();
        assert_eq!(l.next_control(true), Some(Control::Request));
        assert_eq!(l.take(Op::Response, 0), Effect::Accepted);
        l.far_ends(SHUT_BOTH);
        assert_eq!(l.next_control(false), Some(Control::Shutdown(SHUT_RECEIVE)));
        assert_eq!(l.next_control(false), None);
        assert!(!l.awaits_end());
        assert_eq!(l.next_control(true), Some(Control::Shutdown(SHUT_BOTH)));
        assert!(l.awaits_end());
        assert_eq!(l.take(Op::Rst, 0), Effect::Ended);
    }

    #[test]
    fn credit_is_asked_for_once() {
        let mut l = Lifecycle::asked();
        l.accepted();
        l.next_control(true);
        l.owe_credit_request();
        l.owe_credit_request();
        assert_eq!(l.next_control(false), Some(Control::CreditRequest));
        l.owe_credit_request();
        assert_eq!(l.next_control(false), None);
        l.take(Op::CreditUpdate, 0);
        l.owe_credit_request();
        assert_eq!(l.next_control(false), None, "none came with it");
        l.pass_credit_request();
        assert_eq!(l.next_control(false), Some(Control::CreditRequest), "a sibling may ask again");
        l.credit_came();
        l.owe_credit_request();
        assert_eq!(l.next_control(false), Some(Control::CreditRequest));
        l.take(Op::CreditRequest, 0);
        assert_eq!(l.next_control(false), Some(Control::CreditUpdate));
    }

    #[test]
    fn nothing_goes_before_the_answer() {
        let mut l = Lifecycle::asked();
        l.owe_update();
        l.pass_credit_request();
        l.take(Op::CreditRequest, 0);
        assert!(!l.has_control(true));
        l.accepted();
        assert_eq!(l.next_control(true), Some(Control::Response));

        let mut l = Lifecycle::offered();
        l.owe_update();
        l.pass_credit_request();
        assert_eq!(l.next_control(true), Some(Control::Request));
        assert!(!l.has_control(true));
        assert_eq!(l.take(Op::Response, 0), Effect::Accepted);
        assert_eq!(l.next_control(true), Some(Control::CreditRequest));
    }

    #[test]
    fn a_guest_that_has_ended_a_connection_hears_no_more_of_it() {
        let mut l = Lifecycle::asked();
        l.accepted();
        l.next_control(true);
        l.drain();
        l.owe_update();
        l.owe_credit_request();
        l.far_ends(SHUT_BOTH);
        assert!(!l.has_control(true));
    }

    #[test]
    fn packets_out_of_place() {
        let mut l = Lifecycle::offered();
        assert_eq!(l.take(Op::Rw, 0), Effect::Violation);
        assert_eq!(l.take(Op::Rst, 0), Effect::Refused);
        let mut l = Lifecycle::asked();
        assert_eq!(l.take(Op::Rw, 0), Effect::Violation);
        assert_eq!(l.take(Op::Response, 0), Effect::Violation);
        assert_eq!(l.take(Op::Request, 0), Effect::Renewed);
        l.accepted();
        assert_eq!(l.take(Op::Response, 0), Effect::Stray);
        l.reset();
        assert_eq!(l.take(Op::Rw, 0), Effect::Stray);
        assert_eq!(l.next_control(false), None, "payload comes first");
    }
}
