//! ioctl(2): each request that this crate makes, beside the type of its argument.
//!
//! The number of a request does not say what the kernel does with the argument: it may be an
//! address or a number, and what lies at the address may be longer than the number says. So a
//! request has one of four types here, and only this file makes them. Calls by these types are
//! safe.
//!
//! * [`TypedIoctl`]: the kernel reads or writes one value, and follows no address in it.
//! * [`NumberIoctl`]: the argument is a number.
//! * [`FdIoctl`]: the same, and a new descriptor comes back.
//! * [`EthtoolIoctl`]: a command of ethtool(8).
//!
//! Requests that have the kernel follow an address in the value are functions.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::map::Mapping;
use crate::netdevice::InterfaceRequest;
use crate::plain::{PlainData, plain};
use crate::syscall;

/// A request with the address of an `A`.
#[derive(Debug)]
pub(crate) struct TypedIoctl<A> {
    number: u32,
    argument: PhantomData<fn(A)>,
}

impl<A: PlainData> TypedIoctl<A> {
    const fn new(number: u32) -> Self {
        Self { number, argument: PhantomData }
    }

    /// Its number, for lists of requests that are allowed.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Makes the request; what the kernel left in the argument.
    #[inline]
    pub(crate) fn of(&self, fd: impl AsFd, mut argument: A) -> io::Result<A> {
        // SAFETY: a request of this type reads and writes one value and nothing else.
        unsafe { call(fd, self.number, &raw mut argument as usize) }.map(|_| argument)
    }
}

/// A request with a number, or with nothing (0).
#[derive(Debug)]
pub(crate) struct NumberIoctl(u32);

impl NumberIoctl {
    /// Its number, for lists of requests that are allowed.
    pub(crate) const fn number(&self) -> u32 {
        self.0
    }

    /// Makes the request. What the kernel returns.
    pub(crate) fn of(&self, fd: impl AsFd, argument: usize) -> io::Result<usize> {
        // SAFETY: a request of this type takes no address.
        unsafe { call(fd, self.0, argument) }
    }
}

/// A request with a number that makes a descriptor.
#[derive(Debug)]
pub(crate) struct FdIoctl(NumberIoctl);

impl FdIoctl {
    /// Makes the request.
    pub(crate) fn open(&self, fd: impl AsFd, argument: usize) -> io::Result<OwnedFd> {
        let made = self.0.of(fd, argument)?;
        // SAFETY: a request of this type makes a new descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
    }
}

/// A command of ethtool(8) on a structure of this many 32-bit words, the first of which it is.
#[derive(Debug)]
pub(crate) struct EthtoolIoctl<const WORDS: usize>(u32);

impl<const WORDS: usize> EthtoolIoctl<WORDS> {
    /// Asks about the interface that the request names. What the kernel answers.
    pub(crate) fn ask(&self, socket: impl AsFd, interface: InterfaceRequest) -> io::Result<[u32; WORDS]> {
        self.of(socket, interface, [0; WORDS])
    }

    /// The same with a question behind the first word.
    pub(crate) fn of(
        &self,
        socket: impl AsFd,
        interface: InterfaceRequest,
        mut words: [u32; WORDS],
    ) -> io::Result<[u32; WORDS]> {
        words[0] = self.0;
        // SAFETY: a command of this type reads and writes this many words.
        unsafe { ethtool(socket, interface, words.as_mut_ptr()) }.map(|()| words)
    }
}

// include/uapi/linux/sockios.h, un.h
pub(crate) const SIOCGIFMTU: TypedIoctl<InterfaceRequest> = TypedIoctl::new(libc::SIOCGIFMTU as u32);
pub(crate) const SIOCSIFMTU: TypedIoctl<InterfaceRequest> = TypedIoctl::new(libc::SIOCSIFMTU as u32);
pub(crate) const SIOCGIFFLAGS: TypedIoctl<InterfaceRequest> = TypedIoctl::new(libc::SIOCGIFFLAGS as u32);
pub(crate) const SIOCSIFFLAGS: TypedIoctl<InterfaceRequest> = TypedIoctl::new(libc::SIOCSIFFLAGS as u32);
pub(crate) const SIOCGIFHWADDR: TypedIoctl<InterfaceRequest> = TypedIoctl::new(libc::SIOCGIFHWADDR as u32);
/// SIOCOUTQ, which has this number.
pub(crate) const TIOCOUTQ: TypedIoctl<i32> = TypedIoctl::new(libc::TIOCOUTQ as u32);
pub(crate) const SIOCUNIXFILE: FdIoctl = FdIoctl(NumberIoctl(0x89e0));
const SIOCETHTOOL: u32 = 0x8946;

// include/uapi/linux/if_tun.h. The numbers of some have the length of an int and not of what they
// take (drivers/net/tun.c, `__tun_chr_ioctl`).
pub(crate) const TUNSETIFF: TypedIoctl<InterfaceRequest> = TypedIoctl::new(0x4004_54ca);
pub(crate) const TUNSETQUEUE: TypedIoctl<InterfaceRequest> = TypedIoctl::new(0x4004_54d9);
pub(crate) const TUNSETOFFLOAD: NumberIoctl = NumberIoctl(0x4004_54d0);
pub(crate) const TUNGETVNETHDRSZ: TypedIoctl<i32> = TypedIoctl::new(0x8004_54d7);
pub(crate) const TUNSETVNETHDRSZ: TypedIoctl<i32> = TypedIoctl::new(0x4004_54d8);

// include/uapi/linux/ethtool.h: `struct ethtool_drvinfo`, `ethtool_channels`, and `ethtool_rxnfc`
// with one location on 64-bit machines.
pub(crate) const ETHTOOL_GDRVINFO: EthtoolIoctl<49> = EthtoolIoctl(0x3);
pub(crate) const ETHTOOL_GCHANNELS: EthtoolIoctl<9> = EthtoolIoctl(0x3c);
pub(crate) const ETHTOOL_GRXCLSRLCNT: EthtoolIoctl<RULE_WORDS> = EthtoolIoctl(0x2e);
pub(crate) const ETHTOOL_GRXCLSRULE: EthtoolIoctl<RULE_WORDS> = EthtoolIoctl(0x2f);
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;

/// Words of `struct ethtool_rxnfc` with one location, and where the count and the locations lie in
/// it.
pub(crate) const RULE_WORDS: usize = 48;
pub(crate) const RULE_COUNT: usize = 46;
pub(crate) const RULE_LOCATIONS: usize = 47;

// include/uapi/linux/dma-buf.h: `struct dma_buf_sync`.
pub(crate) const DMA_BUF_IOCTL_SYNC: TypedIoctl<u64> = TypedIoctl::new(0x4008_6200);

// include/uapi/linux/userfaultfd.h. No byte of a range changes.
pub(crate) const UFFDIO_API: TypedIoctl<[u64; 3]> = TypedIoctl::new(0xc018_aa3f);
pub(crate) const UFFDIO_REGISTER: TypedIoctl<[u64; 4]> = TypedIoctl::new(0xc020_aa00);
pub(crate) const UFFDIO_UNREGISTER: TypedIoctl<[u64; 2]> = TypedIoctl::new(0x8010_aa01);
pub(crate) const USERFAULTFD_IOC_NEW: FdIoctl = FdIoctl(NumberIoctl(0xaa00));

// include/uapi/linux/kvm.h
pub(crate) const KVM_GET_API_VERSION: NumberIoctl = NumberIoctl(0xae00);
pub(crate) const KVM_CREATE_VM: FdIoctl = FdIoctl(NumberIoctl(0xae01));
pub(crate) const KVM_GET_VCPU_MMAP_SIZE: NumberIoctl = NumberIoctl(0xae04);
pub(crate) const KVM_CREATE_VCPU: FdIoctl = FdIoctl(NumberIoctl(0xae41));
pub(crate) const KVM_SET_TSS_ADDR: NumberIoctl = NumberIoctl(0xae47);
pub(crate) const KVM_RUN: NumberIoctl = NumberIoctl(0xae80);
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;

/// `PAGEMAP_SCAN` (include/uapi/linux/fs.h, since Linux 6.7).
pub(crate) const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// Locations of flow steering rules, as many as there is room for behind the head of the structure;
/// the kernel says how many there are.
pub(crate) fn rule_locations(
    socket: impl AsFd,
    interface: InterfaceRequest,
    room: usize,
) -> io::Result<Vec<u32>> {
    let mut words = vec![0; RULE_WORDS + room];
    (words[0], words[RULE_COUNT]) = (ETHTOOL_GRXCLSRLALL, room as u32);
    // SAFETY: the command reads and fills the structure and, behind it, at most as many locations
    // as its count says. There is room for those.
    unsafe { ethtool(socket, interface, words.as_mut_ptr()) }?;
    let listed = (words[RULE_COUNT] as usize).min(room);
    Ok(words[RULE_LOCATIONS..RULE_LOCATIONS + listed].to_vec())
}

plain! {
    /// `struct pm_scan_arg`.
    struct PageScan {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        vec: u64,
        vec_len: u64,
        max_pages: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }

    /// Addresses of pages that have the same categories (`struct page_region`).
    pub(crate) struct PageRegion {
        pub(crate) start: u64,
        pub(crate) end: u64,
        categories: u64,
    }
}

/// Asks a page table for pages of a range of addresses that have none of these categories. How many
/// of the regions it filled in, and how far it came.
pub(crate) fn scan_pages(
    pagemap: impl AsFd,
    range: Range<u64>,
    without: u64,
    regions: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let mut scan = PageScan {
        size: size_of::<PageScan>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        category_inverted: without,
        category_mask: without,
        return_mask: without,
        ..PageScan::default()
    };
    // SAFETY: the kernel reads and fills in the structure, and the regions that it names, which
    // live until it returns. Without flags it changes no page.
    let filled = unsafe { call(pagemap, PAGEMAP_SCAN, &raw mut scan as usize) }?;
    Ok((filled, scan.walk_end))
}

/// Gives a guest memory of this process, which stays mapped for good: the guest may change it at
/// any time.
pub(crate) fn set_guest_memory(
    vm: impl AsFd,
    slot: u64,
    guest_addr: u64,
    memory: &'static Mapping,
) -> io::Result<()> {
    // `struct kvm_userspace_memory_region`: the slot's number without flags, two addresses.
    let record: [u64; 4] = [slot, guest_addr, memory.len() as u64, memory.as_ptr() as u64];
    // SAFETY: the kernel reads the record. The memory is never unmapped, and nothing but atomics
    // accesses it: a `&Mapping` gives no reference to its bytes.
    unsafe { call(vm, KVM_SET_USER_MEMORY_REGION, record.as_ptr() as usize) }.map(drop)
}

/// # Safety
/// The words are as many as the command, the first of them, reads and writes. It follows no
/// address in them.
unsafe fn ethtool(socket: impl AsFd, mut interface: InterfaceRequest, words: *mut u32) -> io::Result<()> {
    interface.set(&(words as usize).to_ne_bytes());
    // SAFETY: the kernel reads the request, which names the words; the caller answers for those.
    unsafe { call(socket, SIOCETHTOOL, &raw mut interface as usize) }.map(drop)
}

/// # Safety
/// `argument` is what the request takes.
#[inline]
unsafe fn call(fd: impl AsFd, request: u32, argument: usize) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    // SAFETY: the caller's promise.
    unsafe { syscall::checked(libc::SYS_ioctl, [fd, request as usize, argument, 0, 0, 0]) }
}
