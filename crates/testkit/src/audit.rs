//! What the API server was asked, counted from its audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// The environment variable with a directory in which audit logs outlast their control planes.
pub const AUDIT_LOGS: &str = "NODEWARD_AUDIT_LOGS";

/// The audit log of one API server. It is written before the answer ends, so what a caller has seen is in it.
#[derive(Clone, Debug)]
pub struct AuditLog {
    file: PathBuf,
}

/// A point in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// One request that the API server handled.
#[derive(Clone, Debug)]
pub struct AuditedRequest {
    /// Who asked, as `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The client's own name for itself.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or an HTTP verb in lower case.
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    /// `pods`, `pods/eviction`; empty where the path is not of a resource.
    pub resource: String,
    /// Empty for cluster-scoped objects and for all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Path and query as asked.
    pub uri: String,
    /// The status that was answered.
    pub code: u16,
    /// When the API server received it.
    pub received: Timestamp,
}

impl AuditedRequest {
    /// On a Lease: the leader's renewals.
    pub fn is_lease(&self) -> bool {
        self.resource == "leases"
    }

    /// A watch, counted when it is opened.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// Changes something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options")
    }
}

/// The requests of a stretch of the log.
#[derive(Clone, Debug, Default)]
pub struct Requests(pub Vec<AuditedRequest>);

impl Requests {
    /// Those of a ServiceAccount.
    #[must_use]
    pub fn of_service_account(self, namespace: &str, name: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        self.only(|request| request.user == user)
    }

    /// Without those on Leases.
    #[must_use]
    pub fn without_leases(self) -> Self {
        self.only(|request| !request.is_lease())
    }

    #[must_use]
    pub fn without_watches(self) -> Self {
        self.only(|request| !request.is_watch())
    }

    /// Those that change something.
    #[must_use]
    pub fn writes(self) -> Self {
        self.only(AuditedRequest::is_write)
    }

    /// Those for which `keep` is true.
    #[must_use]
    pub fn only(mut self, keep: impl FnMut(&AuditedRequest) -> bool) -> Self {
        self.0.retain(keep);
        self
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many there are of each verb and resource, as `"patch nodes"`.
    pub fn by_verb_and_resource(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.0 {
            *counts
                .entry(format!("{} {}", request.verb, request.resource))
                .or_default() += 1;
        }
        counts
    }
}

impl AuditLog {
    pub fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// Now: what follows is counted by [`AuditLog::since`].
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        match std::fs::metadata(&self.file) {
            Ok(metadata) => Ok(Mark(metadata.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Mark(0)),
            Err(error) => Err(error).with_context(|| self.file.display().to_string()),
        }
    }

    pub const fn beginning(&self) -> Mark {
        Mark(0)
    }

    /// All requests since `mark` that have been answered; watches since they were opened.
    ///
    /// # Errors
    /// When there is no log (the control plane was started without one) or it does not parse.
    pub fn since(&self, mark: Mark) -> Result<Requests> {
        let mut file = File::open(&self.file).with_context(|| format!("the audit log {}", self.file.display()))?;
        let (mut requests, mut line) = (Vec::new(), String::new());
        // The end of a line that was being written at the mark: its request came before.
        file.seek(SeekFrom::Start(mark.0.saturating_sub(1)))?;
        let mut reader = BufReader::new(file);
        if mark.0 > 0 {
            reader.read_until(b'\n', &mut Vec::new())?;
        }
        // A line without its end is being written: its request has not been answered.
        while reader.read_line(&mut line)? > 0 && line.ends_with('\n') {
            let event: Event = serde_json::from_str(&line).with_context(|| format!("audit event {line}"))?;
            requests.extend(event.into_request());
            line.clear();
        }
        Ok(Requests(requests))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl Event {
    /// A request has several events. A long-running one that is answered counts when its answer begins, any other when it ends.
    fn into_request(self) -> Option<AuditedRequest> {
        let opened = self.stage == "ResponseStarted";
        let refused_watch = self.response_status.code >= 400;
        if opened != (self.verb == "watch" && !refused_watch) {
            return None;
        }
        let object = self.object_ref;
        let resource = match object.subresource.as_str() {
            "" => object.resource,
            subresource => format!("{}/{subresource}", object.resource),
        };
        Some(AuditedRequest {
            user: self.user.username,
            user_agent: self.user_agent,
            verb: self.verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            uri: self.request_uri,
            code: self.response_status.code,
            received: self.request_received_timestamp,
        })
    }
}
