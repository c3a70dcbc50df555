//! A chart.

use anyhow::{Result, bail};
use serde_json::Value;

use super::page::head;
use super::records::{labels, records, verify};
use super::spec::Spec;
use crate::chart::{Bars, Better, Series};

/// The bars: a group for each label of `groups`, and in it one for each label of `series`.
pub fn chart(json: &Value, spec: &Spec) -> Result<Bars> {
    let records = records(json, spec)?;
    let (groups, series, values) = (spec.fields("groups"), spec.fields("series"), spec.fields("values"));
    let [value] = &values[..] else { bail!("chart {}: values=… takes one figure", spec.file) };
    for fields in [&groups, &series, &values] {
        verify(spec, &records, fields)?;
    }
    let (across, names) = (labels(&records, &groups), labels(&records, &series));
    let bar = |group: &String, name: &String| {
        let found = records.iter().find(|r| r.label(&groups) == *group && r.label(&series) == *name);
        found.and_then(|record| record.figure(&value.key))
    };
    let series = names.iter().map(|name| Series {
        name: name.clone(),
        values: across.iter().map(|group| bar(group, name)).collect(),
    });
    Ok(Bars {
        title: spec.need("title")?.to_owned(),
        subtitle: format!("{}; bars: medians, whiskers: quartiles", head(json)),
        y_label: spec.need("y")?.to_owned(),
        better: match spec.need("better")? {
            "lower" => Better::Lower,
            "higher" => Better::Higher,
            other => bail!("chart {}: better={other}: give lower or higher", spec.file),
        },
        x_label: spec.need("x")?.to_owned(),
        series: series.collect(),
        groups: across,
        reference: spec.get("reference").map(str::parse).transpose()?,
    })
}
