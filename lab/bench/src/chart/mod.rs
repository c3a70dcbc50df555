//! Charts as SVG files: grouped bars with whiskers.

#[cfg(feature = "charts")]
mod draw;

use std::path::Path;

use anyhow::Result;
use zerowire_cli::outcome::write_file;

use crate::stats::Summary;

/// One set of bars of the same colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// One value a group; `None` leaves the place empty.
    pub values: Vec<Option<Summary>>,
}

/// Which end of the vertical axis is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Better {
    /// A cost.
    #[default]
    Lower,
    /// A rate.
    Higher,
}

/// A chart of grouped bars: the median as bar, the quartiles as whiskers.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// First line.
    pub title: String,
    /// Second line, smaller: the machine and how it was measured.
    pub subtitle: String,
    /// The vertical axis, with its unit.
    pub y_label: String,
    /// Which way along it is better; stands behind its label.
    pub better: Better,
    /// The horizontal axis.
    pub x_label: String,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The bars.
    pub series: Vec<Series>,
    /// A horizontal line at this value.
    pub reference: Option<f64>,
}

impl Bars {
    /// Writes the chart to `path`, replacing the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_file(path, self.render()?.as_bytes())
    }

    /// The chart as the text of an SVG file.
    pub fn render(&self) -> Result<String> {
        draw::svg(self)
    }
}

#[cfg(not(feature = "charts"))]
mod draw {
    use super::{Bars, Result};

    pub fn svg(_: &Bars) -> Result<String> {
        anyhow::bail!("this program was built without charts")
    }
}
