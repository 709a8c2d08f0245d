//! Proxies of the environment for a server with TLS: CONNECT, credentials of the proxy, `NO_PROXY`.

use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::place::Place;
use crate::server::{APIS, KEY, Log, Manner, acme, read, serve};

/// A name that only the proxy finds.
const HOST: &str = "model.test";

/// A certificate for the name and for loopback, and the authority that signed it.
fn identity() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let own = KeyPair::generate().unwrap();
    let names = vec![HOST.to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&own, &Issuer::new(params, key)).unwrap();
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let private = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, private).unwrap();
    (TlsAcceptor::from(Arc::new(config)), authority)
}

/// A server with TLS, and a place whose configuration knows it by a host.
async fn secured(host: &str) -> (u16, Place, Log) {
    let (acceptor, authority) = identity();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let log = Log::default();
    let own = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (acceptor, log) = (acceptor.clone(), Arc::clone(&own));
            tokio::spawn(async move {
                if let Ok(secured) = acceptor.accept(connection).await {
                    serve(secured, APIS[0], Manner::Good, log).await;
                }
            });
        }
    });
    let mut place = Place::new();
    place.write("ca.pem", &authority);
    place.write("picofleet.toml", &acme(APIS[0], &format!("https://{host}:{port}"), "api_key_env = \"ACME_KEY\"\nca_file = \"ca.pem\"\n"));
    place.set("ACME_KEY", KEY);
    (port, place, log)
}

type Heads = Arc<Mutex<Vec<String>>>;

/// A proxy that takes every name for loopback, or refuses all; gives its port and the heads of what it was asked.
async fn proxy(refuses: bool) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Heads::default();
    let own = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(tunnel(connection, refuses, Arc::clone(&own)));
        }
    });
    (port, heads)
}

async fn tunnel(mut connection: TcpStream, refuses: bool, heads: Heads) {
    let Some(request) = read(&mut connection).await else { return };
    let target = request.head.split(' ').nth(1).unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    heads.lock().unwrap().push(request.head);
    if refuses {
        let _ = connection.write_all(b"HTTP/1.1 407 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        return;
    }
    let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
    connection.write_all(b"HTTP/1.1 200 X\r\n\r\n").await.unwrap();
    // Either side may be gone first.
    let _ = tokio::io::copy_bidirectional(&mut connection, &mut server).await;
}

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_environment() {
    for variable in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let (port, mut place, log) = secured(HOST).await;
        let (proxy, heads) = proxy(false).await;
        place.set(variable, format!("http://somebody:hunter2@127.0.0.1:{proxy}"));
        let text = place.run(&["models", "test", "acme/m"]).await.with(0);
        assert!(!text.contains("hunter2") && !text.contains("hush"), "{text}");
        let heads = heads.lock().unwrap().clone();
        assert!(!heads.is_empty());
        for head in heads {
            assert!(head.starts_with(&format!("CONNECT {HOST}:{port} HTTP/1.1")), "{head}");
            // somebody:hunter2
            assert!(head.to_lowercase().contains("proxy-authorization: basic c29tzwjvzhk6ahvudgvymg=="), "{head}");
            // The proxy sees nothing of the request itself.
            assert!(!head.contains("hush") && !head.contains("Bearer"), "{head}");
        }
        let received = log.lock().unwrap().clone();
        assert_eq!(received.len(), 3);
        assert!(received.iter().all(|request| request.header("authorization") == Some(format!("Bearer {KEY}"))));
        assert!(received.iter().all(|request| request.header("proxy-authorization").is_none()), "{received:?}");
    }
}

#[tokio::test]
async fn no_proxy_and_the_configuration_leave_the_proxy_out() {
    for (no_proxy, option) in
        [("127.0.0.1", ""), ("10.0.0.0/8,127.0.0.0/8", ""), ("*", ""), ("", "http = { environment_proxies = false }\n")]
    {
        let (_, mut place, log) = secured("127.0.0.1").await;
        let file = place.read("picofleet.toml").replace("ca_file", &format!("{option}ca_file"));
        place.write("picofleet.toml", &file);
        let (proxy, heads) = proxy(true).await;
        place.set("HTTPS_PROXY", format!("http://127.0.0.1:{proxy}"));
        place.set("NO_PROXY", no_proxy);
        place.run(&["models", "test", "acme/m"]).await.with(0);
        assert_eq!((log.lock().unwrap().len(), heads.lock().unwrap().len()), (3, 0), "{no_proxy:?} {option:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_told_without_its_password() {
    let (_, mut place, log) = secured(HOST).await;
    let (proxy, heads) = proxy(true).await;
    place.set("HTTPS_PROXY", format!("http://somebody:hunter2@127.0.0.1:{proxy}"));
    // Another host's exception.
    place.set("NO_PROXY", "other.test");
    let text = place.run(&["models", "test", "acme/m"]).await.with(1);
    assert!(text.contains("Connection error") && text.contains("proxy"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("hush"), "{text}");
    assert!(log.lock().unwrap().is_empty() && !heads.lock().unwrap().is_empty());
}
