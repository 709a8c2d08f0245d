//! What the harness takes from pi-ai, exact to the wire: models and their limits and prices, how a failed answer is
//! classified, how tokens are estimated, how system messages are replayed, how messages and tool arguments are prepared.
//!
//! | module | what |
//! | --- | --- |
//! | [`model`] | a model, its thinking levels, prices and output limit |
//! | [`classify`] | context overflow, transient errors, length stops that can be continued |
//! | [`retry`] | the policy and the delay before an attempt |
//! | [`estimate`] | tokens of messages and of a context |
//! | [`transcript`] | replay of system messages: prompt, sections, tools |
//! | [`transform`] | messages made fit for one model |
//! | [`arguments`] | argument text of tool calls, whole and while it streams; JSON of providers |
//! | [`validate`] | tool arguments against their schema |
//! | [`provider`] | a request, its stream of events, the trait of providers |
//! | [`openai_chat`] | the adapter for OpenAI-compatible chat completions |
//! | [`openai_responses`] | the adapter for OpenAI Responses, with deferred answers by background responses |
//! | [`anthropic`] | the adapter for Anthropic Messages, with deferred answers by message batches |
//! | [`http`], [`sse`] | requests, their failures and streams of events: what the adapters share |
//! | [`scripted`] | the provider that plays a script |
//! | [`config`] | providers, models and defaults of a configuration file, and whether they hold together |
//! | [`registry`] | the configured providers and models behind one door, and their credentials |
//! | [`limiter`] | requests at a time, requests and tokens per minute of a provider |
//! | [`breaker`] | no requests for a time to a provider that cannot be reached |
//! | [`sanitize`], [`hash`], [`js`] | unpaired surrogates, the short hash, JSON text as JavaScript writes it |
//!
//! What is taken from pi-ai keeps its names in snake case. The results that it must give were made with pi-ai itself:
//! `tests/vectors/pi-ai-*.jsonl` of the repository.
//!
//! Architecture invariants:
//!
//! - The crate knows messages and models. It knows no session, task, storage, harness or tool.
//! - Most modules are pure: they read no clock, environment, file or network and start no task; time comes in as an argument. The
//!   others are [`http`] (network, proxies of the environment, clock) with the providers on top of it, [`registry`] (files, and the
//!   environment that it is given), and [`limiter`], [`breaker`] and [`scripted`], which wait by the clock of tokio.
//! - A provider tells its failures as the last event of its stream; it never panics and never ends a stream silently.
//! - Input from providers, models and tool servers is hostile: nothing here panics, recurses without a bound or needs
//!   time that is not bounded by the size of its input, save where a constant names the bound.

pub mod anthropic;
pub mod arguments;
pub mod breaker;
pub mod classify;
pub mod config;
mod deferred;
pub mod estimate;
pub mod hash;
pub mod http;
pub mod js;
pub mod limiter;
pub mod model;
pub mod openai_chat;
pub mod openai_responses;
pub mod provider;
pub mod registry;
pub mod retry;
pub mod sanitize;
pub mod scripted;
pub mod sse;
mod strict;
pub mod transcript;
pub mod transform;
pub mod usage;
pub mod validate;
