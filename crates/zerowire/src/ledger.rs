//! The ledger: bytes and frames moved, copied in user space or not, and why.
//!
//! A counter block has exactly one writer (the thread that moves the bytes) and any number of
//! readers (statistics, tests). The writer therefore needs no atomic read-modify-write: a relaxed
//! load and a relaxed store are enough, and cost what a plain addition costs.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// An enum of reasons, each with the word that tables and JSON use.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident; $($(#[$doc:meta])* $reason:ident = $word:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum $name {
            $($(#[$doc])* $reason,)*
        }

        impl $name {
            /// Every reason, in the order of the tables.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$reason),*];

            /// The word that tables and JSON use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $word,)*
                }
            }
        }
    };
}

reasons! {
    /// Why bytes were copied: in user space, or by the kernel where the program asked it not to.
    CopyReason;

    /// The frame is so short that copying it is cheaper than a scatter list.
    Small = "small",
    /// The frame's segments are so small that gathering it is cheaper, or there are more of them
    /// than one system call takes.
    Scattered = "scattered",
    /// A header that is inspected: it is read once into private memory, and sent from there.
    Header = "header",
    /// A received frame was longer than the buffers that were offered for it; its tail came over
    /// scratch memory.
    Overflow = "overflow",
    /// The user asked for the copying path.
    Asked = "asked",
    /// The frame was for, or from, the metadata service inside the process.
    Metadata = "metadata",
    /// The receiver was not ready to take the bytes, so they waited in a buffer of the connection.
    /// Or the limit of lent memory was reached, so more had to be copied.
    Held = "held",
    /// From one guest's memory to another's: the one copy on that way.
    Sibling = "sibling",
    /// Into windows that the program has mapped: the one copy on that way.
    Window = "window",
    /// Parts of a message, put together in private memory since the other side takes whole ones
    /// only.
    Message = "message",
    /// The kernel said in its notification that it copied (a receiver on this machine, an interface
    /// without scatter and gather, a packet socket that listens).
    Kernel = "kernel",
    /// Lending was measured to cost more than copying for payloads of this length on this socket.
    Cheaper = "cheaper",
    /// The limit of locked memory (RLIMIT_MEMLOCK) or of notifications (net.core.optmem_max) was
    /// reached.
    Memlock = "memlock",
    /// This kind of socket, interface or kernel has no way to take lent memory.
    Unsupported = "unsupported",
    /// Built outside the ring or the area that the kernel sends from, and copied into it.
    Outside = "outside",
    /// A received frame came over private memory: the guest's buffers are shorter than the longest
    /// frame that could have come.
    SmallBuffer = "bounce_small_buffer",
    /// A received frame came over private memory: the guest's buffer lies in pieces.
    ScatteredBuffer = "bounce_scattered_buffer",
    /// A frame went over private memory. With the guest's own, a device that writes or reads it
    /// could have gone beyond the buffer, or not have reached all of it.
    UnsafeBuffer = "bounce_unsafe_buffer",
    /// A frame went over private memory: the guest's own lies beyond the part of it that may be
    /// pinned.
    NotPinned = "bounce_not_pinned",
    /// A driver put a received frame in the wrong place of the guest's buffer, so it was moved.
    Shifted = "bounce_shifted_frame",
    /// A received frame was put together in private memory. The kernel had its VLAN tag apart, or
    /// it came with an offload that the guest does not take.
    Rebuilt = "rebuilt",
    /// A received frame fits the buffers that it was read into, but came behind one that had to be
    /// copied: it moved up.
    Behind = "behind",
    /// A received frame came over private memory: the guest takes no checksums, so any frame may
    /// need to be rebuilt.
    NoChecksums = "no_checksums",
    /// Copied to measure whether lending costs less than copying: the trial is not over.
    Trial = "trial",
    /// Copied, since the kernel copied what was lent before it (see `Kernel`).
    KernelCopies = "kernel_copies",
    /// Another sender of this process lends on the same socket.
    SecondSender = "second_sender",
    /// The number that the kernel gives the next loan of this socket is unknown at the moment.
    /// Somebody else lent on it, or a call failed.
    Numbering = "numbering",
    /// A datagram longer than the path takes in one packet: the kernel copies each fragment, also
    /// of what is lent.
    Fragmented = "fragmented",
}

reasons! {
    /// Why a frame was dropped.
    DropReason;

    /// The virtio-net header's offload fields are wrong or were not negotiated.
    BadOffload = "bad_offload",
    /// The chain holds less than a virtio-net header and an Ethernet header.
    TooShort = "too_short",
    /// The frame is longer than the longest frame that can be carried.
    TooLong = "too_long",
    /// The guest has no room for a received frame of this length.
    NoRoom = "no_room",
    /// The port or the socket refused the frame (its queue or buffer is full, or the interface is
    /// down).
    PortRefused = "port_refused",
    /// A packet whose header breaks a rule: the chain is shorter than it says, a foreign CID, an
    /// unknown operation, type or flag.
    BadPacket = "bad_packet",
    /// A packet of no connection, or one that its connection can't take in its state.
    NoConnection = "no_connection",
    /// The sender went beyond the credit that it was given.
    BeyondCredit = "beyond_credit",
    /// A datagram that the kernel refused for good (a firewall, no route) when it had taken those
    /// behind it.
    SendFailed = "send_failed",
    /// The guest may not send frames with this source MAC address.
    GuardMac = "guard_mac",
    /// The guest may not send frames with, or without, this VLAN tag.
    GuardVlan = "guard_vlan",
    /// The guest may not send IP packets with this source address.
    GuardIp = "guard_ip",
    /// The guest may not send this ARP packet: its sender is somebody else.
    GuardArp = "guard_arp",
    /// The guest may not send this message of IPv6 neighbour discovery: it announces somebody else,
    /// or a router.
    GuardNd = "guard_nd",
    /// What a guard has to see lies behind the bytes that are read of a frame, or is hidden by how
    /// the frame is made.
    GuardUnseen = "guard_unseen",
    /// More frames to groups came than the guest takes.
    Storm = "storm",
}

const COPY_REASONS: usize = CopyReason::ALL.len();
const DROP_REASONS: usize = DropReason::ALL.len();

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the one thread that owns the block may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one direction of one queue moved. One writer, any number of readers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Frames delivered.
    pub frames: Counter,
    /// Frames of which no byte but inspected headers was copied.
    pub zero_copied_frames: Counter,
    /// Bytes that were not copied in user space.
    pub zero_copied_bytes: Counter,
    /// System calls that moved frames.
    pub system_calls: Counter,
    /// Notifications taken from the driver (kicks).
    pub kicks: Counter,
    /// Notifications given to the driver (calls).
    pub calls: Counter,
    copied: [Counter; COPY_REASONS],
    dropped: [Counter; DROP_REASONS],
}

impl Counters {
    /// Counts `bytes` copied in user space because of `reason`.
    #[inline]
    pub fn copied(&self, reason: CopyReason, bytes: u64) {
        self.copied[reason as usize].add(bytes);
    }

    /// Counts a dropped frame.
    #[inline]
    pub fn dropped(&self, reason: DropReason) {
        self.dropped[reason as usize].add(1);
    }

    /// Counts `frames` dropped frames.
    pub fn dropped_many(&self, reason: DropReason, frames: u64) {
        self.dropped[reason as usize].add(frames);
    }

    /// Frames and bytes delivered so far, virtio-net headers included.
    pub fn delivered(&self) -> (u64, u64) {
        let copied: u64 = self.copied.iter().map(Counter::get).sum();
        (self.frames.get(), self.zero_copied_bytes.get() + copied)
    }

    /// The values now. Counters that change meanwhile may be one frame apart.
    pub fn snapshot(&self) -> Totals {
        let copied = CopyReason::ALL.iter().map(|r| (r.name(), self.copied[*r as usize].get()));
        let dropped = DropReason::ALL.iter().map(|r| (r.name(), self.dropped[*r as usize].get()));
        let mut totals = Totals {
            frames: self.frames.get(),
            zero_copied_frames: self.zero_copied_frames.get(),
            zero_copied_bytes: self.zero_copied_bytes.get(),
            system_calls: self.system_calls.get(),
            kicks: self.kicks.get(),
            calls: self.calls.get(),
            copied_bytes: BTreeMap::new(),
            dropped_frames: BTreeMap::new(),
            bytes: 0,
        };
        // `collect` sorts first, by more code.
        totals.copied_bytes.extend(copied.filter(|(_, n)| *n > 0));
        totals.dropped_frames.extend(dropped.filter(|(_, n)| *n > 0));
        totals.bytes = totals.zero_copied_bytes + totals.copied_total();
        totals
    }
}

/// A readable copy of [`Counters`], or a sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Frames delivered.
    pub frames: u64,
    /// Bytes delivered: zero-copied and copied, virtio-net headers included.
    pub bytes: u64,
    /// Frames of which no byte but inspected headers was copied.
    pub zero_copied_frames: u64,
    /// Bytes that were not copied in user space.
    pub zero_copied_bytes: u64,
    /// Bytes copied in user space, by reason.
    pub copied_bytes: BTreeMap<&'static str, u64>,
    /// Frames dropped, by reason.
    pub dropped_frames: BTreeMap<&'static str, u64>,
    /// System calls that moved frames.
    pub system_calls: u64,
    /// Notifications taken from the driver.
    pub kicks: u64,
    /// Notifications given to the driver.
    pub calls: u64,
}

impl Totals {
    /// Adds `other` to this sum.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.zero_copied_frames += other.zero_copied_frames;
        self.zero_copied_bytes += other.zero_copied_bytes;
        self.system_calls += other.system_calls;
        self.kicks += other.kicks;
        self.calls += other.calls;
        for (sums, more) in
            [(&mut self.copied_bytes, &other.copied_bytes), (&mut self.dropped_frames, &other.dropped_frames)]
        {
            more.iter().for_each(|(reason, n)| *sums.entry(reason).or_default() += n);
        }
    }

    /// Bytes copied in user space for any reason.
    pub fn copied_total(&self) -> u64 {
        self.copied_bytes.values().sum()
    }

    /// Frames dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped_frames.values().sum()
    }
}

#[cfg(test)]
mod tests;
