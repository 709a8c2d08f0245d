//! Connections: what a URL says, and what each kind of connection sets.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use picofleet_session::storage::StorageError;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config};

use super::errors::{OpenError, Place};
use super::tls::{Mode, Tls};

/// How long it takes at most to get a connection, of a pool or of the server.
const CONNECT: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Writes groups of commits. Nothing of it may hold a lock for long: a stalled client inside a transaction is not ended by a timeout
    /// for statements.
    Commit,
    /// Reads and short writes.
    Read,
    /// Exports, imports and steps of maintenance.
    Bulk,
    /// Brings the schema up.
    Migrate,
}

/// Every statement is one of a few and has its index. The planner gets no choice that statistics of an empty or old table could turn: after
/// an ANALYZE of an empty table it would go for scans of what is about to grow.
pub(super) const PLANNER: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off \
    -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off";

impl Purpose {
    fn settings(self) -> String {
        let (idle, statement) = match self {
            Self::Commit => (2, 30),
            Self::Read => (5, 15),
            Self::Bulk => (60, 60),
            Self::Migrate => return "-c client_connection_check_interval=2s".to_owned(),
        };
        format!(
            "-c lock_timeout=2s -c idle_in_transaction_session_timeout={idle}s -c client_connection_check_interval=2s \
             -c statement_timeout={statement}s {PLANNER}"
        )
    }
}

/// How the database is reached.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) place: Place,
    config: Config,
    tls: Tls,
    boot: uuid::Uuid,
}

impl Access {
    /// Reads a URL. `boot` names this run of the process at the server.
    pub(super) fn new(url: &str, boot: uuid::Uuid) -> Result<Self, StorageError> {
        let unnamed = Place(Arc::from("the PostgreSQL database"));
        let (url, mode) = split(url);
        let mut config = Config::from_str(&url).map_err(|error| unnamed.open(OpenError::Url(Arc::new(error))))?;
        let place = Place(Arc::from(name(&config)));
        let ssl = match mode.mode.as_deref() {
            None | Some("prefer" | "allow") => SslMode::Prefer,
            Some("disable") => SslMode::Disable,
            Some("require" | "verify-ca" | "verify-full") => SslMode::Require,
            Some(other) => {
                let known = "disable, prefer, require or verify-full";
                return Err(place.open(OpenError::Parameter { parameter: "sslmode", value: other.to_owned(), known }));
            }
        };
        config.ssl_mode(ssl);
        config.connect_timeout(CONNECT);
        config.keepalives(true).keepalives_idle(CONNECT).keepalives_interval(Duration::from_secs(2)).keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(10));
        let remote = config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
        let tls = match ssl {
            SslMode::Prefer | SslMode::Require if remote => Tls::new(mode.roots.as_deref()).map_err(|error| place.open(error))?,
            _ => Tls::none(),
        };
        Ok(Self { place, config, tls, boot })
    }

    /// What the connections of our committers are called at the server.
    pub(super) fn committers(&self) -> String {
        format!("picofleet/{}", self.boot.simple())
    }

    fn config(&self, purpose: Purpose) -> Config {
        let mut config = self.config.clone();
        // Ours come last and win.
        let options = config.get_options().map_or_else(String::new, |own| format!("{own} "));
        // Only committers have the name by which a new owner ends stalled ones.
        let name = if purpose == Purpose::Commit { self.committers() } else { format!("picofleet-other/{}", self.boot.simple()) };
        config.application_name(name);
        config.options(format!("{options}{}", purpose.settings()));
        config
    }

    /// A connection of its own. It ends when the client is dropped.
    pub(super) async fn connect(&self, purpose: Purpose) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.config(purpose).connect(self.tls.clone()).await?;
        let place = self.place.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(store = %place.0, error = %full(&error), "a connection ended");
            }
        });
        Ok(client)
    }

    /// Some connections that are shared.
    pub(super) fn pool(&self, purpose: Purpose, size: usize) -> Result<Pool, StorageError> {
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(self.config(purpose), self.tls.clone(), manager);
        let timeouts = Timeouts { wait: Some(Duration::from_secs(10)), create: Some(CONNECT), recycle: Some(CONNECT) };
        let pool = Pool::builder(manager).max_size(size.max(1)).timeouts(timeouts).runtime(Runtime::Tokio1).build();
        pool.map_err(|error| self.place.open(error))
    }
}

/// An error with its causes in one line.
pub(super) fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Takes out the parameters that the driver does not know.
fn split(url: &str) -> (String, Mode) {
    let mut mode = Mode::default();
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), mode) };
    let mut rest = Vec::new();
    for parameter in query.split('&') {
        match parameter.split_once('=') {
            Some(("sslmode", value)) => mode.mode = Some(value.to_owned()),
            Some(("sslrootcert", value)) => mode.roots = Some(value.into()),
            _ => rest.push(parameter),
        }
    }
    (if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) }, mode)
}

fn name(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_password() {
        let access = Access::new("postgres://me:secret@db.example:5433/fleet?sslmode=verify-full&application_name=x", uuid::Uuid::nil());
        assert_eq!(&*access.unwrap().place.0, "postgres://db.example/fleet");
        for url in ["postgres://me:secret@db/fleet?sslmode=maybe", "postgres://me:secret@db:port/fleet"] {
            let Err(error) = Access::new(url, uuid::Uuid::nil()) else { panic!("{url} was read") };
            assert!(!full(&error).contains("secret"), "{}", full(&error));
        }
    }
}
