//! How to connect to the Ceph cluster of a namespace, from the objects that Rook keeps there. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rados::Options;

use crate::policy::Policy;
use crate::snapshot::{CephProblem, CephProblemKind};

/// Secret of the user that a CephClient `nodeward` makes.
pub const CLIENT_SECRET: &str = "rook-ceph-client-nodeward";

/// Secret of Ceph's administrator.
pub const ADMIN_SECRET: &str = "rook-ceph-mon";

/// Secret with the addresses of the monitors.
pub const CONFIG_SECRET: &str = "rook-ceph-config";

/// ConfigMap with the addresses of the monitors.
pub const MON_ENDPOINTS: &str = "rook-ceph-mon-endpoints";

/// Rook names the Secret of a CephClient so, with the client's name behind it.
const CLIENT_SECRET_PREFIX: &str = "rook-ceph-client-";

/// How long a monitor may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// `data` of a Secret, decoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(pub BTreeMap<String, Vec<u8>>);

impl SecretData {
    fn text(&self, key: &str) -> Option<&str> {
        let text = std::str::from_utf8(self.0.get(key)?).ok()?.trim();
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Debug for SecretData {
    /// The names of its keys only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The Secrets that may hold the user and its key: the first one that exists counts.
pub fn user_secrets(policy: &Policy) -> Vec<Arc<str>> {
    match &policy.credentials_secret {
        // Whoever names a Secret does not want another one to be used in its place.
        Some(configured) => vec![Arc::clone(configured)],
        None if policy.allow_admin_key => vec![CLIENT_SECRET.into(), ADMIN_SECRET.into()],
        None => vec![CLIENT_SECRET.into()],
    }
}

/// The objects of a namespace that say how to connect. `None` for those that do not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionObjects {
    /// [`user_secrets`], by name.
    pub users: Vec<(Arc<str>, Option<SecretData>)>,
    /// Secret [`CONFIG_SECRET`].
    pub config: Option<SecretData>,
    /// `data` of ConfigMap [`MON_ENDPOINTS`].
    pub mon_endpoints: Option<BTreeMap<String, String>>,
    /// `spec.network.connections.encryption.enabled` of the CephCluster.
    pub is_encrypted: bool,
}

impl ConnectionObjects {
    /// How to connect.
    ///
    /// # Errors
    /// There is no user that may be used, its Secret cannot be read, or no address of a monitor is known.
    pub fn options(&self) -> Result<Options, CephProblem> {
        let (user, key) = self.user()?;
        Ok(Options {
            mon_host: self.mon_host()?,
            user,
            key,
            encrypted: self.is_encrypted,
            timeout: Some(TIMEOUT),
        })
    }

    fn user(&self) -> Result<(String, String), CephProblem> {
        let mut existing = self
            .users
            .iter()
            .filter_map(|(name, data)| Some((name, data.as_ref()?)));
        if let Some((name, data)) = existing.next() {
            return user_of(name, data);
        }
        let configured = self.users.first().filter(|(name, _)| **name != *CLIENT_SECRET);
        Err(problem(match configured {
            Some((name, _)) => format!("Secret {name} does not exist: it is the one configured"),
            None => format!(
                "there is no Secret {CLIENT_SECRET}: create a CephClient \"nodeward\", configure another Secret, or set \
                 allowAdminKey"
            ),
        }))
    }

    fn mon_host(&self) -> Result<String, CephProblem> {
        let listed = self.config.as_ref().and_then(|config| config.text("mon_host"));
        let endpoints = self.mon_endpoints.as_ref().and_then(|data| data.get("data"));
        let monitors: Vec<String> = match (listed, endpoints) {
            (Some(listed), _) => split(listed).into_iter().map(str::to_owned).collect(),
            (None, Some(endpoints)) => endpoints.split(',').filter_map(both_versions).collect(),
            (None, None) => Vec::new(),
        };
        let mut usable: Vec<String> = if self.is_encrypted {
            // Version 1 of the protocol has no encryption.
            monitors.iter().filter_map(|monitor| encrypted_only(monitor)).collect()
        } else {
            monitors
        };
        if usable.is_empty() {
            let encrypted = if self.is_encrypted {
                " that takes encrypted connections"
            } else {
                ""
            };
            return Err(problem(format!(
                "no address of a monitor is known{encrypted}: neither Secret {CONFIG_SECRET} nor ConfigMap {MON_ENDPOINTS} has \
                 one"
            )));
        }
        // Another order of the same monitors is no other cluster.
        usable.sort();
        Ok(usable.join(","))
    }
}

/// The user and its key, in any of the forms that Rook writes.
fn user_of(secret: &str, data: &SecretData) -> Result<(String, String), CephProblem> {
    let named = |user, key| Some((data.text(user)?, data.text(key)?));
    let own_name = secret.strip_prefix(CLIENT_SECRET_PREFIX);
    let (user, key) = named("userID", "userKey")
        .or_else(|| named("ceph-username", "ceph-secret"))
        .or_else(|| own_name.and_then(|name| Some((name, data.text(name)?))))
        .ok_or_else(|| {
            problem(format!(
                "Secret {secret} has no user and key: it needs userID and userKey, or ceph-username and ceph-secret"
            ))
        })?;
    let name = user.strip_prefix("client.").unwrap_or(user);
    Ok((format!("client.{name}"), key.to_owned()))
}

/// The monitors of a list such as `[v2:10.0.0.1:3300,v1:10.0.0.1:6789],10.0.0.2`: commas in brackets separate addresses of one.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let monitors = list.split(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    monitors.map(str::trim).filter(|monitor| !monitor.is_empty()).collect()
}

/// The addresses of an entry such as `a=10.0.0.1:6789`. A monitor on the port of version 1 has version 2 on its usual one.
fn both_versions(entry: &str) -> Option<String> {
    let (_, address) = entry.split_once('=')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    Some(match port {
        "3300" => format!("[v2:{host}:3300]"),
        "6789" => format!("[v2:{host}:3300,v1:{host}:6789]"),
        _ => format!("{host}:{port}"),
    })
}

/// A monitor's addresses without those of version 1; `None` if there are no others.
fn encrypted_only(monitor: &str) -> Option<String> {
    let is_version_1 = |address: &str| address.starts_with("v1:") || address.ends_with(":6789");
    // The brackets of an IPv6 address are its own.
    let Some(addresses) = monitor.strip_prefix("[v").and_then(|rest| rest.strip_suffix(']')) else {
        return (!is_version_1(monitor)).then(|| monitor.to_owned());
    };
    let addresses = format!("v{addresses}");
    let kept: Vec<&str> = addresses.split(',').filter(|address| !is_version_1(address)).collect();
    (!kept.is_empty()).then(|| format!("[{}]", kept.join(",")))
}

fn problem(message: String) -> CephProblem {
    CephProblem::new(CephProblemKind::CredentialsMissing, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::{ADMIN_SECRET, CLIENT_SECRET, ConnectionObjects, SecretData, user_secrets};
    use crate::policy::Policy;
    use crate::snapshot::CephProblemKind;

    fn secret(entries: &[(&str, &str)]) -> SecretData {
        let entries = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
        SecretData(entries.collect())
    }

    fn client() -> SecretData {
        secret(&[("nodeward", "AQclient==")])
    }

    fn admin() -> SecretData {
        secret(&[
            ("fsid", "4e83"),
            ("ceph-username", "client.admin"),
            ("ceph-secret", "AQadmin=="),
        ])
    }

    /// What is read of a namespace with these Secrets.
    fn objects_with(policy: &Policy, existing: &[(&str, SecretData)]) -> ConnectionObjects {
        let data = |name: &str| {
            existing
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, data)| data.clone())
        };
        let users = user_secrets(policy).into_iter();
        ConnectionObjects {
            users: users.map(|name| (name.clone(), data(&name))).collect(),
            config: Some(secret(&[("mon_host", "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]")])),
            ..ConnectionObjects::default()
        }
    }

    fn objects() -> ConnectionObjects {
        objects_with(&Policy::default(), &[(CLIENT_SECRET, client())])
    }

    fn configured() -> Policy {
        Policy {
            credentials_secret: Some("ceph-of-ours".into()),
            allow_admin_key: true,
            ..Policy::default()
        }
    }

    fn user(objects: &ConnectionObjects) -> Result<(String, String), String> {
        let options = objects.options().map_err(|problem| {
            assert_eq!(problem.kind, CephProblemKind::CredentialsMissing);
            problem.message.to_string()
        })?;
        Ok((options.user, options.key))
    }

    fn owned(user: &str, key: &str) -> (String, String) {
        (user.to_owned(), key.to_owned())
    }

    #[rstest]
    #[case::user_id(&[("userID", "pdb"), ("userKey", "AQ==\n")], "client.pdb")]
    #[case::ceph_username(&[("ceph-username", "client.pdb"), ("ceph-secret", "AQ==")], "client.pdb")]
    fn a_configured_secret_comes_first(#[case] entries: &[(&str, &str)], #[case] expected: &str) {
        let existing = [("ceph-of-ours", secret(entries)), (CLIENT_SECRET, client())];
        assert_eq!(
            user(&objects_with(&configured(), &existing)),
            Ok(owned(expected, "AQ=="))
        );
    }

    #[rstest]
    #[case::absent(None)]
    #[case::empty(Some(secret(&[])))]
    #[case::no_key(Some(secret(&[("userID", "pdb"), ("userKey", " ")])))]
    #[case::not_text(Some(SecretData(BTreeMap::from([("userID".to_owned(), vec![0xff])]))))]
    fn no_other_secret_replaces_a_configured_one(#[case] data: Option<SecretData>) {
        let others = [(CLIENT_SECRET, client()), (ADMIN_SECRET, admin())];
        let own = data.map(|data| ("ceph-of-ours", data));
        let existing: Vec<_> = own.into_iter().chain(others).collect();
        let why = user(&objects_with(&configured(), &existing)).unwrap_err();
        assert!(why.contains("ceph-of-ours"), "{why}");
    }

    fn with_admin_key() -> Policy {
        Policy {
            allow_admin_key: true,
            ..Policy::default()
        }
    }

    #[test]
    fn the_client_of_ours_comes_before_the_admin_key() {
        let existing = [(ADMIN_SECRET, admin()), (CLIENT_SECRET, client())];
        let objects = objects_with(&with_admin_key(), &existing);
        assert_eq!(user(&objects), Ok(owned("client.nodeward", "AQclient==")));
    }

    #[test]
    fn the_admin_key_is_used_only_when_allowed() {
        let existing = [(ADMIN_SECRET, admin())];
        let why = user(&objects_with(&Policy::default(), &existing)).unwrap_err();
        assert!(why.contains(CLIENT_SECRET) && why.contains("allowAdminKey"), "{why}");
        let allowed = objects_with(&with_admin_key(), &existing);
        assert_eq!(user(&allowed), Ok(owned("client.admin", "AQadmin==")));
        assert!(user(&objects_with(&with_admin_key(), &[])).is_err());
    }

    #[rstest]
    #[case::as_rook_lists_it(
        "[v2:10.0.0.1:3300,v1:10.0.0.1:6789],[v2:10.0.0.2:3300]",
        "",
        false,
        "[v2:10.0.0.1:3300,v1:10.0.0.1:6789],[v2:10.0.0.2:3300]"
    )]
    #[case::before_endpoints("10.0.0.1:6789", "a=10.0.0.9:6789", false, "10.0.0.1:6789")]
    #[case::endpoints(
        "",
        "a=10.0.0.1:6789,b=10.0.0.2:3300",
        false,
        "[v2:10.0.0.1:3300,v1:10.0.0.1:6789],[v2:10.0.0.2:3300]"
    )]
    #[case::endpoint_with_ipv6("", "a=[fd00::1]:3300", false, "[v2:[fd00::1]:3300]")]
    #[case::endpoint_elsewhere("", "a=10.0.0.1:40123", false, "10.0.0.1:40123")]
    #[case::encrypted(
        "[v2:10.0.0.1:3300,v1:10.0.0.1:6789],10.0.0.2:6789,10.0.0.3:3300",
        "",
        true,
        "10.0.0.3:3300,[v2:10.0.0.1:3300]"
    )]
    #[case::in_another_order("10.0.0.2:3300,10.0.0.1:3300", "", false, "10.0.0.1:3300,10.0.0.2:3300")]
    #[case::encrypted_endpoints("", "a=10.0.0.1:6789", true, "[v2:10.0.0.1:3300]")]
    #[case::encrypted_with_ipv6(
        "[v2:[fd00::1]:3300,v1:[fd00::1]:6789],[fd00::2]:3300",
        "",
        true,
        "[fd00::2]:3300,[v2:[fd00::1]:3300]"
    )]
    fn monitors_are_found(
        #[case] mon_host: &str,
        #[case] endpoints: &str,
        #[case] is_encrypted: bool,
        #[case] expected: &str,
    ) {
        let objects = ConnectionObjects {
            config: Some(secret(&[("mon_host", mon_host)])),
            mon_endpoints: Some(BTreeMap::from([("data".to_owned(), endpoints.to_owned())])),
            is_encrypted,
            ..objects()
        };
        let options = objects.options().unwrap();
        assert_eq!((options.mon_host.as_str(), options.encrypted), (expected, is_encrypted));
    }

    #[rstest]
    #[case::nothing(None, false)]
    #[case::empty(Some(""), false)]
    #[case::unencrypted_only(Some("[v1:10.0.0.1:6789]"), true)]
    fn without_a_monitor_there_is_no_connection(#[case] mon_host: Option<&str>, #[case] is_encrypted: bool) {
        let objects = ConnectionObjects {
            config: mon_host.map(|mon_host| secret(&[("mon_host", mon_host)])),
            is_encrypted,
            ..objects()
        };
        let why = user(&objects).unwrap_err();
        assert!(why.contains("monitor"), "{why}");
    }

    #[test]
    fn keys_are_not_printed() {
        let objects = objects_with(&with_admin_key(), &[(ADMIN_SECRET, admin())]);
        let printed = format!("{objects:?}");
        assert!(printed.contains("ceph-secret") && !printed.contains("AQ"), "{printed}");
    }
}
