//! Measures the floor alone, or the gather threshold with `--threshold`.

use zerowire_bench::{NetOptions, ThresholdOptions, run_net, run_threshold};

fn main() -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let given = |name: &str| std::env::args().any(|argument| argument == name);
    if given("--threshold") {
        let options = ThresholdOptions { quick: given("--quick"), ..Default::default() };
        run_threshold(&options, &mut out)?;
    } else {
        let options = NetOptions {
            quick: given("--quick"),
            program: std::env::var_os("ZEROWIRE").map(Into::into),
            variants: std::env::var("VARIANTS")
                .map(|v| v.split(';').map(str::to_owned).collect())
                .unwrap_or_default(),
            svg: given("--svg").then(|| "/tmp/zwsvg".into()),
            ..Default::default()
        };
        run_net(&options, &mut out)?;
    }
    Ok(())
}
