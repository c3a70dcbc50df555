//! Bytes that a guest's kernel stores, counted by a plugin of QEMU (examples/guest_stores.rs).
//!
//! No load of this machine changes the count, and the guest's own noise is small: timers, the
//! serial line. What a program costs to start is left out by comparing two transfers
//! ([`per_byte`]).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The plugin's file beside this program.
const PLUGIN: &str = "examples/libguest_stores.so";

/// The count of one guest.
#[derive(Clone, Debug)]
pub struct Meter {
    plugin: PathBuf,
    count: PathBuf,
}

impl Meter {
    /// A meter whose count will be in a file in `dir`.
    ///
    /// # Errors
    /// The plugin was not built.
    pub fn new(dir: &Path) -> Result<Self> {
        let own = std::env::current_exe().context("find the test program's own path")?;
        let plugin = own.with_file_name(PLUGIN);
        if !plugin.is_file() {
            bail!(
                "no plugin {}: build it (cargo build --release -p zerowire-vmtest --example guest_stores)",
                plugin.display()
            );
        }
        Ok(Self { plugin, count: dir.join("stores") })
    }

    /// QEMU's arguments for it.
    pub fn arguments(&self) -> Vec<OsString> {
        // QEMU separates options by commas; a comma in a value is doubled.
        let value = |path: &Path| path.to_string_lossy().replace(',', ",,");
        let plugin = format!("file={},out={}", value(&self.plugin), value(&self.count));
        vec!["-plugin".into(), plugin.into()]
    }

    /// Bytes stored in kernel mode since QEMU started.
    ///
    /// # Errors
    /// QEMU did not load the plugin.
    pub fn read(&self) -> Result<u64> {
        let bytes = std::fs::read(&self.count).with_context(|| format!("read {}", self.count.display()))?;
        let count = bytes.first_chunk().with_context(|| format!("{} is too short", self.count.display()))?;
        Ok(u64::from_ne_bytes(*count))
    }
}

/// What one run stored for its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRun {
    /// Bytes of payload.
    pub payload: u64,
    /// Bytes that the kernel stored meanwhile.
    pub stored: u64,
}

/// Bytes stored for each further byte of payload: what `large` has more than `small`.
///
/// # Errors
/// `large` is not larger, or nothing was counted.
pub fn per_byte(small: StoreRun, large: StoreRun) -> Result<f64> {
    ensure!(large.payload > small.payload && small.stored > 0, "nothing to compare: {small:?}, {large:?}");
    let stored = large.stored.checked_sub(small.stored);
    let stored = stored.with_context(|| format!("less was stored for more: {small:?}, {large:?}"))?;
    Ok(stored as f64 / (large.payload - small.payload) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_runs_have_in_common_does_not_count() {
        let small = StoreRun { payload: 1_000, stored: 51_000 };
        let large = StoreRun { payload: 11_000, stored: 71_000 };
        assert!((per_byte(small, large).unwrap() - 2.0).abs() < 1e-9);
        assert!(per_byte(large, small).is_err());
        assert!(per_byte(StoreRun { stored: 0, ..small }, large).is_err());
        assert!(per_byte(small, StoreRun { stored: 50_000, ..large }).is_err());
    }
}
