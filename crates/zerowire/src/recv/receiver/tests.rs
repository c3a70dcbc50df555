//! What a receiver makes of a back end's errors: one that plays a script.

use super::{Receiver, new_core};
use crate::recv::backend::Engine;
use crate::recv::core::RecvState;
use crate::recv::{RecvBackend, RecvError, RecvOptions};
use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// For each turn how many empty datagrams arrive on the first connection, and the error behind
/// them.
struct Script(VecDeque<(usize, Option<i32>)>);

impl Engine for Script {
    fn path(&self) -> String {
        "a script".to_owned()
    }

    fn add(&mut self, _: &mut RecvState, _: u32, _: BorrowedFd<'_>) -> Result<(), RecvError> {
        Ok(())
    }

    fn stop(&mut self, _: &mut RecvState, _: u32) -> Result<(), RecvError> {
        Ok(())
    }

    fn resume(&mut self, _: &mut RecvState, _: u32) {}

    fn listen(&mut self, _: u32, _: BorrowedFd<'_>) -> Result<(), RecvError> {
        Ok(())
    }

    fn unlisten(&mut self, _: &mut RecvState, _: u32) -> Result<(), RecvError> {
        Ok(())
    }

    fn turn(&mut self, core: &mut RecvState, _: Option<Duration>) -> Result<(), RecvError> {
        let (arrivals, errno) = self.0.pop_front().unwrap_or_default();
        for _ in 0..arrivals {
            core.nothing(0);
        }
        errno.map_or(Ok(()), |errno| {
            Err(RecvError::system("io_uring_enter")(io::Error::from_raw_os_error(errno)))
        })
    }
}

#[test]
fn an_error_behind_arrivals_is_told_by_the_next_call() {
    let core = new_core(&RecvOptions { backend: RecvBackend::Plain, ..RecvOptions::default() }).unwrap();
    let turns = [(2, Some(libc::EBADR)), (1, None), (0, Some(libc::ENOMEM)), (1, Some(libc::EIO))];
    let mut r = Receiver::of(Box::new(Script(turns.into())), core, 10, None);
    r.add(UdpSocket::bind("127.0.0.1:0").unwrap().into()).unwrap();
    let mut out = Vec::new();
    let mut recv = || {
        let before = out.len();
        let result = r.recv(&mut out, Some(Duration::ZERO)).map_err(|e| e.errno());
        assert_eq!(out.len() - before, *result.as_ref().unwrap_or(&0), "nothing comes with an error");
        result
    };
    // The errors come in their places, and no arrival is lost.
    assert_eq!([recv(), recv(), recv()], [Ok(2), Err(Some(libc::EBADR)), Ok(1)]);
    assert_eq!([recv(), recv(), recv()], [Err(Some(libc::ENOMEM)), Ok(1), Err(Some(libc::EIO))]);
    assert_eq!([recv(), recv()], [Ok(0), Ok(0)]);
    assert_eq!(out.len(), 4);
}
