//! What a user asks for with `--port tap:…`.

use std::fmt;

use zerowire_sys::allowed::AllowedCall;

use super::{KERNEL_COPIES, SYSTEM_CALLS, Tap, TapPort, kept};
use crate::port::spec::{FollowLink, Spec, queue_pairs};
use crate::port::{KeptPort, OpenPort, PortError, PortParts, PortSpec};

/// What may be asked of a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TapSpec {
    /// The interface's name, 1 to 15 bytes.
    pub name: String,
    /// Queue pairs.
    pub queues: usize,
}

impl TapSpec {
    /// With one queue pair.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), queues: 1 }
    }

    zerowire_wire::setters! { queues: usize }
}

impl Spec for TapSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "queues" => self.queues = queue_pairs(value)?,
            _ => return Err(format!("'{key}={value}' is not known, only queues=N")),
        }
        Ok(())
    }

    fn interface(&self) -> &str {
        &self.name
    }

    fn queues(&self) -> usize {
        self.queues
    }

    /// A tap is this process's own, and can carry frames whenever it runs.
    fn link(&self) -> Option<FollowLink> {
        None
    }

    fn sole(&self) -> Vec<String> {
        vec![format!("tap '{}'", self.name)]
    }

    fn open(&self) -> Result<OpenPort, PortError> {
        let tap = Tap::open(self)?;
        Ok(OpenPort::new(|policy| TapPort::of(tap, policy)))
    }

    fn keep(&self) -> Result<Box<dyn KeptPort>, PortError> {
        Ok(Box::new(Tap::open(self)?))
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

impl From<TapSpec> for PortSpec {
    fn from(spec: TapSpec) -> Self {
        Self::Tap(spec)
    }
}

impl fmt::Display for TapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tap:{},queues={}", self.name, self.queues)
    }
}
