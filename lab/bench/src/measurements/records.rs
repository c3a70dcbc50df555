//! JSON as a list of records.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::spec::{Field, Spec};
use crate::stats::Summary;
use crate::table;

/// The members of a case, and of one of its variants.
#[derive(Debug, Clone)]
pub struct Record<'a>(BTreeMap<&'a str, &'a Value>);

/// The records of the list that `spec` names, as far as its conditions hold.
pub fn records<'a>(json: &'a Value, spec: &Spec) -> Result<Vec<Record<'a>>> {
    let (outer, inner) = spec.list.split_once('/').unwrap_or((&spec.list, ""));
    let mut list = json;
    for key in outer.split('.') {
        list = &list[key];
    }
    let cases = match list {
        Value::Array(cases) => &cases[..],
        Value::Object(_) => std::slice::from_ref(list),
        _ => bail!("{}: there is no list '{outer}'", spec.file),
    };
    let mut all = Vec::new();
    for case in cases.iter().filter_map(Value::as_object) {
        let lines = case.get(inner).and_then(Value::as_array);
        let members = case.iter().filter(|(key, _)| *key != inner);
        match lines {
            _ if inner.is_empty() => all.push(Record(members.map(|(key, value)| (&**key, value)).collect())),
            Some(lines) => {
                for line in lines.iter().filter_map(Value::as_object) {
                    let record = members.clone().chain(line).map(|(key, value)| (&**key, value));
                    all.push(Record(record.collect()));
                }
            }
            None => bail!("{}: a member of '{outer}' has no list '{inner}'", spec.file),
        }
    }
    let conditions = spec.conditions()?;
    let holds =
        |record: &Record| conditions.iter().all(|(key, values)| values.contains(&record.word(key).as_str()));
    all.retain(holds);
    if all.is_empty() {
        bail!("{}: nothing in '{}' is as the conditions want it", spec.file, spec.list);
    }
    Ok(all)
}

impl Record<'_> {
    /// A member as a word; empty if it is none.
    fn word(&self, key: &str) -> String {
        match self.0.get(key) {
            Some(Value::String(word)) => word.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(is)) => is.to_string(),
            _ => String::new(),
        }
    }

    /// The members that say which record it is.
    pub fn label(&self, fields: &[Field]) -> String {
        let text = |field: &Field| match self.0.get(&*field.key).and_then(|value| value.as_u64()) {
            Some(number) if field.form == "B" => table::bytes(number as usize),
            _ => self.word(&field.key),
        };
        fields.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// A figure with its spread; a single number has none.
    pub fn figure(&self, key: &str) -> Option<Summary> {
        let value = self.0.get(key)?;
        match value.as_f64() {
            Some(number) => Summary::of([number]),
            None => Summary::deserialize(*value).ok(),
        }
    }

    /// Whether a record of this kind has such a member, of whatever value.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
}

/// Which records there are by these members, each once, in order.
pub fn labels(records: &[Record], fields: &[Field]) -> Vec<String> {
    let mut labels = Vec::new();
    for label in records.iter().map(|record| record.label(fields)) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// An error for a field that no record has: its key was misspelt, or has another name now.
pub fn verify(spec: &Spec, records: &[Record], fields: &[Field]) -> Result<()> {
    match fields.iter().find(|field| !records.iter().any(|record| record.has(&field.key))) {
        Some(field) => bail!("{}: nothing in '{}' has the member '{}'", spec.file, spec.list, field.key),
        None => Ok(()),
    }
}
