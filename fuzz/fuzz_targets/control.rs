//! What a client sends to the control socket: a request head with a path and perhaps a query, and a
//! VM of either device or a capture as the body behind it.
//!
//! The readers are part of the program `zerowire`, and are built here from their sources.
#![no_main]

#[path = "../../crates/zerowire-cli/src/control/body.rs"]
mod body;
#[path = "../../crates/zerowire-cli/src/control/capture/table.rs"]
mod capture_table;
#[path = "../../crates/zerowire-cli/src/file.rs"]
#[allow(dead_code, reason = "no file is read here")]
mod file;
#[path = "../../crates/zerowire-cli/src/control/http/request.rs"]
#[allow(dead_code, reason = "not each field is looked at")]
mod request;
#[path = "../../crates/zerowire-cli/src/control/routes.rs"]
mod routes;
#[path = "../../crates/zerowire-cli/src/spec.rs"]
#[allow(dead_code, reason = "the body of a capture has files and no pairs")]
mod spec;

/// Where the routes look for the methods.
mod http {
    pub use super::request::Method;
}

use std::fmt::Debug;
use std::path::Path;

use body::BodyError;
use capture_table::CaptureTable;
use file::{Net, Vsock};
use libfuzzer_sys::fuzz_target;
use request::{ControlRequest, MAX_BODY_BYTES, MAX_HEAD_BYTES, Parsed, parse};
use routes::{Action, Routed, asks, find};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerowire_capture::{CaptureTarget, LINKTYPE_ETHERNET, LINKTYPE_VSOCK, MAX_SNAPLEN};

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
            assert_eq!(body::merge(&vm, b"{}"), Ok((vm, Vec::new())), "an empty patch changes nothing");
        }
        Err(e) => has_place(&e),
    }
    let vm: T = body::parse(vm).expect("a VM");
    if let Err(e) = body::merge(&vm, bytes) {
        has_place(&e);
    }
}

/// Reads `bytes` as the body that begins a capture of packets of this link type.
fn read_capture(bytes: &[u8], link: u16) {
    let table = match body::parse::<CaptureTable>(bytes) {
        Ok(table) => table,
        Err(e) => return has_place(&e),
    };
    let text = serde_json::to_vec(&table).expect("JSON");
    assert_eq!(body::parse::<CaptureTable>(&text), Ok(table.clone()), "it reads what it writes");
    let folder = Path::new("/captures");
    match table.options(folder, link) {
        Ok(options) => {
            let CaptureTarget::File(path) = &options.target else { panic!("{options:?}") };
            assert_eq!(path.parent(), Some(folder), "{path:?}");
            assert_eq!(path.file_name(), Some(table.file.as_ref()), "{path:?}");
            assert!((1..=MAX_SNAPLEN).contains(&options.snaplen), "{options:?}");
            // What is shown asks for the same.
            let shown = CaptureTable { file: table.file, ..CaptureTable::of(&options) };
            let again = shown.options(folder, link).map(|again| CaptureTable::of(&again));
            assert_eq!(again.expect("what is shown is good"), CaptureTable::of(&options));
        }
        Err(wrong) => assert!(!wrong.key.is_empty() && !wrong.text.is_empty()),
    }
}

fn read_all(bytes: &[u8]) {
    [LINKTYPE_ETHERNET, LINKTYPE_VSOCK].into_iter().for_each(|link| read_capture(bytes, link));
    read::<Net>(bytes, b"{\"socket\": \"/s\", \"port\": \"tap:t\", \"metadata\": \"/m\"}");
    read::<Vsock>(bytes, b"{\"socket\": \"/s\", \"cid\": 3, \"uds\": \"/u\", \"groups\": [\"x\"]}");
}

/// A path leads to one action, which has one query at most.
fn route(request: &ControlRequest) {
    let Routed::Action(action, name) = find(request.method, &request.path) else { return };
    assert!(name.is_empty() || request.path.iter().any(|part| part == name));
    match asks(action, &request.query) {
        Some(true) => assert!(matches!(action, Action::Stats | Action::Change)),
        Some(false) => assert!(request.query.is_empty() || request.query.ends_with("=false")),
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
            read_all(&bytes[len..]);
        }
        Parsed::Partial => assert!(bytes.len() < MAX_HEAD_BYTES, "a head has an end"),
        Parsed::Bad(e) => assert!((400..=499).contains(&e.status) && !e.text.is_empty()),
    }
    read_all(bytes);
});
