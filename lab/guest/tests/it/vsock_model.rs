//! Two stacks against each other in every order of sending, carrying and reading. Each byte arrives
//! once and in order, each message whole. Neither side ever sees a rule broken (the stacks check
//! that).

use std::collections::VecDeque;

use crate::support::vsock::{B, Bench};
use proptest::prelude::*;
use zerowire_guest::vsock::{
    ConnId, ConnState, Layout, Received, SHUTDOWN_SEND, SocketType, StackOptions, VsockOptions,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { side: usize, len: usize },
    Recv { side: usize, max: usize },
    Carry { side: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2usize, 0..3000usize).prop_map(|(side, len)| Step::Send { side, len }),
        (0..2usize, 1..3000usize).prop_map(|(side, max)| Step::Recv { side, max }),
        (0..2usize).prop_map(|side| Step::Carry { side }),
    ];
    prop::collection::vec(step, 0..150)
}

/// What was sent from each side and not yet received.
#[derive(Default)]
struct Model {
    bytes: [VecDeque<u8>; 2],
    messages: [VecDeque<usize>; 2],
    next: u8,
}

struct Play {
    bench: Bench,
    conns: [ConnId; 2],
    kind: SocketType,
    model: Model,
}

impl Play {
    fn new(kind: SocketType, buf_alloc: [u32; 2], ask_credit: bool, options: &VsockOptions) -> Play {
        let stack = |buf_alloc| StackOptions { buf_alloc, ask_credit, ..StackOptions::default() };
        let mut bench = Bench::new(options, buf_alloc.map(stack));
        bench.stacks[1].listen(80, kind);
        let ours = bench.stacks[0].connect(B, 80, kind).unwrap();
        assert!(bench.carry(0) && bench.carry(1));
        let theirs = bench.stacks[1].accept(80).expect("a connection");
        assert_eq!(bench.stacks[0].state(ours), ConnState::Established);
        Play { bench, conns: [ours, theirs], kind, model: Model::default() }
    }

    fn send(&mut self, side: usize, len: usize, capacity: usize) {
        let len = if self.kind == SocketType::SeqPacket { len.min(capacity) } else { len };
        let first = self.model.next;
        let bytes: Vec<u8> = (0..len).map(|at| first.wrapping_add(at as u8)).collect();
        let stack = &mut self.bench.stacks[side];
        let sent = match self.kind {
            SocketType::Stream => stack.send(self.conns[side], &bytes).unwrap(),
            SocketType::SeqPacket if stack.send_message(self.conns[side], &bytes, false).unwrap() => {
                self.model.messages[side].push_back(len);
                len
            }
            SocketType::SeqPacket => 0,
        };
        self.model.bytes[side].extend(&bytes[..sent]);
        self.model.next = first.wrapping_add(sent as u8);
    }

    fn recv(&mut self, side: usize, max: usize) -> Received {
        let mut bytes = Vec::new();
        let received = self.bench.stacks[side].recv_up_to(self.conns[side], &mut bytes, max).unwrap();
        if let Received::Data(len) = received {
            assert_eq!(len, bytes.len());
            if self.kind == SocketType::SeqPacket {
                assert_eq!(self.model.messages[1 - side].pop_front(), Some(len));
            }
            let expected: Vec<u8> = self.model.bytes[1 - side].drain(..len).collect();
            assert_eq!(bytes, expected);
        }
        received
    }

    /// Carries and reads until nothing moves any more; both sides must have
    /// ended.
    fn finish(mut self) {
        for side in [0, 1] {
            self.bench.stacks[side].shutdown(self.conns[side], SHUTDOWN_SEND).unwrap();
        }
        let mut quiet = 0;
        let mut ends = [false; 2];
        while quiet < 3 {
            quiet += 1;
            for side in [0, 1] {
                if self.bench.carry(side) {
                    quiet = 0;
                }
                match self.recv(side, usize::MAX) {
                    Received::Data(_) | Received::Record(_) => quiet = 0,
                    Received::Empty => {}
                    Received::End => ends[side] = true,
                }
            }
        }
        assert_eq!(ends, [true; 2], "stuck");
        assert!(self.model.bytes.iter().all(VecDeque::is_empty), "lost");
        assert!(self.model.messages.iter().all(VecDeque::is_empty), "lost");
        for side in [0, 1] {
            let counters = self.bench.stacks[side].counters();
            assert_eq!((counters.stray, counters.stray_resets), (0, 0));
            self.bench.stacks[side].close(self.conns[side]).unwrap();
        }
        while self.bench.carry(0) || self.bench.carry(1) {}
        assert_eq!(self.bench.stacks.each_ref().map(|stack| stack.connections()), [0, 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn everything_arrives_in_any_order_of_steps(
        steps in steps(),
        seqpacket: bool,
        buf_alloc in [1..5000u32, 1..5000u32],
        ask_credit: bool,
        small_queue: bool,
        pieces: bool,
    ) {
        let kind = if seqpacket { SocketType::SeqPacket } else { SocketType::Stream };
        let options = VsockOptions {
            queue_size: if small_queue { 32 } else { 128 },
            layout: if pieces { Layout::Pieces(2200) } else { Layout::Single },
            rx_buffer_len: 1500,
            tx_slots: 4,
            ..VsockOptions::default()
        };
        let options = if small_queue { VsockOptions { layout: Layout::Split, ..options } } else { options };
        let mut play = Play::new(kind, buf_alloc, ask_credit, &options);
        for step in steps {
            match step {
                Step::Send { side, len } => play.send(side, len, buf_alloc[1 - side] as usize),
                Step::Recv { side, max } => drop(play.recv(side, max)),
                Step::Carry { side } => drop(play.bench.carry(side)),
            }
        }
        play.finish();
    }
}
