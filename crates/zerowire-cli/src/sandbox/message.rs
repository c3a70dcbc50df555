//! Bounds of what a child makes up.

use zerowire_confine::{ConfineReport, Layer, LayerReport};

/// Counters of a child are taken up to this: no sum over reasons and VMs overflows.
const MOST: u64 = 1 << 50;
/// Texts of a child are taken up to this many characters.
const TEXT_CHARS: usize = 500;
/// Lists of a child are taken up to this many entries.
pub(crate) const ENTRIES: usize = 128;

/// A counter of a child, or a sum of some.
pub(crate) fn counted(n: u64) -> u64 {
    n.min(MOST)
}

/// A time of a child, seconds.
pub(crate) fn seconds(told: f64) -> f64 {
    if told.is_finite() { told.clamp(0.0, 1e12) } else { 0.0 }
}

/// A text of a child, as one may show it.
pub(crate) fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS).collect()
}

/// A list of texts of a child.
pub(crate) fn texts(told: &[String]) -> Vec<String> {
    told.iter().take(ENTRIES).map(|text| short(text)).collect()
}

/// What a child says of its layers: each one once, with a short reason where it is missing.
pub(crate) fn bounded_report(report: &ConfineReport) -> ConfineReport {
    let said = |layer: &Layer| report.layers.iter().find(|said| said.layer == *layer);
    let layers = Layer::ALL
        .iter()
        .filter_map(said)
        .map(|said| LayerReport { layer: said.layer, missing: said.missing.as_deref().map(short) });
    ConfineReport { layers: layers.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_makes_up_is_bounded() {
        assert_eq!((counted(u64::MAX), seconds(f64::NAN), seconds(-1.0)), (MOST, 0.0, 0.0));
        let text = short(&"\u{1b}[2J\nERROR of another VM".repeat(1000));
        assert!(text.len() <= TEXT_CHARS && !text.contains(char::is_control), "{text}");
        assert_eq!(texts(&vec![text; 5000]).len(), ENTRIES);
        let said = LayerReport { layer: Layer::Files, missing: Some("\u{1b}x".repeat(1000)) };
        let report = bounded_report(&ConfineReport { layers: vec![said; 5000] });
        let reason = report.layers[0].missing.as_ref().expect("a reason");
        assert_eq!((report.layers.len(), reason.len()), (1, TEXT_CHARS));
    }
}
