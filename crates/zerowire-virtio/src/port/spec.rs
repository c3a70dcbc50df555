//! What a user asks for with `--port`, as text and as a value.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::tap::{MAX_QUEUES, TapSpec};

/// A port as the user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// `tap:NAME[,queues=N]`: a tap interface.
    Tap(TapSpec),
    /// `xdp:IF[,…]`: queues of any interface by AF_XDP, with the guest's memory as the UMEM.
    Xdp(XdpSpec),
    /// `packet:IF[,…]`: packet sockets on an interface.
    Packet(PacketSpec),
}

/// What may be asked of an AF_XDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpSpec {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// The first of its queues that is used, from 0.
    pub queue: u32,
    /// Queue pairs: queues `queue..queue + queues` of the interface.
    pub queues: usize,
    /// Whether the driver reads and writes guest memory itself.
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

/// How much of the guest's memory is registered as the interface's, which pins it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPin {
    /// All of it, or its rings don't start.
    #[default]
    All,
    /// What the VM's share of the [budget](crate::memory::PinBudget) allows; frames in the rest are
    /// copied.
    Partial,
    /// None: all frames are copied.
    Off,
}

/// Whether the guest is to see when the interface can't carry frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowLink {
    /// It does not.
    #[default]
    Ignore,
    /// The front end is disconnected while the interface is down or gone, which it takes for a link
    /// that is down.
    Follow,
}

impl FollowLink {
    fn parse(word: &str) -> Result<Self, String> {
        match word {
            "ignore" => Ok(Self::Ignore),
            "follow" => Ok(Self::Follow),
            other => Err(format!("link={other}: give follow or ignore")),
        }
    }

    /// The text on the command line; empty for the default.
    fn option(self) -> &'static str {
        match self {
            Self::Ignore => "",
            Self::Follow => ",link=follow",
        }
    }
}

/// Copy or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// Zero copy where the driver has it and it is safe for this guest, else copy; the log says
    /// why.
    #[default]
    Auto,
    /// The kernel copies each frame once.
    Copy,
    /// Zero copy, or an error that says why not.
    ZeroCopy,
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

/// What may be asked of a packet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSpec {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Whether frames of the guest go by a ring shared with the kernel.
    pub rings: PacketRings,
    /// Whether frames to the guest come by a ring shared with the kernel.
    pub receive: PacketReceive,
    /// Whether the guest sees the interface's state.
    pub link: FollowLink,
}

impl PacketSpec {
    /// All defaults.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            rings: PacketRings::default(),
            receive: PacketReceive::default(),
            link: FollowLink::default(),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("rings", "auto") => self.rings = PacketRings::Auto,
            ("rings", "on") => self.rings = PacketRings::On,
            ("rings", "off") => self.rings = PacketRings::Off,
            ("rings", other) => return Err(format!("rings={other}: give on, off or auto")),
            ("receive", "auto") => self.receive = PacketReceive::Auto,
            ("receive", "ring") => self.receive = PacketReceive::Ring,
            ("receive", "socket") => self.receive = PacketReceive::Socket,
            ("receive", other) => return Err(format!("receive={other}: give ring, socket or auto")),
            ("link", word) => self.link = FollowLink::parse(word)?,
            ("queues", "1") => {}
            ("queues", n) => {
                return Err(format!("queues={n}: a packet port has one queue pair; tap and xdp have more"));
            }
            _ => {
                return Err(format!(
                    "'{key}={value}' is not known, only rings=on|off|auto, receive=ring|socket|auto and link=follow|ignore"
                ));
            }
        }
        Ok(())
    }
}

/// Who copies a frame of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRings {
    /// This process, into a ring, where the interface's driver sends from that; the kernel
    /// elsewhere.
    #[default]
    Auto,
    /// This process, into a ring.
    On,
    /// The kernel.
    Off,
}

/// Where frames to the guest are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketReceive {
    /// The ring, and the socket where that can't be opened or stands still.
    #[default]
    Auto,
    /// A ring, opened again and again where that fails.
    Ring,
    /// The socket.
    Socket,
}

/// A port that can't be understood. The text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("port '{port}': {problem}")]
pub struct PortSpecError {
    /// The text that was given.
    pub port: String,
    /// What is wrong with it, and what to give.
    pub problem: String,
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

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("queue", n) => self.queue = n.parse().map_err(|_| format!("queue={n}: give a number from 0"))?,
            ("queues", n) => self.queues = queues(n)?,
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
}

impl PortSpec {
    /// Names of all options that ports have, whichever port takes them.
    pub const OPTIONS: &[&str] =
        &["queue", "queues", "mode", "match", "offloads", "promisc", "pin", "rings", "receive", "link"];

    /// Queue pairs of the device.
    pub fn queues(&self) -> usize {
        match self {
            Self::Tap(t) => t.queues,
            Self::Xdp(x) => x.queues,
            Self::Packet(_) => 1,
        }
    }

    /// Another number of queue pairs.
    ///
    /// # Errors
    /// A packet port has one.
    pub fn with_queues(mut self, n: usize) -> Result<Self, PortSpecError> {
        match &mut self {
            Self::Tap(t) => t.queues = n,
            Self::Xdp(x) => x.queues = n,
            Self::Packet(_) if n == 1 => {}
            Self::Packet(_) => {
                let problem = format!("queues={n}: a packet port has one queue pair");
                return Err(PortSpecError { port: self.to_string(), problem });
            }
        }
        Ok(self)
    }

    /// The interface that it names.
    pub fn interface(&self) -> &str {
        match self {
            Self::Tap(t) => &t.name,
            Self::Xdp(x) => &x.interface,
            Self::Packet(p) => &p.interface,
        }
    }

    /// The interface whose state the guest is to see, if it is.
    pub fn followed(&self) -> Option<&str> {
        match self {
            Self::Xdp(XdpSpec { link: FollowLink::Follow, .. })
            | Self::Packet(PacketSpec { link: FollowLink::Follow, .. }) => Some(self.interface()),
            _ => None,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let options = options(parts)?;
        match first.split_once(':') {
            Some((kind @ ("xdp" | "packet"), "")) => {
                Err(format!("the interface's name is missing: give {kind}:IF"))
            }
            Some(("tap", name)) => {
                let mut spec = TapSpec { name: name.to_owned(), queues: 1 };
                for option in options {
                    match option {
                        ("queues", n) => spec.queues = queues(n)?,
                        (key, value) => return Err(format!("'{key}={value}' is not known, only queues=N")),
                    }
                }
                Ok(Self::Tap(spec))
            }
            Some(("xdp", name)) => {
                let mut spec = XdpSpec::new(name);
                for (key, value) in options {
                    spec.set(key, value)?;
                }
                if (spec.mode, spec.filter != XdpMatch::All) == (XdpMode::ZeroCopy, true) {
                    return Err("mode=zerocopy and match=mac:… exclude each other: a device would write the host's frames to \
                                the guest's memory before anybody looks at their address; give match=all, or mode=copy"
                        .to_owned());
                }
                Ok(Self::Xdp(spec))
            }
            Some(("packet", name)) => {
                let mut spec = PacketSpec::new(name);
                for (key, value) in options {
                    spec.set(key, value)?;
                }
                Ok(Self::Packet(spec))
            }
            None if !first.is_empty() => {
                Err(format!("the kind is missing: give tap:{first}, packet:{first} or xdp:{first}"))
            }
            Some((kind, name)) if !name.is_empty() => {
                Err(format!("the kind '{kind}' is not known: give tap:{name}, packet:{name} or xdp:{name}"))
            }
            _ => {
                Err("give tap:NAME, packet:IF or xdp:IF ('zerowire net --help' has their options)".to_owned())
            }
        }
    }
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<Self, PortSpecError> {
        Self::parse(text).map_err(|problem| PortSpecError { port: text.to_owned(), problem })
    }
}

impl From<TapSpec> for PortSpec {
    fn from(spec: TapSpec) -> Self {
        Self::Tap(spec)
    }
}

impl fmt::Display for PortSpec {
    /// As it is given on the command line; what has its default is left out, but for the number of
    /// queues.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(t) => write!(f, "tap:{},queues={}", t.name, t.queues),
            Self::Packet(p) => {
                write!(f, "packet:{}", p.interface)?;
                match p.rings {
                    PacketRings::Auto => {}
                    PacketRings::On => f.write_str(",rings=on")?,
                    PacketRings::Off => f.write_str(",rings=off")?,
                }
                match p.receive {
                    PacketReceive::Auto => {}
                    PacketReceive::Ring => f.write_str(",receive=ring")?,
                    PacketReceive::Socket => f.write_str(",receive=socket")?,
                }
                f.write_str(p.link.option())
            }
            Self::Xdp(x) => {
                write!(f, "xdp:{},queue={},queues={}", x.interface, x.queue, x.queues)?;
                match x.mode {
                    XdpMode::Auto => {}
                    XdpMode::Copy => f.write_str(",mode=copy")?,
                    XdpMode::ZeroCopy => f.write_str(",mode=zerocopy")?,
                }
                match x.filter {
                    XdpMatch::All => {}
                    XdpMatch::Mac([a, b, c, d, e, g]) => {
                        write!(f, ",match=mac:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
                    }
                }
                match x.offloads {
                    None => {}
                    Some(true) => f.write_str(",offloads=on")?,
                    Some(false) => f.write_str(",offloads=off")?,
                }
                if !x.promiscuous {
                    f.write_str(",promisc=off")?;
                }
                match x.pin {
                    XdpPin::All => {}
                    XdpPin::Partial => f.write_str(",pin=partial")?,
                    XdpPin::Off => f.write_str(",pin=off")?,
                }
                f.write_str(x.link.option())
            }
        }
    }
}

/// Each option once: of two values one would be passed over.
fn options<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("'{part}' is not KEY=VALUE"))?;
        if let Some((_, before)) = options.iter().find(|(k, _)| *k == key) {
            return Err(format!("{key}={before} and {key}={value}: give '{key}' once"));
        }
        options.push((key, value));
    }
    Ok(options)
}

fn queues(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_QUEUES) => Ok(n),
        _ => Err(format!("queues={text}: a device has 1 to {MAX_QUEUES} queue pairs")),
    }
}

/// Six bytes in hexadecimal, with colons between them.
pub(crate) fn six_bytes(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| p.len() <= 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests;
