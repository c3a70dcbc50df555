//! A table of Markdown.

use anyhow::{Result, bail};

use super::records::{Record, labels, records, verify};
use super::spec::{Field, Spec};
use crate::experiment::Digits;

/// A cell without a figure.
const NONE: &str = "-";

/// The table: a row for each label of `rows`, and a column for each label of `columns`, or without
/// `columns` for each of `values`. Of several values in a cell, all but the first stand in
/// brackets.
pub fn table(json: &serde_json::Value, spec: &Spec) -> Result<String> {
    let records = records(json, spec)?;
    let (rows, columns, values) = (spec.fields("rows"), spec.fields("columns"), spec.fields("values"));
    if rows.is_empty() || values.is_empty() {
        bail!("table {}: rows=… and values=… are needed", spec.file);
    }
    for fields in [&rows, &columns, &values] {
        verify(spec, &records, fields)?;
    }
    let mut lines = Vec::new();
    let across = labels(&records, &columns);
    let heads: Vec<String> = match spec.get("head") {
        Some(head) => head.split('|').map(str::to_owned).collect(),
        None if columns.is_empty() => values.iter().map(|value| value.key.clone()).collect(),
        None => across.clone(),
    };
    let wanted = if columns.is_empty() { values.len() } else { across.len() };
    if heads.len() != wanted {
        bail!("table {}: {} heads for {wanted} columns", spec.file, heads.len());
    }
    lines.push(line(std::iter::once(String::new()).chain(heads)));
    lines.push(line(vec!["---".to_owned(); wanted + 1]));
    for row in labels(&records, &rows) {
        let of = |record: &&Record| record.label(&rows) == row;
        let cells: Vec<String> = if columns.is_empty() {
            let record = records.iter().find(of);
            values.iter().map(|value| text(record, std::slice::from_ref(value))).collect::<Result<_>>()?
        } else {
            let cell = |column: &String| {
                let at = records.iter().filter(of).find(|record| record.label(&columns) == *column);
                text(at, &values)
            };
            across.iter().map(cell).collect::<Result<_>>()?
        };
        lines.push(line(std::iter::once(row).chain(cells)));
    }
    Ok(lines.concat())
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells = cells.into_iter().map(|cell| match cell.is_empty() {
        true => " |".to_owned(),
        false => format!(" {} |", cell.replace('|', "\\|")),
    });
    format!("|{}\n", cells.collect::<String>())
}

/// The figures of a record: `812 (1.08)`.
fn text(record: Option<&Record>, values: &[Field]) -> Result<String> {
    let mut texts = Vec::new();
    for value in values {
        let (form, with_quartiles) = match value.form.strip_suffix('q') {
            Some(form) => (form, true),
            None => (value.form.as_str(), false),
        };
        let digits = match form {
            "" => Digits::Three,
            "%" => Digits::Percent(1),
            digits => match digits.parse() {
                Ok(digits) => Digits::Behind(digits),
                Err(_) => bail!("{}:{digits}: give a number of digits, or %, and q for quartiles", value.key),
            },
        };
        let Some(figure) = record.and_then(|r| r.figure(&value.key)) else { continue };
        texts.push(digits.text(figure.median));
        if with_quartiles {
            texts.push(format!("{} to {}", digits.text(figure.q1), digits.text(figure.q3)));
        }
    }
    Ok(match texts.split_first() {
        None => NONE.to_owned(),
        Some((first, [])) => first.clone(),
        Some((first, rest)) => format!("{first} ({})", rest.join(", ")),
    })
}
