//! Rates for programs.

use serde_json::{Value, json};

use super::rates::{ServerRates, VmRates};
use super::state::Sorting;

/// One line of JSON.
pub fn json_line(rates: &ServerRates, sorting: Sorting) -> String {
    let vms: Vec<_> = sorting.sorted(rates).into_iter().map(vm).collect();
    let line = json!({
        "version": rates.version,
        "uptime_seconds": rates.uptime_seconds,
        "interval_seconds": rates.seconds,
        "cpu_ratio": rates.cpus,
        "vms": vms,
    });
    format!("{line}\n")
}

fn vm(vm: &VmRates) -> Value {
    let (now, both) = (&vm.now, vm.rates.as_ref());
    json!({
        "name": now.name,
        "state": now.condition(),
        "connected": now.connected,
        "zero_copied_ratio": both.and_then(|both| both.zero_copied_ratio()),
        "reason": both.and_then(|both| both.reason()),
        "dropped_frames_per_second": both.map(|both| both.dropped_frames()),
        "transmit": both.map(|both| &both.transmit),
        "receive": both.map(|both| &both.receive),
    })
}

#[cfg(test)]
mod tests {
    use super::super::rates::rates;
    use super::super::rates::tests::{moved, server, vm};
    use super::*;

    #[test]
    fn what_is_unknown_is_null() {
        let before = server(1.0, vec![vm("a", moved(0, 0))]);
        let now = server(3.0, vec![vm("a", moved(200, 100_000)), vm("b", moved(1, 0))]);
        let line = json_line(&rates(Some(&before), &now), Sorting::default());
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        let json: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&json["interval_seconds"], &json["cpu_ratio"]), (&2.0.into(), &0.25.into()));
        let (a, b) = (&json["vms"][0], &json["vms"][1]);
        assert_eq!(
            (&a["name"], &a["state"], &a["reason"]),
            (&"a".into(), &"connected".into(), &"small".into())
        );
        assert_eq!(a["transmit"]["frames_per_second"], 100.0);
        assert_eq!(a["transmit"]["bytes_per_second"], 100_000.0);
        assert_eq!(a["transmit"]["copied_bytes_per_second"]["small"], 50_000.0);
        assert_eq!((&a["zero_copied_ratio"], &a["dropped_frames_per_second"]), (&0.5.into(), &0.0.into()));
        assert_eq!(
            (&b["transmit"], &b["reason"], &b["zero_copied_ratio"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
    }
}
