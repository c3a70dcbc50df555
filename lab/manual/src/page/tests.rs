use super::*;
use clap::{Arg, ArgAction};

fn program() -> Command {
    let serve = Command::new("serve")
        .about("Serves a thing.")
        .arg(Arg::new("socket").long("socket").value_name("PATH").help("Where to listen"))
        .after_help("Ends by itself: no.\nLimits: 3 at most.\n\nExit status:\n  0 well\n\n  1 ill\nDone.");
    Command::new("tool").version("1.2").about("A tool.").subcommand(serve)
}

#[test]
fn a_program_has_a_page_and_each_command_one_of_its_own() {
    let pages = pages(program(), &["tool.toml.5"]).expect("pages");
    assert_eq!(pages.keys().collect::<Vec<_>>(), ["tool-serve.1", "tool.1"]);
    for text in ["tool\\-serve(1)", "\\fIcommand\\fR"] {
        assert!(pages["tool.1"].contains(text), "no {text} in {}", pages["tool.1"]);
    }
    let serve = &pages["tool-serve.1"];
    for text in ["\\-\\-socket", "Where to listen", "\\fBtool\\fR(1),\n\\fBtool.toml\\fR(5)"] {
        assert!(serve.contains(text), "no {text} in {serve}");
    }
    assert!(serve.starts_with(".TH tool-serve 1 \"\" \"zerowire 1.2\" zerowire\n"), "{serve}");
}

#[test]
fn commands_of_a_command_stand_on_its_page() {
    let all = || Arg::new("all").long("all").global(true).help("Of all");
    let start = Command::new("start")
        .about("Starts it.")
        .arg(Arg::new("fast").long("fast").action(ArgAction::SetTrue).help("At once"));
    let run = Command::new("run").subcommand(start).subcommand_required(true);
    let own = Command::new("own").arg(all()).subcommand(Command::new("list").about("Lists.")).subcommand(run);
    let pages = pages(Command::new("tool").version("1.2").subcommand(own), &[]).expect("pages");
    assert_eq!(pages.keys().collect::<Vec<_>>(), ["tool-own.1", "tool.1"]);
    let (_, commands) = pages["tool-own.1"].split_once(".SH \"COMMANDS\"\n").expect("a section");
    let wanted = ".SS \"list\"\nLists.\n.PP\n\\fBtool own list\\fR \n.SS \"run start\"\nStarts it.\n.PP\n\
                  \\fBtool own run start\\fR [\\fB\\-\\-fast\\fR] \n.TP\n\\fB\\-\\-fast\\fR\nAt once\n\
                  .SH \"SEE ALSO\"\n";
    assert!(commands.starts_with(wanted), "{commands}");
}

#[test]
fn what_is_handed_on_stands_behind_two_dashes() {
    let run = Command::new("run").arg(Arg::new("words").last(true).required(true).value_name("WORDS"));
    let pages = pages(Command::new("tool").version("1.2").subcommand(run), &[]).expect("pages");
    let run = &pages["tool-run.1"];
    assert_eq!(run.matches("\\fB\\-\\-\\fR <\\fIWORDS\\fR>").count(), 1, "{run}");
}

#[test]
fn what_stands_behind_the_options_becomes_sections() {
    let help = "Ends by itself: no.\nLimits: 3 at most.\n\nExit status:\n  0 well\n\n  1 ill\nDone.";
    let wanted = ".SH \"NOTES\"\n.PP\nEnds by itself: no.\n.SH \"LIMITS\"\n.PP\n3 at most.\n\
                      .SH \"EXIT STATUS\"\n.PP\n.nf\n  0 well\n\\&\n  1 ill\n.fi\n.PP\nDone.\n";
    assert_eq!(sections(help), wanted);
}
