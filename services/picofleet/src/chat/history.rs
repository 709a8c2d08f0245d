//! The lines that were typed in earlier chats.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How many lines are kept.
pub(super) const HISTORY_MAX: usize = 1_000;

/// Only its owner reads what was said.
const PRIVATE: u32 = 0o600;

/// A file that every line is added to. It is opened once, with a mode of its own: the process has one umask, which is not touched, since
/// tools make files meanwhile.
pub(super) struct History {
    file: File,
}

impl History {
    /// Opens the user's history, which is cut to its newest lines, and gives these, oldest first. `None` where there is no place for it.
    pub(super) fn open() -> Option<io::Result<(Self, Vec<String>)>> {
        let set = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
        Some(Self::in_folder(&state.join("picofleet")))
    }

    fn in_folder(folder: &Path) -> io::Result<(Self, Vec<String>)> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join("chat-history");
        let mut bytes = Vec::new();
        let mut file = append(&path)?;
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        // The first line of files of the line editor's own format, whose lines are the same.
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && *line != "#V2").collect();
        if lines.len() > HISTORY_MAX {
            lines.drain(..lines.len() - HISTORY_MAX);
            // Whole, or as it was before.
            let mut kept = tempfile::NamedTempFile::new_in(folder)?;
            lines.iter().try_for_each(|line| writeln!(kept, "{line}"))?;
            kept.persist(&path).map_err(|error| error.error)?;
            file = append(&path)?;
        } else if !bytes.is_empty() && !bytes.ends_with(b"\n") {
            // A process was killed while it wrote.
            file.write_all(b"\n")?;
        }
        let lines = lines.into_iter().map(read).collect();
        Ok((Self { file }, lines))
    }

    /// Adds a line, in one write, so that the lines of two chats stay apart.
    pub(super) fn add(&mut self, line: &str) -> io::Result<()> {
        let line = line.replace('\\', r"\\").replace('\n', r"\n");
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(PRIVATE).open(path)
}

/// A line as it was typed.
fn read(stored: &str) -> String {
    let mut line = String::with_capacity(stored.len());
    let mut signs = stored.chars();
    while let Some(sign) = signs.next() {
        line.push(match sign {
            '\\' => match signs.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            sign => sign,
        });
    }
    line
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn lines_come_back_and_only_the_newest_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("state");
        let mode = || std::fs::metadata(folder.join("chat-history")).unwrap().permissions().mode() & 0o777;
        let (mut history, lines) = History::in_folder(&folder).unwrap();
        assert_eq!(lines, Vec::<String>::new());
        assert_eq!(mode(), PRIVATE);
        for line in ["first", r"two\nlines\", "two\nlines"] {
            history.add(line).unwrap();
        }
        assert_eq!(History::in_folder(&folder).unwrap().1, ["first", r"two\nlines\", "two\nlines"]);

        (0..HISTORY_MAX).for_each(|line| history.add(&line.to_string()).unwrap());
        let (mut cut, lines) = History::in_folder(&folder).unwrap();
        assert_eq!((lines.len(), lines[0].as_str()), (HISTORY_MAX, "0"));
        assert_eq!(mode(), PRIVATE);
        cut.add("newest").unwrap();
        let (_, lines) = History::in_folder(&folder).unwrap();
        assert_eq!((lines[0].as_str(), lines[HISTORY_MAX - 1].as_str()), ("1", "newest"));
    }

    #[test]
    fn a_file_of_the_editor_or_of_a_killed_chat_is_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("chat-history"), "#V2\nold\ncut of").unwrap();
        let (mut history, lines) = History::in_folder(folder.path()).unwrap();
        assert_eq!(lines, ["old", "cut of"]);
        history.add("new").unwrap();
        assert_eq!(History::in_folder(folder.path()).unwrap().1, ["old", "cut of", "new"]);
    }
}
