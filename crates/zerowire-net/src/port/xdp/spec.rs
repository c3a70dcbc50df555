//! What a user asks for with `--port xdp:…`.

use std::fmt;

use zerowire_sys::allowed::AllowedCall;

use super::{KERNEL_COPIES, SYSTEM_CALLS, XdpMode, XdpPort, XdpQueues, kept};
use crate::config::{MacAddress, six_bytes};
use crate::port::spec::{FollowLink, Spec, queue_pairs};
use crate::port::{KeptPort, OpenPort, PortError, PortParts};

/// What may be asked of an AF_XDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpSpec {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// The first of its queues that is used, from 0.
    pub queue: u32,
    /// Queue pairs: queues `queue..queue + queues` of the interface.
    pub queues: usize,
    /// Whether the driver reads and writes guest memory itself. Auto: where it has that mode and it
    /// is safe for this guest; the log says why not.
    pub mode: XdpMode,
    /// Which received frames go to the guest.
    pub filter: XdpMatch,
    /// Whether the guest may leave checksums and segments to this process, which does them in
    /// software. None: as [`Self::does_offloads`] says.
    pub offloads: Option<bool>,
    /// Whether the interface takes frames for any address while a guest runs.
    pub promiscuous: bool,
    /// How much of the guest's memory is registered.
    pub pin: XdpPin,
    /// Whether the guest sees the interface's state.
    pub link: FollowLink,
}

impl XdpSpec {
    /// All defaults: queue 0 only, mode auto, all frames.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: 0,
            queues: 1,
            mode: XdpMode::default(),
            filter: XdpMatch::default(),
            offloads: None,
            promiscuous: true,
            pin: XdpPin::default(),
            link: FollowLink::default(),
        }
    }

    zerowire_wire::setters! {
        queue: u32,
        queues: usize,
        mode: XdpMode,
        filter: XdpMatch,
        offloads: Option<bool>,
        promiscuous: bool,
        pin: XdpPin,
        link: FollowLink,
    }

    /// Whether checksums and segments are done in software, as the user wants it or by default. In
    /// copy mode that costs less than it spares the guest (measured: docs/xdp.md). It isn't the
    /// default where the interface's driver has a zero-copy mode that may be used. Frames could not
    /// go out from where they lie any more.
    pub fn does_offloads(&self, driver_has_zero_copy: bool) -> bool {
        self.offloads.unwrap_or(match (self.mode, self.filter) {
            (XdpMode::Copy, _) | (XdpMode::Auto, XdpMatch::Mac(_)) => true,
            (XdpMode::Auto, XdpMatch::All) => !driver_has_zero_copy,
            (XdpMode::ZeroCopy, _) => false,
        })
    }
}

/// How much of the guest's memory is registered as the interface's, which pins it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPin {
    /// All of it, or its rings don't start.
    #[default]
    All,
    /// What the VM's share of the [budget](zerowire_vhost::memory::PinBudget) allows; frames in the
    /// rest are copied.
    Partial,
    /// None: all frames are copied.
    Off,
}

/// Which received frames go to the guest; the others go to the host as if nobody had asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMatch {
    /// All frames of the queues.
    #[default]
    All,
    /// Those to this address, to a group, or to everybody.
    Mac([u8; 6]),
}

impl XdpMatch {
    pub(super) fn address(self) -> Option<[u8; 6]> {
        match self {
            Self::All => None,
            Self::Mac(address) => Some(address),
        }
    }
}

impl Spec for XdpSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("queue", n) => self.queue = n.parse().map_err(|_| format!("queue={n}: give a number from 0"))?,
            ("queues", n) => self.queues = queue_pairs(n)?,
            ("mode", "auto") => self.mode = XdpMode::Auto,
            ("mode", "copy") => self.mode = XdpMode::Copy,
            ("mode", "zerocopy") => self.mode = XdpMode::ZeroCopy,
            ("mode", other) => return Err(format!("mode={other}: give zerocopy, copy or auto")),
            ("offloads", "on") => self.offloads = Some(true),
            ("offloads", "off") => self.offloads = Some(false),
            ("offloads", other) => return Err(format!("offloads={other}: give on or off")),
            ("promisc", "on") => self.promiscuous = true,
            ("promisc", "off") => self.promiscuous = false,
            ("promisc", other) => return Err(format!("promisc={other}: give on or off")),
            ("pin", "all") => self.pin = XdpPin::All,
            ("pin", "partial") => self.pin = XdpPin::Partial,
            ("pin", "off") => self.pin = XdpPin::Off,
            ("pin", other) => return Err(format!("pin={other}: give all, partial or off")),
            ("link", word) => self.link = FollowLink::parse(word)?,
            ("match", "all") => self.filter = XdpMatch::All,
            ("match", other) => {
                let mac = other.strip_prefix("mac:").and_then(six_bytes);
                self.filter = XdpMatch::Mac(mac.ok_or_else(|| {
                    format!("match={other}: give all, or mac: and six bytes as 02:00:00:00:00:01")
                })?);
            }
            _ => {
                return Err(format!(
                    "'{key}={value}' is not known, only queue=N, queues=N, mode=zerocopy|copy|auto, \
                     match=mac:…|all, offloads=on|off, promisc=on|off, pin=all|partial|off and link=follow|ignore"
                ));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let (queue, queues) = (self.queue, queue_pairs(&self.queues.to_string())?);
        if queue.checked_add(queues as u32 - 1).is_none() {
            let most = u32::MAX;
            return Err(format!("queue={queue} and queues={queues}: queues have the numbers 0 to {most}"));
        }
        if (self.mode, self.filter != XdpMatch::All) == (XdpMode::ZeroCopy, true) {
            return Err("mode=zerocopy and match=mac:… exclude each other: a device would write the host's frames to \
                        the guest's memory before anybody looks at their address; give match=all, or mode=copy"
                .to_owned());
        }
        Ok(())
    }

    fn interface(&self) -> &str {
        &self.interface
    }

    fn queues(&self) -> usize {
        self.queues
    }

    fn link(&self) -> Option<FollowLink> {
        Some(self.link)
    }

    fn sole(&self) -> Vec<String> {
        (0..self.queues as u64)
            .map(|i| format!("queue {} of interface {}", u64::from(self.queue) + i, self.interface))
            .collect()
    }

    fn takes_interface(&self) -> bool {
        true
    }

    fn pins(&self) -> bool {
        self.pin != XdpPin::Off
    }

    fn pins_in_part(&self) -> bool {
        self.pin == XdpPin::Partial
    }

    fn open(&self) -> Result<OpenPort, PortError> {
        XdpPort::open(self)
    }

    fn keep(&self) -> Result<Box<dyn KeptPort>, PortError> {
        Ok(Box::new(XdpQueues::open(self)?))
    }

    fn take_over(&self, parts: PortParts<'_>) -> Result<OpenPort, String> {
        kept::take_over(self, parts)
    }

    fn kernel_copies(&self) -> &'static str {
        KERNEL_COPIES
    }

    fn system_calls(&self) -> &'static [&'static [AllowedCall]] {
        SYSTEM_CALLS
    }
}

impl fmt::Display for XdpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp:{},queue={},queues={}", self.interface, self.queue, self.queues)?;
        match self.mode {
            XdpMode::Auto => {}
            XdpMode::Copy => f.write_str(",mode=copy")?,
            XdpMode::ZeroCopy => f.write_str(",mode=zerocopy")?,
        }
        if let XdpMatch::Mac(address) = self.filter {
            write!(f, ",match=mac:{}", MacAddress(address))?;
        }
        match self.offloads {
            None => {}
            Some(true) => f.write_str(",offloads=on")?,
            Some(false) => f.write_str(",offloads=off")?,
        }
        if !self.promiscuous {
            f.write_str(",promisc=off")?;
        }
        match self.pin {
            XdpPin::All => {}
            XdpPin::Partial => f.write_str(",pin=partial")?,
            XdpPin::Off => f.write_str(",pin=off")?,
        }
        f.write_str(self.link.option())
    }
}
