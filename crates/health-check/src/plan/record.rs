//! A remediation of a chain: what the status, and the remediation itself if it is there, say of it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::node_health_check::{GONE, KIND_NOT_SERVED, Remediation};
use nodeward_core::id::{NamespacedName, NodeName};

use super::action::RemediationRef;
use super::expiry::Health;
use super::index::{Index, Live};
use super::lease;
use super::unhealthy_period::UnhealthyPeriod;
use crate::snapshot::{NodeFacts, RemediationKind};
use nodeward_core::deadline::saturating_add;
use nodeward_core::node_health_check::CheckSpec;

/// Its remediator takes the Node away and brings it back.
const METAL3: &str = "Metal3Remediation";

/// A remediation of the chain.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    /// Which step it is; `None`: its template is not in the specification any more.
    pub step: Option<usize>,
    /// Its kind.
    pub kind: RemediationKind,
    /// Its namespace and name.
    pub key: NamespacedName,
    /// Its UID; `None`: it is intended.
    pub uid: Option<Arc<str>>,
    /// Name of its template.
    pub template: Option<Arc<str>>,
    /// When it was started.
    pub started: Timestamp,
    /// When its step was over, as the status or the remediation says.
    pub timed_out: Option<Timestamp>,
    /// The remediation itself, if it is there.
    pub live: Option<Live<'a>>,
    /// How long its step lasts at most.
    lasts: SignedDuration,
    /// Whether all remediations of its kind are known.
    is_listed: bool,
    /// Its kind is not served, or was not for a while: that its remediation is gone says nothing of what its remediator does.
    pub is_lost: bool,
}

/// Where a remediation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is to be created.
    Intended,
    /// It is there, or may be, and its step is not over; somebody may be deleting it.
    Running,
    /// Its step is over, whether it is still there or not.
    Over,
    /// It is gone, though its step was not over.
    Gone,
}

impl<'a> Record<'a> {
    /// Where it stands.
    pub fn stage(&self) -> Stage {
        match (self.timed_out, &self.uid) {
            (Some(_), _) => Stage::Over,
            (None, _) if self.may_be_there() || self.is_lost => Stage::Running,
            (None, None) => Stage::Intended,
            (None, Some(_)) => Stage::Gone,
        }
    }

    /// Whether it is there, or may be.
    pub const fn may_be_there(&self) -> bool {
        self.live.is_some() || self.is_unseen()
    }

    /// Whether it may be there though no list shows it.
    pub const fn is_unseen(&self) -> bool {
        self.live.is_none() && self.uid.is_some() && !self.is_listed
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.live.is_some_and(|live| live.deleting.is_some())
    }

    /// When the time of its step is over.
    pub fn ends(&self) -> Timestamp {
        saturating_add(self.started, self.lasts)
    }

    /// As the status has it.
    pub fn to_status(&self) -> Remediation {
        Remediation {
            resource: ObjectReference {
                api_version: Some(self.kind.api_version.to_string()),
                kind: Some(self.kind.kind.to_string()),
                namespace: Some(self.key.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
                name: Some(self.key.name.to_string()),
                uid: self.uid.as_ref().map(ToString::to_string),
                ..ObjectReference::default()
            },
            started: Some(self.started),
            timed_out: self.timed_out,
            template_name: self.template.as_ref().map(ToString::to_string),
            absence: match self.stage() {
                Stage::Gone => Some(GONE.to_owned()),
                Stage::Running if self.is_lost => Some(KIND_NOT_SERVED.to_owned()),
                _ => None,
            },
        }
    }

    /// It, by its UID.
    pub fn reference(&self, node: &NodeName) -> Option<RemediationRef> {
        Some(RemediationRef {
            kind: self.kind.clone(),
            key: self.key.clone(),
            uid: Arc::clone(self.uid.as_ref()?),
            node: node.clone(),
        })
    }

    /// A remediation that is to be created.
    pub fn intended(
        step: Option<usize>,
        kind: RemediationKind,
        key: NamespacedName,
        template: Option<Arc<str>>,
        started: Timestamp,
        spec: &CheckSpec,
    ) -> Self {
        Self {
            step,
            kind,
            key,
            uid: None,
            template,
            started,
            timed_out: None,
            live: None,
            lasts: longest_run(step, spec),
            is_listed: true,
            is_lost: false,
        }
    }

    /// Takes in what it says itself. A time that cannot be read, or is still to come, is that of its first sight.
    pub fn see(&mut self, live: Live<'a>, now: Timestamp) {
        self.is_lost = false;
        self.uid = Some(Arc::clone(&live.uid));
        self.kind = live.kind.clone();
        if live.created <= now {
            self.started = self.started.max(live.created);
        }
        self.timed_out = self.timed_out.or(live.timed_out.map(|at| at.min(now)));
        self.live = Some(live);
    }

    /// Whether it is of the node; `None`: there is none of the name.
    pub fn is_of(&self, node: Option<&NodeFacts>) -> bool {
        node.is_some_and(|node| match self.live {
            Some(live) => live
                .node_uid
                .as_ref()
                .map_or(node.created <= live.created, |uid| *uid == node.view.uid),
            None => self.uid.is_none() || node.created <= self.started,
        })
    }

    /// Whether its remediator has yet to finish what it does with a node that is gone, or was made again. Where a node has the name
    /// again, it has until that is healthy, or the time of its step is over.
    pub fn is_awaited(&self, is_made_again: bool, health: &Health, now: Timestamp) -> bool {
        let Some(live) = self.live else {
            // What it says of itself is not known: it has the time of its step.
            return now < self.ends();
        };
        let is_over = *health == Health::Healthy || self.ends() <= now;
        let takes_node_away = live.node_deletion_expected && live.succeeded.as_deref() != Some("True");
        (takes_node_away && !(is_made_again && is_over)) || (*self.kind.kind == *METAL3 && !is_over)
    }
}

/// What a chain is made from, beside what the status and the remediations say.
pub struct Known<'c, 'a> {
    /// The node; `None`: it is gone.
    pub node: Option<&'a NodeFacts>,
    /// How it stands.
    pub health: &'c Health,
    /// Its outage, while it is not healthy.
    pub unhealthy_period: Option<&'c UnhealthyPeriod>,
    /// The NodeHealthCheck's specification.
    pub spec: &'c CheckSpec,
    /// What is known of the kinds.
    pub index: &'c Index<'a>,
    /// Now.
    pub now: Timestamp,
}

impl<'a> Known<'_, 'a> {
    /// What the status says of one; `None`: it does not say what it is.
    pub fn read(&self, remediation: &Remediation) -> Option<Record<'a>> {
        let resource = &remediation.resource;
        let kind = RemediationKind::of(resource)?;
        let key = NamespacedName::new(
            resource.namespace.as_deref().unwrap_or_default(),
            resource.name.as_deref()?,
        );
        let uid = resource.uid.as_deref().filter(|uid| !uid.is_empty());
        let template = remediation.template_name.as_deref().filter(|name| !name.is_empty());
        let step = self.spec.step_of(&kind, &key.namespace, template);
        let was_lost = remediation.absence.as_deref() == Some(KIND_NOT_SERVED);
        let is_lost = |uid: &str| !self.index.is_gone(uid) && (was_lost || self.index.is_lost(&kind, uid));
        let started = remediation.started.map_or(self.now, |at| at.min(self.now));
        Some(Record {
            is_lost: uid.is_some_and(is_lost),
            is_listed: self.index.is_listed(&kind) || uid.is_some_and(|uid| self.index.is_gone(uid)),
            uid: uid.map(Into::into),
            timed_out: remediation.timed_out.map(|at| at.min(self.now)),
            ..Record::intended(step, kind, key, template.map(Into::into), started, self.spec)
        })
    }

    /// One that is there, and of which the status says nothing.
    pub fn found(&self, live: Live<'a>) -> Record<'a> {
        let step = self
            .spec
            .step_of(&live.kind, &live.key.namespace, live.template.as_deref());
        let (kind, key, template) = (live.kind.clone(), live.key.clone(), live.template.clone());
        let mut record = Record::intended(step, kind, key, template, live.created.min(self.now), self.spec);
        record.see(live, self.now);
        record
    }
}

/// How long a step lasts at most: a single template as the peer has it, and one that is not in the specification any more for
/// the time of its lease.
pub fn longest_run(step: Option<usize>, spec: &CheckSpec) -> SignedDuration {
    match step.and_then(|step| spec.steps.get(step)) {
        Some(step) => step.timeout.unwrap_or(lease::THREE_TERMS),
        None => lease::WITHOUT_TIMEOUT,
    }
}
