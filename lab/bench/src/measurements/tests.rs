//! Pages of invented figures.

use super::*;

const JSON: &str = r#"{
  "run": { "date": "2026-11-26", "version": "0.1.0", "commit": "abc", "command": "zerowire-bench net" },
  "machine": { "kernel": "6.18.0", "cpu": "Some CPU", "cores": 2, "virtualised": true },
  "notes": ["it rained"],
  "cases": [
    { "way": "tx", "len": 65536, "variants": [
      { "name": "floor", "cpu": { "median": 100.0, "min": 90.0, "max": 110.0, "q1": 95.0, "q3": 105.0 }, "ratio": null },
      { "name": "a|b", "cpu": { "median": 110.4, "min": 90.0, "max": 120.0, "q1": 95.0, "q3": 115.0 }, "ratio": 1.104 } ] },
    { "way": "rx", "len": 65536, "variants": [
      { "name": "floor", "cpu": { "median": 1.5, "min": 1.0, "max": 2.0, "q1": 1.2, "q3": 1.8 }, "ratio": null } ] }
  ],
  "idle": { "vms": 2, "bytes": 8192, "rows": [{ "vms": 1, "bytes": 4096 }] }
}"#;

fn page(text: &str) -> Result<String> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.json"), JSON).expect("written");
    Ok(MeasurementPage::render(text, folder.path())?.text)
}

fn below(comment: &str) -> String {
    let text = page(&format!("# MeasurementPage\n<!-- {comment} -->\nold\nold\n<!-- end -->\nmore\n"))
        .expect("a page");
    let (before, rest) = text.split_once("-->\n").expect("the comment");
    assert!(before.starts_with("# MeasurementPage\n<!-- "), "{text}");
    let (below, after) = rest.split_once("<!-- end -->\n").expect("its end");
    assert_eq!(after, "more\n");
    below.to_owned()
}

#[test]
fn a_source_names_command_day_commit_and_machine() {
    let wanted = "`zerowire-bench net`, 2026-11-26, commit abc; Linux 6.18.0, Some CPU, 2 CPUs (virtual).\nNote: it rained.\n";
    assert_eq!(below("source a.json command=\"zerowire-bench net\""), wanted);
}

#[test]
fn a_table_has_a_row_and_a_column_for_each_label() {
    let wanted = "| | tx | rx |\n| --- | --- | --- |\n| floor, 64 KiB | 100 | 1.50 |\n| a\\|b, 64 KiB | 110 (1.10) | - |\n";
    let comment = "table a.json cases/variants rows=name,len:B\n  columns=way values=cpu,ratio:2";
    assert_eq!(below(comment), wanted);
}

#[test]
fn quartiles_stand_behind_their_median() {
    let wanted = "| | cpu |\n| --- | --- |\n| floor | 1.5 (1.2 to 1.8) |\n";
    assert_eq!(below("table a.json cases/variants where=way=rx rows=name values=cpu:1q"), wanted);
}

#[test]
fn without_columns_each_figure_has_one() {
    let wanted = "| | CPU | / floor |\n| --- | --- | --- |\n| a\\|b | 110.4 | 1.10 |\n";
    let comment = "table a.json cases/variants where=way=tx where=ratio=1.104 rows=name values=cpu:1,ratio:2 head=\"CPU|/ floor\"";
    assert_eq!(below(comment), wanted);
    assert_eq!(
        below("table a.json idle.rows rows=vms values=bytes"),
        "| | bytes |\n| --- | --- |\n| 1 | 4096 |\n"
    );
}

#[test]
fn what_can_not_be_understood_is_named() {
    for (comment, word) in [
        ("table a.json", "the list is missing"),
        ("table a.json cases/lines rows=name values=cpu", "no list 'lines'"),
        ("table a.json nothing rows=name values=cpu", "no list 'nothing'"),
        ("table a.json cases/variants rows=name values=cup", "has the member 'cup'"),
        ("table a.json cases/variants where=name=x rows=name values=cpu", "nothing in 'cases/variants'"),
        ("table a.json cases/variants where=name rows=name values=cpu", "where=KEY=VALUE"),
        ("table a.json cases/variants rows=name values=cpu:x", "cpu:x"),
        ("table a.json cases/variants rows=name values=cpu head=a|b", "2 heads for 1 columns"),
        ("table a.json cases/variants rows=name value=cpu", "'value' is not known"),
        ("table a.json cases/variants rows=name", "values=… are needed"),
        ("table data/a.json cases rows=name values=cpu", "the name of a file"),
        ("source missing.json", "command=… is missing"),
        ("chart a.json cases/variants groups=way series=name values=cpu file=a.svg", "title=… is missing"),
        ("source a.json command=\"x", "a quote has no end"),
    ] {
        let error = page(&format!("<!-- {comment} -->\n<!-- end -->\n")).expect_err(comment);
        assert!(format!("{error:#}").contains(word), "{comment}: {error:#}");
    }
    assert!(page("<!-- source a.json -->\n").is_err(), "no end");
    let lost = "<!-- source a.json -->\ntext\n<!-- source a.json -->\n<!-- end -->\n";
    assert!(page(lost).is_err(), "the text would be lost");
    assert!(page("<!-- source a.json\n").is_err(), "no end of the comment");
}

#[cfg(feature = "charts")]
#[test]
fn a_folder_is_written_once_and_then_as_its_json_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("data")).expect("a folder");
    let text = "<!-- source b.json command=\"zerowire-bench b\" -->\n<!-- end -->\n\
                <!-- table b.json cases rows=x values=y -->\n| old |\n<!-- end -->\n\
                <!-- chart a.json cases/variants groups=way series=name values=cpu file=a.svg title=T y=Y x=X better=lower -->\n\
                <!-- end -->\n";
    fs::write(at("page.md"), text).expect("written");
    for name in ["data/a.json", "data/c.json"] {
        fs::write(at(name), JSON).expect("written");
    }

    let checked = render(folder.path(), true).expect("checked");
    assert_eq!(checked.changed, [at("figures/a.svg"), at("page.md")]);
    assert_eq!(fs::read_to_string(at("page.md")).expect("a page"), text, "it was only checked");
    let rendered = render(folder.path(), false).expect("written");
    assert_eq!(rendered, checked);
    assert_eq!(rendered.missing, [("b.json".to_owned(), "zerowire-bench b".to_owned())]);
    assert_eq!(rendered.unused, ["c.json"]);
    let page = fs::read_to_string(at("page.md")).expect("a page");
    assert!(
        page.contains("Not measured yet: `zerowire-bench b --json measurements/data/b.json`.\n"),
        "{page}"
    );
    assert!(!page.contains("| old |") && page.contains("![T](figures/a.svg)\n"), "{page}");
    assert!(fs::read_to_string(at("figures/a.svg")).expect("a chart").contains("Some CPU"));
    assert_eq!(render(folder.path(), true).expect("checked").changed, Vec::<PathBuf>::new());
}
