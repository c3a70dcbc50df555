//! What a user asks for with `--port`, as text and as a value.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use thiserror::Error;
use zerowire_sys::allowed::AllowedCall;
use zerowire_sys::netdevice;

use super::packet::PacketSpec;
use super::tap::TapSpec;
use super::xdp::XdpSpec;
use super::{KeptPort, OpenPort, PortError, PortParts};

/// At most this many queue pairs: vhost-user names rings by 8 bits in SET_VRING_KICK, two a pair.
/// (A tap would take 256 queues, `MAX_TAP_QUEUES` in drivers/net/tun.c.)
pub const MAX_QUEUES: usize = 128;

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
    pub(super) fn parse(word: &str) -> Result<Self, String> {
        match word {
            "ignore" => Ok(Self::Ignore),
            "follow" => Ok(Self::Follow),
            other => Err(format!("link={other}: give follow or ignore")),
        }
    }

    /// The text on the command line; empty for the default.
    pub(super) fn option(self) -> &'static str {
        match self {
            Self::Ignore => "",
            Self::Follow => ",link=follow",
        }
    }
}

/// A user's wish for a port, whatever its kind: [`PortSpec`] has these methods. [`fmt::Display`]
/// gives the text of the port as [`PortSpec`] does.
pub trait Spec: fmt::Display {
    /// Takes an option as the user gives it.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String>;

    /// Whether the options go together; called when all of them are set.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The interface that it names.
    fn interface(&self) -> &str;

    /// Queue pairs.
    fn queues(&self) -> usize;

    /// Whether the guest sees the interface's state; None where it always can carry frames.
    fn link(&self) -> Option<FollowLink>;

    /// What only one VM can have, in the words of an error text.
    fn sole(&self) -> Vec<String>;

    /// Whether opening it takes rights over an interface that is there: CAP_NET_RAW and the like.
    fn takes_interface(&self) -> bool {
        false
    }

    /// Whether it pins memory of the guest.
    fn pins(&self) -> bool {
        false
    }

    /// Whether it can do with a part of the memory that it would have pinned.
    fn pins_in_part(&self) -> bool {
        false
    }

    /// Whether a process that may have as many descriptors as `most` can take it over.
    ///
    /// # Errors
    /// Why it can't, and what to do.
    fn check_descriptors(&self, _most: u64) -> Result<(), String> {
        Ok(())
    }

    /// Opens it.
    ///
    /// # Errors
    /// Why it can't be had. Nothing is left behind.
    fn open(&self) -> Result<OpenPort, PortError>;

    /// Opens it for children of this process.
    ///
    /// # Errors
    /// Why it can't be had. Nothing is left behind.
    fn keep(&self) -> Result<Box<dyn KeptPort>, PortError>;

    /// Goes on with what another process [hands](KeptPort::hand), before this one is confined.
    ///
    /// # Errors
    /// What the user reads.
    fn take_over(&self, parts: PortParts<'_>) -> Result<OpenPort, String>;

    /// Copies on the way of frames that no process makes, for the statistics.
    fn kernel_copies(&self) -> &'static str;

    /// The system calls of a process that has taken it over.
    fn system_calls(&self) -> &'static [&'static [AllowedCall]];
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

impl PortSpec {
    /// Names of all options that ports have, whichever port takes them.
    pub const OPTIONS: &[&str] =
        &["queue", "queues", "mode", "match", "offloads", "promisc", "pin", "rings", "receive", "link"];

    /// The interface whose state the guest is to see, if it is.
    pub fn followed(&self) -> Option<&str> {
        (self.link() == Some(FollowLink::Follow)).then(|| self.interface())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let options = options(parts)?;
        let mut port = match first.split_once(':') {
            Some((kind @ ("xdp" | "packet"), "")) => {
                return Err(format!("the interface's name is missing: give {kind}:IF"));
            }
            Some((kind @ ("tap" | "xdp" | "packet"), name)) if !netdevice::is_name(name) => {
                return Err(format!("{kind}:{name:?}: an interface's name has {}", netdevice::NAME_RULE));
            }
            Some(("tap", name)) => Self::Tap(TapSpec::new(name)),
            Some(("xdp", name)) => Self::Xdp(XdpSpec::new(name)),
            Some(("packet", name)) => Self::Packet(PacketSpec::new(name)),
            None if !first.is_empty() => {
                return Err(format!("the kind is missing: give tap:{first}, packet:{first} or xdp:{first}"));
            }
            Some((kind, name)) if !name.is_empty() => {
                return Err(format!(
                    "the kind '{kind}' is not known: give tap:{name}, packet:{name} or xdp:{name}"
                ));
            }
            _ => {
                return Err(
                    "give tap:NAME, packet:IF or xdp:IF ('zerowire net --help' has their options)".to_owned()
                );
            }
        };
        let spec: &mut dyn Spec = match &mut port {
            Self::Tap(tap) => tap,
            Self::Xdp(xdp) => xdp,
            Self::Packet(packet) => packet,
        };
        for (key, value) in options {
            spec.set(key, value)?;
        }
        spec.check()?;
        Ok(port)
    }
}

impl Deref for PortSpec {
    type Target = dyn Spec;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Tap(tap) => tap,
            Self::Xdp(xdp) => xdp,
            Self::Packet(packet) => packet,
        }
    }
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<Self, PortSpecError> {
        Self::parse(text).map_err(|problem| PortSpecError { port: text.to_owned(), problem })
    }
}

impl fmt::Display for PortSpec {
    /// As it is given on the command line; what has its default is left out, but for the number of
    /// queues.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
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

/// The value of `queues=N`.
pub(super) fn queue_pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_QUEUES) => Ok(n),
        _ => Err(format!("queues={text}: a device has 1 to {MAX_QUEUES} queue pairs")),
    }
}

#[cfg(test)]
mod tests;
