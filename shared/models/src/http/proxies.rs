//! The proxies of the environment: what is wrong with them, which one a request takes, and their credentials.

use std::env::VarError;
use std::fmt::Write as _;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;

use super::ClientError;
use super::credential::Credentials;

/// The variables of a scheme. The first one that is set counts, as in the HTTP client.
const ALL: [&str; 2] = ["ALL_PROXY", "all_proxy"];
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];

/// The proxies of a client.
#[derive(Clone, Default)]
pub(super) struct Proxies {
    matcher: Option<Arc<Matcher>>,
    pub(super) credentials: Credentials,
}

impl Proxies {
    /// Those of the environment.
    ///
    /// # Errors
    ///
    /// One that would be used cannot be.
    pub(super) fn from_environment() -> Result<Self, ClientError> {
        // The HTTP client uses none in a CGI program, where others may set HTTP_PROXY.
        if std::env::var_os("REQUEST_METHOD").is_some() {
            return Ok(Self::default());
        }
        Self::new(|name| std::env::var(name))
    }

    fn new(variable: impl Fn(&str) -> Result<String, VarError>) -> Result<Self, ClientError> {
        let mut credentials = Credentials::default();
        // One for all is only asked for where there is no other.
        let mut all_is_used = false;
        for (names, is_needed) in [(HTTP, true), (HTTPS, true), (ALL, false)] {
            let found = first(names, &variable)?.filter(|(_, value)| !value.is_empty());
            let Some((name, value)) = found else {
                all_is_used |= is_needed;
                continue;
            };
            let usable = read(&value, &mut credentials);
            if usable.is_none() && (is_needed || all_is_used) {
                return Err(ClientError::Proxy { variable: name });
            }
        }
        Ok(Self { matcher: Some(Arc::new(Matcher::from_env())), credentials })
    }

    /// The host and the port of the proxy for a URL.
    pub(super) fn of(&self, url: &reqwest::Url) -> Option<String> {
        let found = self.matcher.as_ref()?.intercept(&url.as_str().parse().ok()?)?;
        let uri = found.uri();
        let port = uri.port_u16().unwrap_or_else(|| if uri.scheme_str() == Some("https") { 443 } else { 80 });
        Some(format!("{}:{port}", uri.host()?))
    }
}

/// The first variable that is set.
fn first(
    names: [&'static str; 2],
    variable: impl Fn(&str) -> Result<String, VarError>,
) -> Result<Option<(&'static str, String)>, ClientError> {
    for name in names {
        match variable(name) {
            Ok(value) => return Ok(Some((name, value))),
            Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => return Err(ClientError::Proxy { variable: name }),
        }
    }
    Ok(None)
}

/// Takes the credentials of a proxy; `None` when it is none that can be used.
fn read(value: &str, credentials: &mut Credentials) -> Option<()> {
    let matcher = Matcher::builder().all(value).build();
    let found = matcher.intercept(&http::Uri::from_static("http://any.invalid/"))?;
    if !matches!(found.uri().scheme_str(), Some("http" | "https")) {
        return None;
    }
    if let Some(header) = found.basic_auth().and_then(|header| header.to_str().ok()) {
        credentials.add_whole(header.trim_start_matches("Basic ").trim_end_matches('='));
    }
    let authority = value.split_once("//").map_or(value, |(_, rest)| rest).split(['/', '?', '#']).next()?;
    if let Some((user_info, _)) = authority.rsplit_once('@') {
        let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
        let mut decoded = String::new();
        for part in [user, password] {
            let part_decoded = percent_decode_str(part).decode_utf8_lossy();
            credentials.add_whole(part);
            credentials.add_whole(&part_decoded);
            let _ = write!(decoded, "{}{part_decoded}", if decoded.is_empty() { "" } else { ":" });
        }
        credentials.add_whole(user_info);
        credentials.add_whole(&decoded);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, String> {
        let found = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        Proxies::new(|name| found(name).ok_or(VarError::NotPresent)).map_err(|error| error.to_string())
    }

    #[test]
    fn credentials_of_proxies_are_known_in_all_forms() {
        // The base64 of `proxy-user:p@ss-word`.
        let text = "user proxy-user, password p@ss-word or p%40ss-word, Basic cHJveHktdXNlcjpwQHNzLXdvcmQ=";
        let expected = "user [redacted], password [redacted] or [redacted], Basic [redacted]=";
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            let proxies = proxies(&[(name, "http://proxy-user:p%40ss-word@127.0.0.1:1")]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(proxies.credentials.redact(text), expected, "{name}");
        }
    }

    #[test]
    fn proxies_that_cannot_be_used_are_named_without_their_value() {
        for (name, value) in [("HTTP_PROXY", "not a url"), ("https_proxy", "socks5://me:hush@h:1"), ("ALL_PROXY", "socks5://h:1")] {
            let error = proxies(&[(name, value)]).err().unwrap_or_default();
            assert!(error.contains(name) && !error.contains("hush") && !error.contains(value), "{error}");
        }
        for good in [&[("HTTP_PROXY", "")][..], &[("HTTP_PROXY", "h:1"), ("HTTPS_PROXY", "http://h"), ("ALL_PROXY", "socks5://h:1")]] {
            assert_eq!(proxies(good).err(), None);
        }
    }
}
