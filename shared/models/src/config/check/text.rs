//! Texts that can never be sent, set or shown. No problem repeats a value.

use http::{HeaderName, HeaderValue};

use super::Problems;
use crate::model::Headers;

/// Headers that belong to the connection or to the client: another value would break the request.
const OWN_HEADERS: [&str; 9] =
    ["connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/// How well-known keys begin.
const KEY_BEGINS: [&str; 7] = ["sk-", "sk_", "pk-", "gsk_", "xai-", "aiza", "bearer "];

/// Shortest text without a known begin that is taken for a key.
const KEY_MIN: usize = 20;

pub(super) fn control_problem(path: &str, text: &str, problems: &mut Problems) {
    if text.contains(char::is_control) {
        problems.add(path, "it has a line break or another control character in it; remove it");
    }
}

pub(super) fn header_problems(path: &str, headers: &Headers<String>, problems: &mut Problems) {
    for (name, value) in headers.iter() {
        let path = format!("{path}.{name}");
        match HeaderName::try_from(name) {
            Err(_) => problems.add(&path, "it is no name of a header; correct it"),
            Ok(name) if OWN_HEADERS.contains(&name.as_str()) => problems.add(&path, "the client sets this header itself; remove it"),
            Ok(_) => {}
        }
        if HeaderValue::from_str(value).is_err() {
            problems.add(&path, "its value has a line break or another control character in it; remove that");
        }
    }
}

pub(super) fn variable_problem(path: &str, name: &str, problems: &mut Problems) {
    if name.trim().is_empty() {
        problems.add(path, "it names no variable; set its name or remove it");
    } else if is_like_key(name) {
        problems.add(path, "it looks like a key; the NAME of the variable that has the key belongs here, as in \"OPENAI_API_KEY\"");
    } else if name.contains(|c: char| c == '=' || c.is_control()) {
        problems.add(path, "no variable can have such a name, with = or a control character in it; correct it");
    }
}

/// Whether the name of a variable is rather a key that stands in the wrong place. Names are words with underscores; keys are long and of
/// mixed signs.
fn is_like_key(name: &str) -> bool {
    let lower = name.trim().to_ascii_lowercase();
    if KEY_BEGINS.iter().any(|begin| lower.starts_with(begin)) {
        return true;
    }
    let has = |kind: fn(&char) -> bool| name.chars().filter(kind).count();
    let (small, capital, digits) = (has(char::is_ascii_lowercase), has(char::is_ascii_uppercase), has(char::is_ascii_digit));
    let mixed = small > 0 && digits >= 3 && (capital > 0 || !name.contains('_'));
    let dashed = name.contains('-') && small > 0 && digits > 0;
    let hexadecimal = digits >= 3 && name.chars().all(|c| c.is_ascii_hexdigit());
    name.len() >= KEY_MIN && (mixed || dashed || hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str) -> Vec<String> {
        let mut problems = Problems::default();
        variable_problem("p", name, &mut problems);
        problems.into_vec().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_of_variables_are_no_keys() {
        for name in ["OPENAI_API_KEY", "openai_api_key", "KEY", "k", "AZURE_OPENAI_API_KEY_2024_08", "my-key", "MyCompanyOpenAiApiKey"] {
            assert_eq!(problems(name), <[String; 0]>::default());
        }
    }

    #[test]
    fn keys_and_what_is_no_name_are_told_and_not_repeated() {
        for key in [
            "sk-x",
            "SK-proj-0",
            "gsk_abc",
            "AIzaSyB01",
            "Bearer abc",
            "0123456789abcdef0123456789abcdef",
            "aB3dE6gH9jK2mN5pQ8sT",
            "7f9c24e8-3b12-4a5d-9c1e-0d6b8a7f5e21",
        ] {
            let told = problems(key);
            assert!(told.len() == 1 && told[0].starts_with("p: it looks like a key; the NAME") && !told[0].contains(key), "{told:?}");
        }
        for name in ["A=hush", "A\0hush", "A\nhush"] {
            let told = problems(name);
            assert!(told.len() == 1 && told[0].starts_with("p: no variable can have such a name") && !told[0].contains("hush"), "{told:?}");
        }
        for name in ["", "  "] {
            assert_eq!(problems(name), ["p: it names no variable; set its name or remove it"]);
        }
    }
}
