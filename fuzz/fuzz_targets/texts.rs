//! Texts that a user gives: a configuration file, a capture filter, limits, a guard, ports. Each is
//! read or refused with words, and what was read is written as it can be read again.
//!
//! The reader of the file is part of the program `zerowire`, and is built here from its source.
#![no_main]

#[path = "../../crates/zerowire-cli/src/file.rs"]
#[allow(dead_code, reason = "no file is read here")]
mod file;

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use zerowire_capture::{CaptureFilter, LINKTYPE_ETHERNET, LINKTYPE_VSOCK, PacketDirection};
use zerowire_net::FrameGuard;
use zerowire_net::port::PortSpec;
use zerowire_vhost::limit::Limit;

/// Reads a text, and what it is written as.
fn twice<T: Debug + Display + PartialEq, E: Debug + Display>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) {
    match parse(text) {
        Ok(value) => assert_eq!(parse(&value.to_string()).expect("it reads what it writes"), value),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match which % 5 {
        0 => {
            let words = file::parse(text, "a file", |vm| Some((vm.net, vm.vsock))).err();
            assert!(words.is_none_or(|e| !format!("{e:#}").is_empty()));
        }
        1 => {
            // Behind the first line there are packets.
            let (text, packet) = text.split_once('\n').unwrap_or((text, ""));
            for link in [LINKTYPE_ETHERNET, LINKTYPE_VSOCK] {
                twice(text, |text| CaptureFilter::parse(text, link));
                if let Ok(filter) = CaptureFilter::parse(text, link) {
                    let passes = |of: &CaptureFilter| {
                        of.passes(packet.as_bytes(), packet.len() as u32, PacketDirection::Inbound)
                    };
                    let turned = CaptureFilter::parse(&format!("not ({text})"), link);
                    assert!(
                        turned.is_ok_and(|turned| passes(&turned) != passes(&filter)) || text.len() > 1000
                    );
                }
            }
        }
        2 => twice(text, Limit::from_str),
        3 => twice(text, |text| FrameGuard::parse(text, None)),
        _ => twice(text, PortSpec::from_str),
    }
});
