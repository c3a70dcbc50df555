//! What a caller can choose.

use anyhow::Result;

use crate::experiment::Files;
use crate::wrong::wrong;

use super::way::WayName;

/// Numbers of connections of the table.
pub const CONNECTIONS: [usize; 3] = [1, 16, 256];
/// select() knows descriptors up to 1023.
pub const MOST_CONNECTIONS: usize = 480;
/// The longest read.
pub const MOST_READ_BYTES: usize = 16 << 20;

/// Where the bytes come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Client {
    /// A thread of this process, over the loopback interface of a namespace of its own.
    #[default]
    Own,
    /// iperf3 clients, one after the other.
    External {
        /// Where to listen.
        bind: String,
        /// At which port.
        port: u16,
    },
}

/// Options of [`super::run_tcp_rx`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpRxOptions {
    /// Fewer rounds, an eighth of the bytes.
    pub quick: bool,
    /// Rounds of each case; `None`: 9, or 3 when quick or with an external client.
    pub rounds: Option<usize>,
    /// Megabytes (of 10⁶ bytes) of a run, of all connections together; `None`: 512, or 64 when
    /// quick. An external client decides for itself.
    pub megabytes: Option<u64>,
    /// Numbers of connections. An external client decides for itself.
    pub connections: Vec<usize>,
    /// Which ways; `None`: all but the queue, and that too where one is named.
    pub ways: Option<Vec<WayName>>,
    /// Bytes of a read() or recv() of the ways without the library.
    pub read_bytes: usize,
    /// Look at every byte.
    pub touch: bool,
    /// Interface and queue of [`WayName::Queue`].
    pub queue: Option<(String, u32)>,
    /// Where the bytes come from.
    pub client: Client,
    /// Where the report goes besides the text.
    pub files: Files,
}

impl Default for TcpRxOptions {
    fn default() -> Self {
        Self {
            quick: false,
            rounds: None,
            megabytes: None,
            connections: CONNECTIONS.to_vec(),
            ways: None,
            read_bytes: 64 << 10,
            touch: false,
            queue: None,
            client: Client::Own,
            files: Files::default(),
        }
    }
}

impl TcpRxOptions {
    /// Rounds of each case.
    pub fn rounds(&self) -> usize {
        let few = self.quick || self.client != Client::Own;
        self.rounds.unwrap_or(if few { 3 } else { 9 })
    }

    /// Bytes of a run.
    pub fn bytes(&self) -> u64 {
        self.megabytes.unwrap_or(if self.quick { 64 } else { 512 }).saturating_mul(1_000_000)
    }

    /// Which ways are measured.
    pub fn ways(&self) -> Vec<WayName> {
        let all =
            || WayName::ALL.into_iter().filter(|w| *w != WayName::Queue || self.queue.is_some()).collect();
        self.ways.clone().unwrap_or_else(all)
    }

    /// Refuses what can't be, naming the value.
    pub fn verify(&self) -> Result<()> {
        if self.rounds() == 0 {
            wrong!("0 rounds: give at least 1");
        }
        if self.connections.is_empty() || self.ways().is_empty() {
            wrong!("nothing to measure: give at least one number of connections and one way");
        }
        if let Some(n) = self.connections.iter().find(|n| !(1..=MOST_CONNECTIONS).contains(*n)) {
            wrong!(
                "{n} connections: choose 1 to {MOST_CONNECTIONS} (select() takes no descriptor above 1023)"
            );
        }
        if !(1..=MOST_READ_BYTES).contains(&self.read_bytes) {
            wrong!("reads of {} bytes: choose 1 to {MOST_READ_BYTES}", self.read_bytes);
        }
        if !(1..=1_000_000).contains(&(self.bytes() / 1_000_000)) {
            wrong!("{} megabytes a run: choose 1 to 1000000", self.megabytes.unwrap_or_default());
        }
        let has_queue = self.ways().contains(&WayName::Queue);
        match &self.queue {
            None if has_queue => wrong!("the way queue: name the queue with -i IF -q QUEUE"),
            Some((interface, queue)) if self.client == Client::Own => wrong!(
                "-i {interface} -q {queue}: bytes that this machine sends to itself pass no queue; give --client external, and run \
                 iperf3 on another machine"
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_takes_less_and_impossible_options_are_named() {
        let full = TcpRxOptions::default();
        full.verify().unwrap();
        let quick = TcpRxOptions { quick: true, ..full.clone() };
        assert!(quick.rounds() < full.rounds() && quick.bytes() < full.bytes());
        assert!(!full.ways().contains(&WayName::Queue));
        let refused = |options: TcpRxOptions| options.verify().unwrap_err().to_string();
        assert!(refused(TcpRxOptions { rounds: Some(0), ..full.clone() }).contains("at least 1"));
        assert!(refused(TcpRxOptions { connections: vec![481], ..full.clone() }).contains("481 connections"));
        assert!(refused(TcpRxOptions { read_bytes: 0, ..full.clone() }).contains("reads of 0 bytes"));
        assert!(refused(TcpRxOptions { megabytes: Some(0), ..full.clone() }).contains("0 megabytes"));
        assert!(refused(TcpRxOptions { megabytes: Some(u64::MAX), ..full.clone() }).contains("megabytes"));
        let queue = Some(("eth1".to_owned(), 3));
        let own = TcpRxOptions { queue: queue.clone(), ..full.clone() };
        assert!(refused(own.clone()).contains("-i eth1 -q 3") && own.ways().contains(&WayName::Queue));
        let client = Client::External { bind: "::".to_owned(), port: 5201 };
        TcpRxOptions { client, ..own }.verify().unwrap();
        let ways = Some(vec![WayName::Queue]);
        assert!(refused(TcpRxOptions { ways, ..full }).contains("-i IF"));
    }
}
