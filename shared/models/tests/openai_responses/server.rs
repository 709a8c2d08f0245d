//! A server on loopback that answers as a test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use picofleet_delta::Json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A request that came in.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Json {
        Json::parse(&self.body).unwrap()
    }
}

/// How a request is answered.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// The body in the pieces in which it is written.
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) then: Then,
}

/// What comes after the pieces.
#[derive(Clone)]
pub(crate) enum Then {
    /// The end of the body.
    End,
    /// The end of the connection within the body.
    Cut,
    /// The end of the body, once the test allows it.
    EndAfter(Arc<Notify>),
}

impl Reply {
    pub(crate) fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self { status, headers, pieces: vec![body.into()], then: Then::End }
    }

    pub(crate) fn events(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "text/event-stream", body)
    }

    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::new(status, "application/json", body)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn then(mut self, then: Then) -> Self {
        self.then = then;
        self
    }

    /// Writes the body in pieces of 1, 2, 3, ... bytes, over and over.
    pub(crate) fn uneven(mut self) -> Self {
        let body = self.pieces.concat();
        let mut rest = &*body;
        self.pieces.clear();
        for size in (1..=97).cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(size.min(rest.len()));
            self.pieces.push(piece.to_vec());
            rest = after;
        }
        self
    }
}

/// Answers requests in turn, with the replies in order; the last one is repeated.
pub(crate) struct Server {
    pub(crate) base_url: String,
    received: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let replies: Arc<Mutex<VecDeque<Reply>>> = Arc::new(Mutex::new(replies.into_iter().collect()));
        let log = Arc::clone(&received);
        let task = tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                // Or each small piece would wait for the acknowledgement of the one before it.
                connection.set_nodelay(true).unwrap();
                tokio::spawn(serve(connection, Arc::clone(&log), Arc::clone(&replies)));
            }
        });
        Self { base_url, received, task }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(mut connection: TcpStream, log: Arc<Mutex<Vec<Received>>>, replies: Arc<Mutex<VecDeque<Reply>>>) {
    while let Some(request) = read_request(&mut connection).await {
        log.lock().unwrap().push(request);
        let reply = {
            let mut replies = replies.lock().unwrap();
            if replies.len() > 1 { replies.pop_front().unwrap() } else { replies.front().unwrap().clone() }
        };
        if write_reply(&mut connection, reply).await.is_none() {
            return;
        }
    }
}

async fn read_request(connection: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ').map(str::to_owned);
    let headers: Vec<(String, String)> =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = bytes[head + 4..].to_vec();
    while body.len() < length {
        if connection.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Received { method: words.next()?, path: words.next()?, headers, body })
}

/// `None` when the connection is of no more use.
async fn write_reply(connection: &mut TcpStream, reply: Reply) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    connection.write_all(head.as_bytes()).await.ok()?;
    for piece in &reply.pieces {
        if !piece.is_empty() {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            connection.write_all(&chunk).await.ok()?;
        }
    }
    match reply.then {
        Then::Cut => return None,
        Then::End => {}
        Then::EndAfter(allowed) => allowed.notified().await,
    }
    connection.write_all(b"0\r\n\r\n").await.ok()
}

/// Fails a test that waits for what does not come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.unwrap_or_else(|_| panic!("{what} did not come"))
}
