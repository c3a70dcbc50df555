//! What server and client print.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::options::ReceiveMode;

/// What the server did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerOutput {
    /// Bytes sent.
    pub bytes: u64,
    /// Seconds in the send loop.
    pub send_seconds: f64,
    /// CPU seconds of the process in that loop, user and system.
    pub cpu_seconds: f64,
    /// Sum of the bytes, if it was asked for; independent of how they were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<String>,
}

/// What the client did. Times begin when the first byte can be dequeued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientOutput {
    /// How it received.
    pub mode: ReceiveMode,
    /// Bytes received.
    pub bytes: u64,
    /// Seconds in the receive loop, waiting included.
    pub loop_seconds: f64,
    /// Seconds in calls that dequeue: read(); of windows taking them and giving them back.
    pub dequeue_seconds: f64,
    /// Seconds in which the program looked at each cache line of what it had received.
    pub touch_seconds: f64,
    /// Dequeues.
    pub dequeues: u64,
    /// Wake-ups out of poll(); 0 when polling.
    pub wake_ups: u64,
    /// Nanoseconds of a dequeue on average, the program's look left out.
    pub dequeue_ns: f64,
    /// CPU seconds of the process in the receive loop, user and system.
    pub cpu_seconds: f64,
    /// Windows in the ring; 0 when copying.
    pub windows: u32,
    /// Bytes of the buffer, or of a window.
    pub len: usize,
    /// Bytes left in the guest's memory.
    pub direct_bytes: u64,
    /// Sum of the bytes, if it was asked for; independent of how they were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<String>,
}

impl fmt::Display for ServerOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sent: {} bytes", self.bytes)?;
        writeln!(f, "send loop: {:.6} s", self.send_seconds)?;
        writeln!(f, "CPU time: {:.6} s", self.cpu_seconds)?;
        sum(f, &self.sum)
    }
}

impl fmt::Display for ClientOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "received: {} bytes, {} dequeues of up to {} bytes ({})",
            self.bytes, self.dequeues, self.len, self.mode
        )?;
        if self.mode == ReceiveMode::Direct {
            writeln!(f, "left in the guest's memory: {} bytes", self.direct_bytes)?;
        }
        writeln!(f, "receive loop: {:.6} s", self.loop_seconds)?;
        writeln!(f, "in dequeue calls: {:.6} s", self.dequeue_seconds)?;
        writeln!(f, "looking at the bytes: {:.6} s", self.touch_seconds)?;
        if self.mode != ReceiveMode::Polling {
            writeln!(f, "wake-ups: {}", self.wake_ups)?;
        }
        writeln!(f, "average dequeue: {:.0} ns", self.dequeue_ns)?;
        writeln!(f, "CPU time: {:.6} s", self.cpu_seconds)?;
        sum(f, &self.sum)
    }
}

fn sum(f: &mut fmt::Formatter<'_>, sum: &Option<String>) -> fmt::Result {
    match sum {
        Some(sum) => writeln!(f, "sum: {sum}"),
        None => Ok(()),
    }
}

/// A sum as it is printed.
pub(super) fn printed(sum: u64) -> String {
    format!("{sum:016x}")
}
