//! Opens a ring and reports its properties.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use zerowire_sys::packet::{Geometry, TransmitRing, Version, end_transmit_ring, set_transmit_ring};
use zerowire_sys::socket::ask_send_buffer;

use super::super::error::OpenError;
use super::super::link::{self, PacketLink};
use super::super::options::PacketOptions;
use super::super::wait::Waiter;
use super::PacketRing;
use super::slots::RingSlots;

/// Bytes that the kernel counts for a frame in flight besides its data (struct sk_buff and the head
/// of the frame).
const OVERHEAD_BYTES: usize = 2048;

/// Lets all frames of a ring be in flight: they bound that, not the socket's buffer.
fn make_room(socket: BorrowedFd<'_>, geometry: &Geometry) {
    let bytes = geometry.slots().saturating_mul(geometry.slot_bytes() + OVERHEAD_BYTES);
    ask_send_buffer(socket, bytes.min(1 << 30));
}

impl PacketRing {
    /// Opens a ring on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`OpenError`] per cause: no CAP_NET_RAW, no such interface, options out of bounds, no
    /// memory, no ring.
    pub fn open(interface: &str, options: &PacketOptions) -> Result<Self, OpenError> {
        let not_tried = || io::Error::other("not tried");
        let (mut v3, mut v2) = (not_tried(), not_tried());
        let versions: &[Version] = match &options.version {
            Some(version) => std::slice::from_ref(version),
            None => &[Version::V3, Version::V2],
        };
        for &version in versions {
            let link = PacketLink::new(interface, options)?;
            let geometry = Geometry::new(options.slots, options.data_bytes(link.mtu)?, version)?;
            match set_transmit_ring(link.fd(), &geometry) {
                Ok(()) => {
                    link.bind()?;
                    make_room(link.fd(), &geometry);
                    return Self::start(link, geometry, options);
                }
                Err(cause) if cause.raw_os_error() == Some(libc::ENOMEM) => {
                    return Err(OpenError::NoMemory { bytes: geometry.total_bytes(), cause });
                }
                Err(cause) if version == Version::V3 => v3 = cause,
                Err(cause) => v2 = cause,
            }
        }
        Err(OpenError::NoRing { v3, v2 })
    }

    /// Gives a packet socket a ring for a process that [goes on](Self::take_over) with it. One that
    /// it has ends. The socket's owner binds it, and has it not block.
    ///
    /// # Errors
    /// [`OpenError::Busy`] while a process has the ring mapped, or the kernel has frames of it.
    /// Otherwise as [`open`](Self::open).
    pub fn set_up(socket: BorrowedFd<'_>, options: &PacketOptions) -> Result<(), OpenError> {
        Self::remove(socket)?;
        let geometry = options.geometry()?;
        link::configure(socket, options)?;
        set_transmit_ring(socket, &geometry).map_err(|cause| match cause.raw_os_error() {
            Some(libc::ENOMEM) => OpenError::NoMemory { bytes: geometry.total_bytes(), cause },
            _ => OpenError::Option { option: "PACKET_TX_RING", cause },
        })?;
        make_room(socket, &geometry);
        Ok(())
    }

    /// Takes the ring of a socket away that was [set up](Self::set_up), if it has one.
    ///
    /// # Errors
    /// [`OpenError::Busy`]
    pub fn remove(socket: BorrowedFd<'_>) -> Result<(), OpenError> {
        end_transmit_ring(socket).map_err(|cause| OpenError::Busy { cause })
    }

    /// Goes on with a socket whose ring another process has [set up](Self::set_up) with the same
    /// options, and that it has bound to `interface`, which has the number `index`. Its system
    /// calls name no interface.
    ///
    /// # Errors
    /// [`OpenError::NoInterface`]; [`OpenError::System`] if the ring can't be mapped.
    ///
    /// # Safety
    /// Nobody else maps the ring, or sends on the socket, as long as this lives.
    pub unsafe fn take_over(
        socket: Arc<OwnedFd>,
        interface: &str,
        index: u32,
        options: &PacketOptions,
    ) -> Result<Self, OpenError> {
        let link = PacketLink::take_over(socket, interface, index, options)?;
        Self::start(link, options.geometry()?, options)
    }

    fn start(link: PacketLink, geometry: Geometry, options: &PacketOptions) -> Result<Self, OpenError> {
        let failed = |call| OpenError::system(&link.interface, call);
        let memory = TransmitRing::map(link.fd(), geometry).map_err(failed("mmap of the ring"))?;
        let waiter = Waiter::new().map_err(failed("epoll"))?;
        Ok(Self {
            slots: RingSlots::new(memory, options),
            waiter,
            link,
            bypass_queue: options.bypass_queue,
            skip_refused: options.skip_refused,
            lost_bytes: 0,
        })
    }

    /// Slots of the ring, as many as were asked for.
    pub fn slots(&self) -> usize {
        self.slots.order.len()
    }

    /// Frames that were pushed and that the kernel has not taken yet.
    pub fn waiting(&self) -> usize {
        self.slots.order.unsent()
    }

    /// Bytes of the longest frame that a slot holds. The MTU may allow less, except for frames that
    /// the kernel cuts ([`PacketRing::push_offload`]).
    pub fn slot_frame_bytes(&self) -> usize {
        self.slots.frame_bytes()
    }

    /// The layout in use.
    pub fn version(&self) -> Version {
        self.slots.memory.geometry().version()
    }

    /// What runs, for people.
    pub fn path(&self) -> String {
        let geometry = self.slots.memory.geometry();
        format!(
            "{} ring of {} slots of {} bytes on {}{}{}{}",
            geometry.version().name(),
            geometry.slots(),
            geometry.slot_bytes(),
            self.link.interface,
            match (self.slots.copy_up_to, self.link.offload) {
                (0, false) => String::new(),
                (0, true) => ", offload".to_owned(),
                (n, false) => format!(", copied up to {n} bytes"),
                (n, true) => format!(", offload, copied up to {n} bytes"),
            },
            if self.bypass_queue { ", past the queue" } else { "" },
            if self.skip_refused { ", refused frames skipped" } else { "" },
        )
    }

    /// With the option `skip_refused`: bytes of frames that the kernel skipped.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }
}
