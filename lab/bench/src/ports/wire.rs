//! What a port of a back end is on: one end of a veth pair, or a tap that the back end has made.

use std::time::Duration;

use anyhow::Result;

use super::veth::Veth;
use crate::netns::NetnsLink;

/// The interface of a port, seen from the host.
#[derive(Debug)]
pub enum Wire {
    /// A pair: the port is on one end, what it receives is sent into the other.
    Veth(Veth),
    /// A tap: what the port receives is sent out of it.
    Tap(NetnsLink),
}

impl Wire {
    /// The interface that the port is on.
    pub fn port(&self) -> &NetnsLink {
        match self {
            Self::Veth(veth) => veth.port(),
            Self::Tap(link) => link,
        }
    }

    /// Where frames are sent that the port is to receive, and where those arrive that it sends.
    pub fn peer(&self) -> &NetnsLink {
        match self {
            Self::Veth(veth) => veth.peer(),
            Self::Tap(link) => link,
        }
    }

    /// CPU time so far of the kernel thread that serves the port's receive queue; a tap has none,
    /// its reader makes the copy.
    pub fn kernel_time(&self) -> Result<Duration> {
        match self {
            Self::Veth(veth) => veth.kernel_time(),
            Self::Tap(_) => Ok(Duration::ZERO),
        }
    }

    /// Frames lost so far.
    pub fn lost(&self) -> Result<u64> {
        match self {
            Self::Veth(veth) => veth.lost(),
            Self::Tap(link) => Ok(link.counters()?.tx_dropped),
        }
    }
}
