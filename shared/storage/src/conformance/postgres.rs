//! PostgreSQL under test: a private server for the process, and a database for each test.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::Store;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::Backend;
use crate::postgres::{PostgresOptions, PostgresStore};

/// Names the server that tests share: the URL of a superuser. Without it each test process starts one.
const SERVER: &str = "PICOFLEET_POSTGRES";

/// The server of this process. It ends when the process does: then its standard input ends.
struct Server {
    url: String,
    _held: Option<Mutex<Child>>,
}

static SERVER_OF_THIS_PROCESS: OnceLock<Server> = OnceLock::new();

/// A migrated database that the others are copied from.
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn server() -> &'static Server {
    SERVER_OF_THIS_PROCESS.get_or_init(|| {
        if let Ok(url) = std::env::var(SERVER) {
            return Server { url, _held: None };
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/postgres");
        let started = Command::new(&script).arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut held = started.unwrap_or_else(|error| panic!("{} can't be started: {error}", script.display()));
        let mut url = String::new();
        BufReader::new(held.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        assert!(!url.is_empty(), "no PostgreSQL server could be started; what is above says why");
        Server { url, _held: Some(Mutex::new(held)) }
    })
}

/// A connection to a database, for tests that look into it or damage it.
async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    tokio::spawn(async move {
        // Its end is seen by whoever uses the client.
        let _ = connection.await;
    });
    client
}

fn beside(url: &str, database: &str) -> String {
    let (server, parameters) = url.split_once('?').map_or((url, ""), |(server, parameters)| (server, parameters));
    let (server, _) = server.rsplit_once('/').unwrap();
    if parameters.is_empty() { format!("{server}/{database}") } else { format!("{server}/{database}?{parameters}") }
}

fn unique(what: &str) -> String {
    format!("picofleet_{what}_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst))
}

/// A database with the schema in it, which goes when this is dropped.
pub struct Database {
    name: String,
    url: String,
}

impl Database {
    /// A new one.
    pub async fn new() -> Self {
        let server = &server().url;
        let template = TEMPLATE
            .get_or_init(|| async {
                let name = unique("template");
                connect(server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
                PostgresStore::migrate(&beside(server, &name), None).await.unwrap();
                name
            })
            .await;
        let name = unique("test");
        let sql = format!("CREATE DATABASE {name} TEMPLATE {template}");
        let client = connect(server).await;
        // The connection that migrated may be on its way out.
        for attempt in 0.. {
            match client.batch_execute(&sql).await {
                Ok(()) => break,
                Err(error) if attempt < 200 && error.code().is_some_and(|code| code.code() == "55006") => tokio::task::yield_now().await,
                Err(error) => panic!("{error:?}"),
            }
        }
        let url = beside(server, &name);
        Self { name, url }
    }

    /// An empty one, without a schema.
    pub async fn empty() -> Self {
        let (server, name) = (&server().url, unique("test"));
        connect(server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { url: beside(server, &name), name }
    }

    /// How it is reached.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the test's own.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, sql) = (server().url.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // The test's runtime may be going. What can't be removed goes with the server.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { connect(&server).await.batch_execute(&sql).await })
        });
        let _ = removed.join();
    }
}

/// The backend in databases that go with it. Reopening closes the store with its connections and connects again.
#[derive(Default)]
pub struct Postgres {
    options: PostgresOptions,
    /// The stores that are open, with their databases.
    open: Mutex<Vec<(Arc<dyn Store>, usize)>>,
    databases: Mutex<Vec<Arc<Database>>>,
}

impl Postgres {
    /// Stores that are opened with these options.
    #[must_use]
    pub fn new(options: PostgresOptions) -> Self {
        Self { options, ..Self::default() }
    }

    async fn open_at(&self, number: usize) -> Arc<dyn Store> {
        let database = Arc::clone(&self.databases.lock().unwrap()[number]);
        let store: Arc<dyn Store> = Arc::new(PostgresStore::open(database.url(), self.options).await.unwrap());
        self.open.lock().unwrap().push((Arc::clone(&store), number));
        store
    }
}

impl Backend for Postgres {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let database = Arc::new(Database::new().await);
            let number = {
                let mut databases = self.databases.lock().unwrap();
                databases.push(database);
                databases.len() - 1
            };
            self.open_at(number).await
        }
        .boxed()
    }

    fn reopen(&self, store: Arc<dyn Store>) -> BoxFuture<'_, Arc<dyn Store>> {
        async move {
            let number = {
                let mut open = self.open.lock().unwrap();
                let index = open.iter().position(|(other, _)| Arc::ptr_eq(other, &store)).expect("a store of this backend");
                open.swap_remove(index).1
            };
            store.close().await.unwrap();
            drop(store);
            self.open_at(number).await
        }
        .boxed()
    }
}
