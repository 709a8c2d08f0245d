//! Streams over TLS and HTTP/2, with an authority that only the configuration names.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use h2::server::SendResponse;
use picofleet_models::config::{ModelsConfig, check};
use picofleet_models::provider::{Context, Provider as _, StreamEvent, StreamOptions};
use picofleet_models::registry::Models;
use picofleet_session::message::{Message, StopReason, UserMessage};
use picofleet_session::{Clock, Millis};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The three APIs: the path below the server, and a stream before and after its first text.
const APIS: [(&str, &str, &str, &str); 3] = [
    (
        "openai-completions",
        "/v1",
        "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    ),
    (
        "openai-responses",
        "/v1",
        "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n\
         data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"one\"}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
    ),
    (
        "anthropic-messages",
        "",
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n\
         event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n\
         event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"one\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n\
         event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    ),
];

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.unwrap()
}

/// A server that speaks only HTTP/2, and its authority in PEM form.
struct Server {
    port: u16,
    authority: String,
    connections: Arc<AtomicUsize>,
    signals: Arc<Signals>,
}

/// What a test and an answer tell each other.
#[derive(Default)]
struct Signals {
    /// The answer may end.
    go_on: Notify,
    /// The client gave the answer up.
    given_up: Notify,
}

impl Server {
    async fn start(first: &'static str, rest: &'static str) -> Self {
        Self::start_with(first, rest, 0).await
    }

    /// The same with a head of so many KiB.
    async fn start_with(first: &'static str, rest: &'static str, head_kib: usize) -> Self {
        let (acceptor, authority) = identity();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, signals) = (Arc::new(AtomicUsize::new(0)), Arc::new(Signals::default()));
        let (counter, told) = (Arc::clone(&connections), Arc::clone(&signals));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the authority ends the handshake.
                let Ok(tls) = acceptor.accept(stream).await else { continue };
                assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                counter.fetch_add(1, Ordering::SeqCst);
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(tls).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        assert_eq!(request.version(), http::Version::HTTP_2);
                        tokio::spawn(answer(respond, head_kib, first, rest, Arc::clone(&told)));
                    }
                });
            }
        });
        Self { port, authority, connections, signals }
    }
}

async fn answer(mut respond: SendResponse<Bytes>, head_kib: usize, first: &'static str, rest: &'static str, signals: Arc<Signals>) {
    let mut head = http::Response::builder().header("content-type", "text/event-stream");
    for number in 0..head_kib {
        head = head.header(format!("x-{number}"), "x".repeat(1024));
    }
    let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
    // A client that does not like the head is gone by now.
    let _ = body.send_data(Bytes::from_static(first.as_bytes()), false);
    tokio::select! {
        () = signals.go_on.notified() => body.send_data(Bytes::from_static(rest.as_bytes()), true).unwrap(),
        reset = futures::future::poll_fn(|context| body.poll_reset(context)) => {
            assert_eq!(reset.unwrap(), h2::Reason::CANCEL);
            signals.given_up.notify_one();
        }
    }
}

/// A certificate for loopback, and the authority that signed it.
fn identity() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let own = KeyPair::generate().unwrap();
    let issuer = Issuer::new(params, key);
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let private = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(chain, private).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), authority)
}

fn config(api: &str, base_url: &str, ca_file: Option<&Path>) -> ModelsConfig {
    let ca_file = ca_file.map(|path| format!("ca_file = '{}'\n", path.display())).unwrap_or_default();
    let text = format!(
        "[providers.acme]\napi = \"{api}\"\nbase_url = \"{base_url}\"\napi_key_env = \"KEY\"\n{ca_file}\
         http = {{ environment_proxies = false }}\n\
         [[providers.acme.models]]\nid = \"m\"\ncontext_window = 100000\nmax_tokens = 1000\n[defaults]\nmodel = \"acme/m\""
    );
    let config: ModelsConfig = toml::from_str(&text).unwrap();
    assert_eq!(check(&config.providers, &config.defaults), []);
    config
}

fn models(config: &ModelsConfig) -> Models {
    Models::new(&config.providers, Clock::system(), |_| Some("sk-test".into()))
}

fn ask(models: &Models, config: &ModelsConfig) -> futures::stream::BoxStream<'static, StreamEvent> {
    ask_until(models, config, CancellationToken::new())
}

fn ask_until(models: &Models, config: &ModelsConfig, cancel: CancellationToken) -> futures::stream::BoxStream<'static, StreamEvent> {
    let user = Message::from(UserMessage { content: "hello".into(), timestamp: Millis(1) });
    let context = Context { messages: vec![user], ..Context::default() };
    let model = models.default_model(&config.defaults).unwrap();
    models.stream(model, &context, &StreamOptions::default(), cancel)
}

/// Reads up to the first text. A stream that ends before it fails the test.
async fn first_text(stream: &mut futures::stream::BoxStream<'static, StreamEvent>) {
    loop {
        match soon(stream.next()).await.unwrap() {
            StreamEvent::TextDelta { delta, .. } => return assert_eq!(delta, "one"),
            event => assert!(event.final_message().is_none(), "{event:?}"),
        }
    }
}

#[tokio::test]
async fn answers_stream_over_http2_with_an_authority_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    for (api, path, first, rest) in APIS {
        let server = Server::start(first, rest).await;
        let file = directory.path().join(api);
        std::fs::write(&file, &server.authority).unwrap();
        let config = config(api, &format!("https://127.0.0.1:{}{path}", server.port), Some(&file));
        let models = models(&config);
        for _ in 0..2 {
            let mut stream = ask(&models, &config);
            // The server sends the rest only now.
            first_text(&mut stream).await;
            server.signals.go_on.notify_one();
            let events: Vec<_> = soon(stream.collect()).await;
            let message = events.last().unwrap().final_message().unwrap();
            assert_eq!(message.stop_reason, StopReason::Stop, "{api}: {message:?}");
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1, "{api}");
    }
}

/// The connection stays for others; the answer on it is given up.
#[tokio::test]
async fn cancelling_gives_up_the_answer_and_keeps_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let (api, path, first, rest) = APIS[0];
    let server = Server::start(first, rest).await;
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, &server.authority).unwrap();
    let config = config(api, &format!("https://127.0.0.1:{}{path}", server.port), Some(&file));
    let models = models(&config);
    for _ in 0..2 {
        let cancel = CancellationToken::new();
        let mut stream = ask_until(&models, &config, cancel.clone());
        first_text(&mut stream).await;
        cancel.cancel();
        let events: Vec<_> = soon(stream.collect()).await;
        assert_eq!(events[0].final_message().unwrap().stop_reason, StopReason::Aborted);
        soon(server.signals.given_up.notified()).await;
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_large_head_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (api, path, first, rest) = APIS[0];
    for (head_kib, taken) in [(50, true), (80, false), (2000, false)] {
        let server = Server::start_with(first, rest, head_kib).await;
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, &server.authority).unwrap();
        let config = config(api, &format!("https://127.0.0.1:{}{path}", server.port), Some(&file));
        server.signals.go_on.notify_one();
        let events: Vec<_> = soon(ask(&models(&config), &config).collect()).await;
        let message = events.last().unwrap().final_message().unwrap();
        assert_eq!(message.stop_reason == StopReason::Stop, taken, "{head_kib}: {message:?}");
        if !taken {
            assert!(message.error_message.as_deref().unwrap().starts_with("Connection error.: "), "{message:?}");
        }
    }
}

#[tokio::test]
async fn an_authority_that_nobody_named_is_not_trusted() {
    let (api, path, first, rest) = APIS[0];
    let server = Server::start(first, rest).await;
    let config = config(api, &format!("https://127.0.0.1:{}{path}", server.port), None);
    let events: Vec<_> = soon(ask(&models(&config), &config).collect()).await;
    let message = events[0].final_message().unwrap();
    let text = message.error_message.as_deref().unwrap();
    assert!(text.starts_with("Connection error.: ") && text.contains("certificate"), "{text}");
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_file_without_authorities_is_an_error_of_its_provider() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none.pem");
    let (empty, broken) = (directory.path().join("empty.pem"), directory.path().join("broken.pem"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n").unwrap();
    for (file, expected) in [
        (&none, format!("read the certificates in {}; check that it is there", none.display())),
        (&empty, "read the certificates of further authorities: there is none in PEM form; check the file".to_owned()),
        (&broken, "read the certificates of further authorities; they must be certificates in PEM form".to_owned()),
    ] {
        let config = config("openai-responses", "https://127.0.0.1:1/v1", Some(file));
        let events: Vec<_> = soon(ask(&models(&config), &config).collect()).await;
        let text = events[0].final_message().unwrap().error_message.clone().unwrap();
        assert!(text.starts_with(&expected), "{text}");
    }
}
