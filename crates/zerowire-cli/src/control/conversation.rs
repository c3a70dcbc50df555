//! One connection: requests in, responses out, each within its time.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::connections::Connection;
use super::http::{
    BadRequest, ControlRequest, Method, Parsed, Response, ResponseBody, Stream, parse, response,
};
use super::serve::Handler;

/// Time for a client to send a whole request, from the moment that it may begin.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time for a client to take a response, or a piece of a stream.
const RESPONSE_TIME: Duration = Duration::from_secs(10);
/// Time between two pieces of a stream.
const STREAM_PERIOD: Duration = Duration::from_secs(1);
/// How long, and how much, is read of what a client still sends when its connection ends. Without
/// that it may not get to read the response.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;

/// What came of waiting for bytes.
enum Incoming {
    /// Some have come.
    Bytes,
    /// No further ones come.
    End,
    /// None came in time.
    Late,
}

/// Why no further request is read.
enum NoRequest {
    /// The client has left, or says nothing.
    End,
    /// The client gets this answer, and the connection ends.
    Bad(BadRequest),
}

/// Serves a connection until it ends. A client that is not `admitted` gets 403.
pub fn converse(connection: &Connection, handler: &dyn Handler, admitted: bool) {
    let mut buffer = Vec::new();
    loop {
        let (request, body) = match connection.request(&mut buffer) {
            Ok(request) => request,
            Err(NoRequest::End) => return,
            Err(NoRequest::Bad(BadRequest { status, text })) => {
                connection.last(&Response::error(status, text, None));
                return;
            }
        };
        let mut response =
            if admitted { handler.answer(&request, &body) } else { Response::error(403, FORBIDDEN, None) };
        match response.body {
            _ if request.method == Method::Head => response = response.without_body(),
            ResponseBody::Stream(stream) => {
                connection.stream(handler, &response, stream);
                return;
            }
            ResponseBody::Whole(_) | ResponseBody::Length(_) => {}
        }
        if !admitted || !request.keeps_alive {
            connection.last(&response);
            return;
        }
        if !connection.send(&response.bytes(true)) {
            return;
        }
    }
}

const FORBIDDEN: &str = "only root, the user of this process, the socket's owner and its group may manage it: see --control-owner \
                         and --control-group";

impl Connection {
    /// The next request with its body. `buffer` has what came before.
    fn request(&self, buffer: &mut Vec<u8>) -> Result<(ControlRequest, Vec<u8>), NoRequest> {
        const LATE: BadRequest = BadRequest { status: 408, text: "no whole request came within 10 s" };
        let until = Instant::now() + REQUEST_TIME;
        let more = |buffer: &mut Vec<u8>| match self.receive(buffer, until) {
            Incoming::Bytes => Ok(()),
            Incoming::Late if !buffer.is_empty() => Err(NoRequest::Bad(LATE)),
            Incoming::Late | Incoming::End => Err(NoRequest::End),
        };
        let request = loop {
            if buffer.is_empty() {
                more(buffer)?;
            }
            match parse(buffer) {
                Parsed::Complete(request, len) => {
                    buffer.drain(..len);
                    break *request;
                }
                Parsed::Bad(e) => return Err(NoRequest::Bad(e)),
                Parsed::Partial => more(buffer)?,
            }
        };
        if request.expects_continue && buffer.len() < request.body_bytes {
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        while buffer.len() < request.body_bytes {
            match self.receive(buffer, until) {
                Incoming::Bytes => {}
                Incoming::Late => return Err(NoRequest::Bad(LATE)),
                Incoming::End => return Err(NoRequest::End),
            }
        }
        let body = buffer.drain(..request.body_bytes).collect();
        Ok((request, body))
    }

    /// Waits for bytes, and appends at most 4096 of them.
    fn receive(&self, buffer: &mut Vec<u8>, until: Instant) -> Incoming {
        let mut part = [0; 4096];
        // Also where they are there already: it begins as one that is waited for.
        self.waiting(|| {
            loop {
                match recv(&self.socket, &mut part[..], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Incoming::End,
                    Ok((count, _)) => {
                        buffer.extend_from_slice(&part[..count]);
                        return Incoming::Bytes;
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => return Incoming::End,
                }
                if !self.wait(PollFlags::IN, until) {
                    return Incoming::Late;
                }
            }
        })
    }

    /// Waits for the socket. False: the time is over.
    fn wait(&self, flags: PollFlags, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // A little later rather than a little sooner, and once more.
            let timeout = (left + Duration::from_millis(1)).try_into().ok();
            match poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                // An error shows at the next call.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// Sends all of it. False: the client has left, or does not take it in time.
    fn send(&self, mut bytes: &[u8]) -> bool {
        let until = Instant::now() + RESPONSE_TIME;
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => {
                    if !self.waiting(|| self.wait(PollFlags::OUT, until)) {
                        return false;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends the last response, and gives the client time to read it.
    fn last(&self, response: &Response) {
        if !self.send(&response.bytes(false)) {
            return;
        }
        let _ = shutdown(&self.socket, Shutdown::Write);
        let until = Instant::now() + LINGER_TIME;
        let mut ignored = Vec::new();
        let mut total = 0;
        while total < LINGER_BYTES && matches!(self.receive(&mut ignored, until), Incoming::Bytes) {
            total += ignored.len();
            ignored.clear();
        }
    }

    /// Sends a piece a second, until the client leaves, says something or does not read, or the
    /// server stops.
    fn stream(&self, handler: &dyn Handler, head: &Response, stream: Stream) {
        let Some(_place) = self.begin_stream() else {
            let text = "8 clients read streams already: end one of them, or ask again";
            return self.last(&Response::error(503, text, None));
        };
        if !self.send(&head.bytes(false)) {
            return;
        }
        let mut at = Instant::now();
        while self.send(&response::chunk(&handler.piece(stream))) {
            at += STREAM_PERIOD;
            if self.wait(PollFlags::IN, at.max(Instant::now() + STREAM_PERIOD / 2)) {
                self.send(response::LAST_CHUNK);
                return;
            }
        }
    }
}
