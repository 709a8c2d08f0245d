//! Credentials.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::read_file;

/// Most bytes of a file with a key. A file that is larger is another one.
const FILE_MAX: u64 = 64 << 10;

/// What is shown instead.
const HIDDEN: &str = "[hidden]";

/// A credential. It is shown by neither `Debug` nor `Display` and cannot be serialized or compared.
///
/// Its own memory and that of its clones is wiped when they are dropped. Other copies are not: the text that it was read from, the
/// environment, the headers of requests, and what a connection has in its buffers.
#[derive(Clone)]
pub struct Secret(SecretString);

/// A credential cannot be had. The text never has it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A variable is missing or empty.
    #[error("read a key from the environment variable {name}: it is not set; set it or change api_key_env")]
    Variable {
        /// The variable.
        name: String,
    },
    /// A variable has bytes that are no text.
    #[error("read a key from the environment variable {name}: it is not UTF-8; correct it or change api_key_env")]
    VariableText {
        /// The variable.
        name: String,
    },
    /// A variable has more than a key.
    #[error("read a key from the environment variable {name}: it {problem}; it must have the key alone")]
    VariableContent {
        /// The variable.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A file cannot be read.
    #[error("read a key from the file {path}; check that it is there and readable, or change api_key_file", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file has no key in it.
    #[error("read a key from the file {path}: it {problem}; it must have the key alone", path = .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Secret {
    /// A credential out of a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The credential in a variable; `environment` gives the values of variables.
    ///
    /// # Errors
    ///
    /// The variable is missing, blank or no UTF-8, or has what no header can have.
    pub fn from_variable(name: &str, environment: impl Fn(&str) -> Option<OsString>) -> Result<Self, SecretError> {
        let text = environment(name).map(OsString::into_string).transpose();
        let text = text.map_err(|_| SecretError::VariableText { name: name.to_owned() })?.filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| SecretError::Variable { name: name.to_owned() })?;
        alone(text.trim()).map_err(|problem| SecretError::VariableContent { name: name.to_owned(), problem })
    }

    /// The credential in a file, without the white space around it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no text, is blank or has more than 64 KiB.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let unreadable = |source| SecretError::File { path: path.to_owned(), source };
        let bytes = read_file(path, FILE_MAX).map_err(unreadable)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| unreadable(std::io::Error::other(error)))?;
        alone(text.trim()).map_err(|problem| SecretError::Content { path: path.to_owned(), problem })
    }

    /// For the header of a request.
    pub(super) fn into_inner(self) -> SecretString {
        self.0
    }
}

/// A key that a header can have, or what is wrong with it.
fn alone(key: &str) -> Result<Secret, &'static str> {
    match key {
        "" => Err("is empty"),
        key if key.contains(['\n', '\r']) => Err("has several lines"),
        key if key.contains(char::is_control) => Err("has a control character in it"),
        key => Ok(Secret::new(key)),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn exposed(secret: Secret) -> String {
        secret.into_inner().expose_secret().to_owned()
    }

    #[test]
    fn it_is_not_shown() {
        let secret = Secret::new("hush");
        let shown = format!("{secret} {secret:?} {:?} {:#?}", Some(&secret), [&secret]);
        assert!(shown.contains(HIDDEN) && !shown.contains("hush"), "{shown}");
        assert_eq!(exposed(secret), "hush");
    }

    #[test]
    fn it_comes_from_a_variable() {
        let environment = |name: &str| match name {
            "KEY" => Some(" hush\n".into()),
            "BLANK" => Some(" ".into()),
            "LINES" => Some("hush\nhush".into()),
            "CONTROL" => Some("hush\u{1b}hush".into()),
            #[cfg(unix)]
            "BYTES" => Some(std::os::unix::ffi::OsStringExt::from_vec(b"hush\xff".to_vec())),
            _ => None,
        };
        assert_eq!(exposed(Secret::from_variable("KEY", environment).unwrap()), "hush");
        #[cfg(unix)]
        assert_eq!(
            Secret::from_variable("BYTES", environment).unwrap_err().to_string(),
            "read a key from the environment variable BYTES: it is not UTF-8; correct it or change api_key_env"
        );
        for (name, problem) in [("LINES", "has several lines"), ("CONTROL", "has a control character in it")] {
            let error = Secret::from_variable(name, environment).unwrap_err().to_string();
            assert_eq!(error, format!("read a key from the environment variable {name}: it {problem}; it must have the key alone"));
        }
        for name in ["BLANK", "MISSING"] {
            let error = Secret::from_variable(name, environment).unwrap_err().to_string();
            assert_eq!(error, format!("read a key from the environment variable {name}: it is not set; set it or change api_key_env"));
        }
    }

    #[test]
    fn it_comes_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(exposed(Secret::from_file(&file("good", b"hush\n")).unwrap()), "hush");
        for (name, text, problem) in [
            ("blank", b" \n".to_vec(), "is empty"),
            ("lines", b"hush\nhush".to_vec(), "has several lines"),
            ("control", b"hush\x07hush".to_vec(), "has a control character in it"),
        ] {
            let error = Secret::from_file(&file(name, &text)).unwrap_err().to_string();
            assert!(error.contains(problem) && !error.contains("hush"), "{error}");
        }
        assert!(matches!(Secret::from_file(&file("large", &vec![b'x'; 70_000])), Err(SecretError::File { .. })));
        assert!(matches!(Secret::from_file(&file("bytes", b"\xff")), Err(SecretError::File { .. })));
        assert!(matches!(Secret::from_file(&directory.path().join("none")), Err(SecretError::File { .. })));
    }
}
