//! What a user asks for with `--port`, as text and as a value.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::tap::{MAX_QUEUES, TapSpec};

/// A port as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// `tap:NAME[,queues=N]`: a tap interface.
    Tap(TapSpec),
    /// `xdp:IF[,…]`: queues of any interface by AF_XDP, with the guest's memory as the UMEM.
    Xdp(XdpSpec),
    /// `packet:IF[,rings=on|off|auto]`: packet sockets on an interface.
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
    /// Whether the guest may leave checksums and segments to this process, which does them in software.
    /// None: as [`Self::does_offloads`] says.
    pub offloads: Option<bool>,
    /// Whether the interface takes frames for any address while a guest runs.
    pub promiscuous: bool,
    /// Whether the guest sees the interface's state.
    pub link: FollowLink,
}

/// Whether the guest is to see when the interface can't carry frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowLink {
    /// It does not.
    #[default]
    Ignore,
    /// The front end is disconnected while the interface is down or gone, which it takes for a link that is down.
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

    /// As it is given on the command line, if it is no default.
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
    /// Zero copy where the driver has it and it is safe for this guest, else copy; the log says why.
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
    /// Whether the guest sees the interface's state.
    pub link: FollowLink,
}

impl PacketSpec {
    /// All defaults.
    pub fn new(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), rings: PacketRings::default(), link: FollowLink::default() }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("rings", "auto") => self.rings = PacketRings::Auto,
            ("rings", "on") => self.rings = PacketRings::On,
            ("rings", "off") => self.rings = PacketRings::Off,
            ("rings", other) => return Err(format!("rings={other}: give on, off or auto")),
            ("link", word) => self.link = FollowLink::parse(word)?,
            ("queues", "1") => {}
            ("queues", n) => {
                return Err(format!("queues={n}: a packet port has one queue pair; tap and xdp have more"));
            }
            _ => {
                return Err(format!(
                    "'{key}={value}' is not known, only rings=on|off|auto and link=follow|ignore"
                ));
            }
        }
        Ok(())
    }
}

/// Who copies a frame of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRings {
    /// This process, into a ring, where the interface's driver sends from that; the kernel elsewhere.
    #[default]
    Auto,
    /// This process, into a ring.
    On,
    /// The kernel.
    Off,
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
            link: FollowLink::default(),
        }
    }

    /// Whether checksums and segments are done in software, as was asked for or by default: in copy mode that costs less than it
    /// spares the guest (measured: docs/xdp.md); where the interface's driver has a zero-copy mode, and that may be taken, frames
    /// could not go out from where they lie any more.
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
            ("link", word) => self.link = FollowLink::parse(word)?,
            ("match", "all") => self.filter = XdpMatch::All,
            ("match", other) => {
                let mac = other.strip_prefix("mac:").and_then(mac);
                self.filter = XdpMatch::Mac(mac.ok_or_else(|| {
                    format!("match={other}: give all, or mac: and six bytes as 02:00:00:00:00:01")
                })?);
            }
            _ => {
                return Err(format!(
                    "'{key}={value}' is not known, only queue=N, queues=N, mode=zerocopy|copy|auto, \
                     match=mac:…|all, offloads=on|off, promisc=on|off and link=follow|ignore"
                ));
            }
        }
        Ok(())
    }
}

impl PortSpec {
    /// Names of all options that ports have, whichever port takes them.
    pub const OPTIONS: &[&str] =
        &["queue", "queues", "mode", "match", "offloads", "promisc", "rings", "link"];

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
        let options = parts.map(|p| p.split_once('=').ok_or_else(|| format!("'{p}' is not KEY=VALUE")));
        match first.split_once(':') {
            Some(("tap", name)) => {
                let mut spec = TapSpec { name: name.to_owned(), queues: 1 };
                for option in options {
                    match option? {
                        ("queues", n) => spec.queues = queues(n)?,
                        (key, value) => return Err(format!("'{key}={value}' is not known, only queues=N")),
                    }
                }
                Ok(Self::Tap(spec))
            }
            Some(("xdp", name)) => {
                let mut spec = XdpSpec::new(name);
                for option in options {
                    let (key, value) = option?;
                    spec.set(key, value)?;
                }
                Ok(Self::Xdp(spec))
            }
            Some(("packet", name)) => {
                let mut spec = PacketSpec::new(name);
                for option in options {
                    let (key, value) = option?;
                    spec.set(key, value)?;
                }
                Ok(Self::Packet(spec))
            }
            _ => Err("give tap:NAME[,queues=N], xdp:IF[,queue=N][,queues=N][,mode=zerocopy|copy|auto]\
                      [,match=mac:…|all][,offloads=on|off][,promisc=on|off][,link=follow|ignore] or \
                      packet:IF[,rings=on|off|auto][,link=follow|ignore]"
                .to_owned()),
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
    /// As it is given on the command line; what has its default is left out, but for the number of queues.
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
                f.write_str(x.link.option())
            }
        }
    }
}

fn queues(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_QUEUES) => Ok(n),
        _ => Err(format!("queues={text}: a device has 1 to {MAX_QUEUES} queue pairs")),
    }
}

/// Six bytes in hexadecimal, with colons between them.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| p.len() <= 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> Result<PortSpec, PortSpecError> {
        text.parse()
    }

    #[test]
    fn ports_are_parsed_and_shown_as_they_are_given() {
        assert_eq!(port("tap:t0"), Ok(PortSpec::Tap(TapSpec { name: "t0".into(), queues: 1 })));
        assert_eq!(port("tap:t0,queues=4").map(|p| p.queues()), Ok(4));
        assert_eq!(port("xdp:e0"), Ok(PortSpec::Xdp(XdpSpec::new("e0"))));
        for (word, offloads) in [("on", true), ("off", false)] {
            let spec = XdpSpec { offloads: Some(offloads), ..XdpSpec::new("e0") };
            assert_eq!([true, false].map(|zero_copy| spec.does_offloads(zero_copy)), [offloads; 2]);
            assert_eq!(port(&format!("xdp:e0,offloads={word}")), Ok(PortSpec::Xdp(spec)));
        }
        assert_eq!(port("xdp:e0,promisc=on"), port("xdp:e0"));
        let by_default = |spec: XdpSpec| [false, true].map(|zero_copy| spec.does_offloads(zero_copy));
        assert_eq!(by_default(XdpSpec::new("e0")), [true, false]);
        assert_eq!(by_default(XdpSpec { mode: XdpMode::Copy, ..XdpSpec::new("e0") }), [true; 2]);
        assert_eq!(by_default(XdpSpec { mode: XdpMode::ZeroCopy, ..XdpSpec::new("e0") }), [false; 2]);
        assert_eq!(by_default(XdpSpec { filter: XdpMatch::Mac([2; 6]), ..XdpSpec::new("e0") }), [true; 2]);
        assert_eq!(port("packet:e0"), Ok(PortSpec::Packet(PacketSpec::new("e0"))));
        for text in [
            "tap:t0,queues=3",
            "packet:e0",
            "packet:e0,rings=on",
            "packet:e0,rings=off",
            "packet:e0,link=follow",
            "packet:e0,rings=on,link=follow",
            "xdp:e0,queue=0,queues=1,link=follow",
            "xdp:e0,queue=0,queues=1",
            "xdp:e0,queue=2,queues=4,mode=zerocopy,match=mac:02:00:00:00:00:0a",
            "xdp:e0,queue=0,queues=1,mode=copy",
            "xdp:e0,queue=1,queues=1,mode=copy,match=mac:02:00:00:00:00:0a,offloads=on",
            "xdp:e0,queue=0,queues=1,promisc=off",
            "xdp:e0,queue=0,queues=1,offloads=off,promisc=off,link=follow",
        ] {
            assert_eq!(port(text).map(|p| p.to_string()).as_deref(), Ok(text));
            let mut options = text.split([',', '=']).skip(1).step_by(2);
            assert!(options.all(|key| PortSpec::OPTIONS.contains(&key)), "{text}");
        }
    }

    #[test]
    fn a_link_is_followed_where_that_is_asked_for() {
        for (text, followed) in [
            ("tap:t0", None),
            ("packet:e0", None),
            ("xdp:e0", None),
            ("packet:e0,link=ignore", None),
            ("xdp:e0,link=ignore", None),
            ("packet:e0,link=follow", Some("e0")),
            ("xdp:e0,link=follow", Some("e0")),
        ] {
            assert_eq!(port(text).unwrap().followed(), followed, "{text}");
        }
    }

    #[test]
    fn errors_name_the_value() {
        for (bad, word) in [
            ("veth:a", "veth:a"),
            ("tap:t0,queues=0", "queues=0"),
            ("tap:t0,mtu=9", "mtu=9"),
            ("xdp:e0,queues=129", "queues=129"),
            ("xdp:e0,queue=x", "queue=x"),
            ("xdp:e0,mode=fast", "mode=fast"),
            ("xdp:e0,offloads=some", "offloads=some"),
            ("xdp:e0,promisc=maybe", "promisc=maybe"),
            ("packet:e0,promisc=off", "promisc=off"),
            ("xdp:e0,match=mac:02:00", "mac:02:00"),
            ("xdp:e0,match=mac:02:00:00:00:00:00:00", "match=mac"),
            ("xdp:e0,zero", "'zero'"),
            ("packet:e0,queues=2", "queues=2"),
            ("packet:e0,rings=2", "rings=2"),
            ("packet:e0,link=up", "link=up"),
            ("xdp:e0,link=up", "link=up"),
            ("tap:t0,link=follow", "link=follow"),
            ("packet:e0,mode=copy", "mode=copy"),
        ] {
            let text = port(bad).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains(word) && text.contains(bad), "{bad}: {text}");
        }
        let two = port("packet:e0").and_then(|p| p.with_queues(2));
        assert!(two.is_err_and(|e| e.to_string().contains("queues=2")));
    }
}
