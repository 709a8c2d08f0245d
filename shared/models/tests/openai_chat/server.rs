//! Chat completions of a server on loopback.

use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::Model;
use picofleet_models::openai_chat::OpenAiChat;
use picofleet_models::provider::{Provider as _, StreamEvent, StreamOptions};
use picofleet_session::{Clock, Millis};
use tokio_util::sync::CancellationToken;

pub(crate) use crate::loopback::{CHUNKED_HEAD, KEY, OPEN_HEAD, Server, all, context, soon};

impl Server {
    pub(crate) fn model(&self) -> Model {
        model(&format!("http://127.0.0.1:{}/v1", self.port))
    }

    /// Starts a request with the usual client.
    pub(crate) fn ask(&self) -> BoxStream<'static, StreamEvent> {
        self.ask_with(ClientOptions::default(), &StreamOptions::default(), CancellationToken::new())
    }

    pub(crate) fn ask_with(
        &self,
        client: ClientOptions,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        provider(client).stream(&self.model(), &context(), options, cancel)
    }
}

pub(crate) fn provider(options: ClientOptions) -> OpenAiChat {
    let client = Client::new(options, Clock::manual(Millis(5))).unwrap();
    OpenAiChat::new(client, Some(KEY.into()))
}

pub(crate) fn model(base_url: &str) -> Model {
    let text = r#"{"id":"m","name":"M","api":"openai-completions","provider":"acme","baseUrl":"","reasoning":false,"input":["text"],
        "cost":{"input":3,"output":15,"cacheRead":0.3,"cacheWrite":3.75},"contextWindow":200000,"maxTokens":8192}"#;
    Model { base_url: base_url.to_owned(), ..text.parse::<Json>().unwrap().to().unwrap() }
}

/// A chunk with a text.
pub(crate) fn text_chunk(text: &str) -> String {
    let choice = Json::build_object().with("delta", Json::object([("content", text)])).build();
    format!("data: {}\n\n", Json::build_object().with("id", "r1").with("choices", Json::array([choice])).build())
}

/// The chunks that end an answer well.
pub(crate) const END_CHUNKS: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
