//! HTTP/1.1 (RFC 9112) as far as a metadata service needs it. Requests are parsed from a bounded
//! buffer; an answer is a head and a shared body.

mod accept;
mod host;
mod parse;
mod path;
mod respond;
mod response;

pub use parse::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_TARGET_BYTES};

pub(crate) use parse::{Method, Parsed, parse};
pub(crate) use respond::{Context, respond, timeout};
pub(crate) use response::Response;
