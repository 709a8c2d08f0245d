//! Connections inside TLS.

use std::sync::Arc;

use picofleet_session::storage::{StorageError, Store as _};
use picofleet_storage::conformance::Database;
use picofleet_storage::postgres::{PostgresOptions, PostgresStore};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::proxy::Target;
use super::world::Owner;

/// A server's certificate for `localhost`, and the file by which it is trusted.
struct Secured {
    port: u16,
    roots: tempfile::NamedTempFile,
}

/// Takes TLS off in front of a database's server.
async fn secured(database: &Database) -> Secured {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let roots = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(roots.path(), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let target = Target::of(&database.url().parse().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (acceptor, target) = (acceptor.clone(), target.clone());
            tokio::spawn(async move {
                let mut asked = [0; 8];
                client.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked[4..], 80_877_103_u32.to_be_bytes(), "no TLS was asked for");
                client.write_all(b"S").await.unwrap();
                // A client that does not trust the certificate leaves here.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = target.connect().await;
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    Secured { port, roots }
}

/// A certificate is checked against the trusted ones, with its name.
#[tokio::test]
async fn connections_are_inside_tls_that_is_verified() {
    let database = Database::new().await;
    let Secured { port, roots } = secured(&database).await;
    let config: tokio_postgres::Config = database.url().parse().unwrap();
    let (user, name) = (config.get_user().unwrap().to_owned(), config.get_dbname().unwrap().to_owned());
    let url = |host: &str, parameters: &str| format!("postgres://{user}@{host}:{port}/{name}?{parameters}");
    let trusted = format!("sslmode=verify-full&sslrootcert={}", roots.path().display());
    let store = PostgresStore::open(&url("localhost", &trusted), PostgresOptions::default()).await.unwrap();
    let mut owner = Owner::new(&store).await;
    owner.append().await.unwrap();
    store.close().await.unwrap();
    for (host, parameters) in [("localhost", "sslmode=require"), ("127.0.0.1", &*trusted)] {
        let refused = PostgresStore::open(&url(host, parameters), PostgresOptions::default()).await.err();
        let Some(StorageError::Failed { cause, .. }) = refused else { panic!("{host}: {refused:?}") };
        let mut text = cause.to_string();
        let mut source = cause.source();
        while let Some(cause) = source {
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        assert!(text.contains("certificate"), "{host}: {text}");
    }
}
