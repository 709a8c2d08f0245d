//! TLS for connections, by the one provider of the program.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use super::errors::OpenError;

/// Makes TLS sessions whose certificates are checked against the trusted ones, names included.
#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    /// For servers that are reached without it.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Trusts the certificates of a file, or those of the system.
    pub(super) fn new(roots: Option<&Path>) -> Result<Self, OpenError> {
        let mut trusted = RootCertStore::empty();
        match roots {
            Some(file) => {
                let failed = |cause| OpenError::Certificates { origin: file.display().to_string(), cause };
                let certificates = CertificateDer::pem_file_iter(file).map_err(|error| failed(Arc::new(error)))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| failed(Arc::new(error)))?;
                    trusted.add(certificate).map_err(|error| failed(Arc::new(error)))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                let (added, _) = trusted.add_parsable_certificates(found.certs);
                if added == 0 {
                    tracing::warn!(errors = ?found.errors, "the system has no trusted certificates: TLS to a server can't be verified");
                }
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let failed = |error: rustls::Error| OpenError::Certificates { origin: "TLS".to_owned(), cause: Arc::new(error) };
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(failed)?;
        Ok(Self(Some(Arc::new(versions.with_root_certificates(trusted).with_no_client_auth()))))
    }
}

/// The `sslmode` and `sslrootcert` of a URL, which the driver does not know in full.
#[derive(Clone, Debug, Default)]
pub(super) struct Mode {
    pub(super) mode: Option<String>,
    pub(super) roots: Option<PathBuf>,
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Secured<S>;
    type TlsConnect = Connect;
    type Error = std::convert::Infallible;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connect, Self::Error> {
        // A Unix socket has no name, and no TLS.
        let name = ServerName::try_from(domain).ok().map(|name| name.to_owned());
        Ok(Connect { connector: self.0.clone().map(TlsConnector::from), name })
    }
}

/// One handshake.
pub(super) struct Connect {
    connector: Option<TlsConnector>,
    name: Option<ServerName<'static>>,
}

impl<S> TlsConnect<S> for Connect
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Secured<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        async move {
            let (Some(name), Some(connector)) = (self.name, self.connector) else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the host is no name that a certificate can have"));
            };
            connector.connect(name, stream).await.map(|stream| Secured(Box::new(stream)))
        }
        .boxed()
    }
}

/// A stream inside TLS.
pub(super) struct Secured<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secured<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
