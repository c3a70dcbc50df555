//! The mapped receive on the host: windows of `zerowire vsock`.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use zerowire::recv::vsock::{Dequeued, MappedConnection, Payload, WindowLease};
use zerowire_wire::mapped::POLL_NOTHING;

use super::mode::ReceiveMode;
use super::options::ClientOptions;
use super::output::ClientOutput;
use super::tally::Tally;

/// Reads of the flag before a polling program gives its CPU to whoever wants it. On a machine with
/// few CPUs the sender may need it.
const PATIENCE: u32 = 256;

/// Receives until the end.
pub fn receive(connection: &MappedConnection, options: &ClientOptions) -> Result<ClientOutput> {
    let agreed = *connection.options();
    if options.mode == ReceiveMode::Direct && !agreed.direct {
        bail!(
            "zerowire vsock keeps the guest's memory to itself: start it with --share-guest-memory for -z d"
        );
    }
    let polls = options.mode == ReceiveMode::Polling;
    wait(connection, polls)?;
    let mut tally = Tally::begin(options)?;
    loop {
        let begin = Instant::now();
        match connection.dequeue()? {
            Dequeued::Window(window) => {
                let dequeued = Instant::now();
                look(&mut tally, &window);
                let looked = Instant::now();
                drop(window);
                tally.dequeue += (dequeued - begin) + looked.elapsed();
                tally.touch += looked - dequeued;
                tally.dequeues += 1;
            }
            Dequeued::NotYet => {
                wait(connection, polls)?;
                tally.wake_ups += u64::from(!polls);
            }
            Dequeued::End => break,
        }
    }
    Ok(tally.end(options.mode, agreed.windows, options.buffer_bytes())?)
}

fn look(tally: &mut Tally, window: &WindowLease) {
    for packet in window {
        match packet.payload() {
            Payload::Window(bytes) => tally.look(bytes),
            Payload::Guest(slice) => tally.look_at(
                slice.len(),
                |at| slice.get(at).unwrap_or_default(),
                |to| {
                    slice.copy_to(to);
                },
            ),
        }
    }
}

/// Waits until a window is published, or the end.
fn wait(connection: &MappedConnection, polls: bool) -> Result<()> {
    if !polls {
        connection.wait(None)?;
        return Ok(());
    }
    let mut looks = 0u32;
    while connection.poll_value() == POLL_NOTHING {
        std::hint::spin_loop();
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(PATIENCE) {
            // A daemon that has ended publishes nothing more.
            if looks.is_multiple_of(PATIENCE << 8)
                && connection.is_hung_up()?
                && connection.poll_value() == POLL_NOTHING
            {
                bail!("zerowire vsock has ended, or the guest is gone");
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Connects as the options say.
pub fn connect(uds: &std::path::Path, options: &ClientOptions) -> Result<MappedConnection> {
    let mut path = uds.as_os_str().to_owned();
    path.push(".map");
    let wanted = zerowire::recv::vsock::MappedOptions::stream()
        .windows(options.windows())
        .data_pages(options.pages)
        .lowat(options.lowat())
        .credit(options.credit)
        .direct(options.mode == ReceiveMode::Direct);
    zerowire::recv::vsock::connect(path.as_ref(), options.port, &wanted)
        .with_context(|| format!("no mapped connection to port {} of the guest", options.port))
}
