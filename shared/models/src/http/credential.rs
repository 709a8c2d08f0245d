//! Which headers hold credentials, and texts from outside without them.

use secrecy::{ExposeSecret as _, SecretString};

/// What names of headers with credentials have in them. This is the one list: it decides what is sent as sensitive, what is taken out of
/// texts, what counts as a key, and what `config show` hides.
const WORDS: [&str; 6] = ["auth", "cookie", "key", "password", "secret", "token"];

/// Shortest credential, in bytes, that is looked for in texts; shorter ones are in many words.
const REDACTED_MIN: usize = 6;

/// What stands in its place.
const REDACTED: &str = "[redacted]";

/// Whether the name of a header says that its value is a credential.
pub(crate) fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// The credentials of a request.
#[derive(Clone, Default)]
pub(super) struct Credentials(Vec<SecretString>);

impl Credentials {
    /// Takes the value of a header: the whole, and what it consists of, since a server may repeat only a part. A scheme such as `Bearer`
    /// is no part of a credential.
    pub(super) fn add(&mut self, value: &str) {
        let value = value.trim();
        let value = match value.split_once(' ') {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => rest.trim(),
            _ => value,
        };
        let pieces = value.split([' ', ';', ',']);
        // As in cookies.
        let values = pieces.clone().filter_map(|piece| piece.split_once('=').map(|(_, value)| value));
        let parts = std::iter::once(value).chain(pieces).chain(values).map(|part| part.trim_matches('"'));
        for part in parts {
            self.add_whole(part);
        }
    }

    /// Takes a credential as it is.
    pub(super) fn add_whole(&mut self, value: &str) {
        if value.len() < REDACTED_MIN {
            return;
        }
        self.0.extend([value.to_owned(), in_json(value)].map(SecretString::from));
        self.sort();
    }

    /// These and others.
    pub(super) fn with(&self, others: &Self) -> Self {
        let mut all = Self(self.0.iter().chain(&others.0).cloned().collect());
        all.sort();
        all
    }

    /// Longest first: a part of one that was taken out would leave the rest of the whole.
    fn sort(&mut self) {
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
    }

    /// A text without them, in whatever case it has them. Credentials of fewer than 6 bytes stay: they are in many words.
    pub(super) fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| without(&text, secret.expose_secret()))
    }

    /// The begin of a text without them. What was cut off may have had the end of one, so its begin goes, too.
    pub(super) fn redact_begin(&self, text: &str) -> String {
        let text = self.redact(text);
        let longest = self.0.iter().filter_map(|secret| begun(&text, secret.expose_secret())).max();
        longest.map_or_else(|| text.clone(), |length| format!("{}{REDACTED}", &text[..text.len() - length]))
    }
}

/// A text without a secret in any case of its ASCII letters.
fn without(text: &str, secret: &str) -> String {
    // Both have the places of the texts that they are made of.
    let (lower, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for (at, found) in lower.match_indices(&wanted) {
        kept.push_str(&text[from..at]);
        kept.push_str(REDACTED);
        from = at + found.len();
    }
    kept + &text[from..]
}

/// How many bytes of a secret a text ends with.
fn begun(text: &str, secret: &str) -> Option<usize> {
    let lengths = (1..secret.len()).rev().filter(|length| secret.is_char_boundary(*length));
    let (text, secret) = (text.as_bytes(), secret.as_bytes());
    let ends = |length: usize| text.len() >= length && text[text.len() - length..].eq_ignore_ascii_case(&secret[..length]);
    lengths.into_iter().find(|length| ends(*length))
}

/// A text as it stands within a JSON string.
fn in_json(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(value: &str, text: &str) -> String {
        let mut credentials = Credentials::default();
        credentials.add(value);
        credentials.redact(text)
    }

    #[test]
    fn names_tell_credentials() {
        for name in ["authorization", "X-Api-Key", "api-key", "x-goog-api-key", "cf-aig-authorization", "Cookie", "x-auth-token"] {
            assert!(is_credential(name), "{name}");
        }
        for name in ["accept", "x-team", "content-type", "anthropic-version", "x-session-id", "x-session-affinity", "x-client-request-id"] {
            assert!(!is_credential(name), "{name}");
        }
    }

    #[test]
    fn values_and_their_parts_are_taken_out() {
        assert_eq!(redacted("Bearer hush-123", "Bearer hush-123"), "Bearer [redacted]");
        assert_eq!(redacted("hush-123", "key 'hush-123' is bad"), "key '[redacted]' is bad");
        assert_eq!(redacted("a=first-secret; b=second-secret", "first-secret or second-secret"), "[redacted] or [redacted]");
        assert_eq!(redacted("Digest username=\"somebody\", response=\"0123456789\"", "response 0123456789"), "response [redacted]");
        assert_eq!(redacted("hush\"and\\hush", r#"{"message":"hush\"and\\hush"}"#), r#"{"message":"[redacted]"}"#);
        assert_eq!(redacted("short", "a short text"), "a short text");
        assert_eq!(redacted("Hush-123é", "ä HUSH-123é ä hush-123é."), "ä [redacted] ä [redacted].");
    }

    #[test]
    fn a_text_that_was_cut_within_a_credential_loses_its_begin() {
        let mut credentials = Credentials::default();
        credentials.add("Bearer hush-123");
        assert_eq!(credentials.redact_begin("your key is hush-1"), "your key is [redacted]");
        assert_eq!(credentials.redact_begin("your key is hush-123"), "your key is [redacted]");
        assert_eq!(credentials.redact_begin("your key"), "your key");
        assert_eq!(credentials.redact_begin("é HUSH-1"), "é [redacted]");
    }
}
