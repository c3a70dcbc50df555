//! What a client sends to the control socket: a request head with a path and perhaps a query, and a
//! VM of either device as the body behind it.
//!
//! The readers are part of the program `zerowire`, and are built here from their sources.
#![no_main]

#[path = "../../crates/zerowire-cli/src/control/body.rs"]
mod body;
#[path = "../../crates/zerowire-cli/src/file.rs"]
#[allow(dead_code, reason = "no file is read here")]
mod file;
#[path = "../../crates/zerowire-cli/src/control/http/request.rs"]
#[allow(dead_code, reason = "not each field is looked at")]
mod request;
#[path = "../../crates/zerowire-cli/src/control/routes.rs"]
mod routes;

/// Where the routes look for the methods.
mod http {
    pub use super::request::Method;
}

use std::fmt::Debug;

use body::BodyError;
use file::{Net, Vsock};
use libfuzzer_sys::fuzz_target;
use request::{ControlRequest, MAX_BODY_BYTES, MAX_HEAD_BYTES, Parsed, parse};
use routes::{Action, Routed, asks, find};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn has_place(e: &BodyError) {
    assert!(e.pointer.is_empty() || e.pointer.starts_with('/'), "{e:?}");
    assert!(!e.text.is_empty());
}

/// Reads `bytes` as the body that adds a VM, and as a change of `vm`.
fn read<T: DeserializeOwned + Serialize + Clone + PartialEq + Debug>(bytes: &[u8], vm: &[u8]) {
    match body::parse::<T>(bytes) {
        Ok(vm) => {
            let text = serde_json::to_vec(&vm).expect("JSON");
            assert_eq!(body::parse::<T>(&text), Ok(vm.clone()), "it reads what it writes");
            assert_eq!(body::merge(&vm, b"{}"), Ok(vm), "an empty patch changes nothing");
        }
        Err(e) => has_place(&e),
    }
    let vm: T = body::parse(vm).expect("a VM");
    if let Err(e) = body::merge(&vm, bytes) {
        has_place(&e);
    }
}

fn read_both(bytes: &[u8]) {
    read::<Net>(bytes, b"{\"socket\": \"/s\", \"port\": \"tap:t\", \"metadata\": \"/m\"}");
    read::<Vsock>(bytes, b"{\"socket\": \"/s\", \"cid\": 3, \"uds\": \"/u\", \"groups\": [\"x\"]}");
}

/// A path leads to one action, which has one query at most.
fn route(request: &ControlRequest) {
    let Routed::Action(action, name) = find(request.method, &request.path) else { return };
    assert!(name.is_empty() || request.path.iter().any(|part| part == name));
    match asks(action, &request.query) {
        Some(true) => assert!(matches!(action, Action::Stats | Action::Change)),
        Some(false) => assert!(request.query.is_empty()),
        None => assert!(!request.query.is_empty()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Parsed::Complete(request, len) => {
            assert!(len <= bytes.len() && len <= MAX_HEAD_BYTES && request.body_bytes <= MAX_BODY_BYTES);
            assert!(!request.path.is_empty());
            route(&request);
            let again = Parsed::Complete(request, len);
            assert_eq!(parse(&bytes[..len]), again, "what stands behind a head does not change it");
            read_both(&bytes[len..]);
        }
        Parsed::Partial => assert!(bytes.len() < MAX_HEAD_BYTES, "a head has an end"),
        Parsed::Bad(e) => assert!((400..=499).contains(&e.status) && !e.text.is_empty()),
    }
    read_both(bytes);
});
