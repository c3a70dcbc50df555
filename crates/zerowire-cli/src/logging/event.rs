//! What an event says, and of which VM.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;

use serde_json::Value;
use tracing::field::{Field, Visit};

use crate::lock;

/// The fields of an event.
#[derive(Debug, Default)]
pub(super) struct EventText {
    /// The field `vm`.
    pub(super) vm: Option<String>,
    pub(super) message: String,
    /// All other fields, in their order.
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl EventText {
    fn put(&mut self, field: &Field, value: Value) {
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match field.name() {
            "message" => self.message = text(value),
            "vm" => self.vm = Some(text(value)),
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

/// The name of a VM, as the span of a thread that serves it has it.
#[derive(Debug, Default)]
pub(super) struct SpanName(pub(super) String);

impl Visit for SpanName {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0 = format!("{value:?}");
    }

    fn record_str(&mut self, _: &Field, value: &str) {
        value.clone_into(&mut self.0);
    }
}

/// The VMs that threads serve now, with the number of their spans. They show whether the first word
/// of another thread's line is a VM's name.
#[derive(Debug, Default)]
pub(super) struct ServedVms(Mutex<HashMap<String, usize>>);

impl ServedVms {
    pub(super) fn enter(&self, name: &str) {
        *lock(&self.0).entry(name.to_owned()).or_default() += 1;
    }

    pub(super) fn leave(&self, name: &str) {
        let mut served = lock(&self.0);
        if let Some(spans) = served.get_mut(name) {
            *spans -= 1;
            if *spans == 0 {
                served.remove(name);
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        lock(&self.0).contains_key(name)
    }
}

/// Whose an event is, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributed<'a> {
    /// Whose rate the line takes from: the VM's, or that of lines which begin with the same word.
    pub(super) key: &'a str,
    /// The VM.
    pub(super) vm: Option<&'a str>,
    /// The text without the name of the VM.
    pub(super) message: &'a str,
}

/// Attributes a text. A thread that serves one VM speaks of that (`vm`); others begin with a name.
pub(super) fn attribute<'a>(vm: Option<&'a str>, text: &'a str, served: &ServedVms) -> Attributed<'a> {
    if let Some(vm) = vm {
        let rest = text.strip_prefix(vm).and_then(|rest| rest.strip_prefix(": "));
        return Attributed { key: vm, vm: Some(vm), message: rest.unwrap_or(text) };
    }
    match text.split_once(": ") {
        Some((name, rest)) if served.has(name) => Attributed { key: name, vm: Some(name), message: rest },
        Some((word, _)) => Attributed { key: word, vm: None, message: text },
        None => Attributed { key: "", vm: None, message: text },
    }
}
