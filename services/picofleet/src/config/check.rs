//! Whether a configuration holds together.

use picofleet_models::config::{Api, Problem};

use super::{Config, StoreUrl};

/// All problems. It reads neither files nor the environment.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = picofleet_models::config::check(&config.providers, &config.defaults);
    let mut add = |path: &str, problem: String| problems.push(Problem { path: path.to_owned(), problem });
    for (id, provider) in &config.providers {
        if let Some(problem) = provider.base_url.as_deref().and_then(|url| endpoint(url, provider.api)) {
            add(&format!("providers.{id}.base_url"), problem);
        }
    }
    if let Err(error) = config.storage.url.parse::<StoreUrl>() {
        add("storage.url", error.to_string());
    }
    if config.tools.workspace.as_os_str().is_empty() {
        add("tools.workspace", "it names no folder; set its path or remove it".to_owned());
    }
    // The system takes the highest number for "do not change".
    if config.tools.user.is_some_and(|user| user.id == u32::MAX || user.group == u32::MAX) {
        add("tools.user", "4294967295 is no user or group; set the numbers that `id` prints".to_owned());
    }
    problems
}

/// What a URL of an API must not end with, since that is added to it.
const ENDPOINTS: [&str; 3] = ["/chat/completions", "/responses", "/messages"];

/// What is wrong with a URL that is one of a request, and not the one that all requests begin with.
fn endpoint(url: &str, api: Api) -> Option<String> {
    let whole = url.trim_end_matches('/');
    let ending = ENDPOINTS.into_iter().find(|ending| whole.ends_with(ending))?;
    let base = whole.strip_suffix(ending)?;
    let base = if api == Api::AnthropicMessages { base.strip_suffix("/v1").unwrap_or(base) } else { base };
    // A URL with a user may have a password, which is not repeated.
    let instead = if base.contains('@') { "what stands before it".to_owned() } else { format!("base_url = {base:?}") };
    Some(format!("it ends with {ending}, which each request adds by itself; write {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_requests_is_told_from_one_of_an_api() {
        let written = |url, api| endpoint(url, api).map(|text| text.split_once("write ").unwrap().1.to_owned());
        for (url, api, base) in [
            ("https://a/v1/chat/completions", Api::OpenAiCompletions, "base_url = \"https://a/v1\""),
            ("https://a/v1/responses/", Api::OpenAiResponses, "base_url = \"https://a/v1\""),
            ("https://a/v1/messages", Api::AnthropicMessages, "base_url = \"https://a\""),
            ("https://u:p@a/v1/messages", Api::AnthropicMessages, "what stands before it"),
        ] {
            assert_eq!(written(url, api).as_deref(), Some(base));
        }
        assert_eq!(written("https://a/v1", Api::OpenAiCompletions), None);
    }
}
