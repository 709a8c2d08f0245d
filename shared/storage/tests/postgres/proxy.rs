//! A proxy between a store and its server that cuts a connection at a byte.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use picofleet_storage::conformance::Database;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio_postgres::config::Host;

/// Where the next connection that is used is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// Behind so many bytes to the server; the rest never gets there.
    ToServer(usize),
    /// Behind so many bytes of the answer: the server did what it was asked.
    ToClient(usize),
}

#[derive(Debug, Default)]
struct State {
    cut: Option<Cut>,
    to_server: usize,
    to_client: usize,
}

/// See the module.
pub(crate) struct Proxy {
    directory: TempDir,
    database: String,
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
pub(crate) enum Target {
    Unix(PathBuf),
    Tcp(String, u16),
}

pub(crate) trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

impl Target {
    /// The server of a database.
    pub(crate) fn of(config: &tokio_postgres::Config) -> Self {
        let port = config.get_ports().first().copied().unwrap_or(5432);
        match &config.get_hosts()[0] {
            Host::Unix(directory) => Self::Unix(directory.join(format!(".s.PGSQL.{port}"))),
            Host::Tcp(host) => Self::Tcp(host.clone(), port),
        }
    }

    pub(crate) async fn connect(&self) -> Box<dyn Both> {
        match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            Self::Tcp(host, port) => Box::new(TcpStream::connect((host.as_str(), *port)).await.unwrap()),
        }
    }
}

impl Proxy {
    pub(crate) fn new(database: &Database) -> Self {
        let config: tokio_postgres::Config = database.url().parse().unwrap();
        let target = Target::of(&config);
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, state) = (target.clone(), Arc::clone(&shared));
                tokio::spawn(async move { carry(client, target.connect().await, &state).await });
            }
        });
        let user = config.get_user().unwrap_or("picofleet");
        let database = format!("{user}@|/{}", config.get_dbname().unwrap());
        Self { directory, database, state }
    }

    pub(crate) fn url(&self) -> String {
        let socket = self.directory.path().display().to_string().replace('/', "%2F");
        format!("postgres://{}", self.database.replace('|', &socket))
    }

    /// Counts from here on, and cuts at `cut`.
    pub(crate) fn arm(&self, cut: Option<Cut>) {
        *self.state.lock().unwrap() = State { cut, ..State::default() };
    }

    /// Whether the cut was made, and the bytes in both directions since then.
    pub(crate) fn done(&self) -> (bool, usize, usize) {
        let state = self.state.lock().unwrap();
        (state.cut.is_none(), state.to_server, state.to_client)
    }
}

/// Carries bytes until an end closes or the connection is cut.
async fn carry(mut client: UnixStream, mut server: Box<dyn Both>, state: &Mutex<State>) {
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(read @ 1..) = read else { return };
                let (pass, cut) = {
                    let mut state = state.lock().unwrap();
                    let before = state.to_server;
                    state.to_server += read;
                    match state.cut {
                        Some(Cut::ToServer(at)) if at < before + read => {
                            state.cut = None;
                            (at - before, true)
                        }
                        _ => (read, false),
                    }
                };
                if server.write_all(&up[..pass]).await.is_err() || cut {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(read @ 1..) = read else { return };
                let (pass, cut) = {
                    let mut state = state.lock().unwrap();
                    let before = state.to_client;
                    state.to_client += read;
                    match state.cut {
                        Some(Cut::ToClient(at)) if at < before + read => {
                            state.cut = None;
                            (at - before, true)
                        }
                        _ => (read, false),
                    }
                };
                if client.write_all(&down[..pass]).await.is_err() || cut {
                    return;
                }
            }
        }
    }
}
