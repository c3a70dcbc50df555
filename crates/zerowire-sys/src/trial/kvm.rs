//! A guest of three instructions, to tell whether KVM runs guests. Some nested machines have a
//! /dev/kvm that opens, makes a guest, and only emulates a part of its instructions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::ioctl::{
    KVM_CREATE_VCPU, KVM_CREATE_VM, KVM_GET_API_VERSION, KVM_GET_VCPU_MMAP_SIZE, KVM_RUN, KVM_SET_TSS_ADDR,
    set_guest_memory,
};
use crate::map::Mapping;

/// Why a virtual CPU stopped that ran to the end of the guest (`KVM_EXIT_HLT`).
pub const HALTED: u32 = 5;

/// Where `struct kvm_run` says why the virtual CPU stopped, bytes.
const EXIT_REASON: usize = 8;

/// A processor begins at 0xfffffff0. There a far jump leads to 0xffff8, as that of a BIOS does, and
/// `fld1` and `hlt` follow. KVM's emulator doesn't know `fld1`.
const CODE: [[u8; 4]; 3] = [[0xea, 0xf8, 0xff, 0x00], [0xf0, 0, 0, 0], [0xd9, 0xe8, 0xf4, 0]];

/// Bytes of the guest's one page, where the code begins in it, and where the guest sees it.
const PAGE: usize = 4096;
const START: usize = 0xff0;
const PLACES: [u64; 2] = [0xf_f000, 0xffff_f000];

/// Three pages that a processor without "unrestricted guest" needs, where the guest has nothing.
const TSS: usize = 0xfffb_d000;

/// The page, made once and kept: whoever holds the guest's descriptors can run it again.
static MEMORY: OnceLock<Mapping> = OnceLock::new();

/// Version of the interface of an open /dev/kvm.
pub fn version(kvm: BorrowedFd<'_>) -> io::Result<i32> {
    KVM_GET_API_VERSION.of(kvm, 0).map(|version| version as i32)
}

/// Runs the guest. Returns why its virtual CPU stopped (`KVM_EXIT_…`): [`HALTED`] is as it should
/// be.
pub fn run_guest(kvm: BorrowedFd<'_>) -> io::Result<u32> {
    let page = super::map(PAGE, None)?;
    let memory = MEMORY.get_or_init(|| page);
    for (i, bytes) in CODE.into_iter().enumerate() {
        memory.word(START + 4 * i).store(u32::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let vm = KVM_CREATE_VM.open(kvm, 0)?;
    // Most processors don't need it.
    let _ = KVM_SET_TSS_ADDR.of(&vm, TSS);
    for (slot, guest_addr) in (0..).zip(PLACES) {
        set_guest_memory(&vm, slot, guest_addr, memory)?;
    }
    let vcpu = KVM_CREATE_VCPU.open(&vm, 0)?;
    let len = KVM_GET_VCPU_MMAP_SIZE.of(kvm, 0)?;
    let shared = super::map(len, Some(vcpu.as_fd()))?;
    while let Err(e) = KVM_RUN.of(&vcpu, 0) {
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    Ok(shared.word(EXIT_REASON).load(Ordering::Relaxed))
}
