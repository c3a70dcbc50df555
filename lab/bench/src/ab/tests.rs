use serde_json::json;

use super::*;

/// A report of a benchmark with two variants; the second one takes `cpu`.
fn report(cpu: f64) -> Vec<Found> {
    let line = |way: &str, cpu: f64| {
        json!({
            "way": way, "path": "io_uring", "packets": cpu as u64,
            "cpu_ns": { "median": cpu }, "cpu_to_epoll": { "median": 1.0 },
            "gigabits_per_second": { "median": 9.0 },
        })
    };
    let lines = [line("epoll", 100.0), line("plain", cpu)];
    found(&json!({ "cases": [{ "connections": 16, "sends": 4096, "set": "hot", "lines": lines }] }))
}

#[test]
fn cpu_figures_are_found_by_case_and_variant() {
    let all = report(50.0);
    let figure = |variant: &str, value: f64| {
        let (case, figure) = ("connections 16, hot".into(), "cpu_ns".into());
        (AbFigure { case, variant: variant.into(), figure }, value)
    };
    assert_eq!(all, [figure("epoll", 100.0), figure("plain", 50.0)]);
    // As net and vsock name their lists.
    let variants = json!({ "cases": [{ "variants": [{ "name": "a", "cpu_s": { "median": 1.0 } }] }] });
    assert_eq!(found(&variants)[0].0.variant, "a");
}

#[test]
fn ratios_are_of_the_same_round_and_the_gate_is_their_lower_quartile() {
    let rounds = [[50.0, 52.5], [100.0, 105.0], [200.0, 210.0]].map(|both| both.map(report));
    let (head, command) = (ReportHead::example("others were at work"), vec!["tcp-rx".into()]);
    let report = compared(AbFacts { head, command }, &rounds).unwrap();
    let ratio = report.lines[1].spread("ratio").unwrap();
    assert!((ratio.min - 1.05).abs() < 1e-9 && (ratio.max - 1.05).abs() < 1e-9);
    assert_eq!(report.lines[0].middle("ratio"), Some(1.0));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["rounds"], &json["command"]), (&json!(3), &json!(["tcp-rx"])));
    assert_eq!(
        (&json["lines"][1]["variant"], &json["lines"][1]["old"]["median"]),
        (&json!("plain"), &json!(100.0))
    );
    assert_eq!(report.beyond_gate(2.0), ["plain (connections 16, hot), cpu_ns: 1.050..1.050 times OLD's"]);
    assert_eq!(report.beyond_gate(6.0), Vec::<String>::new());
    let text = report.text();
    for word in ["tcp-rx: medians of 3 rounds", "NEW / OLD", "1.050..1.050", "connections 16, hot"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn an_old_zerowire_has_the_benchmarks_as_a_command() {
    let command = ["tcp-rx".to_owned(), "--quick".to_owned()];
    assert_eq!(arguments(Path::new("/old/zerowire"), &command), ["bench", "tcp-rx", "--quick"]);
    assert_eq!(arguments(Path::new("/new/zerowire-bench"), &command), ["tcp-rx", "--quick"]);
}

#[test]
fn what_a_build_says_of_its_arguments_is_told_and_not_the_hint_at_help() {
    let said = "error: invalid value 'zz' for '--ways <WAY,…>'\n  [possible values: recv]\n\n\
                For more information, try '--help'.\n";
    assert_eq!(complaint(said), "error: invalid value 'zz' for '--ways <WAY,…>' [possible values: recv]");
    assert_eq!(complaint("a warning\n\nzerowire-bench: no room\n"), "zerowire-bench: no room");
    assert_eq!(complaint(""), "");
}

#[test]
fn builds_without_a_figure_in_common_and_wrong_options_are_named() {
    assert!(compared(AbFacts::default(), &[[report(1.0), Vec::new()]]).is_err());
    let options = AbOptions {
        old: "/old".into(),
        new: "/new".into(),
        rounds: 1,
        command: vec!["tcp-rx".into()],
        gate: None,
        json: None,
    };
    let failed = |options: AbOptions| run_ab(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(failed(AbOptions { rounds: 0, ..options.clone() }).contains("at least 1"));
    let twice = vec!["tcp-rx".into(), "--rounds".into()];
    assert!(failed(AbOptions { command: twice, ..options.clone() }).contains("--rounds behind --"));
    assert!(failed(options.clone()).contains("can't start /old"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("zerowire"), "").unwrap();
    let old = folder.path().join("old");
    // The same folder by another path.
    let new = folder.path().join(".").join("new");
    for command in ["vsock-rx --table", "net", "vsock --quick", "peers"] {
        let command = command.split(' ').map(str::to_owned).collect();
        let of_device = AbOptions { command, ..options.clone() };
        assert!(failed(of_device.clone()).contains("/zerowire is missing"));
        let (old, new) = (old.clone(), new.clone());
        assert!(failed(AbOptions { old, new, ..of_device }).contains("a folder of its own"));
    }
    for command in ["net --floor-only", "vsock --program a=/a", "vsock --program=a=/a", "tcp-rx"] {
        let command = command.split(' ').map(str::to_owned).collect();
        let (old, new) = (old.clone(), new.clone());
        let error = failed(AbOptions { command, old, new, ..options.clone() });
        assert!(error.contains("can't start"), "{error}");
    }
}
