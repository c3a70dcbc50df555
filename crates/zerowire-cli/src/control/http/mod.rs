//! HTTP/1.1 as far as the control socket speaks it, without I/O: bytes to requests, responses to
//! bytes.

pub mod request;
pub mod response;

pub use request::{BadRequest, ControlRequest, Method, Parsed, parse};
pub use response::{Response, ResponseBody, Stream};
