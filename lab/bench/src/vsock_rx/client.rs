//! The client: connects, receives until the end, says what it took.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use zerowire::recv::vsock::{Dequeued, MappedConnection, MappedKind, Payload, WindowLease, connect_copy};
use zerowire_cli::af_vsock;
use zerowire_wire::mapped::POLL_NOTHING;

use super::options::{ClientOptions, ReceiveMode, RxPlace};
use super::output::ClientOutput;
use super::tally::Tally;
use super::{connection, guest_receive};

/// Runs the client. The server sends as soon as it is connected, and closes.
pub fn run_client(options: &ClientOptions) -> Result<ClientOutput> {
    options.verify()?;
    match (&options.place, options.mode) {
        (RxPlace::Host(uds), ReceiveMode::Copy) => {
            let stream = connect_copy(uds, options.port, MappedKind::Stream)
                .with_context(|| format!("no connection to port {} of the guest", options.port))?;
            connection::receive(&stream, options)
        }
        (RxPlace::Host(uds), _) => receive_mapped(&connect_mapped(uds, options)?, options),
        (RxPlace::Kernel, ReceiveMode::Copy) => {
            let socket = af_vsock::connect(options.cid, options.port, options.credit, options.lowat())?;
            connection::receive(&socket, options)
        }
        (RxPlace::Kernel, _) => guest_receive::on_device(None, options),
        (RxPlace::Device(address), _) => guest_receive::on_device(Some(address), options),
    }
}

/// Reads of the flag before a polling program gives its CPU to whoever wants it. On a machine with
/// few CPUs the sender may need it.
const PATIENCE: u32 = 256;

/// Receives until the end.
fn receive_mapped(connection: &MappedConnection, options: &ClientOptions) -> Result<ClientOutput> {
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
fn connect_mapped(uds: &std::path::Path, options: &ClientOptions) -> Result<MappedConnection> {
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
