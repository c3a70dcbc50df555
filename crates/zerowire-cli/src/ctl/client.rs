//! An HTTP client for the control socket: a connection a request.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// How long the server may say nothing. A removal waits 5 s for a front end that holds up its VM.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest head of an answer, and the longest body, bytes.
const MAX_HEAD_BYTES: u64 = 16 * 1024;
const MAX_BODY_BYTES: u64 = 64 << 20;
/// The longest line that begins a piece of a stream, bytes.
const MAX_LINE_BYTES: u64 = 64;

/// An answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub struct CtlAnswer {
    /// HTTP status.
    pub status: u16,
    /// All of the body.
    pub body: Vec<u8>,
}

/// The server behind a control socket.
#[derive(Debug)]
pub struct Client<'a> {
    path: &'a Path,
}

impl<'a> Client<'a> {
    /// The one that listens on `path`.
    pub fn new(path: &'a Path) -> Self {
        Self { path }
    }

    /// Asks for one thing.
    pub fn ask(&self, method: &str, target: &str, accept: &str, body: Option<&[u8]>) -> Result<CtlAnswer> {
        let mut answer = self.begin(method, target, accept, body)?;
        let (status, _) = head(&mut answer)?;
        Ok(CtlAnswer { status, body: rest(answer, MAX_BODY_BYTES)? })
    }

    /// Asks for what comes piece by piece, until the server ends.
    pub fn follow(&self, target: &str, accept: &str, piece: fn(&[u8]) -> Result<()>) -> Result<()> {
        let mut answer = self.begin("GET", target, accept, None)?;
        let (status, is_chunked) = head(&mut answer)?;
        if status != 200 || !is_chunked {
            return Err(super::refusal(&CtlAnswer { status, body: rest(answer, MAX_BODY_BYTES)? }));
        }
        while let Some(bytes) = chunk(&mut answer)? {
            piece(&bytes)?;
        }
        Ok(())
    }

    fn begin(
        &self,
        method: &str,
        target: &str,
        accept: &str,
        body: Option<&[u8]>,
    ) -> Result<BufReader<UnixStream>> {
        let mut stream = UnixStream::connect(self.path).with_context(|| {
            format!("no server can be reached at {} ('zerowire net --control PATH')", self.path.display())
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n"
        );
        if let Some(body) = body {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        let request = [request.as_bytes(), body.unwrap_or_default()].concat();
        // A server that refuses at once may not read all of it: its answer says why.
        let sent = stream.write_all(&request);
        let mut answer = BufReader::new(stream);
        match (sent, answer.fill_buf().map(<[u8]>::is_empty)) {
            (_, Ok(false)) => Ok(answer),
            (Err(e), _) | (_, Err(e)) => Err(e).context("the server does not answer"),
            (Ok(()), Ok(true)) => Err(anyhow!("the server closed the connection without an answer")),
        }
    }
}

/// The status of an answer, and whether its body comes in chunks.
fn head(answer: &mut impl BufRead) -> Result<(u16, bool)> {
    let mut bytes = Vec::new();
    let mut limited = answer.take(MAX_HEAD_BYTES);
    while !bytes.ends_with(b"\r\n\r\n") {
        if limited.read_until(b'\n', &mut bytes).context("the server's answer ends early")? == 0 {
            bail!("this is no HTTP server");
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(&bytes).context("this is no HTTP server")?;
    let is_chunked = response.headers.iter().any(|h| h.name.eq_ignore_ascii_case("Transfer-Encoding"));
    Ok((response.code.unwrap_or(0), is_chunked))
}

/// What comes next, up to `most` bytes.
fn rest(answer: impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    answer.take(most).read_to_end(&mut bytes).context("the server's answer ends early")?;
    Ok(bytes)
}

/// The next piece; None at the end, and where the server has ended.
fn chunk(answer: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = String::new();
    if answer.take(MAX_LINE_BYTES).read_line(&mut line).context("the server says nothing any more")? == 0 {
        return Ok(None);
    }
    let len = u64::from_str_radix(line.trim_end(), 16).ok().filter(|len| *len <= MAX_BODY_BYTES);
    let len = len.ok_or_else(|| anyhow!("this is no HTTP server"))?;
    let mut bytes = rest(answer, len + 2)?;
    let is_whole = bytes.len() as u64 == len + 2;
    bytes.truncate(len as usize);
    Ok((len > 0 && is_whole).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_head_and_perhaps_chunks() {
        let mut bytes = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nb\r\n0123456789\n\r\n0\r\n\r\n"[..];
        assert_eq!(head(&mut bytes).expect("a head"), (200, true));
        assert_eq!(chunk(&mut bytes).expect("a piece").as_deref(), Some(&b"abc"[..]));
        assert_eq!(chunk(&mut bytes).expect("a piece").as_deref(), Some(&b"0123456789\n"[..]));
        assert_eq!(chunk(&mut bytes).expect("the end"), None);
        assert_eq!(chunk(&mut &b""[..]).expect("the end"), None);
        assert_eq!(chunk(&mut &b"9\r\nabc"[..]).expect("the server has ended"), None);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for bad in [&b""[..], b"220 smtp\r\n\r\n", b"HTTP/1.1 200 OK\r\n", &[b'x'; 20_000]] {
            assert!(head(&mut &bad[..]).is_err(), "{bad:?}");
        }
        for bad in [&b"xyz\r\n"[..], b"ffffffffffffffff\r\n", b"-1\r\n", &[b'1'; 100]] {
            assert!(chunk(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}
