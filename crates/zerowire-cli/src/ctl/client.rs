//! An HTTP client for the control socket: a connection a request.

use std::io::{self, BufRead, BufReader, Read, Write};
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

/// How the body of an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyForm {
    /// As this many bytes.
    Whole(u64),
    /// In chunks.
    Chunks,
    /// Until the server closes the connection.
    ToEnd,
}

/// The bytes of an answer. Reading goes on behind a stop of this process (SIGSTOP), and an error by
/// the time limit says how long that was.
#[derive(Debug)]
struct AnswerBytes(UnixStream);

impl Read for AnswerBytes {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(bytes) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(patient),
            }
        }
    }
}

/// What an error means on a socket with a time limit.
fn patient(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it neither reads nor says anything for {PATIENCE:?}"),
        ),
        _ => e,
    }
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
        let (status, form) = head(&mut answer)?;
        Ok(CtlAnswer { status, body: whole(answer, form)? })
    }

    /// Asks for what comes piece by piece, until the server ends.
    pub fn follow(&self, target: &str, accept: &str, piece: fn(&[u8]) -> Result<()>) -> Result<()> {
        let mut answer = self.begin("GET", target, accept, None)?;
        let (status, form) = head(&mut answer)?;
        if status != 200 || form != BodyForm::Chunks {
            return Err(super::refusal(&CtlAnswer { status, body: whole(answer, form)? }));
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
    ) -> Result<BufReader<AnswerBytes>> {
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
        let sent = stream.write_all(&request).map_err(patient);
        let mut answer = BufReader::new(AnswerBytes(stream));
        match (sent, answer.fill_buf().map(<[u8]>::is_empty)) {
            (_, Ok(false)) => Ok(answer),
            (Err(e), _) | (_, Err(e)) => Err(e).context("the server does not answer"),
            (Ok(()), Ok(true)) => Err(anyhow!("the server closed the connection without an answer")),
        }
    }
}

/// What an answer is that is cut off.
const EARLY: &str = "the server's answer ends early";
/// What it is if it is none.
const NO_HTTP: &str = "this is no HTTP server";

/// The status of an answer, and how its body comes.
fn head(answer: &mut impl BufRead) -> Result<(u16, BodyForm)> {
    let mut bytes = Vec::new();
    let mut limited = answer.take(MAX_HEAD_BYTES);
    while !bytes.ends_with(b"\r\n\r\n") {
        if limited.read_until(b'\n', &mut bytes).context(EARLY)? == 0 {
            bail!(if bytes.starts_with(b"HTTP/1.") && limited.limit() > 0 { EARLY } else { NO_HTTP });
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(&bytes).context(NO_HTTP)?;
    let status = response.code.unwrap_or(0);
    let header = |name: &str| response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
    if header("Transfer-Encoding").is_some() {
        return Ok((status, BodyForm::Chunks));
    }
    let Some(length) = header("Content-Length") else {
        // Such an answer has none (RFC 9110, section 8.6).
        return Ok((status, if status == 204 { BodyForm::Whole(0) } else { BodyForm::ToEnd }));
    };
    let length = std::str::from_utf8(length.value).ok().and_then(|text| text.parse().ok());
    let length = length.filter(|length| *length <= MAX_BODY_BYTES).ok_or_else(|| anyhow!(NO_HTTP))?;
    Ok((status, BodyForm::Whole(length)))
}

/// All of a body.
fn whole(answer: impl Read, form: BodyForm) -> Result<Vec<u8>> {
    match form {
        BodyForm::Whole(len) => exactly(answer, len),
        BodyForm::Chunks | BodyForm::ToEnd => at_most(answer, MAX_BODY_BYTES),
    }
}

/// What comes next, up to `most` bytes.
fn at_most(answer: impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    answer.take(most).read_to_end(&mut bytes).context(EARLY)?;
    Ok(bytes)
}

/// The same, of this length.
fn exactly(answer: impl Read, len: u64) -> Result<Vec<u8>> {
    let bytes = at_most(answer, len)?;
    if bytes.len() as u64 != len {
        bail!("{EARLY}: {} of {len} bytes came", bytes.len());
    }
    Ok(bytes)
}

/// The next piece; None at the end.
fn chunk(answer: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = String::new();
    if answer.take(MAX_LINE_BYTES).read_line(&mut line).context("the server says nothing any more")? == 0 {
        bail!("{EARLY}: the server has ended, or closed the connection");
    }
    let len = u64::from_str_radix(line.trim_end(), 16).ok().filter(|len| *len <= MAX_BODY_BYTES);
    let len = len.ok_or_else(|| anyhow!(NO_HTTP))?;
    let mut bytes = exactly(answer, len + 2)?;
    bytes.truncate(len as usize);
    Ok((len > 0).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_head_and_perhaps_chunks() {
        let mut bytes = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nb\r\n0123456789\n\r\n0\r\n\r\n"[..];
        assert_eq!(head(&mut bytes).expect("a head"), (200, BodyForm::Chunks));
        assert_eq!(chunk(&mut bytes).expect("a piece").as_deref(), Some(&b"abc"[..]));
        assert_eq!(chunk(&mut bytes).expect("a piece").as_deref(), Some(&b"0123456789\n"[..]));
        assert_eq!(chunk(&mut bytes).expect("the end"), None);
        let mut bytes = &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef"[..];
        let (status, form) = head(&mut bytes).expect("a head");
        assert_eq!(
            (status, form, whole(bytes, form).expect("a body").as_slice()),
            (200, BodyForm::Whole(3), &b"abc"[..])
        );
        let mut bytes = &b"HTTP/1.1 204 No Content\r\n\r\n"[..];
        assert_eq!(head(&mut bytes).expect("a head"), (204, BodyForm::Whole(0)));
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        let early = |e: anyhow::Error| assert!(e.to_string().contains(EARLY), "{e:#}");
        for cut in [&b""[..], b"9\r\nabc", b"3", b"3\r\nabc", b"0\r\n"] {
            early(chunk(&mut &*cut).expect_err("the last chunk did not come"));
        }
        early(head(&mut &b"HTTP/1.1 200 OK\r\nContent-Le"[..]).expect_err("a part of a head"));
        early(whole(&b"ab"[..], BodyForm::Whole(3)).expect_err("two of three bytes"));
    }

    #[test]
    fn a_server_that_is_mute_is_one_that_says_nothing_for_so_long() {
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        ours.set_read_timeout(Some(Duration::from_millis(1))).expect("a limit");
        let said = AnswerBytes(ours).read(&mut [0]).expect_err("nothing came").to_string();
        assert!(said.contains("for 20s"), "{said}");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let length = b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n";
        for bad in [&b""[..], b"220 smtp\r\n\r\n", b"HTTP/1.1 200 OK\r\n", length, &[b'x'; 20_000]] {
            assert!(head(&mut &bad[..]).is_err(), "{bad:?}");
        }
        for bad in [&b"xyz\r\n"[..], b"ffffffffffffffff\r\n", b"-1\r\n", &[b'1'; 100]] {
            assert!(chunk(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}
