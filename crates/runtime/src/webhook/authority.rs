//! An authority of the operator's own, and the certificates that it signs.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::pair::{Pair, PairError, Validity, certificates};

/// How far the clocks of those who check a certificate may be behind.
pub(super) const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(10);

/// How long certificates live.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// The authority's. A third before its end a new one is prepared.
    pub authority: SignedDuration,
    /// That of the certificate that is served. It is renewed a third before its end.
    pub certificate: SignedDuration,
    /// How long a new authority is published before it signs: until every API server trusts it.
    pub settling: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: SignedDuration::from_hours(365 * 24),
            certificate: SignedDuration::from_hours(90 * 24),
            settling: SignedDuration::from_mins(2),
        }
    }
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The library refused.
    #[error("no certificate can be made: {0}")]
    Rcgen(#[from] rcgen::Error),
    /// What was made cannot be read back.
    #[error("the certificate that was made is of no use: {0}")]
    Unusable(#[from] PairError),
}

/// An authority: it may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) validity: Validity,
}

/// A certificate that is served, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) validity: Validity,
    pub(super) hosts: BTreeSet<String>,
    issuer: Vec<u8>,
}

impl Authority {
    /// Makes one. Its name is its own, so that what another one of this component signed is told from what it signed.
    pub(super) fn make(component: &str, now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, MakeError> {
        let mut params = CertificateParams::new(Vec::new())?;
        let name = format!("{component} webhook {:016x}", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = moment(now - CLOCK_SKEW);
        params.not_after = moment(now + lifetimes.authority);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self::read(&certificate, &key.serialize_pem())?)
    }

    /// Reads one from PEM.
    pub(super) fn read(certificate: &str, key: &str) -> Result<Self, PairError> {
        let der = only(certificate)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            validity: Validity::of(&der)?,
        })
    }

    /// When it was made.
    pub(super) fn made_at(&self) -> Timestamp {
        self.validity.not_before + CLOCK_SKEW
    }

    /// Signs a certificate for these names and addresses. It ends no later than the authority.
    pub(super) fn sign(
        &self,
        hosts: &BTreeSet<String>,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Leaf, MakeError> {
        let mut params = CertificateParams::new(hosts.iter().cloned().collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, "webhook");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = moment(self.validity.not_before.max(now - CLOCK_SKEW));
        params.not_after = moment(self.validity.not_after.min(now + lifetimes.certificate));
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Leaf::read(&certificate, &key.serialize_pem())?)
    }

    /// Whether it signed the certificate.
    pub(super) fn signed(&self, leaf: &Leaf) -> bool {
        let subject = only(&self.certificate).ok().and_then(|der| {
            let (_, certificate) = X509Certificate::from_der(&der).ok()?;
            Some(certificate.subject().as_raw().to_vec())
        });
        subject.is_some_and(|subject| subject == leaf.issuer)
    }
}

impl Leaf {
    /// Reads one from PEM.
    pub(super) fn read(certificate: &str, key: &str) -> Result<Self, PairError> {
        let der = only(certificate)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| PairError::NotX509(error.to_string()))?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names
            .map(|names| names.value.general_names.as_slice())
            .unwrap_or_default();
        let read = Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            validity: Validity::of(&der)?,
            hosts: names.iter().filter_map(host).collect(),
            issuer: parsed.issuer().as_raw().to_vec(),
        };
        read.pair()?;
        Ok(read)
    }

    /// As it is served.
    pub(super) fn pair(&self) -> Result<Pair, PairError> {
        Pair::from_pem(self.certificate.as_bytes(), self.key.as_bytes(), None)
    }
}

/// When a third of the validity is left.
pub(super) fn renewal(validity: Validity) -> Timestamp {
    let life = validity.not_before.duration_until(validity.not_after);
    validity.not_after - life / 3
}

fn only(certificate: &str) -> Result<CertificateDer<'static>, PairError> {
    let found = certificates(certificate.as_bytes()).and_then(|mut found| (found.len() == 1).then(|| found.remove(0)));
    found.ok_or(PairError::NoCertificate("the certificate"))
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            if let Ok(bytes) = <[u8; 4]>::try_from(*bytes) {
                return Some(std::net::IpAddr::from(bytes).to_string());
            }
            <[u8; 16]>::try_from(*bytes)
                .ok()
                .map(|bytes| std::net::IpAddr::from(bytes).to_string())
        }
        _ => None,
    }
}

/// A certificate's times are whole seconds.
fn moment(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
