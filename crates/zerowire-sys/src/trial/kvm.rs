//! A guest of three instructions, to tell whether KVM runs guests. Some nested machines have a
//! /dev/kvm that opens, makes a guest, and only emulates a part of its instructions.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::check;

// include/uapi/linux/kvm.h
const GET_API_VERSION: libc::Ioctl = 0xae00;
const CREATE_VM: libc::Ioctl = 0xae01;
const GET_VCPU_MMAP_SIZE: libc::Ioctl = 0xae04;
const CREATE_VCPU: libc::Ioctl = 0xae41;
const SET_USER_MEMORY_REGION: libc::Ioctl = 0x4020_ae46;
const SET_TSS_ADDR: libc::Ioctl = 0xae47;
const RUN: libc::Ioctl = 0xae80;

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
const TSS: libc::c_ulong = 0xfffb_d000;

/// Version of the interface of an open /dev/kvm.
pub fn version(kvm: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    number(kvm, GET_API_VERSION, 0)
}

/// Runs the guest. Returns why its virtual CPU stopped (`KVM_EXIT_…`): [`HALTED`] is as it should
/// be.
pub fn run_guest(kvm: BorrowedFd<'_>) -> io::Result<u32> {
    let memory = super::map(PAGE, None)?;
    for (i, bytes) in CODE.into_iter().enumerate() {
        memory.word(START + 4 * i).store(u32::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let vm = descriptor(kvm, CREATE_VM)?;
    // Most processors don't need it.
    let _ = number(vm.as_fd(), SET_TSS_ADDR, TSS);
    for (slot, guest_addr) in (0..).zip(PLACES) {
        // `struct kvm_userspace_memory_region`: the slot's number without flags, two addresses.
        let record: [u64; 4] = [slot, guest_addr, PAGE as u64, memory.as_ptr() as u64];
        // SAFETY: the request reads the record. The page that it names outlives the guest, and its
        // bytes are accessed by atomics alone.
        check(unsafe { libc::ioctl(vm.as_raw_fd(), SET_USER_MEMORY_REGION, record.as_ptr()) })?;
    }
    let vcpu = descriptor(vm.as_fd(), CREATE_VCPU)?;
    let len = number(kvm, GET_VCPU_MMAP_SIZE, 0)?;
    let shared = super::map(usize::try_from(len).unwrap_or(PAGE), Some(vcpu.as_fd()))?;
    while let Err(e) = number(vcpu.as_fd(), RUN, 0) {
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    Ok(shared.word(EXIT_REASON).load(Ordering::Relaxed))
}

/// A request whose argument is a number.
fn number(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests of this file that come here take no address of this process's.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

/// A request that makes a descriptor.
fn descriptor(fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<OwnedFd> {
    let made = number(fd, request, 0)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
