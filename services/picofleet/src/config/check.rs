//! Whether a configuration holds together.

use picofleet_models::config::Problem;

use super::{Config, StoreUrl};

/// All problems. It reads neither files nor the environment.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = picofleet_models::config::check(&config.providers, &config.defaults);
    let mut add = |path: &str, problem: String| problems.push(Problem { path: path.to_owned(), problem });
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
