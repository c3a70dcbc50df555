//! What a client sends to the control socket: a request head, and a VM as the body behind it.
//!
//! Both readers are part of the program `zerowire`, and are built here from their sources.
#![no_main]

#[path = "../../crates/zerowire-cli/src/control/body.rs"]
mod body;
#[path = "../../crates/zerowire-cli/src/file.rs"]
#[allow(dead_code, reason = "no file is read here")]
mod file;
#[path = "../../crates/zerowire-cli/src/control/http/request.rs"]
#[allow(dead_code, reason = "not each field is looked at")]
mod request;

use body::BodyError;
use file::Net;
use libfuzzer_sys::fuzz_target;
use request::{MAX_BODY_BYTES, MAX_HEAD_BYTES, Parsed, parse};

fn has_place(e: &BodyError) {
    assert!(e.pointer.is_empty() || e.pointer.starts_with('/'), "{e:?}");
    assert!(!e.text.is_empty());
}

fn read(bytes: &[u8]) {
    match body::parse::<Net>(bytes) {
        Ok(net) => {
            let text = serde_json::to_vec(&net).expect("JSON");
            assert_eq!(body::parse::<Net>(&text), Ok(net.clone()), "it reads what it writes");
            assert_eq!(body::merge(&net, b"{}"), Ok(net), "an empty patch changes nothing");
        }
        Err(e) => has_place(&e),
    }
    let plain: Net =
        body::parse(b"{\"socket\": \"/s\", \"port\": \"tap:t\", \"metadata\": \"/m\"}").expect("a VM");
    if let Err(e) = body::merge(&plain, bytes) {
        has_place(&e);
    }
}

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Parsed::Complete(request, len) => {
            assert!(len <= bytes.len() && len <= MAX_HEAD_BYTES && request.body_bytes <= MAX_BODY_BYTES);
            assert!(!request.path.is_empty());
            let again = Parsed::Complete(request, len);
            assert_eq!(parse(&bytes[..len]), again, "what stands behind a head does not change it");
            read(&bytes[len..]);
        }
        Parsed::Partial => assert!(bytes.len() < MAX_HEAD_BYTES, "a head has an end"),
        Parsed::Bad(e) => assert!((400..=499).contains(&e.status) && !e.text.is_empty()),
    }
    read(bytes);
});
