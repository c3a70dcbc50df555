//! The library's back ends.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use zerowire::recv::{Arrival, Receiver, RecvBackend, RecvOptions, What};

use super::options::TcpRxOptions;
use super::way::{Goal, Patience, TICK, Tally, TcpWay, WayName, ended, touch_all};

/// A receiver with its connections.
pub(super) struct Library {
    receiver: Receiver,
    batch: Vec<Arrival>,
}

impl Library {
    pub(super) fn new(name: WayName, sockets: Vec<OwnedFd>, options: &TcpRxOptions) -> Result<Self> {
        let backend = match name {
            WayName::Plain => RecvBackend::Plain,
            WayName::Multishot => RecvBackend::Multishot,
            WayName::Nodev => RecvBackend::NoDevice,
            WayName::Queue => {
                let (interface, queue) = options.place().context("no queue was named: -i IF -q QUEUE")?;
                RecvBackend::Queue { interface, queue }
            }
            other => bail!("{other} is no way of the library"),
        };
        let mut receiver = Receiver::new(RecvOptions::default().backend(backend))?;
        for socket in sockets {
            receiver.add(socket)?;
        }
        Ok(Self { receiver, batch: Vec::new() })
    }
}

impl TcpWay for Library {
    fn receive(&mut self, goal: &Goal, touch: bool) -> Result<Tally> {
        let (mut tally, mut patience) = (Tally::default(), Patience::default());
        let (calls, zero_copied) = (self.receiver.events().system_calls, self.zero_copied());
        while tally.bytes < goal.bytes() {
            if self.receiver.recv(&mut self.batch, Some(TICK))? == 0 {
                patience.tick(&tally, goal)?;
            }
            for arrival in self.batch.drain(..) {
                match arrival.what {
                    What::Data(lease) => {
                        tally.bytes += lease.len() as u64;
                        tally.pieces += 1;
                        if touch {
                            touch_all(&lease);
                        }
                    }
                    What::Accepted(_) => {}
                    What::End => return Err(ended(&tally)),
                    What::Failed(e) => return Err(e).context("a connection failed"),
                }
            }
        }
        tally.calls = self.receiver.events().system_calls - calls;
        tally.zero_copied = self.zero_copied() - zero_copied;
        tally.zero_copied_is = self.receiver.zero_copied();
        Ok(tally)
    }

    fn path(&self) -> String {
        self.receiver.path()
    }
}

impl Library {
    fn zero_copied(&self) -> u64 {
        self.receiver.counters().zero_copied_bytes.get()
    }
}
