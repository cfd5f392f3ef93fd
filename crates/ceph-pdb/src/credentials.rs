//! How to connect to the Ceph cluster of a namespace, from the objects that Rook keeps there. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rados::Options;

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

/// The Secret that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredSecret {
    /// Its name.
    pub name: Arc<str>,
    /// What is in it; `None` if it does not exist.
    pub data: Option<SecretData>,
}

/// The objects of a namespace that say how to connect. `None` for those that do not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionObjects {
    /// The Secret that the configuration names, if it names one.
    pub configured: Option<ConfiguredSecret>,
    /// Secret [`CLIENT_SECRET`].
    pub client: Option<SecretData>,
    /// Secret [`ADMIN_SECRET`].
    pub admin: Option<SecretData>,
    /// The configuration allows the administrator's key (`allowAdminKey`).
    pub allow_admin_key: bool,
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
        // Whoever names a Secret does not want another one to be used in its place.
        if let Some(ConfiguredSecret { name, data }) = &self.configured {
            let data = data
                .as_ref()
                .ok_or_else(|| problem(format!("Secret {name} does not exist: it is the one configured")))?;
            return user_of(name, data);
        }
        match (&self.client, &self.admin) {
            (Some(client), _) => user_of(CLIENT_SECRET, client),
            (None, Some(admin)) if self.allow_admin_key => user_of(ADMIN_SECRET, admin),
            (None, _) => Err(problem(format!(
                "there is no Secret {CLIENT_SECRET}: create a CephClient \"nodeward\", configure another Secret, or set \
                 allowAdminKey"
            ))),
        }
    }

    fn mon_host(&self) -> Result<String, CephProblem> {
        let listed = self.config.as_ref().and_then(|config| config.text("mon_host"));
        let endpoints = self.mon_endpoints.as_ref().and_then(|data| data.get("data"));
        let monitors: Vec<String> = match (listed, endpoints) {
            (Some(listed), _) => split(listed).into_iter().map(str::to_owned).collect(),
            (None, Some(endpoints)) => endpoints.split(',').filter_map(both_versions).collect(),
            (None, None) => Vec::new(),
        };
        let usable: Vec<String> = if self.is_encrypted {
            // Version 1 of the protocol has no encryption.
            monitors.iter().filter_map(|monitor| encrypted_only(monitor)).collect()
        } else {
            monitors
        };
        if usable.is_empty() {
            return Err(problem(format!(
                "no address of a monitor is known{}: neither Secret {CONFIG_SECRET} nor ConfigMap {MON_ENDPOINTS} has one",
                if self.is_encrypted {
                    " that takes encrypted connections"
                } else {
                    ""
                }
            )));
        }
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
    let user = if user.starts_with("client.") {
        user.to_owned()
    } else {
        format!("client.{user}")
    };
    Ok((user, key.to_owned()))
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
    CephProblem {
        kind: CephProblemKind::CredentialsMissing,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::{CLIENT_SECRET, ConfiguredSecret, ConnectionObjects, SecretData};
    use crate::snapshot::CephProblemKind;

    fn secret(entries: &[(&str, &str)]) -> SecretData {
        let entries = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
        SecretData(entries.collect())
    }

    fn objects() -> ConnectionObjects {
        ConnectionObjects {
            client: Some(secret(&[("nodeward", "AQclient==")])),
            admin: Some(secret(&[
                ("fsid", "4e83"),
                ("ceph-username", "client.admin"),
                ("ceph-secret", "AQadmin=="),
            ])),
            config: Some(secret(&[("mon_host", "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]")])),
            ..ConnectionObjects::default()
        }
    }

    fn configured(data: Option<SecretData>) -> ConfiguredSecret {
        let name = "ceph-of-ours".into();
        ConfiguredSecret { name, data }
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
        let objects = ConnectionObjects {
            configured: Some(configured(Some(secret(entries)))),
            ..objects()
        };
        assert_eq!(user(&objects), Ok(owned(expected, "AQ==")));
    }

    #[rstest]
    #[case::absent(None)]
    #[case::empty(Some(secret(&[])))]
    #[case::no_key(Some(secret(&[("userID", "pdb"), ("userKey", " ")])))]
    #[case::not_text(Some(SecretData(BTreeMap::from([("userID".to_owned(), vec![0xff])]))))]
    fn no_other_secret_replaces_a_configured_one(#[case] data: Option<SecretData>) {
        let objects = ConnectionObjects {
            configured: Some(configured(data)),
            allow_admin_key: true,
            ..objects()
        };
        let why = user(&objects).unwrap_err();
        assert!(why.contains("ceph-of-ours"), "{why}");
    }

    #[test]
    fn the_client_of_ours_comes_before_the_admin_key() {
        let objects = ConnectionObjects {
            allow_admin_key: true,
            ..objects()
        };
        assert_eq!(user(&objects), Ok(owned("client.nodeward", "AQclient==")));
    }

    #[test]
    fn the_admin_key_is_used_only_when_allowed() {
        let mut objects = ConnectionObjects {
            client: None,
            ..objects()
        };
        let why = user(&objects).unwrap_err();
        assert!(why.contains(CLIENT_SECRET) && why.contains("allowAdminKey"), "{why}");
        objects.allow_admin_key = true;
        assert_eq!(user(&objects), Ok(owned("client.admin", "AQadmin==")));
        objects.admin = None;
        assert!(user(&objects).is_err());
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
        "[v2:10.0.0.1:3300],10.0.0.3:3300"
    )]
    #[case::encrypted_endpoints("", "a=10.0.0.1:6789", true, "[v2:10.0.0.1:3300]")]
    #[case::encrypted_with_ipv6(
        "[v2:[fd00::1]:3300,v1:[fd00::1]:6789],[fd00::2]:3300",
        "",
        true,
        "[v2:[fd00::1]:3300],[fd00::2]:3300"
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
        let printed = format!("{:?}", objects());
        assert!(printed.contains("ceph-secret") && !printed.contains("AQ"), "{printed}");
    }
}
