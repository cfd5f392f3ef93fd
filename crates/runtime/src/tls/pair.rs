//! A certificate with its private key, from PEM to what a server needs.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file could not be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is no certificate in the PEM text.
    #[error("{0} holds no certificate in PEM form")]
    NoCertificate(&'static str),
    /// There is no private key in the PEM text.
    #[error("the key holds no private key in PEM form: {0}")]
    NoKey(rustls::pki_types::pem::Error),
    /// The certificate is not one.
    #[error("the certificate cannot be read: {0}")]
    NotX509(String),
    /// Certificate and key do not belong together, or the key cannot be used.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The certificates that clients have to be signed by cannot be used.
    #[error("the clients' authority cannot be used: {0}")]
    ClientAuthority(String),
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
}

/// A certificate, its key, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) validity: Validity,
}

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl Pair {
    /// Puts a chain and its key together. With `client_authority` clients need a certificate that it signed.
    pub(crate) fn from_pem(chain: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> Result<Self, PairError> {
        let chain = certificates(chain).ok_or(PairError::NoCertificate("the certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(PairError::NoKey)?;
        let validity = Validity::of(&chain[0])?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(roots(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| PairError::ClientAuthority(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            validity,
        })
    }

    /// The same, refused when it has expired.
    pub(crate) fn unexpired(self, now: Timestamp) -> Result<Self, PairError> {
        if self.validity.not_after <= now {
            return Err(PairError::Expired(self.validity.not_after));
        }
        Ok(self)
    }
}

impl Validity {
    /// Reads it from the certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, PairError> {
        let not_x509 = |problem: String| PairError::NotX509(problem);
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| not_x509(error.to_string()))?;
        let at = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|error| not_x509(error.to_string()))
        };
        let validity = parsed.validity();
        Ok(Self {
            not_before: at(validity.not_before)?,
            not_after: at(validity.not_after)?,
        })
    }
}

/// The certificates in a PEM text; `None` where there is none, or one that is broken.
pub(crate) fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, PairError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).ok_or(PairError::NoCertificate("the clients' authority"))? {
        let added = roots.add(certificate);
        added.map_err(|error| PairError::ClientAuthority(error.to_string()))?;
    }
    Ok(roots)
}
