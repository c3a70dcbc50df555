//! Whose name a request came by (RFC 9110 section 7.2).
//!
//! A page in a browser of the guest's can have its own name resolve to the service's address (DNS
//! rebinding). It then sends requests to the service as if that were the page's own server. These
//! requests carry the page's name.

use std::net::Ipv4Addr;

use crate::wants::{SERVICE_ADDRESS, SERVICE_ADDRESS_V6, SERVICE_PORT};

/// Whether this is an address of the service, with its port or without one.
pub(crate) fn is_service(host: &str) -> bool {
    let host = host.trim_ascii();
    let (address, port) = match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => (&host[..colon], &host[colon + 1..]),
        _ => (host, ""),
    };
    let is_port = port.is_empty() || port.parse() == Ok(SERVICE_PORT);
    let is_address = match address.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')) {
        Some(v6) => v6.parse() == Ok(SERVICE_ADDRESS_V6),
        None => address.parse() == Ok(Ipv4Addr::from(SERVICE_ADDRESS)),
    };
    is_address && is_port
}

/// The host of a target in absolute form (`http://host/path`), which counts
/// instead of the header (RFC 9112 section 3.2.2).
pub(crate) fn of_target(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_scheme.then(|| rest.find(['/', '?']).map_or(rest, |end| &rest[..end]))
}

#[cfg(test)]
mod tests;
