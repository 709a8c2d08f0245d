//! What the servers of the suite must know of each API.

use std::sync::Arc;

use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_models::anthropic::Anthropic;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::OpenAiChat;
use picofleet_models::openai_responses::OpenAiResponses;
use picofleet_models::provider::{Provider, StreamEvent, StreamOptions};
use picofleet_session::{Clock, Millis};
use tokio_util::sync::CancellationToken;

use crate::loopback::{KEY, Server, context};

pub(crate) struct Api {
    name: &'static str,
    provider: fn(Client) -> Arc<dyn Provider>,
    /// The events that open a text.
    pub(crate) open: &'static str,
    /// The events of a piece of it, with `TEXT` for the piece.
    delta: &'static str,
    /// The events that end the answer well after a text.
    pub(crate) close: &'static str,
    /// The event of a failure, with `TEXT` for its reason.
    failure: &'static str,
    /// An answer with a thought, a text and a call.
    pub(crate) answer: &'static str,
    /// What is in the first event of it after which the end of the body is a good one.
    pub(crate) terminal: &'static str,
    /// What the answer ends with for a client that does not wait for the end of the body.
    pub(crate) enough: Option<&'static str>,
}

pub(crate) const CHAT: Api = Api {
    name: "openai-completions",
    provider: |client| Arc::new(OpenAiChat::new(client, Some(KEY.into()))),
    open: "",
    delta: "data: {\"choices\":[{\"delta\":{\"content\":\"TEXT\"}}]}\n\n",
    close: "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    failure: "data: {\"error\":{\"message\":\"TEXT\"}}\n\n",
    answer: r#"data: {"id":"r","choices":[{"delta":{"reasoning_content":"hm"}}]}

data: {"choices":[{"delta":{"content":"a😀"}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"t","arguments":"{\"a\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}

data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

"#,
    terminal: "finish_reason",
    enough: Some("[DONE]\n\n"),
};

pub(crate) const RESPONSES: Api = Api {
    name: "openai-responses",
    provider: |client| Arc::new(OpenAiResponses::new(client, Some(KEY.into()))),
    open: "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n",
    delta: "data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"TEXT\"}\n\n",
    close: "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
    failure: "data: {\"type\":\"error\",\"code\":\"c\",\"message\":\"TEXT\"}\n\n",
    answer: r#"data: {"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs"}}

data: {"type":"response.reasoning_text.delta","output_index":0,"delta":"hm"}

data: {"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs"}}

data: {"type":"response.output_item.added","output_index":1,"item":{"type":"message"}}

data: {"type":"response.output_text.delta","output_index":1,"delta":"a😀"}

data: {"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","call_id":"c","id":"fc","name":"t"}}

data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"a\":1}"}

data: {"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","call_id":"c","id":"fc","name":"t"}}

data: {"type":"response.completed","response":{"status":"completed"}}

"#,
    terminal: "response.completed",
    enough: None,
};

pub(crate) const ANTHROPIC: Api = Api {
    name: "anthropic-messages",
    provider: |client| Arc::new(Anthropic::new(client, Some(KEY.into()))),
    open: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n\
        event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n",
    delta: "event: content_block_delta\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"TEXT\"}}\n\n",
    close: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    failure: "event: error\ndata: {\"error\":\"TEXT\"}\n\n",
    answer: r#"event: message_start
data: {"type":"message_start","message":{"id":"r"}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a😀"}}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c","name":"t"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}

event: message_stop
data: {"type":"message_stop"}

"#,
    terminal: "event: message_stop",
    enough: Some("message_stop\"}\n\n"),
};

impl Api {
    /// The events of a piece of text.
    pub(crate) fn delta(&self, text: &[u8]) -> Vec<u8> {
        let (before, after) = self.delta.split_once("TEXT").unwrap();
        [before.as_bytes(), text, after.as_bytes()].concat()
    }

    pub(crate) fn failure(&self, reason: &str) -> String {
        self.failure.replace("TEXT", reason)
    }

    pub(crate) fn provider(&self, options: ClientOptions) -> Arc<dyn Provider> {
        let options = ClientOptions { environment_proxies: false, ..options };
        (self.provider)(Client::new(options, Clock::manual(Millis(5))).unwrap())
    }

    pub(crate) fn model(&self, base_url: &str) -> Model {
        let text = format!(
            r#"{{"id":"m","name":"M","api":"{}","provider":"acme","baseUrl":"{base_url}","reasoning":false,"input":["text"],
                "cost":{{"input":3,"output":15,"cacheRead":0.3,"cacheWrite":3.75}},"contextWindow":200000,"maxTokens":8192}}"#,
            self.name
        );
        text.parse::<Json>().unwrap().to().unwrap()
    }

    /// Asks a server.
    pub(crate) fn ask(&self, server: &Server) -> BoxStream<'static, StreamEvent> {
        self.ask_with(server, ClientOptions::default(), &StreamOptions::default(), CancellationToken::new())
    }

    pub(crate) fn ask_with(
        &self,
        server: &Server,
        client: ClientOptions,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let model = self.model(&format!("http://127.0.0.1:{}", server.port));
        self.provider(client).stream(&model, &context(), options, cancel)
    }
}
