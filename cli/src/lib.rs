//! Command lines, and in one line what is wrong with one.

use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;

/// Parses the command line of this program, which ends here if it asks for help or the version.
///
/// # Errors
/// Says in one line what is wrong.
pub fn parse<A: Parser>() -> Result<A, String> {
    parse_from(std::env::args_os().collect())
}

/// Parses a command line that begins with the program's name, like [`parse`].
///
/// # Errors
/// Says in one line what is wrong.
pub fn parse_from<A: Parser>(arguments: Vec<OsString>) -> Result<A, String> {
    use ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand as MissingSubcommand, DisplayVersion,
    };
    A::try_parse_from(&arguments).map_err(|error| match error.kind() {
        DisplayHelp | DisplayVersion | MissingSubcommand => error.exit(),
        ErrorKind::InvalidSubcommand => {
            let names = subcommands(&A::command(), &arguments).join(", ");
            format!("{}; there are {names}", one_line(&error))
        }
        _ => one_line(&error),
    })
}

/// What clap says before its usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.split("\n\nUsage:").next().unwrap_or_default();
    let said = said.split("\n\nFor more information").next();
    let said = said.unwrap_or_default().trim_start_matches("error: ");
    let paragraphs = said.split("\n\n").map(|paragraph| {
        let words = paragraph.split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    });
    paragraphs.collect::<Vec<_>>().join("; ")
}

/// The subcommands of the innermost command that is named.
fn subcommands(mut command: &clap::Command, arguments: &[OsString]) -> Vec<String> {
    for name in arguments {
        command = command.find_subcommand(name).unwrap_or(command);
    }
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    shown.map(|c| c.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::parse_from;
    use clap::{Parser, Subcommand};

    #[derive(Debug, Parser)]
    struct Args {
        #[command(subcommand)]
        task: Task,
    }

    #[derive(Debug, Subcommand)]
    enum Task {
        Count {
            #[arg(long, value_parser = clap::value_parser!(u32).range(1..9))]
            to: u32,
        },
        Draw {
            #[command(subcommand)]
            what: What,
        },
        #[command(hide = true)]
        Secret,
    }

    #[derive(Debug, Subcommand)]
    enum What {
        Line,
        Circle,
    }

    fn parse(line: &str) -> Result<Args, String> {
        parse_from(line.split_whitespace().map(Into::into).collect())
    }

    #[test]
    fn what_is_wrong_is_one_line() {
        let parsed = parse("program count --to 8").expect("valid");
        assert!(matches!(parsed.task, Task::Count { to: 8 }));
        for (line, said) in [
            (
                "program count --to 9",
                "invalid value '9' for '--to <TO>': 9 is not in 1..9",
            ),
            ("program count --foo", "'--foo' found"),
            (
                "program count --too 1",
                "'--too' found; tip: a similar argument exists: '--to'",
            ),
            ("program count", "arguments were not provided: --to <TO>"),
            ("program fly", "'fly'; there are count, draw"),
            ("program draw square", "'square'; there are line, circle"),
        ] {
            let message = parse(line).expect_err(line);
            assert!(message.ends_with(said), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
