//! The proxy's own connections to the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where the API server is, and how to be let in.
pub(super) struct Upstream {
    address: SocketAddr,
    /// For requests that bring a token.
    plain: TlsConnector,
    /// For requests without: the administrator's certificate.
    admin: TlsConnector,
}

impl Upstream {
    pub fn new(address: SocketAddr, ca: &str, admin: (&str, &str)) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
        let builder = || ClientConfig::builder().with_root_certificates(roots.clone());
        let (cert, key) = admin;
        let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes())?];
        let admin = builder().with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
        let plain = builder().with_no_client_auth();
        Ok(Self {
            address,
            plain: Arc::new(plain).into(),
            admin: Arc::new(admin).into(),
        })
    }

    async fn connect(&self, as_admin: bool) -> Result<SendRequest<Full<Bytes>>> {
        let socket = TcpStream::connect(self.address).await.context("reach the API server")?;
        socket.set_nodelay(true)?;
        let connector = if as_admin { &self.admin } else { &self.plain };
        let tls = connector
            .connect(ServerName::IpAddress(self.address.ip().into()), socket)
            .await?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The connections to the API server that belong to one connection of a client.
pub(super) struct Session {
    upstream: Arc<Upstream>,
    plain: Option<SendRequest<Full<Bytes>>>,
    admin: Option<SendRequest<Full<Bytes>>>,
}

impl Session {
    pub fn new(upstream: Arc<Upstream>) -> Self {
        Self {
            upstream,
            plain: None,
            admin: None,
        }
    }

    /// Sends a request and gives the head of its answer. Not repeated: what fails here, fails for the client.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let as_admin = !request.headers().contains_key(http::header::AUTHORIZATION);
        let slot = if as_admin { &mut self.admin } else { &mut self.plain };
        let mut kept = slot.take();
        let reusable = match &mut kept {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        let mut sender = match kept {
            Some(sender) if reusable => sender,
            _ => self.upstream.connect(as_admin).await?,
        };
        let answer = sender.send_request(request).await?;
        *slot = Some(sender);
        Ok(answer)
    }
}
