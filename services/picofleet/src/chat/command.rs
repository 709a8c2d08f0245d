//! What a line of a chat asks for.

/// A line that was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// Nothing.
    Empty,
    /// Say it to the model: a steer while it works.
    Say(String),
    /// Say it to the model once it has answered.
    Later(String),
    /// Replace the older part of the context with a summary.
    Compact(Option<String>),
    /// Begin a new context.
    Reset(Option<String>),
    /// Go on in a fork of the conversation.
    Fork,
    /// Show the live tasks.
    Tasks,
    /// Show what was spent.
    Usage,
    /// Show or set the model.
    Model(Option<String>),
    /// Show or set the tools that are offered.
    Tools(Option<Vec<String>>),
    /// Stop what runs.
    Abort,
    /// Show the commands.
    Help,
    /// Leave.
    Quit,
    /// A command that is not there.
    Unknown(String),
}

/// What `/help` shows.
pub(super) const HELP: &str = "\
TEXT              say it; while the model works it is told in between
//TEXT            say /TEXT
/later TEXT       say it once the model has answered
/compact [FOCUS]  replace the older part of the context with a summary
/reset [HANDOFF]  begin a new context, with a text to go on from
/fork             go on in a fork of this conversation
/tasks            what is going on, and what waits for what
/usage            tokens and cost
/model [NAME]     show the model, or take another one: PROVIDER/MODEL
/tools [NAMES]    show the tools, or offer others: names with commas between, or none
/abort            stop what runs, as Esc and Ctrl-C do
/quit             leave, as Ctrl-D does; unfinished work goes on at the next start
";

impl Command {
    /// Reads a line.
    pub(super) fn read(line: &str) -> Self {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Self::Empty } else { Self::Say(line.to_owned()) };
        };
        if command.starts_with('/') {
            return Self::Say(command.to_owned());
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(ToOwned::to_owned);
        match (name, rest) {
            ("later", Some(text)) => Self::Later(text),
            ("compact", focus) => Self::Compact(focus),
            ("reset", handoff) => Self::Reset(handoff),
            ("fork", None) => Self::Fork,
            ("tasks", None) => Self::Tasks,
            ("usage", None) => Self::Usage,
            ("model", name) => Self::Model(name),
            ("tools", names) => Self::Tools(names.map(|names| tools(&names))),
            ("abort", None) => Self::Abort,
            ("help", None) => Self::Help,
            ("quit" | "exit", None) => Self::Quit,
            _ => Self::Unknown(command.to_owned()),
        }
    }
}

/// The names of a list; `none` is the empty one.
fn tools(names: &str) -> Vec<String> {
    let names: Vec<String> = names.split([',', ' ']).filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect();
    if names == ["none"] { Vec::new() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_something_or_are_commands() {
        let text = |text: &str| Some(text.to_owned());
        for (line, command) in [
            ("", Command::Empty),
            ("  ", Command::Empty),
            (" hello /reset ", Command::Say("hello /reset".into())),
            ("//etc/hosts", Command::Say("/etc/hosts".into())),
            ("/later and then", Command::Later("and then".into())),
            ("/later", Command::Unknown("later".into())),
            ("/compact", Command::Compact(None)),
            ("/compact  the plan ", Command::Compact(text("the plan"))),
            ("/reset go on", Command::Reset(text("go on"))),
            ("/model a/b", Command::Model(text("a/b"))),
            ("/tools", Command::Tools(None)),
            ("/tools read, bash,", Command::Tools(Some(vec!["read".into(), "bash".into()]))),
            ("/tools none", Command::Tools(Some(Vec::new()))),
            ("/fork now", Command::Unknown("fork now".into())),
            ("/exit", Command::Quit),
            ("/no such", Command::Unknown("no such".into())),
        ] {
            assert_eq!(Command::read(line), command, "{line:?}");
        }
    }

    #[test]
    fn help_names_every_command() {
        for name in ["later", "compact", "reset", "fork", "tasks", "usage", "model", "tools", "abort", "quit"] {
            assert!(HELP.contains(&format!("\n/{name} ")), "{name}");
        }
    }
}
