//! Whether the `compat` of a provider or a model has only what its API reads.

use picofleet_delta::Json;

use super::Api;
use super::check::Problems;

/// What a member may be.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A number.
    Number,
    /// Any table.
    Table,
    /// A table of lists of texts with these names.
    Lists(&'static [&'static str]),
    /// A table of values for a chat template: scalars, and tables that name what stands for them.
    Template,
}

use Kind::{Flag, Lists, Number, Table, Template, Word};

type Members = &'static [(&'static str, Kind)];

/// The words for the session's headers are the same in every API, so that a table can be moved.
const AFFINITY: Kind = Word(&["openai", "openai-nosession", "openrouter"]);

const CHAT: Members = &[
    ("cacheControlFormat", Word(&["anthropic"])),
    ("chatTemplateArgs", Template),
    ("chatTemplateKwargs", Template),
    ("maxTokensField", Word(&["max_completion_tokens", "max_tokens"])),
    ("openRouterRouting", Table),
    ("promptCacheKeyMode", Word(&["disabled", "enabled"])),
    ("requiresAssistantAfterToolResult", Flag),
    ("requiresNonNullAssistantContent", Flag),
    ("requiresReasoningContentOnAssistantMessages", Flag),
    ("requiresThinkingAsText", Flag),
    ("requiresToolResultName", Flag),
    ("requiresToolsWithToolHistory", Flag),
    ("sendSessionAffinityHeaders", Flag),
    ("sessionAffinityFormat", AFFINITY),
    ("supportsDeveloperRole", Flag),
    ("supportsFinishReason", Flag),
    ("supportsLongCacheRetention", Flag),
    ("supportsMidConvoSystemMessages", Flag),
    ("supportsMidConvoToolAdditions", Flag),
    ("supportsReasoningEffort", Flag),
    ("supportsStore", Flag),
    ("supportsStrictMode", Flag),
    ("supportsThinkingTokenBudget", Flag),
    ("supportsUsageInStreaming", Flag),
    (
        "thinkingFormat",
        Word(&[
            "ant-ling",
            "baseten",
            "chat-template",
            "deepseek",
            "openai",
            "openrouter",
            "qwen",
            "qwen-chat-template",
            "string-thinking",
            "together",
            "zai",
        ]),
    ),
    ("thinkingTokenBudgetField", Word(&["thinking_budget", "thinking_budget_tokens", "thinking_token_budget"])),
    ("vercelGatewayRouting", Lists(&["only", "order"])),
    ("vllmPriority", Number),
    ("zaiToolStream", Flag),
];

const RESPONSES: Members = &[
    ("promptCacheKeyMode", Word(&["disabled", "enabled"])),
    ("sessionAffinityFormat", AFFINITY),
    ("supportsAdditionalTools", Flag),
    ("supportsDeveloperRole", Flag),
    ("supportsExplicitPromptCacheMode", Flag),
    ("supportsLongCacheRetention", Flag),
    ("supportsMaxOutputTokens", Flag),
    ("supportsMidConvoSystemMessages", Flag),
    ("supportsStrictMode", Flag),
    ("supportsToolSearch", Flag),
];

const ANTHROPIC: Members = &[
    ("allowEmptySignature", Flag),
    ("forceAdaptiveThinking", Flag),
    ("sendSessionAffinityHeaders", Flag),
    ("sessionAffinityFormat", AFFINITY),
    ("supportsCacheControlOnTools", Flag),
    ("supportsEagerToolInputStreaming", Flag),
    ("supportsLongCacheRetention", Flag),
    ("supportsMidConvoSystemMessages", Flag),
    ("supportsMidConvoToolChanges", Flag),
    ("supportsStrictTools", Flag),
    ("supportsTemperature", Flag),
];

const fn members(api: Api) -> Members {
    match api {
        Api::OpenAiCompletions => CHAT,
        Api::OpenAiResponses => RESPONSES,
        Api::AnthropicMessages => ANTHROPIC,
        Api::Scripted => &[],
    }
}

/// Whether the adapter of any API reads a member of this name.
pub(super) fn is_known(name: &str) -> bool {
    [CHAT, RESPONSES, ANTHROPIC].into_iter().flatten().any(|(known, _)| *known == name)
}

/// The problems of a `compat` at this path. Values are not repeated.
pub(super) fn compat_problems(path: &str, api: Api, compat: Option<&Json>, problems: &mut Problems) {
    let Some(compat) = compat else { return };
    let Some(own) = compat.as_object() else {
        problems.add(path, "it is no table; write it as one");
        return;
    };
    let known = members(api);
    for (name, value) in own {
        let path = format!("{path}.{name}");
        match known.iter().find(|(known, _)| *known == name) {
            Some((_, kind)) => kind.problems(&path, value, problems),
            None if known.is_empty() => problems.add(&path, format!("{} has no compat; remove it", api.as_str())),
            None => {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                problems.add(&path, format!("{} knows no such member; remove it or write one of {}", api.as_str(), names.join(", ")));
            }
        }
    }
}

impl Kind {
    fn problems(self, path: &str, value: &Json, problems: &mut Problems) {
        match self {
            // `null`, which TOML has not, is the same as nothing.
            _ if value.is_null() => {}
            Flag if value.as_bool().is_none() => problems.add(path, "it is no flag; write true or false"),
            Number if value.as_f64().is_none() => problems.add(path, "it is no number; write one"),
            Word(words) => word_problem(path, value, words, problems),
            Table | Lists(_) | Template if value.as_object().is_none() => problems.add(path, "it is no table; write it as one"),
            Lists(names) => {
                for (name, list) in value.as_object().into_iter().flatten() {
                    list_problem(&format!("{path}.{name}"), names, name, list, problems);
                }
            }
            Template => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    template_problems(&format!("{path}.{name}"), value, problems);
                }
            }
            Flag | Number | Table => {}
        }
    }
}

fn word_problem(path: &str, value: &Json, words: &[&str], problems: &mut Problems) {
    if !value.as_str().is_some_and(|word| words.contains(&&*word)) {
        problems.add(path, format!("it is no word that is known; write one of {}", words.join(", ")));
    }
}

fn list_problem(path: &str, names: &[&str], name: &str, list: &Json, problems: &mut Problems) {
    if !names.contains(&name) {
        problems.add(path, format!("there is no such member; remove it or write one of {}", names.join(", ")));
    } else if !list.as_array().is_some_and(|items| items.iter().all(|item| item.as_str().is_some())) {
        problems.add(path, "it is no list of texts; write it as one");
    }
}

/// What a table stands for is a value of the request: the thinking level, its budget or whether it thinks.
const VARIABLES: [&str; 3] = ["thinking.budget", "thinking.effort", "thinking.enabled"];

fn template_problems(path: &str, value: &Json, problems: &mut Problems) {
    if value.as_array().is_some() {
        problems.add(path, "a list can't stand here; write a text, a number, true, false, or a table with $var");
    }
    let Some(own) = value.as_object() else { return };
    if !own.into_iter().any(|(name, _)| name == "$var") {
        problems.add(path, format!("$var is missing; set it to one of {}", VARIABLES.join(", ")));
    }
    for (name, value) in own {
        let path = format!("{path}.{name}");
        match name {
            "$var" => word_problem(&path, value, &VARIABLES, problems),
            "omitWhenOff" => Flag.problems(&path, value, problems),
            _ => problems.add(&path, "there is no such member; remove it or write one of $var, omitWhenOff"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn problems(api: Api, compat: &str) -> Vec<String> {
        let mut problems = Problems::default();
        compat_problems("c", api, Some(&compat.parse().unwrap()), &mut problems);
        problems.into_vec().iter().map(ToString::to_string).collect()
    }

    /// The camel-case names in quotes of a source file.
    fn names(source: &'static str) -> BTreeSet<&'static str> {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let quoted = code.flat_map(|line| line.split('"').skip(1).step_by(2));
        let is_name = |name: &&str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.contains(|c: char| c.is_ascii_uppercase())
                && name.chars().all(|c| c.is_ascii_alphanumeric())
        };
        quoted.filter(is_name).collect()
    }

    #[test]
    fn the_members_are_those_that_the_adapters_read() {
        let chat = [include_str!("../openai_chat/compat.rs"), include_str!("../openai_chat/body.rs")];
        let sources: [(Api, &[&str]); 3] = [
            (Api::OpenAiCompletions, &chat),
            (Api::OpenAiResponses, &[include_str!("../openai_responses/compat.rs")]),
            (Api::AnthropicMessages, &[include_str!("../anthropic/compat.rs")]),
        ];
        for (api, sources) in sources {
            let read: BTreeSet<&str> = sources.iter().flat_map(|source| names(source)).filter(|name| *name != "providerOptions").collect();
            let known: BTreeSet<&str> = members(api).iter().map(|(name, _)| *name).collect();
            assert_eq!(known, read, "{api:?}");
        }
    }

    #[test]
    fn every_value_of_the_right_kind_is_good() {
        for api in [Api::OpenAiCompletions, Api::OpenAiResponses, Api::AnthropicMessages] {
            for (name, kind) in members(api) {
                let good: Vec<String> = match kind {
                    Flag => vec!["true".to_owned(), "false".to_owned(), "null".to_owned()],
                    Word(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
                    Number => vec!["-3".to_owned(), "0.5".to_owned()],
                    Table => vec![r#"{"anything": [1]}"#.to_owned()],
                    Lists(_) => vec![r#"{"only": ["a"], "order": []}"#.to_owned()],
                    Template => vec![r#"{"a": 1, "b": {"$var": "thinking.effort", "omitWhenOff": true}, "c": true, "d": "x"}"#.to_owned()],
                };
                for value in good {
                    assert_eq!(problems(api, &format!("{{\"{name}\": {value}}}")), <[String; 0]>::default(), "{name} {value}");
                }
                let bad = if matches!(kind, Word(_) | Number) { r#""hush""# } else { "1" };
                let told = problems(api, &format!("{{\"{name}\": {bad}}}"));
                assert!(told.len() == 1 && told[0].starts_with(&format!("c.{name}: it is no")) && !told[0].contains("hush"), "{told:?}");
            }
        }
    }

    #[test]
    fn what_no_adapter_reads_is_told_with_its_path() {
        for (api, compat, expected) in [
            (
                Api::OpenAiCompletions,
                r#"{"supportStore": true}"#,
                "c.supportStore: openai-completions knows no such member; remove it or write",
            ),
            (
                Api::OpenAiResponses,
                r#"{"supportsStore": true}"#,
                "c.supportsStore: openai-responses knows no such member; remove it or write",
            ),
            (Api::AnthropicMessages, r#"{"supportsStrictMode": true}"#, "c.supportsStrictMode: anthropic-messages knows no such member;"),
            (Api::Scripted, r#"{"supportsStore": true}"#, "c.supportsStore: scripted has no compat; remove it"),
            (Api::OpenAiCompletions, r#"{"vercelGatewayRouting": {"sort": []}}"#, "c.vercelGatewayRouting.sort: there is no such member;"),
            (Api::OpenAiCompletions, r#"{"vercelGatewayRouting": {"only": [1]}}"#, "c.vercelGatewayRouting.only: it is no list of texts;"),
            (Api::OpenAiCompletions, r#"{"chatTemplateArgs": {"a": {}}}"#, "c.chatTemplateArgs.a: $var is missing;"),
            (Api::OpenAiCompletions, r#"{"chatTemplateArgs": {"a": []}}"#, "c.chatTemplateArgs.a: a list can't stand here;"),
            (
                Api::OpenAiCompletions,
                r#"{"chatTemplateKwargs": {"a": {"$var": "thinking.depth"}}}"#,
                "c.chatTemplateKwargs.a.$var: it is no word that is known; write one of thinking.budget,",
            ),
            (
                Api::OpenAiCompletions,
                r#"{"chatTemplateKwargs": {"a": {"$var": "thinking.effort", "omit": true}}}"#,
                "c.chatTemplateKwargs.a.omit: there is no such member;",
            ),
        ] {
            let told = problems(api, compat);
            assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?} instead of {expected}");
        }
    }
}
