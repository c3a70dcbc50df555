//! Keeps everything else off the worker's CPU for a moment: a thread at a real-time priority that
//! spins there.
//!
//! While a burst of frames is being queued neither the kernel's receive thread nor the measured
//! side runs, so that both find all of it. A burst takes some tens of microseconds; the kernel's
//! bound on real-time threads (950 ms of each second) is far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, setpriority_process};

use crate::cpu::Placement;
use crate::sys;

/// Nice value of all that takes part. On a busy machine a guest that waits for a CPU would let the
/// back end sleep between batches.
const NICE: i32 = -15;

/// Gives a thread precedence over other programs; None: the calling one, whose threads and children
/// inherit it.
pub(crate) fn go_first(thread: Option<u32>) -> Result<()> {
    let thread = thread.and_then(|number| Pid::from_raw(number as i32));
    setpriority_process(thread, NICE).context("can't set a nice value: CAP_SYS_NICE is needed (run as root)")
}

const FREE: u8 = 0;
const ASKED: u8 = 1;
const HELD: u8 = 2;
const END: u8 = 3;

/// The thread that holds the worker's CPU. It sleeps until a burst is queued.
#[derive(Debug)]
pub struct Hold {
    state: Arc<AtomicU8>,
    /// `None` with a single CPU, where the sender itself keeps the others away most of the time.
    thread: Option<JoinHandle<()>>,
}

impl Hold {
    /// Starts the thread. Needs CAP_SYS_NICE where there are two CPUs.
    pub fn new(placement: &Placement) -> Result<Self> {
        let state = Arc::new(AtomicU8::new(FREE));
        if !placement.separate() {
            return Ok(Self { state, thread: None });
        }
        let (outbox, inbox) = channel::<io::Result<()>>();
        let (shared, placement) = (state.clone(), placement.clone());
        let thread = std::thread::Builder::new().name("hold".into()).spawn(move || {
            let ready = placement.pin_worker().and_then(|()| sys::real_time());
            let sound = ready.is_ok();
            if outbox.send(ready).is_ok() && sound {
                serve(&shared);
            }
        })?;
        let ready = inbox.recv().map_err(|_| anyhow!("the thread that holds a CPU ended early"))?;
        ready.context("can't hold a CPU while frames are queued: CAP_SYS_NICE is needed (run as root)")?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Holds the CPU until [`Hold::release`]; returns when nothing else runs there.
    pub fn acquire(&self) {
        let Some(thread) = &self.thread else { return };
        self.state.store(ASKED, Ordering::Release);
        thread.thread().unpark();
        while self.state.load(Ordering::Acquire) != HELD {
            std::hint::spin_loop();
        }
    }

    /// Lets the others run.
    pub fn release(&self) {
        self.state.store(FREE, Ordering::Release);
    }
}

fn serve(state: &AtomicU8) {
    loop {
        match state.load(Ordering::Acquire) {
            END => return,
            ASKED => {
                state.store(HELD, Ordering::Release);
                while state.load(Ordering::Acquire) == HELD {
                    std::hint::spin_loop();
                }
            }
            _ => std::thread::park(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.state.store(END, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_lets_go_and_ends() {
        let hold = Hold::new(&Placement::detect().unwrap()).unwrap();
        for _ in 0..100 {
            hold.acquire();
            hold.release();
        }
        drop(hold);
    }
}
