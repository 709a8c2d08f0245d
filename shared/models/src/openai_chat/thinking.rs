//! How a request tells the thinking level.

use std::sync::Arc;

use picofleet_delta::Json;

use super::body::Body;
use super::compat::{Compat, ThinkingFormat};
use crate::js;
use crate::model::{Model, ThinkingLevel};
use crate::provider::StreamOptions;

/// Tokens that stay for the answer where thinking shares its limit.
const ANSWER_MIN: u64 = 1024;

/// What a request says about thinking.
struct Thinking<'a> {
    model: &'a Model,
    /// The level; `None` for no thinking.
    level: Option<ThinkingLevel>,
    /// It may tell an effort.
    takes_effort: bool,
    budget: Option<u64>,
}

/// Sets the members for a level. `output_max` is the limit of thinking and answer together.
pub(super) fn set(body: &mut Body, model: &Model, options: &StreamOptions, compat: &Compat, level: Option<ThinkingLevel>, output_max: u64) {
    if !model.reasoning {
        return;
    }
    let budget = level.and_then(|level| budget(level, options, output_max));
    let thinking = Thinking { model, level, takes_effort: compat.reasoning_effort, budget };
    thinking.set(body, compat);
    if let (Some(field), Some(budget)) = (compat.thinking_budget_field, budget) {
        body.set(field, budget);
    }
}

fn budget(level: ThinkingLevel, options: &StreamOptions, output_max: u64) -> Option<u64> {
    let level = level.min(ThinkingLevel::High);
    let usual = match level {
        ThinkingLevel::Off => return None,
        ThinkingLevel::Minimal => 1024,
        ThinkingLevel::Low => 2048,
        ThinkingLevel::Medium => 8192,
        _ => 16_384,
    };
    let own = options.thinking_budgets.as_ref().and_then(|budgets| budgets.get(&level)).copied();
    Some(own.unwrap_or(usual).min(output_max.saturating_sub(ANSWER_MIN))).filter(|budget| *budget > 0)
}

impl Thinking<'_> {
    fn on(&self) -> bool {
        self.level.is_some()
    }

    /// The provider's word for a level: `Some(None)` where the model says that there is none.
    fn mapped(&self, level: ThinkingLevel) -> Option<Option<&str>> {
        Some(self.model.thinking_level_map.as_ref()?.get(&level)?.as_deref())
    }

    /// The provider's word for the level, else ours.
    fn word(&self) -> Option<&str> {
        self.level.map(|level| self.mapped(level).flatten().unwrap_or(level.as_str()))
    }

    /// The same, but nothing for a level that the model denies.
    fn strict_word(&self) -> Option<&str> {
        let level = self.level?;
        self.mapped(level).unwrap_or(Some(level.as_str()))
    }

    /// The word for no thinking: nothing where the model denies it, `usual` where it has none.
    fn off_word<'a>(&'a self, usual: &'a str) -> Option<&'a str> {
        self.mapped(ThinkingLevel::Off).unwrap_or(Some(usual))
    }

    fn set_effort(&self, body: &mut Body, word: Option<&str>) {
        if let Some(word) = word.filter(|_| self.takes_effort) {
            body.set("reasoning_effort", word);
        }
    }

    fn set(&self, body: &mut Body, compat: &Compat) {
        let kind = |kind: &str| Json::object([("type", kind)]);
        match compat.thinking_format {
            ThinkingFormat::OpenAi => {
                let word = if self.on() { self.word() } else { self.mapped(ThinkingLevel::Off).flatten() };
                self.set_effort(body, word);
            }
            ThinkingFormat::OpenRouter => {
                if let Some(word) = self.word().or_else(|| self.off_word("none")) {
                    body.set("reasoning", Json::object([("effort", word)]));
                }
            }
            ThinkingFormat::DeepSeek => {
                if self.on() {
                    body.set("thinking", kind("enabled"));
                } else if self.off_word("").is_some() {
                    body.set("thinking", kind("disabled"));
                }
                self.set_effort(body, self.word());
            }
            ThinkingFormat::Zai => {
                let enabled = Json::build_object().with("type", "enabled").with("clear_thinking", false).build();
                body.set("thinking", if self.on() { enabled } else { kind("disabled") });
                self.set_effort(body, self.strict_word());
            }
            ThinkingFormat::Qwen => {
                body.set("enable_thinking", self.on());
                self.set_effort(body, self.word());
            }
            ThinkingFormat::QwenChatTemplate => {
                let values = Json::object([("enable_thinking", self.on()), ("preserve_thinking", true)]);
                body.set("chat_template_kwargs", values);
            }
            ThinkingFormat::ChatTemplate => self.set_template(body, "chat_template_kwargs", compat.chat_template_kwargs.as_ref()),
            ThinkingFormat::Baseten => {
                self.set_template(body, "chat_template_args", compat.chat_template_args.as_ref());
                let word = if self.on() { self.strict_word() } else { self.mapped(ThinkingLevel::Off).flatten() };
                self.set_effort(body, word);
            }
            ThinkingFormat::AntLing => {
                let word = self.level.and_then(|level| self.mapped(level).flatten());
                match word {
                    Some(word) => body.set("reasoning", Json::object([("effort", word)])),
                    // Without thinking it is any other server.
                    None if !self.on() => self.set_effort(body, self.mapped(ThinkingLevel::Off).flatten()),
                    None => {}
                }
            }
            ThinkingFormat::Together => {
                body.set("reasoning", Json::object([("enabled", self.on())]));
                self.set_effort(body, self.word());
            }
            ThinkingFormat::StringThinking => {
                if let Some(word) = self.word().or_else(|| self.off_word("none")) {
                    body.set("thinking", word);
                }
            }
        }
    }

    /// Sets the values of a chat template that come to something.
    fn set_template(&self, body: &mut Body, member: &str, values: Option<&Json>) {
        let entries = values.and_then(Json::as_object).into_iter().flat_map(js::entries);
        let known: Vec<(Arc<str>, Json)> = entries.filter_map(|(key, value)| Some((key.into(), self.template_value(value)?))).collect();
        if !known.is_empty() {
            body.set(member, Json::object(known));
        }
    }

    /// A value of a chat template: a scalar, or an object that names what it stands for.
    fn template_value(&self, value: &Json) -> Option<Json> {
        if value.as_object().is_none() {
            return Some(value.clone());
        }
        let omit = value.get("omitWhenOff").and_then(Json::as_bool).unwrap_or(false);
        if omit && !self.on() {
            return None;
        }
        match value.get("$var").and_then(Json::as_str).as_deref() {
            Some("thinking.enabled") => Some(self.on().into()),
            Some("thinking.budget") => self.budget.map(Json::from),
            _ if self.on() => self.strict_word().map(Json::from),
            _ => self.mapped(ThinkingLevel::Off).flatten().map(Json::from),
        }
    }
}
