//! The mechanism on invented samples.

use std::fmt;

use anyhow::{Result, anyhow};
use serde_json::json;

use super::{ProgressLine, Runs, interleave, *};
use crate::chart::{Bars, Better};

/// Loaves of bread, baked by several ovens.
#[derive(Debug, Clone)]
struct Baking;

/// Loaves of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Batch {
    loaves: usize,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loaves", self.loaves)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Oven {
    Clay,
    Brick,
    Steel,
}

impl fmt::Display for Oven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Clay => "clay",
            Self::Brick => "brick",
            Self::Steel => "steel",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Bake {
    seconds: f64,
    /// Weighed only where there are scales.
    grams: Option<f64>,
    burnt: f64,
}

impl Subject for Baking {
    type Cell = Batch;
    type CellFacts = ();
    type Variant = Oven;
    type Facts = ();
    type Sample = Bake;

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("seconds_a_loaf", |batch, bake| Some(bake.seconds / batch.loaves as f64)),
        Figure::<Self>::spread("grams", |_, bake| bake.grams),
        Figure::<Self>::positive("burnt", |_, bake| bake.burnt),
        Figure::<Self>::ratio("seconds_to_clay", "clay", |_, bake| bake.seconds),
        Figure::<Self>::times("times_faster", "clay", |_, bake| bake.seconds),
        Figure::<Self>::mean("mean_seconds", |_, bake| bake.seconds),
        Figure::<Self>::known("published", |_, oven| (*oven == Oven::Brick).then_some(0.5)),
    ];
    const VARIANT: &'static str = "oven";
}

fn bake(seconds: f64) -> Bake {
    Bake { seconds, grams: Some(500.0), burnt: 0.0 }
}

fn tried(variant: Oven, samples: &[Bake], failed: Option<&str>) -> Tried<Baking> {
    let base = Base { label: "clay", variant: Oven::Clay };
    let bases = if variant == Oven::Clay { Vec::new() } else { vec![base] };
    let runs = Runs { samples: samples.to_vec(), failed: failed.map(|text| anyhow!(text.to_owned())) };
    Tried { variant, bases, facts: (), runs }
}

/// Times rise with the rounds, of both ovens alike: the ratios stay.
fn cell(tried: Vec<Tried<Baking>>) -> CellReport<Baking> {
    let absent = vec![Failure { variant: "steel".into(), reason: "no steel here".into() }];
    CellReport::of(Batch { loaves: 10 }, (), tried, absent)
}

fn sound() -> CellReport<Baking> {
    let clay = [100.0, 200.0, 400.0].map(bake);
    let brick = [50.0, 100.0, 200.0].map(bake);
    cell(vec![tried(Oven::Clay, &clay, None), tried(Oven::Brick, &brick, None)])
}

#[test]
fn figures_follow_from_the_runs_of_the_same_round() {
    let cell = sound();
    let [clay, brick] = &cell.lines[..] else { panic!("two lines") };
    assert_eq!(brick.spread("seconds_a_loaf").map(|s| (s.min, s.median, s.max)), Some((5.0, 10.0, 20.0)));
    // Of each round, so the spread of the times is not in it.
    let ratio = brick.spread("seconds_to_clay").expect("a base");
    assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
    assert_eq!(brick.middle("times_faster"), Some(2.0));
    assert!((brick.middle("mean_seconds").expect("runs") - 350.0 / 3.0).abs() < 1e-9);
    assert_eq!((brick.middle("published"), clay.middle("published")), (Some(0.5), None));
    assert_eq!((clay.spread("seconds_to_clay"), clay.spread("burnt")), (None, None));
}

#[test]
fn a_value_that_one_run_lacks_is_no_figure_and_one_of_most_runs_is() {
    let mut runs = [1.0, 2.0, 3.0].map(bake);
    (runs[0].burnt, runs[1].burnt) = (1.0, 2.0);
    runs[2].grams = None;
    let cell = cell(vec![tried(Oven::Clay, &runs, None)]);
    assert_eq!(cell.lines[0].spread("grams"), None);
    assert_eq!(cell.lines[0].middle("burnt"), Some(1.0));
}

#[test]
fn what_failed_has_no_figures_and_nothing_is_compared_with_it() {
    let runs = [1.0, 2.0].map(bake);
    let cell = cell(vec![tried(Oven::Clay, &runs[..1], Some("it cracked")), tried(Oven::Brick, &runs, None)]);
    assert_eq!(cell.lines.iter().map(|line| line.variant).collect::<Vec<_>>(), [Oven::Brick]);
    assert_eq!(cell.lines[0].spread("seconds_to_clay"), None);
    assert!(cell.line(&Oven::Clay).is_none());
    assert_eq!(failures(&[cell]), ["clay (10 loaves): it cracked"]);
}

#[test]
fn of_several_bases_with_one_label_the_first_that_is_sound_counts() {
    let runs = [1.0, 2.0].map(bake);
    let mut steel = tried(Oven::Steel, &[3.0, 8.0].map(bake), None);
    steel.bases.push(Base { label: "clay", variant: Oven::Brick });
    let failed = tried(Oven::Clay, &[], Some("it cracked"));
    let cell = cell(vec![failed, tried(Oven::Brick, &runs, None), steel]);
    assert_eq!(cell.lines[1].spread("seconds_to_clay").map(|s| (s.min, s.max)), Some((3.0, 4.0)));
}

#[test]
fn json_has_every_run_null_for_a_missing_ratio_and_no_key_for_another_missing_figure() {
    let json = serde_json::to_value(sound()).expect("JSON");
    assert_eq!((&json["loaves"], &json["absent"][0]["variant"]), (&json!(10), &json!("steel")));
    assert!(json.get("failures").is_none(), "an empty list is left out");
    let [clay, brick] = [0, 1].map(|index| json["lines"][index].as_object().expect("a line"));
    assert_eq!((&brick["oven"], &brick["seconds_to_clay"]["median"]), (&json!("brick"), &json!(0.5)));
    assert_eq!(brick["samples"].as_array().map(Vec::len), Some(3));
    assert_eq!(brick["mean_seconds"].as_f64().map(f64::floor), Some(116.0));
    assert_eq!(clay.get("seconds_to_clay"), Some(&json!(null)));
    assert!(clay.get("published").is_none() && clay.get("burnt").is_none());
}

#[test]
fn tables_have_a_row_a_variant_and_charts_a_series_a_variant() {
    let cell = sound();
    let columns: [Column<Baking>; 4] = [
        Column::words("oven", |_, line| Some(line.variant.to_string())),
        Column::spread("s a loaf", "seconds_a_loaf", Digits::Behind(1)),
        Column::both("/ clay", "seconds_to_clay", Digits::Behind(2)),
        Column::median("published", "published", Digits::Percent(0)),
    ];
    let table = rows([&cell], &columns).render();
    let cells = |row: usize| -> Vec<&str> {
        let line = table.lines().nth(row).unwrap_or_default();
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    };
    assert_eq!(cells(2), ["clay", "20.0", "15.0..30.0", "-", "-"], "{table}");
    assert_eq!(cells(3), ["brick", "10.0", "7.5..15.0", "0.50 (0.50..0.50)", "50 %"], "{table}");
    let ovens = [Oven::Clay, Oven::Brick, Oven::Steel];
    let bars = series(&[&cell], ovens, |cell, oven| cell.line(oven)?.spread("seconds_to_clay"));
    assert_eq!(bars.iter().map(|series| series.name.as_str()).collect::<Vec<_>>(), ["brick"]);
}

#[test]
fn a_grid_leaves_out_what_has_no_text() {
    let names = |names: [&str; 2]| names.map(|name| (name.to_owned(), name.len()));
    let (rows, columns) = (names(["a", "bb"]), names(["ccc", "dddd"]));
    let product = |row: &usize, column: &usize| Some(row * column).filter(|n| *n != 8 && *n != 4);
    let text = |row: &usize, column: &usize| product(row, column).map(|n| n.to_string());
    let lines = |empty, text: &dyn Fn(&usize, &usize) -> Option<String>| -> Vec<String> {
        let table = grid("x", &rows, &columns, empty, text).map(|table| table.render());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.iter().flat_map(|table| table.lines()).map(words).filter(|line| !line.contains("--")).collect()
    };
    assert_eq!(lines(LeftOut::Columns, &text), ["x ccc", "a 3", "bb 6"]);
    assert_eq!(lines(LeftOut::Rows, &text), ["x ccc dddd", "a 3 -", "bb 6 -"]);
    let first = |row: &usize, column: &usize| text(row, column).filter(|_| *row == 1);
    assert_eq!(lines(LeftOut::Columns, &first), ["x ccc", "a 3", "bb -"]);
    assert_eq!(lines(LeftOut::Rows, &first), ["x ccc dddd", "a 3 -"]);
    assert_eq!(lines(LeftOut::Nothing, &first), ["x ccc dddd", "a 3 -", "bb - -"]);
    assert!(grid("x", &rows, &columns, LeftOut::Rows, |_, _| None).is_none());
}

/// A whole report, as a benchmark has it.
#[derive(Serialize)]
struct Bakery {
    cells: Vec<CellReport<Baking>>,
    notes: Vec<String>,
}

impl Report for Bakery {
    fn text(&self) -> String {
        format!("{} cells\n", self.cells.len())
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let cells: Vec<_> = self.cells.iter().collect();
        let chart = |key: &'static str| Bars {
            title: "Bread".into(),
            subtitle: String::new(),
            y_label: "s".into(),
            better: Better::Lower,
            x_label: "loaves".into(),
            groups: cells.iter().map(|cell| cell.at.to_string()).collect(),
            series: series(&cells, [Oven::Clay], |cell, oven| cell.line(oven)?.spread(key)),
            reference: None,
        };
        [("bread-time.svg", "seconds_a_loaf"), ("bread-burnt.svg", "burnt")]
            .map(|(name, key)| (name.to_owned(), chart(key)))
            .into()
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.notes
    }
}

fn bakery(files: &Files) -> Result<String> {
    let mut out = Vec::new();
    measured(files, &mut out, || Ok(Bakery { cells: vec![sound()], notes: Vec::new() }))?;
    Ok(String::from_utf8(out)?)
}

#[test]
fn a_report_goes_where_the_options_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let text = bakery(&Files { json: Some(json.clone()), svg: None }).expect("a report");
    assert_eq!(text, format!("1 cells\nJSON: {}\n", json.display()));
    let text = bakery(&Files { json: Some("-".into()), svg: None }).expect("a report");
    let said: serde_json::Value = serde_json::from_str(&text).expect("JSON alone");
    let file = std::fs::read_to_string(&json).expect("the file");
    assert_eq!(said["cells"], serde_json::from_str::<serde_json::Value>(&file).expect("JSON")["cells"]);
    let error = bakery(&Files { json: Some("/none/report".into()), svg: None }).expect_err("no such folder");
    assert!(error.to_string().contains("/none/report"), "{error}");
}

/// Without one none is written.
#[test]
#[cfg(feature = "charts")]
fn a_chart_needs_a_bar() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Files { json: None, svg: Some(folder.path().to_owned()) };
    let chart = folder.path().join("bread-time.svg");
    assert_eq!(bakery(&files).expect("a report"), format!("1 cells\nchart: {}\n", chart.display()));
    assert!(chart.is_file() && !folder.path().join("bread-burnt.svg").exists());
    let files = Files { json: Some("-".into()), ..files };
    assert!(bakery(&files).expect("a report").starts_with('{'), "JSON alone");
}

#[test]
fn interleaved_runs_make_a_cell() {
    let (rounds, ovens) = (3, [Oven::Clay, Oven::Brick]);
    let mut progress = ProgressLine::new("bread", rounds + 1);
    let runs =
        interleave(ovens.len(), rounds, "bread", &mut progress, |index, _| Ok(bake([4.0, 6.0][index])));
    let all = ovens.into_iter().zip(runs);
    let all = all.map(|(oven, runs)| Tried { runs, ..tried(oven, &[], None) }).collect();
    let cell = cell(all);
    assert_eq!(cell.lines[1].middle("seconds_to_clay"), Some(1.5));
    assert_eq!(cell.lines[1].samples.len(), rounds);
}
