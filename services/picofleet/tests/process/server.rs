//! A model server on loopback that answers the three probes of `models test` in each of the three APIs.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) const KEY: &str = "sk-hush-0123456789";

/// An API and where it is below the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    pub(crate) name: &'static str,
    pub(crate) base: &'static str,
    pub(crate) path: &'static str,
    text: &'static str,
    call: &'static str,
}

pub(crate) const APIS: [Api; 3] = [
    Api {
        name: "openai-completions",
        base: "/v1",
        path: "/v1/chat/completions",
        text: "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\n\
               data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n\
               data: [DONE]\n\n",
        call: "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"type\":\"function\",\
               \"function\":{\"name\":\"get_time\",\"arguments\":\"{\\\"city\\\":\\\"Paris\\\"}\"}}]}}]}\n\n\
               data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n",
    },
    Api {
        name: "openai-responses",
        base: "/v1",
        path: "/v1/responses",
        text: "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n\
               data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"Hel\"}\n\n\
               data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"lo\"}\n\n\
               data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":7,\"output_tokens\":2}}}\n\n",
        call: "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"function_call\",\"id\":\"f1\",\
               \"call_id\":\"c1\",\"name\":\"get_time\",\"arguments\":\"\"}}\n\n\
               data: {\"type\":\"response.function_call_arguments.delta\",\"output_index\":0,\"delta\":\"{\\\"city\\\":\\\"Paris\\\"}\"}\n\n\
               data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"function_call\",\"id\":\"f1\",\
               \"call_id\":\"c1\",\"name\":\"get_time\",\"arguments\":\"{\\\"city\\\":\\\"Paris\\\"}\"}}\n\n\
               data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
    },
    Api {
        name: "anthropic-messages",
        base: "",
        path: "/v1/messages",
        text: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n\
               event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n\
               event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}\n\n\
               event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"lo\"}}\n\n\
               event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n\
               event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        call: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n\
               event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\
               \"id\":\"c1\",\"name\":\"get_time\",\"input\":{}}}\n\n\
               event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\
               \"partial_json\":\"{\\\"city\\\":\\\"Paris\\\"}\"}}\n\n\
               event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
               event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\n\
               event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    },
];

/// How the server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// It answers, calls the tool, and refuses models that it does not have.
    Good,
    /// It answers everything with a text.
    Talks,
    /// It refuses everything and repeats the whole request.
    Refuses,
    /// It has nothing at the place that is asked, and says so in a long page.
    Lost,
    /// It takes requests and never answers.
    Stalls,
    /// It breaks off within a call, and has too much to do to refuse a model.
    Breaks,
    /// As [`Manner::Good`], with escape sequences in every text and in the tool's name.
    Steers,
}

/// A request that came in, as text.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let of = |line: &str| line.split_once(": ").filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned());
        self.head.lines().find_map(of)
    }
}

pub(crate) type Log = Arc<Mutex<Vec<Received>>>;

pub(crate) struct Server {
    pub(crate) port: u16,
    log: Log,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(api: Api, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Log::default();
        let own = Arc::clone(&log);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, api, manner, Arc::clone(&own)));
            }
        });
        Self { port, log, task }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.log.lock().unwrap().clone()
    }
}

/// Answers one request and closes.
pub(crate) async fn serve(mut connection: impl AsyncRead + AsyncWrite + Unpin, api: Api, manner: Manner, log: Log) {
    let Some(request) = read(&mut connection).await else { return };
    let unknown = request.body.contains("picofleet-no-such-model");
    let found = if request.body.contains("get_time") { api.call } else { api.text };
    let (status, kind, body) = match manner {
        // The client's end is all that comes.
        Manner::Stalls => return drop(connection.read_u8().await),
        Manner::Lost => (404, "text/html", format!("<p>nothing is here</p>{}", " long".repeat(1000))),
        Manner::Refuses => {
            let repeated = format!("{}\n{}", request.head, request.body).replace('\\', "").replace('"', "'");
            let message = repeated.replace("\r\n", " ").replace('\n', " ");
            (401, "application/json", format!("{{\"error\":{{\"type\":\"authentication_error\",\"message\":\"you sent {message}\"}}}}"))
        }
        Manner::Good if unknown => {
            (404, "application/json", "{\"error\":{\"type\":\"not_found_error\",\"message\":\"there is no such model\"}}".to_owned())
        }
        Manner::Breaks if unknown => {
            (429, "application/json", "{\"error\":{\"type\":\"rate_limit_error\",\"message\":\"too fast\"}}".to_owned())
        }
        // The last half of the arguments is missing, and all that follows.
        Manner::Breaks => (200, "text/event-stream", found.split(":\\\"Paris").next().unwrap_or_default().to_owned()),
        Manner::Steers if unknown => {
            let message = "no \\u001b[31msuch\\nmodel\\u009b2J";
            (404, "application/json", format!("{{\"error\":{{\"type\":\"not_found_error\",\"message\":\"{message}\"}}}}"))
        }
        Manner::Steers => {
            let steers = found.replace("get_time", "get\\u001b[2J\\ntime").replace("Hel", "H\\u001b[1mel");
            (200, "text/event-stream", steers)
        }
        Manner::Good => (200, "text/event-stream", found.to_owned()),
        Manner::Talks => (200, "text/event-stream", api.text.to_owned()),
    };
    log.lock().unwrap().push(request);
    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // A client that is gone is the test's to notice.
    let _ = connection.write_all(format!("{head}{body}").as_bytes()).await;
    let _ = connection.shutdown().await;
}

pub(crate) async fn read(connection: &mut (impl AsyncRead + Unpin)) -> Option<Received> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let received = Received { head: head.to_owned(), body: body.to_owned() };
            let length = received.header("content-length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return Some(received);
            }
        }
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The configuration of a provider `acme` with the model `m` of an API.
pub(crate) fn acme(api: Api, base_url: &str, more: &str) -> String {
    format!(
        "[providers.acme]\napi = \"{}\"\nbase_url = \"{base_url}{}\"\n{more}\
         [[providers.acme.models]]\nid = \"m\"\ncontext_window = 100000\nmax_tokens = 1000\nreasoning = true\n",
        api.name, api.base
    )
}
