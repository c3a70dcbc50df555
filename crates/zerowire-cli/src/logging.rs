//! The log: plain lines on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

/// What may be asked for: any other word would be the name of a module to an [`EnvFilter`], and nothing would be logged.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Starts logging at `level`, or as the environment variable ZEROWIRE_LOG says.
pub fn init(level: &str) -> Result<()> {
    let directives = std::env::var("ZEROWIRE_LOG").unwrap_or_else(|_| level.to_owned());
    let filter = EnvFilter::builder()
        .parse(&directives)
        .with_context(|| format!("log level '{directives}': give error, warn, info, debug or trace"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
    Ok(())
}
