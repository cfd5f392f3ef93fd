//! The Secret by which replicas share one certificate.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ObjectMeta, PostParams};

use super::authority::{Authority, Leaf};
use super::renewal::Contents;
use crate::component::{Component, beside};
use crate::tls::PairError;
use crate::tls::pair::certificates;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The authority that signs, then those that signed before.
const AUTHORITIES: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const NEXT_AUTHORITY: &str = "next-ca.crt";
const NEXT_AUTHORITY_KEY: &str = "next-ca.key";

/// The Secret, read by quorum.
pub(super) struct Shared {
    api: Api<Secret>,
    component: Component,
    name: String,
}

/// What there is; nothing where there is no Secret.
#[derive(Default)]
pub(super) struct Stored {
    /// To replace just that one.
    resource_version: Option<String>,
    /// What the Secret holds, or why that is of no use.
    pub(super) contents: Option<Result<Contents, PairError>>,
}

impl Stored {
    pub(super) fn contents(&self) -> Option<&Contents> {
        self.contents.as_ref()?.as_ref().ok()
    }
}

/// `<component>-webhook-cert`.
pub(super) fn name_of(component: Component, dry_run: bool) -> String {
    beside(format!("{}-webhook-cert", component.name()), dry_run)
}

impl Shared {
    pub(super) fn new(api: Api<Secret>, component: Component, name: String) -> Self {
        Self { api, component, name }
    }

    pub(super) async fn read(&self) -> Result<Stored, kube::Error> {
        let secret = self.api.get_opt(&self.name).await?;
        Ok(secret.map_or_else(Stored::default, |secret| Stored {
            resource_version: secret.metadata.resource_version,
            contents: Some(decode(&secret.data.unwrap_or_default())),
        }))
    }

    /// Creates it, or replaces just the one that was read: of several replicas that write at once one succeeds, and the
    /// others are told 409. It is removed with its `owner`.
    pub(super) async fn write(
        &self,
        contents: &Contents,
        over: &Stored,
        owner: Option<OwnerReference>,
    ) -> Result<(), kube::Error> {
        let name = self.name.clone();
        let resource_version = over.resource_version.clone();
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(BTreeMap::from([
                    ("app.kubernetes.io/name".to_owned(), self.component.name().to_owned()),
                    ("app.kubernetes.io/part-of".to_owned(), "nodeward".to_owned()),
                ])),
                resource_version: resource_version.clone(),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(encode(contents)),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        };
        let params = PostParams {
            field_manager: Some(self.component.field_manager().to_owned()),
            ..PostParams::default()
        };
        match resource_version {
            None => self.api.create(&params, &secret).await?,
            Some(_) => self.api.replace(&name, &params, &secret).await?,
        };
        Ok(())
    }
}

fn encode(contents: &Contents) -> BTreeMap<String, ByteString> {
    let authorities = [&contents.authority.certificate].into_iter().chain(&contents.retired);
    let mut texts = vec![
        (CERTIFICATE, contents.leaf.certificate.clone()),
        (KEY, contents.leaf.key.clone()),
        (AUTHORITIES, authorities.map(String::as_str).collect()),
        (AUTHORITY_KEY, contents.authority.key.clone()),
    ];
    if let Some(next) = &contents.next {
        texts.push((NEXT_AUTHORITY, next.certificate.clone()));
        texts.push((NEXT_AUTHORITY_KEY, next.key.clone()));
    }
    texts
        .into_iter()
        .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
        .collect()
}

fn decode(data: &BTreeMap<String, ByteString>) -> Result<Contents, PairError> {
    let text = |key: &'static str| {
        let bytes = data.get(key).ok_or(PairError::NoCertificate(key))?;
        std::str::from_utf8(&bytes.0).map_err(|_| PairError::NoCertificate(key))
    };
    let mut authorities = split(text(AUTHORITIES)?).into_iter();
    let signing = authorities.next().ok_or(PairError::NoCertificate(AUTHORITIES))?;
    let next = if data.contains_key(NEXT_AUTHORITY) {
        Some(Authority::read(text(NEXT_AUTHORITY)?, text(NEXT_AUTHORITY_KEY)?)?)
    } else {
        None
    };
    Ok(Contents {
        authority: Authority::read(&signing, text(AUTHORITY_KEY)?)?,
        next,
        retired: authorities.collect(),
        leaf: Leaf::read(text(CERTIFICATE)?, text(KEY)?)?,
    })
}

/// The certificates of a bundle, each by itself; those that are broken are left out.
fn split(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .filter_map(|part| {
            let begin = part.find("-----BEGIN CERTIFICATE-----")?;
            let pem = format!("{}\n", part.get(begin..)?.trim_end());
            certificates(pem.as_bytes()).map(|_| pem)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;
    use rstest::rstest;

    use super::super::authority::Lifetimes;
    use super::*;

    fn contents() -> Contents {
        let (now, lifetimes) = (Timestamp::now(), Lifetimes::default());
        let make = || Authority::make("drain-lock", now, &lifetimes).unwrap();
        let authority = make();
        let leaf = authority
            .sign(&BTreeSet::from(["a.svc".to_owned(), "::1".to_owned()]), now, &lifetimes)
            .unwrap();
        Contents {
            authority,
            next: Some(make()),
            retired: vec![make().certificate, make().certificate],
            leaf,
        }
    }

    /// PEM texts end their lines in different ways.
    fn unix(contents: &Contents) -> String {
        format!("{contents:?}").replace("\\r", "")
    }

    #[test]
    fn another_replica_reads_what_one_wrote() {
        let with_next = contents();
        assert_eq!(unix(&decode(&encode(&with_next)).unwrap()), unix(&with_next));
        let without = Contents {
            next: None,
            retired: Vec::new(),
            ..with_next
        };
        assert_eq!(unix(&decode(&encode(&without)).unwrap()), unix(&without));
        assert_eq!(decode(&encode(&without)).unwrap().bundle(), without.bundle());
    }

    #[rstest]
    #[case::no_certificate(CERTIFICATE, None)]
    #[case::no_authority(AUTHORITIES, Some(""))]
    #[case::no_key(AUTHORITY_KEY, None)]
    #[case::nonsense(CERTIFICATE, Some("nonsense"))]
    #[case::half_of_the_next(NEXT_AUTHORITY_KEY, None)]
    fn what_cannot_be_served_is_an_error(#[case] key: &str, #[case] value: Option<&str>) {
        let mut data = encode(&contents());
        match value {
            None => data.remove(key),
            Some(text) => data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec())),
        };
        assert!(decode(&data).is_err());
    }

    #[test]
    fn mismatched_key_is_an_error() {
        let mut data = encode(&contents());
        let other = encode(&contents());
        data.insert(KEY.to_owned(), other[KEY].clone());
        assert!(decode(&data).is_err());
    }
}
