//! The chain of remediations of one node: what the status says of it, and the remediations that are there.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::node_health_check::{Remediation, UnhealthyNode};
use nodeward_core::id::{NamespacedName, NodeName};

use super::action::RemediationRef;
use super::index::{Index, Live};
use crate::snapshot::{NodeFacts, RemediationKind};
use nodeward_core::node_health_check::CheckSpec;

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
    /// Whether all remediations of its kind are known.
    is_listed: bool,
}

/// Where a remediation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is to be created.
    Intended,
    /// It is there, and its step is not over.
    Running,
    /// It is there and being deleted, though its step is not over.
    Deleting,
    /// Its step is over, whether it is still there or not.
    Over,
    /// It is gone, though its step was not over.
    Vanished,
    /// Whether it is there is not known.
    NotKnown,
}

impl Record<'_> {
    /// Where it stands.
    pub fn stage(&self) -> Stage {
        match (self.timed_out, &self.live, &self.uid) {
            (Some(_), _, _) => Stage::Over,
            (None, Some(live), _) if live.deleting => Stage::Deleting,
            (None, Some(_), _) => Stage::Running,
            (None, None, None) => Stage::Intended,
            (None, None, Some(_)) if self.is_listed => Stage::Vanished,
            (None, None, Some(_)) => Stage::NotKnown,
        }
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
}

/// The remediations of one node, those of the present node apart from those of an earlier one of its name.
#[derive(Debug, Clone, Default)]
pub struct Chain<'a> {
    /// Of the present node, in the order in which they were started.
    pub records: Vec<Record<'a>>,
    /// Of an earlier node, or of one that is gone: those that are still there.
    pub orphans: Vec<Record<'a>>,
}

/// What comes next in a chain whose node is unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This record's step runs.
    Runs(usize),
    /// This record's remediation is being deleted; its step begins anew once it is gone.
    Deletes(usize),
    /// This step is to be started.
    Start(usize),
    /// There is no further step.
    Nothing,
}

impl<'a> Chain<'a> {
    /// Puts together what the status and the remediations say of a node.
    pub fn new(
        entry: Option<&UnhealthyNode>,
        live: &[Live<'a>],
        node: Option<&NodeFacts>,
        spec: &CheckSpec,
        index: &Index<'a>,
        now: Timestamp,
    ) -> Self {
        let mut unclaimed: Vec<Live<'a>> = live.to_vec();
        let mut chain = Self::default();
        for remediation in entry.into_iter().flat_map(|entry| &entry.remediations) {
            let Some(mut record) = read(remediation, spec, index, now) else {
                continue;
            };
            let is_it = |live: &Live<'a>| match &record.uid {
                Some(uid) => live.uid == *uid,
                None => live.key == record.key && live.kind.is_same(&record.kind),
            };
            if let Some(position) = unclaimed.iter().position(is_it) {
                record.see(unclaimed.swap_remove(position));
            }
            chain.sort_in(record, node);
        }
        for live in unclaimed {
            let mut record = Record {
                step: spec.step_of(&live.kind, &live.key.namespace, live.template.as_deref()),
                kind: live.kind.clone(),
                key: live.key.clone(),
                uid: None,
                template: live.template.clone(),
                started: live.created,
                timed_out: None,
                live: None,
                is_listed: true,
            };
            record.see(live);
            chain.sort_in(record, node);
        }
        chain.records.sort_by_key(|record| record.started);
        chain.forget_replaced();
        chain
    }

    /// Forgets what has vanished once its step is there again.
    fn forget_replaced(&mut self) {
        let there: Vec<Option<usize>> = self
            .records
            .iter()
            .filter(|record| record.live.is_some())
            .map(|record| record.step)
            .collect();
        let is_replaced = |record: &Record<'_>| record.stage() == Stage::Vanished && there.contains(&record.step);
        self.records.retain(|record| !is_replaced(record));
    }

    fn sort_in(&mut self, record: Record<'a>, node: Option<&NodeFacts>) {
        let is_of_the_node = node.is_some_and(|node| match record.live {
            Some(live) => live
                .node_uid
                .as_ref()
                .map_or(node.created <= live.created, |uid| *uid == node.view.uid),
            None => record.uid.is_none() || node.created <= record.started,
        });
        if is_of_the_node {
            self.records.push(record);
        } else if record.live.is_some() || record.is_unseen() {
            self.orphans.push(record);
        }
    }

    /// What comes next. A step that has vanished is started again; of steps that are over the highest counts, so that an
    /// edited chain is not begun anew.
    pub fn next(&self, spec: &CheckSpec) -> Next {
        let stages = || {
            self.records
                .iter()
                .enumerate()
                .map(|(at, record)| (at, record, record.stage()))
        };
        let runs = stages().find(|(_, _, stage)| matches!(stage, Stage::Running | Stage::NotKnown));
        if let Some((at, ..)) = runs {
            return Next::Runs(at);
        }
        if let Some((at, ..)) = stages().find(|(_, _, stage)| *stage == Stage::Deleting) {
            return Next::Deletes(at);
        }
        let over = stages().filter(|(_, _, stage)| *stage == Stage::Over);
        let step = over
            .filter_map(|(_, record, _)| record.step)
            .max()
            .map_or(0, |step| step + 1);
        if step < spec.steps.len() {
            Next::Start(step)
        } else {
            Next::Nothing
        }
    }

    /// The remediations that are there, of the present node.
    pub fn live(&self) -> impl Iterator<Item = Live<'a>> {
        self.records.iter().filter_map(|record| record.live)
    }

    /// Whether any remediation is there, or may be, of whichever node.
    pub fn is_there(&self) -> bool {
        let mut all = self.records.iter().chain(&self.orphans);
        all.any(|record| record.live.is_some() || record.is_unseen())
    }

    /// Whether an earlier step is over: a step that starts then is an escalation, unless its own remediation has vanished.
    /// Steps that are not in the specification any more lead to no other.
    pub fn is_escalation(&self, step: usize) -> bool {
        let is_at = |stage: Stage, of: &dyn Fn(usize) -> bool| {
            let mut records = self.records.iter();
            records.any(|record| record.stage() == stage && record.step.is_some_and(of))
        };
        is_at(Stage::Over, &|over| over < step) && !is_at(Stage::Vanished, &|vanished| vanished == step)
    }

    /// The remediation of a step that has vanished.
    pub fn vanished(&self, step: usize, node: &NodeName) -> Option<RemediationRef> {
        let mut vanished = self.records.iter().filter(|record| record.stage() == Stage::Vanished);
        vanished.find(|record| record.step == Some(step))?.reference(node)
    }

    /// The intended remediation.
    pub fn intent(&self) -> Option<&Record<'a>> {
        self.records.iter().find(|record| record.stage() == Stage::Intended)
    }

    /// Withdraws what is intended. What has vanished is kept until its step is there again, for it starts as a first step does.
    pub fn withdraw_intent(&mut self) {
        self.records.retain(|record| record.stage() != Stage::Intended);
    }
}

impl<'a> Record<'a> {
    /// Whether it may be there though no list shows it.
    pub const fn is_unseen(&self) -> bool {
        self.live.is_none() && self.uid.is_some() && !self.is_listed
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

    fn see(&mut self, live: Live<'a>) {
        self.uid = Some(Arc::clone(&live.uid));
        self.kind = live.kind.clone();
        self.started = self.started.max(live.created);
        self.timed_out = self.timed_out.or(live.timed_out);
        self.live = Some(live);
    }
}

fn read<'a>(remediation: &Remediation, spec: &CheckSpec, index: &Index<'a>, now: Timestamp) -> Option<Record<'a>> {
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
    Some(Record {
        step: spec.step_of(&kind, &key.namespace, template),
        is_listed: index.is_listed(&kind) || uid.is_some_and(|uid| index.is_gone(uid)),
        kind,
        key,
        uid: uid.map(Into::into),
        template: template.map(Into::into),
        started: remediation.started.unwrap_or(now),
        timed_out: remediation.timed_out,
        live: None,
    })
}

impl Record<'_> {
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
            is_listed: true,
        }
    }
}
