//! The instructions of the program (Documentation/bpf/standardization/instruction-set.rst).

use super::RULE_LIMIT;

/// Offsets in `struct xdp_md` (include/uapi/linux/bpf.h).
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

/// Offsets in a rule, see [`super::Rule`].
const MAC: i16 = 0;
const ANY: i16 = 6;
const DROPPED: i16 = 16;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

/// Numbers of helpers (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const GET_BUFF_LEN: i32 = 188;

// Opcodes.
const LOAD_8: u8 = 0x71;
const LOAD_16: u8 = 0x69;
const LOAD_32: u8 = 0x61;
const STORE_32: u8 = 0x63;
const ATOMIC_64: u8 = 0xdb;
const LOAD_NUMBER_64: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_NUMBER: u8 = 0xb7;
const ADD_NUMBER: u8 = 0x07;
const JUMP_EQUAL_NUMBER: u8 = 0x15;
const JUMP_NOT_EQUAL_NUMBER: u8 = 0x55;
const JUMP_SET_NUMBER: u8 = 0x45;
const JUMP_NOT_EQUAL: u8 = 0x5d;
const JUMP_GREATER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The number is the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;

/// Where the queue's number lies in the stack.
const KEY: i16 = -4;
/// The stack.
const FRAME: u8 = 10;

/// A place that is jumped to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Length,
    Pass,
    Drop,
}

/// Instructions, and the jumps among them whose distance is not known yet.
#[derive(Default)]
struct Assembler {
    code: Vec<[u8; 8]>,
    jumps: Vec<(usize, To)>,
    places: Vec<(To, usize)>,
}

impl Assembler {
    /// Opcode, destination and source register, offset, number.
    fn add(&mut self, opcode: u8, to: u8, from: u8, offset: i16, number: i32) {
        let [o0, o1] = offset.to_ne_bytes();
        let [n0, n1, n2, n3] = number.to_ne_bytes();
        let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
        self.code.push([opcode, registers, o0, o1, n0, n1, n2, n3]);
    }

    fn jump(&mut self, opcode: u8, a: u8, b: u8, number: i32, to: To) {
        self.jumps.push((self.code.len(), to));
        self.add(opcode, a, b, 0, number);
    }

    fn place(&mut self, here: To) {
        self.places.push((here, self.code.len()));
    }

    fn map(&mut self, register: u8, map: i32) {
        self.add(LOAD_NUMBER_64, register, PSEUDO_MAP_FD, 0, map);
        // The upper half of the number.
        self.add(0, 0, 0, 0, 0);
    }

    /// Register 0 becomes the address of what a map has for the queue, or 0.
    fn lookup(&mut self, map: i32) {
        self.map(1, map);
        self.add(MOVE, 2, FRAME, 0, 0);
        self.add(ADD_NUMBER, 2, 0, 0, KEY.into());
        self.add(CALL, 0, 0, 0, MAP_LOOKUP);
    }

    fn answer(&mut self, answer: i32) {
        self.add(MOVE_NUMBER, 0, 0, 0, answer);
        self.add(EXIT, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<[u8; 8]> {
        for (at, to) in self.jumps {
            let place = self.places.iter().find(|(p, _)| *p == to).map_or(at, |(_, n)| *n);
            // Counted from the instruction behind the jump.
            let distance = place as i16 - at as i16 - 1;
            self.code[at][2..4].copy_from_slice(&distance.to_ne_bytes());
        }
        self.code
    }
}

/// The program, in words in [`super`]. `measures`: with the check of the length, for which the
/// kernel has to have `bpf_xdp_get_buff_len` (since Linux 5.18).
pub(super) fn code(sockets: i32, rules: i32, measures: bool) -> Vec<[u8; 8]> {
    let mut a = Assembler::default();
    // r6: the context, r7: the queue, r8: its rule.
    a.add(MOVE, 6, 1, 0, 0);
    a.add(LOAD_32, 7, 6, RX_QUEUE_INDEX, 0);
    a.add(STORE_32, FRAME, 7, KEY, 0);
    a.lookup(sockets);
    a.jump(JUMP_EQUAL_NUMBER, 0, 0, 0, To::Pass);
    a.lookup(rules);
    a.jump(JUMP_EQUAL_NUMBER, 0, 0, 0, To::Pass);
    a.add(MOVE, 8, 0, 0, 0);
    a.add(LOAD_8, 1, 8, ANY, 0);
    a.jump(JUMP_NOT_EQUAL_NUMBER, 1, 0, 0, To::Length);

    // The destination address: the first six bytes of the frame, which are in its first buffer.
    a.add(LOAD_32, 2, 6, DATA, 0);
    a.add(LOAD_32, 3, 6, DATA_END, 0);
    a.add(MOVE, 4, 2, 0, 0);
    a.add(ADD_NUMBER, 4, 0, 0, 14);
    a.jump(JUMP_GREATER, 4, 3, 0, To::Pass);
    // Bit 0 of the first byte: a group, to which broadcast belongs.
    a.add(LOAD_8, 4, 2, 0, 0);
    a.jump(JUMP_SET_NUMBER, 4, 0, 1, To::Length);
    for (load, offset) in [(LOAD_32, 0), (LOAD_16, 4)] {
        a.add(load, 4, 2, offset, 0);
        a.add(load, 5, 8, MAC + offset, 0);
        a.jump(JUMP_NOT_EQUAL, 4, 5, 0, To::Pass);
    }

    a.place(To::Length);
    if measures {
        a.add(MOVE, 1, 6, 0, 0);
        a.add(CALL, 0, 0, 0, GET_BUFF_LEN);
        a.add(LOAD_32, 1, 8, RULE_LIMIT, 0);
        a.jump(JUMP_GREATER, 0, 1, 0, To::Drop);
    }
    a.map(1, sockets);
    a.add(MOVE, 2, 7, 0, 0);
    a.add(MOVE_NUMBER, 3, 0, 0, XDP_PASS);
    a.add(CALL, 0, 0, 0, REDIRECT_MAP);
    a.add(EXIT, 0, 0, 0, 0);

    a.place(To::Pass);
    a.answer(XDP_PASS);
    if measures {
        a.place(To::Drop);
        a.add(MOVE_NUMBER, 1, 0, 0, 1);
        a.add(ATOMIC_64, 8, 1, DROPPED, 0);
        a.answer(XDP_DROP);
    }
    a.finish()
}
