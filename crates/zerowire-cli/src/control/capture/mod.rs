//! Captures that the control socket begins and ends.

mod table;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use zerowire_capture::{Capture, CaptureError, CaptureOptions, Captured};
use zerowire_cli::lock;
use zerowire_vhost::files;

use super::manage::ManageError;
use crate::pcap;
pub use table::CaptureTable;

/// How long a pipe may have no reader, and how often to look for one.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// A capture as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownCapture {
    /// What it was begun with. The file has its whole path.
    #[serde(flatten)]
    pub table: CaptureTable,
    /// Whether it goes on.
    pub state: CaptureState,
    /// Those of `vms` that there are not now: they are captured when they come.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_vms: Vec<String>,
}

/// Whether a capture goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureState {
    /// It does.
    Running,
    /// It could not be written.
    Ended,
}

/// Begins and ends captures of a server.
pub struct CaptureControl {
    server: Arc<dyn Captured>,
    /// Of its packets.
    link: u16,
    /// Where captures may go.
    folder: Option<PathBuf>,
    /// Held while a capture begins or ends.
    turn: Mutex<()>,
}

impl CaptureControl {
    /// Of this server, whose packets are of this link type, into files of `folder`.
    pub fn new(server: Arc<dyn Captured>, link: u16, folder: Option<&Path>) -> Self {
        Self { server, link, folder: folder.map(Path::to_owned), turn: Mutex::default() }
    }

    /// The capture. `is_known`: whether there is a VM of this name.
    pub fn shown(&self, is_known: impl Fn(&str) -> bool) -> Result<ShownCapture, ManageError> {
        let capture = self.server.capture().ok_or_else(nothing)?;
        let state = if capture.has_ended() { CaptureState::Ended } else { CaptureState::Running };
        let table = CaptureTable::of(capture.options());
        let unknown_vms = table.vms.iter().filter(|name| !is_known(name)).cloned().collect();
        Ok(ShownCapture { table, state, unknown_vms })
    }

    /// Begins with a capture.
    pub fn begin(&self, capture: &CaptureTable) -> Result<(), ManageError> {
        let Some(folder) = &self.folder else {
            let text = "captures go into a folder that the server was started with: --pcap-dir DIR";
            return Err(ManageError::new(403, text));
        };
        let options = capture.options(folder, self.link)?;
        let _turn = lock(&self.turn);
        if let Some(running) = self.server.capture().filter(|capture| !capture.has_ended()) {
            let text = format!("a capture to {} runs: end it first", running.options().target);
            return Err(ManageError::new(409, text));
        }
        let begun =
            begin_with_reader(&options).map_err(|e| ManageError::new(422, e.to_string()).of_key("file"))?;
        self.server.set_capture(Some(begun));
        Ok(())
    }

    /// Ends the capture, which is written then.
    pub fn end(&self) -> Result<(), ManageError> {
        let _turn = lock(&self.turn);
        let ended = self.server.set_capture(None);
        pcap::finish(ended.as_ref());
        ended.map(drop).ok_or_else(nothing)
    }
}

/// Begins with a capture. A pipe needs a reader within [`PATIENCE`]. No thread waits longer.
fn begin_with_reader(options: &CaptureOptions) -> Result<Arc<Capture>, CaptureError> {
    let begin = Instant::now();
    loop {
        let (target, options) = (options.target.clone(), options.clone());
        let begun = files::ask(move || Ok(pcap::begin(&options)));
        match begun.unwrap_or_else(|cause| Err(CaptureError::Open { target, cause })) {
            Err(CaptureError::NoReader(_)) if begin.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            begun => return begun,
        }
    }
}

fn nothing() -> ManageError {
    ManageError::new(404, "nothing is captured")
}
