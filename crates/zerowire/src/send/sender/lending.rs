//! Whether a payload is copied or lent.

use super::super::auto::{Auto, Choice, Decision};
use super::super::backend::{AnyBackend, NoLoan};
use super::super::kind::{SocketFamily, SocketKind};
use super::super::{SendMode, SendOptions, SendWay, segment};
use crate::ledger::CopyReason;

/// Payloads between two questions for the path's MTU.
const ASK_PATH_EVERY: u32 = 256;

/// What says of a payload whether it is lent.
pub(super) struct Lending {
    mode: SendMode,
    /// In [`SendMode::Auto`], while anything can be lent.
    pub(super) auto: Option<Auto>,
    /// Why nothing can be lent.
    pub(super) cannot_lend: Option<NoLoan>,
    /// The turn of a payload that had no room, for when it comes again.
    again: Option<(usize, Decision)>,
    /// Only on a UDP socket, and while each payload is one datagram.
    path: Option<PathRoom>,
}

/// The longest datagram that the path takes in one packet. The kernel never lends longer ones: it
/// copies each fragment.
#[derive(Clone, Copy, Debug)]
struct PathRoom {
    bytes: usize,
    /// Payloads until the sender reads it again.
    left: u32,
}

impl Lending {
    pub(super) fn new(back: &AnyBackend, socket: SocketKind, options: &SendOptions) -> Self {
        let cannot_lend = back.lends().err();
        let auto = (options.mode == SendMode::Auto && cannot_lend.is_none()).then(Auto::new);
        let path = PathRoom::of(socket, options.segment_bytes);
        Self { mode: options.mode, auto, cannot_lend, again: None, path }
    }

    /// How a payload of `len` bytes goes out.
    #[inline]
    pub(super) fn turn(&mut self, len: usize, back: &AnyBackend) -> Decision {
        let copy = |reason| Decision { way: SendWay::Copy, measure: false, reason };
        match (&self.cannot_lend, self.mode) {
            (_, SendMode::Copy) => return copy(CopyReason::Asked),
            (Some(no), _) => return copy(no.reason),
            (None, SendMode::ZeroCopy | SendMode::Auto) => {}
        }
        if self.path.as_mut().is_some_and(|path| path.is_exceeded(len, back)) {
            return copy(CopyReason::Fragmented);
        }
        match &mut self.auto {
            Some(auto) => match self.again.take() {
                Some((of, turn)) if of == len => turn,
                _ => auto.decide(len),
            },
            None => Decision { way: SendWay::Lend, measure: false, reason: CopyReason::Small },
        }
    }

    /// A payload had no room: it has the same turn when it comes again.
    pub(super) fn keep_turn(&mut self, len: usize, turn: Decision) {
        if self.auto.is_some() {
            self.again = Some((len, turn));
        }
    }

    /// The payload of [`keep_turn`](Self::keep_turn) does not come through [`turn`](Self::turn).
    pub(super) fn forget_turn(&mut self) {
        self.again = None;
    }

    /// Whether the choice waits for notifications that are out.
    #[inline]
    pub(super) fn awaits_answer(&mut self) -> bool {
        self.auto.as_mut().is_some_and(Auto::awaits_answer)
    }

    /// Asks the back end whether it still lends.
    pub(super) fn ask(&mut self, back: &AnyBackend) {
        self.cannot_lend = back.lends().err();
        if self.cannot_lend.is_some() {
            self.auto = None;
        }
    }

    /// From now on the kernel cuts payloads into datagrams of this many bytes.
    pub(super) fn set_segment_bytes(&mut self, socket: SocketKind, bytes: Option<u16>) {
        self.path = PathRoom::of(socket, bytes);
    }

    /// What was chosen for each class of lengths.
    pub(super) fn choices(&self) -> Vec<Choice> {
        self.auto.as_ref().map(Auto::choices).unwrap_or_default()
    }
}

impl PathRoom {
    fn of(socket: SocketKind, segment_bytes: Option<u16>) -> Option<Self> {
        let is_datagram = socket.kind == SocketFamily::Udp && segment_bytes.is_none();
        is_datagram.then_some(Self { bytes: usize::MAX, left: 0 })
    }

    /// Whether the kernel cuts a datagram of `len` bytes into fragments.
    #[inline]
    fn is_exceeded(&mut self, len: usize, back: &AnyBackend) -> bool {
        if self.left == 0 {
            let longest = segment::longest_segment(back.socket());
            *self = Self { bytes: longest.map_or(usize::MAX, usize::from), left: ASK_PATH_EVERY };
        }
        self.left -= 1;
        len > self.bytes
    }
}
