//! The API server: writes with their preconditions, and the eviction handler of Kubernetes 1.35
//! (`pkg/registry/core/pod/storage/eviction.go`), behind drain-lock's webhook.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use nodeward_api::NodeDrain;
use nodeward_api::drain_ledger::{self, DrainLedger, DrainLedgerSpec};
use nodeward_api::reason::LockReason;
use nodeward_core::budget::{BudgetView, DisruptionAllowance, NoAllowance};
use nodeward_core::pod::PodView;
use nodeward_runtime::ApiError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::{Millis, SECOND, stored};
use crate::pod::SimPod;
use crate::webhook::{Answer, OWN_USER};
use crate::world::{Event, World};

/// What is asked of the API server.
#[derive(Debug, Clone)]
pub enum Request {
    /// A merge patch of a Node, or of its status.
    PatchNode {
        name: String,
        patch: Value,
    },
    CreateDrain(Box<NodeDrain>),
    /// A merge patch of a NodeDrain, or of its status.
    PatchDrain {
        name: String,
        patch: Value,
    },
    DeleteDrain {
        name: String,
        uid: Option<String>,
        version: Option<String>,
    },
    /// A merge patch of a budget, or of its status.
    PatchBudget {
        name: String,
        patch: Value,
    },
    /// The ledger, if it is still the one that was read; without that it is created.
    SwapLedger {
        read: Option<(String, String)>,
        spec: Box<DrainLedgerSpec>,
    },
    Evict(Eviction),
    /// Deletes a pod around its budgets.
    DeletePod {
        name: String,
        uid: String,
        version: String,
        grace: Option<Millis>,
    },
}

/// An eviction.
#[derive(Debug, Clone, Default)]
pub struct Eviction {
    pub pod: String,
    /// The pod's UID, where the caller insists on one.
    pub uid: Option<String>,
    /// The grant that it says it rests on.
    pub ticket: Option<String>,
    /// Whether the webhook has waited for the watches to show the node's cordon.
    pub has_waited: bool,
}

/// What the API server answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    Done,
    /// The webhook answers only after so long; the request is to be sent again then.
    Later(Millis),
    /// drain-lock's webhook refuses.
    RefusedByLock(LockReason),
    Failed(ApiError),
}

impl Response {
    /// As a client reads it.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn result(self) -> Result<(), ApiError> {
        Err(match self {
            Self::Done | Self::Later(_) => return Ok(()),
            Self::RefusedByLock(reason) if reason.refuses_for_a_budget() => {
                ApiError::RefusedByBudget { retry_after: None }
            }
            Self::RefusedByLock(reason) => ApiError::Throttled {
                message: reason.to_string(),
                retry_after: None,
            },
            Self::Failed(error) => error,
        })
    }
}

impl From<Result<(), ApiError>> for Response {
    fn from(result: Result<(), ApiError>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Done)
    }
}

impl World {
    /// Asks the API server for something, in the name of this user.
    pub fn submit(&mut self, user: &str, request: Request) -> Response {
        match request {
            Request::PatchNode { name, patch } => self.patch_node(&name, &patch, user).into(),
            Request::CreateDrain(drain) => self.create_drain(*drain).into(),
            Request::PatchDrain { name, patch } => self.patch_drain(&name, &patch).into(),
            Request::DeleteDrain { name, uid, version } => self.delete_drain(&name, uid, version).into(),
            Request::PatchBudget { name, patch } => self.patch_budget(&name, &patch).into(),
            Request::SwapLedger { read, spec } => self.swap_ledger(read.as_ref(), *spec).into(),
            Request::Evict(eviction) => self.evict(user, &eviction),
            Request::DeletePod {
                name,
                uid,
                version,
                grace,
            } => self.delete_pod(&name, Some(&uid), Some(&version), grace, false).into(),
        }
    }

    fn patch_node(&mut self, name: &str, patch: &Value, user: &str) -> Result<(), ApiError> {
        let node = self.nodes.get(name).ok_or(ApiError::NotFound)?;
        check(&node.metadata, patch)?;
        let before = crate::objects::is_cordoned(node);
        let node = merged(node, patch)?;
        let after = crate::objects::is_cordoned(&node);
        if before != after {
            self.tell(|| format!("{user} {} {name}", if after { "cordons" } else { "uncordons" }));
        }
        self.put_node(node);
        Ok(())
    }

    fn create_drain(&mut self, mut drain: NodeDrain) -> Result<(), ApiError> {
        let name = drain.spec.node_name.clone();
        if self.drains.contains_key(&name) {
            return Err(ApiError::Conflict);
        }
        let requester = drain.spec.requesters.first().map(|requester| requester.name.clone());
        self.tell(|| format!("a drain of {name} is asked for by {}", requester.unwrap_or_default()));
        drain.metadata.uid = Some(format!("drain-of-{name}-{}", self.next_version()));
        drain.metadata.creation_timestamp = Some(Time(stored(self.now)));
        drain.metadata.generation = Some(1);
        self.judge_request(&drain);
        self.put_drain(drain);
        Ok(())
    }

    fn patch_drain(&mut self, name: &str, patch: &Value) -> Result<(), ApiError> {
        let drain = self.drains.get(name).ok_or(ApiError::NotFound)?;
        check(&drain.metadata, patch)?;
        let before = drain.status.as_ref().and_then(|status| status.phase);
        let changed: NodeDrain = merged(drain, patch)?;
        let after = changed.status.as_ref().and_then(|status| status.phase);
        if let Some(phase) = after.filter(|_| before != after) {
            let blocked = changed.status.iter().flat_map(|status| &status.blocked_by);
            let blocked: Vec<&str> = blocked.map(|blocked| blocked.reason.as_str()).collect();
            let blocked = blocked.join(", ");
            self.tell(|| format!("the drain of {name} is {phase} ({blocked})"));
        }
        self.put_drain(changed);
        Ok(())
    }

    fn delete_drain(&mut self, name: &str, uid: Option<String>, version: Option<String>) -> Result<(), ApiError> {
        let mut drain = self.drains.get(name).ok_or(ApiError::NotFound)?.clone();
        let differs = |wanted: Option<String>, has: &Option<String>| wanted.is_some() && wanted != *has;
        if differs(uid, &drain.metadata.uid) || differs(version, &drain.metadata.resource_version) {
            return Err(ApiError::Conflict);
        }
        self.tell(|| format!("the NodeDrain of {name} is deleted"));
        drain.metadata.deletion_timestamp = Some(Time(stored(self.now)));
        self.put_drain(drain);
        Ok(())
    }

    fn patch_budget(&mut self, name: &str, patch: &Value) -> Result<(), ApiError> {
        let budget = self.budgets.get(name).ok_or(ApiError::NotFound)?;
        check(&budget.metadata, patch)?;
        let budget = merged(budget, patch)?;
        self.put_budget(budget);
        if let Some(app) = name.strip_prefix('a').and_then(|number| number.parse().ok()) {
            self.soon(20..300, Event::Counts(app));
        }
        Ok(())
    }

    fn swap_ledger(&mut self, read: Option<&(String, String)>, spec: DrainLedgerSpec) -> Result<(), ApiError> {
        let stored = self.ledger.as_ref().map(|ledger| &ledger.metadata);
        let stored = stored.map(|meta| {
            (
                meta.uid.clone().unwrap_or_default(),
                meta.resource_version.clone().unwrap_or_default(),
            )
        });
        if read != stored.as_ref() {
            return Err(if stored.is_none() {
                ApiError::NotFound
            } else {
                ApiError::Conflict
            });
        }
        let mut ledger = DrainLedger::new(drain_ledger::NAME, spec);
        ledger.metadata.uid = Some("uid-ledger".to_owned());
        self.tell_of_claims(&ledger);
        self.put_ledger(ledger);
        Ok(())
    }

    fn tell_of_claims(&mut self, next: &DrainLedger) {
        if self.story.is_none() {
            return;
        }
        let (before, after) = (
            self.ledger(),
            nodeward_core::ledger::Ledger::try_from(&next.spec).unwrap_or_default(),
        );
        for claim in after.claims() {
            let known = before.claim(&claim.node_uid);
            if known.map(|known| (known.state, known.may_go_down)) != Some((claim.state, claim.may_go_down)) {
                let needs: Vec<String> = claim.needs.iter().map(|need| need.pdb.name.clone()).collect();
                let holds = claim
                    .holds
                    .iter()
                    .flat_map(|held| held.pods.iter().map(|pod| pod.name.clone()));
                let holds = holds.collect::<Vec<_>>().join(" ");
                let (node, state) = (&claim.node, claim.state);
                let down = if claim.may_go_down { ", may go down" } else { "" };
                self.tell(|| {
                    format!(
                        "the claim of {node} is {state:?}{down}: needs [{}], holds [{holds}]",
                        needs.join(" ")
                    )
                });
            }
        }
        for claim in before
            .claims()
            .iter()
            .filter(|claim| after.claim(&claim.node_uid).is_none())
        {
            self.tell(|| format!("the claim of {} is gone", claim.node));
        }
    }

    /// The webhook first, then what the handler does: a disruption is taken off the budget before the UID is compared.
    fn evict(&mut self, user: &str, eviction: &Eviction) -> Response {
        let Some(pod) = self.pods.get(&eviction.pod).cloned() else {
            return Response::Failed(ApiError::NotFound);
        };
        if !self.replicas.is_empty() && !self.happens(self.faults.webhook_timeout) {
            let replica = self.rng.usize(0..self.replicas.len());
            match self.replicas[replica].review(user, eviction, self.now) {
                Answer::Later(wait) => return Response::Later(wait),
                Answer::Decided {
                    refused,
                    requests_drain,
                    eviction,
                } => {
                    if let Some(node) = pod.node.clone().filter(|_| requests_drain) {
                        let user = user.to_owned();
                        self.soon(5..60, Event::DrainRequested { node, user, eviction });
                    }
                    if let Some(reason) = refused {
                        return Response::RefusedByLock(reason);
                    }
                }
            }
        }
        self.check_budget(&pod)
            .and_then(|()| self.delete_pod(&eviction.pod, eviction.uid.as_deref(), None, None, true))
            .map(|()| {
                let node = pod.node.clone().unwrap_or_default();
                let user = if user == OWN_USER { "drain-lock" } else { user };
                self.tell(|| format!("{user} evicts {} from {node}", pod.name));
            })
            .into()
    }

    /// Takes a disruption off the pod's budget, where that has to be asked.
    fn check_budget(&mut self, pod: &SimPod) -> Result<(), ApiError> {
        // The rules of the handler, as the core reads them; several budgets cannot select a pod here.
        let (Some(budget), Some(view)) = (
            self.budgets.get(&crate::objects::budget_name(pod.app)),
            PodView::project(&pod.object()),
        ) else {
            return Ok(());
        };
        let Some(read) = BudgetView::project(budget) else {
            return Ok(());
        };
        match read.allowance(&view) {
            DisruptionAllowance::NotAsked | DisruptionAllowance::UnreadyMayGo => return Ok(()),
            DisruptionAllowance::Left(_) => {}
            DisruptionAllowance::None(why) => {
                let wait = jiff::SignedDuration::from_secs(10);
                let retry_after = (why == NoAllowance::StatusBehind).then_some(wait);
                return Err(ApiError::RefusedByBudget { retry_after });
            }
        }
        let mut budget = budget.clone();
        if let Some(status) = &mut budget.status {
            status.disruptions_allowed -= 1;
            let disrupted = status.disrupted_pods.get_or_insert_default();
            disrupted.insert(pod.name.clone(), Time(stored(self.now)));
        }
        self.put_budget(budget);
        self.soon(20..300, Event::Counts(pod.app));
        Ok(())
    }

    /// Deletes a pod with its own grace, or another.
    pub fn delete_pod(
        &mut self,
        name: &str,
        uid: Option<&str>,
        version: Option<&str>,
        grace: Option<Millis>,
        is_disruption: bool,
    ) -> Result<(), ApiError> {
        let mut pod = self.pods.get(name).ok_or(ApiError::NotFound)?.clone();
        if uid.is_some_and(|uid| uid != pod.uid) || version.is_some_and(|version| version != pod.version.to_string()) {
            return Err(ApiError::Conflict);
        }
        if pod.node.is_none() || grace == Some(0) {
            self.remove_pod(name);
            return Ok(());
        }
        if pod.deletion.is_some() {
            return Ok(());
        }
        if is_disruption {
            self.judge_eviction(&pod);
        }
        let grace = grace.unwrap_or(pod.grace);
        pod.deletion = Some(self.now + grace);
        pod.is_disruption = is_disruption;
        let uid = pod.uid.clone();
        self.put_pod(pod);
        // The kubelet is rarely late.
        self.soon(grace / 2..grace + SECOND, Event::Gone(uid));
        Ok(())
    }
}

/// The preconditions of a patch.
fn check(meta: &ObjectMeta, patch: &Value) -> Result<(), ApiError> {
    let given = &patch["metadata"];
    let differs =
        |field: &str, has: &Option<String>| given[field].as_str().is_some_and(|given| has.as_deref() != Some(given));
    if differs("uid", &meta.uid) || differs("resourceVersion", &meta.resource_version) {
        return Err(ApiError::Conflict);
    }
    Ok(())
}

/// The object with a merge patch laid over it.
fn merged<K: Serialize + DeserializeOwned>(object: &K, patch: &Value) -> Result<K, ApiError> {
    let invalid = |error: serde_json::Error| ApiError::Invalid {
        message: error.to_string(),
    };
    let mut value = serde_json::to_value(object).map_err(invalid)?;
    merge(&mut value, patch);
    serde_json::from_value(value).map_err(invalid)
}

/// RFC 7386.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    let Value::Object(fields) = value else { return };
    for (key, change) in patch {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}
