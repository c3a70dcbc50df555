//! What the receive loops count, and the program's look at what it has received.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use zerowire_guest::vsock::StreamSum;

use super::options::{ClientOptions, ReceiveMode};
use super::output::{ClientOutput, printed};
use crate::cpu::ProcessClock;

/// A clock of CPU time.
pub type Clock = fn() -> io::Result<Duration>;

/// The CPU time of this process.
pub fn process_time() -> io::Result<Duration> {
    ProcessClock::own().now()
}

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Looks at one byte of each cache line. Never inlined: floors and ways run the same code.
#[inline(never)]
pub fn touch(bytes: &[u8]) {
    let mut sum = 0u64;
    for byte in bytes.iter().step_by(LINE) {
        sum = sum.wrapping_add(u64::from(*byte));
    }
    black_box(sum);
}

/// Has `copy` put `len` bytes into `private`, and looks at them there. A packet may be longer than
/// the buffer that the options name.
#[inline]
fn touch_copy(private: &mut Vec<u8>, len: usize, copy: impl Fn(&mut [u8])) {
    if private.len() < len {
        private.resize(len, 0);
    }
    copy(&mut private[..len]);
    touch(black_box(&private[..len]));
}

/// What a receive loop counts.
pub struct Tally {
    clock: Clock,
    begin: Instant,
    cpu: Duration,
    /// Where bytes are copied to (`--copy-out`): as long as the longest piece so far.
    private: Option<Vec<u8>>,
    check: bool,
    sum: StreamSum,
    /// Time in calls that dequeue.
    pub dequeue: Duration,
    /// Time in which the program looks at what it has.
    pub touch: Duration,
    /// Dequeues.
    pub dequeues: u64,
    /// Wake-ups.
    pub wake_ups: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Bytes of them that were left in the guest's memory.
    pub direct_bytes: u64,
}

impl Tally {
    /// Begins to count, with the CPU time of the process.
    pub fn begin(options: &ClientOptions) -> io::Result<Self> {
        Self::begin_with(process_time, options)
    }

    /// Begins to count, with this clock of CPU time.
    pub fn begin_with(clock: Clock, options: &ClientOptions) -> io::Result<Self> {
        Ok(Self {
            clock,
            private: options.copy_out.then(|| vec![0; options.buffer_bytes()]),
            check: options.check,
            sum: StreamSum::default(),
            dequeue: Duration::ZERO,
            touch: Duration::ZERO,
            dequeues: 0,
            wake_ups: 0,
            bytes: 0,
            direct_bytes: 0,
            cpu: clock()?,
            begin: Instant::now(),
        })
    }

    /// The program looks at bytes that it has dequeued.
    #[inline]
    pub fn look(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        match &mut self.private {
            Some(private) => touch_copy(private, bytes.len(), |to| to.copy_from_slice(bytes)),
            None => touch(bytes),
        }
        if self.check {
            self.sum.update(bytes);
        }
    }

    /// The program looks at bytes that `byte` gives and `copy` copies, of memory that others may
    /// write.
    #[inline]
    pub fn look_at(&mut self, len: usize, byte: impl Fn(usize) -> u8, copy: impl Fn(&mut [u8])) {
        self.bytes += len as u64;
        self.direct_bytes += len as u64;
        if let Some(private) = &mut self.private {
            touch_copy(private, len, &copy);
        } else {
            let mut sum = 0u64;
            for at in (0..len).step_by(LINE) {
                sum = sum.wrapping_add(u64::from(byte(at)));
            }
            black_box(sum);
        }
        if self.check {
            let mut bytes = vec![0; len];
            copy(&mut bytes);
            self.sum.update(&bytes);
        }
    }

    /// All has arrived.
    pub fn end(self, mode: ReceiveMode, windows: u32, len: usize) -> io::Result<ClientOutput> {
        let wall = self.begin.elapsed();
        let cpu = (self.clock)()?.saturating_sub(self.cpu);
        Ok(ClientOutput {
            mode,
            bytes: self.bytes,
            loop_seconds: wall.as_secs_f64(),
            dequeue_seconds: self.dequeue.as_secs_f64(),
            touch_seconds: self.touch.as_secs_f64(),
            dequeues: self.dequeues,
            wake_ups: self.wake_ups,
            dequeue_ns: self.dequeue.as_nanos() as f64 / self.dequeues.max(1) as f64,
            cpu_seconds: cpu.as_secs_f64(),
            windows,
            len,
            direct_bytes: self.direct_bytes,
            sum: self.check.then(|| printed(self.sum.value())),
        })
    }
}

#[cfg(test)]
mod tests;
