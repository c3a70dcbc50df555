use super::super::Series;
use super::*;
use crate::stats::Summary;

fn bars() -> Bars {
    let value = Summary::of([1.0, 1.1, 1.3]);
    Bars {
        title: "Ratio & floor".into(),
        subtitle: "Linux".into(),
        y_label: "CPU time / floor".into(),
        better: Better::Lower,
        x_label: "frame".into(),
        groups: vec!["64 B hot".into(), "64 B cold".into()],
        series: vec![
            Series { name: "floor".into(), values: vec![value, None] },
            Series { name: "copy".into(), values: vec![value, value] },
        ],
        reference: Some(1.0),
    }
}

#[test]
fn a_chart_holds_its_words_and_a_bar_a_value() {
    let svg = bars().render().unwrap();
    for word in ["Ratio &amp; floor", "CPU time / floor (lower is better)", "64 B cold", "copy"] {
        assert!(svg.contains(word), "{word} is missing");
    }
    // Three bars in two colours, and one square each in the legend.
    assert_eq!(svg.matches("fill=\"#999999\"").count(), 2);
    assert_eq!(svg.matches("fill=\"#0072B2\"").count(), 3);
}

#[test]
fn each_series_has_a_colour_of_its_own() {
    for (i, colour) in COLOURS.iter().enumerate() {
        assert!(!COLOURS[..i].contains(colour), "{colour:?} stands for two series");
    }
    let mut many = bars();
    many.series = vec![many.series[1].clone(); COLOURS.len()];
    assert!(many.render().unwrap_err().to_string().contains("17 series"), "grey is the floor's");
    many.series.pop();
    assert!(many.render().is_ok());
}

#[test]
fn an_empty_chart_is_drawn() {
    let mut empty = bars();
    empty.groups.clear();
    empty.series.clear();
    empty.reference = None;
    assert!(empty.render().unwrap().starts_with("<svg"));
}
