//! What the remediations of one node are: made in one place from the status, the remediations that are there, and the node. A
//! record is not a remediation: whether a *node* is being remediated tells [`Chain::runs`].

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::node_health_check::{Remediation, UnhealthyNode};
use nodeward_core::id::{NamespacedName, NodeName};

use super::action::RemediationRef;
use super::expiry::Health;
use super::index::{Index, Live};
use super::lease;
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
                namespace: Some(self.key.namespace.to_string()),
                name: Some(self.key.name.to_string()),
                uid: self.uid.as_ref().map(ToString::to_string),
                ..ObjectReference::default()
            },
            started: Some(self.started),
            timed_out: self.timed_out,
            template_name: self.template.as_ref().map(ToString::to_string),
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
        step: usize,
        kind: RemediationKind,
        key: NamespacedName,
        template: Option<Arc<str>>,
        started: Timestamp,
    ) -> Self {
        Self {
            step: Some(step),
            kind,
            key,
            uid: None,
            template,
            started,
            timed_out: None,
            live: None,
            lasts: SignedDuration::MAX,
            is_listed: true,
            is_lost: false,
        }
    }

    /// A time that cannot be read, or is still to come, is that of its first sight.
    fn see(&mut self, live: Live<'a>, now: Timestamp) {
        self.is_lost = false;
        self.uid = Some(Arc::clone(&live.uid));
        self.kind = live.kind.clone();
        self.started = self.started.max(live.created);
        self.timed_out = self.timed_out.or(live.timed_out.map(|at| at.min(now)));
        self.live = Some(live);
    }

    /// Whether it is of the node; `None`: there is none of the name.
    fn is_of(&self, node: Option<&NodeFacts>) -> bool {
        node.is_some_and(|node| match self.live {
            Some(live) => live
                .node_uid
                .as_ref()
                .map_or(node.created <= live.created, |uid| *uid == node.view.uid),
            None => self.uid.is_none() || node.created <= self.started,
        })
    }

    /// Whether its remediator has yet to finish what it does with a node that is gone, or was made again.
    fn is_awaited(&self, health: &Health, now: Timestamp) -> bool {
        let Some(live) = self.live else {
            // What it says of itself is not known: it has the time of its step.
            return now < self.ends();
        };
        let is_back = *health == Health::Healthy;
        (live.node_deletion_expected && live.succeeded.as_deref() != Some("True"))
            || (*self.kind.kind == *METAL3 && !is_back && now < self.ends())
    }
}

/// The remediations of one node.
#[derive(Debug, Clone, Default)]
pub struct Chain<'a> {
    /// Of the present node and its present outage, in the order in which they were started.
    pub records: Vec<Record<'a>>,
    /// Of an earlier node, or of one that is gone, whose remediator is not done: they are left alone.
    pub awaited: Vec<Record<'a>>,
    /// Of an earlier node, or of one that is gone: they are to be deleted.
    pub orphans: Vec<Record<'a>>,
    /// Of an earlier outage of the present node: they were deleted before it failed again, and something keeps them.
    pub earlier: Vec<Record<'a>>,
}

/// What comes next in a chain whose node is unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This record's step runs.
    Runs(usize),
    /// This step is to be started.
    Start(usize),
    /// There is no further step.
    Nothing,
}

/// What a chain is made from, beside what the status and the remediations say.
pub struct Known<'c, 'a> {
    /// The node; `None`: it is gone.
    pub node: Option<&'a NodeFacts>,
    /// How it stands.
    pub health: &'c Health,
    /// The NodeHealthCheck's specification.
    pub spec: &'c CheckSpec,
    /// What is known of the kinds.
    pub index: &'c Index<'a>,
    /// Now.
    pub now: Timestamp,
}

impl<'a> Chain<'a> {
    /// Puts together what the status and the remediations say of a node.
    pub fn new(entry: Option<&UnhealthyNode>, live: &[Live<'a>], known: &Known<'_, 'a>) -> Self {
        let mut unclaimed: Vec<Live<'a>> = live.to_vec();
        let mut chain = Self::default();
        for remediation in entry.into_iter().flat_map(|entry| &entry.remediations) {
            let Some(mut record) = known.read(remediation) else {
                continue;
            };
            let is_it = |live: &Live<'a>| match &record.uid {
                Some(uid) => live.uid == *uid,
                None => live.key == record.key && live.kind.is_same(&record.kind),
            };
            if let Some(position) = unclaimed.iter().position(is_it) {
                record.see(unclaimed.swap_remove(position), known.now);
            }
            chain.sort_in(record, known);
        }
        for live in unclaimed {
            let step = known
                .spec
                .step_of(&live.kind, &live.key.namespace, live.template.as_deref());
            let mut record = Record {
                step,
                kind: live.kind.clone(),
                key: live.key.clone(),
                uid: None,
                template: live.template.clone(),
                started: live.created,
                timed_out: None,
                live: None,
                lasts: longest_run(step, known.spec),
                is_listed: true,
                is_lost: false,
            };
            record.see(live, known.now);
            chain.sort_in(record, known);
        }
        chain.records.sort_by_key(|record| record.started);
        chain.part_from_earlier_outage(known.health);
        chain.forget_replaced();
        chain
    }

    fn sort_in(&mut self, record: Record<'a>, known: &Known<'_, 'a>) {
        if record.is_of(known.node) {
            self.records.push(record);
        } else if !record.may_be_there() {
            // Nothing is left of it.
        } else if record.is_awaited(known.health, known.now) {
            self.awaited.push(record);
        } else {
            self.orphans.push(record);
        }
    }

    /// A remediation that was deleted before the node failed is no step of this outage, nor are those before it: or else a
    /// machine would be deleted hours later, without the steps before that.
    fn part_from_earlier_outage(&mut self, health: &Health) {
        let (Health::Expired(unhealthy) | Health::NotExpired(unhealthy)) = health else {
            return;
        };
        let Some(failed) = unhealthy.last_transition else {
            return;
        };
        let is_earlier = |record: &Record<'_>| {
            let deleted = record.live.and_then(|live| live.deleting);
            deleted.is_some_and(|deleted| deleted < failed)
        };
        if !self.records.iter().any(is_earlier) {
            return;
        }
        for record in std::mem::take(&mut self.records) {
            if is_earlier(&record) {
                self.earlier.push(record);
            } else if record.may_be_there() || failed <= record.started {
                self.records.push(record);
            }
        }
    }

    /// Forgets what is gone once its step is there again.
    fn forget_replaced(&mut self) {
        let there = self.records.iter().filter(|record| record.live.is_some());
        let there: Vec<Option<usize>> = there.map(|record| record.step).collect();
        let is_gone = |record: &Record<'_>| record.stage() == Stage::Gone || record.is_lost;
        self.records
            .retain(|record| !is_gone(record) || !there.contains(&record.step));
    }

    /// Whether the node is being remediated: it takes a slot, and its lease is held. It runs from its intent until it is
    /// healthy, its last step is over, or the remediation of its present step is gone or an orphan; between two steps, too.
    pub fn runs(&self, health: &Health, spec: &CheckSpec, now: Timestamp) -> bool {
        (self.intent().is_some() && !health.is_fine()) || self.has_begun(health, spec, now)
    }

    /// The same of what is more than intended.
    pub fn has_begun(&self, health: &Health, spec: &CheckSpec, now: Timestamp) -> bool {
        let is_between = |over: usize| over + 1 < spec.steps.len() && self.gone(over + 1).is_none();
        self.is_at_work(health, now) || (!health.is_fine() && self.step_over().is_some_and(is_between))
    }

    /// Whether a remediator is at work on the node, or may be.
    pub fn is_at_work(&self, health: &Health, now: Timestamp) -> bool {
        let is_running = |record: &Record<'_>| record.stage() == Stage::Running;
        // Their node may fail again before they are being deleted.
        let may_go_on =
            |record: &Record<'_>| record.may_be_there() && !record.is_deleting() && record.timed_out.is_none();
        let goes_on = |record: &Record<'_>| {
            if health.is_fine() {
                may_go_on(record)
            } else {
                is_running(record)
            }
        };
        let is_awaited = |record: &Record<'_>| is_running(record) && now < record.ends();
        self.awaited.iter().any(is_awaited) || self.records.iter().any(goes_on)
    }

    /// The highest step that is over: an edited chain is not begun anew.
    fn step_over(&self) -> Option<usize> {
        let over = self.records.iter().filter(|record| record.stage() == Stage::Over);
        over.filter_map(|record| record.step).max()
    }

    /// What comes next. A step that is gone is started again.
    pub fn next(&self, spec: &CheckSpec) -> Next {
        let mut records = self.records.iter();
        if let Some(at) = records.position(|record| record.stage() == Stage::Running) {
            return Next::Runs(at);
        }
        match self.step_over().map_or(0, |step| step + 1) {
            step if step < spec.steps.len() => Next::Start(step),
            _ => Next::Nothing,
        }
    }

    /// All remediations that are there, or may be.
    pub fn all(&self) -> impl Iterator<Item = &Record<'a>> {
        let others = self.awaited.iter().chain(&self.orphans).chain(&self.earlier);
        self.records.iter().chain(others)
    }

    /// The remediations that are there, of the present node.
    pub fn live(&self) -> impl Iterator<Item = Live<'a>> {
        self.records.iter().filter_map(|record| record.live)
    }

    /// Remediations whose step is over, and whose remediators may be at work for all they have been told.
    pub fn untold(&self) -> impl Iterator<Item = Live<'a>> {
        let over = self.records.iter().filter(|record| record.stage() == Stage::Over);
        over.filter_map(|record| record.live).filter(|live| live.runs())
    }

    /// Whether any remediation is there, or may be, of whichever node.
    pub fn is_there(&self) -> bool {
        self.all().any(Record::may_be_there)
    }

    /// Whether an earlier step is over: a step that starts then is an escalation, unless its own remediation is gone. Steps
    /// that are not in the specification any more lead to no other.
    pub fn is_escalation(&self, step: usize) -> bool {
        let is_at = |stage: Stage, of: &dyn Fn(usize) -> bool| {
            let mut records = self.records.iter();
            records.any(|record| record.stage() == stage && record.step.is_some_and(of))
        };
        is_at(Stage::Over, &|over| over < step) && !is_at(Stage::Gone, &|gone| gone == step)
    }

    /// The record of a step whose remediation is gone.
    pub fn gone(&self, step: usize) -> Option<&Record<'a>> {
        let mut gone = self.records.iter().filter(|record| record.stage() == Stage::Gone);
        gone.find(|record| record.step == Some(step))
    }

    /// The intended remediation.
    pub fn intent(&self) -> Option<&Record<'a>> {
        self.records.iter().find(|record| record.stage() == Stage::Intended)
    }

    /// Withdraws what is intended. What is gone is kept until its step is there again, for it starts as a first step does.
    pub fn withdraw_intent(&mut self) {
        self.records.retain(|record| record.stage() != Stage::Intended);
    }
}

impl<'a> Known<'_, 'a> {
    fn read(&self, remediation: &Remediation) -> Option<Record<'a>> {
        let resource = &remediation.resource;
        let kind = RemediationKind {
            api_version: resource.api_version.as_deref()?.into(),
            kind: resource.kind.as_deref()?.into(),
        };
        let key = NamespacedName::new(
            resource.namespace.as_deref().unwrap_or_default(),
            resource.name.as_deref()?,
        );
        let uid = resource.uid.as_deref().filter(|uid| !uid.is_empty());
        let template = remediation.template_name.as_deref().filter(|name| !name.is_empty());
        let step = self.spec.step_of(&kind, &key.namespace, template);
        let is_lost = |uid: &str| !self.index.is_gone(uid) && self.index.is_lost(&kind, uid);
        Some(Record {
            step,
            is_lost: uid.is_some_and(is_lost),
            is_listed: self.index.is_listed(&kind) || uid.is_some_and(|uid| self.index.is_gone(uid)),
            kind,
            key,
            uid: uid.map(Into::into),
            template: template.map(Into::into),
            started: remediation.started.unwrap_or(self.now),
            timed_out: remediation.timed_out,
            live: None,
            lasts: longest_run(step, self.spec),
        })
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
