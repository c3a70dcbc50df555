//! The client: connects, receives until the end, says what it took.

use anyhow::{Context, Result};
use zerowire::recv::vsock::{MappedKind, connect_copy};
use zerowire_cli::af_vsock;

use super::mode::ReceiveMode;
use super::options::{ClientOptions, RxPlace};
use super::output::ClientOutput;
use super::{connection, guest_receive, windows};

/// Runs the client. The server sends as soon as it is connected, and closes.
pub fn run_client(options: &ClientOptions) -> Result<ClientOutput> {
    options.verify()?;
    match (&options.place, options.mode) {
        (RxPlace::Host(uds), ReceiveMode::Copy) => {
            let stream = connect_copy(uds, options.port, MappedKind::Stream)
                .with_context(|| format!("no connection to port {} of the guest", options.port))?;
            connection::receive(&stream, options)
        }
        (RxPlace::Host(uds), _) => windows::receive(&windows::connect(uds, options)?, options),
        (RxPlace::Kernel, ReceiveMode::Copy) => {
            let socket = af_vsock::connect(options.cid, options.port, options.credit, options.lowat())?;
            connection::receive(&socket, options)
        }
        (RxPlace::Kernel, _) => guest_receive::on_device(None, options),
        (RxPlace::Device(address), _) => guest_receive::on_device(Some(address), options),
    }
}
