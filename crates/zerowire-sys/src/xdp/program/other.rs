//! Who else has a program on an interface.

use std::fmt;

use super::{NAME, sys};
use crate::netlink::{LinkInfo, XdpAttached};

/// What is known of the program that is in the way.
#[derive(Debug, Default)]
pub(super) struct Other {
    interface: String,
    place: Option<XdpAttached>,
    id: Option<u32>,
    name: Option<String>,
}

/// The program on an interface of this thread's network namespace, as far as the kernel tells.
pub(super) fn on(interface: &str) -> Other {
    let found = LinkInfo::find(interface).ok().and_then(|link| link.xdp);
    let (place, id) = found.map_or((None, None), |(place, id)| (Some(place), id));
    // CAP_SYS_ADMIN is needed for the name.
    let name = id.and_then(|id| sys::program_name(id).ok()).filter(|name| !name.is_empty());
    Other { interface: interface.to_owned(), place, id, name }
}

impl Other {
    /// Whether it is a program of this library's, of another process or of this one, or one that
    /// has just gone.
    pub(super) fn is_own(&self) -> bool {
        self.name.as_deref() == Some(NAME) || self.place.is_none()
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyword = self.place.map_or("xdp", XdpAttached::keyword);
        if let Some(name) = &self.name {
            write!(f, "'{name}', ")?;
        }
        if let Some(id) = self.id {
            write!(f, "number {id}, ")?;
        }
        write!(f, "attached as {keyword}")?;
        if self.name.as_deref() == Some(NAME) {
            return f.write_str(
                ", of another zerowire process: have one process serve all queues of an interface, or end that one",
            );
        }
        write!(
            f,
            ": end the program that owns it, or take it off ('ip link set dev {} {keyword} off', or 'bpftool link detach' \
             where a link holds it)",
            self.interface
        )
    }
}
