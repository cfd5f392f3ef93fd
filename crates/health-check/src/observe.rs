//! Observe: from watches to a [`Snapshot`].

mod ceph;
mod leader_leases;
mod peer;
pub mod project;
mod steady_clock;
mod surroundings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::core::ApiResource;
use kube::{Api, Client};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::UnhealthyNode;
use nodeward_api::node_lease::REMEDIATION_HOLDER_PREFIX;
use nodeward_core::deadline::saturating_add;
use nodeward_core::lease::LeaseView;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::control::Observed;
use nodeward_runtime::leader::ElectionTimes;
use nodeward_runtime::{
    Cache, DynamicCache, DynamicWatches, KindRegistry, KindState, LeaderState, Leadership, OperatorContext, Selection,
    SignalWatches, Watches,
};

use crate::default::{self, Record};
use crate::observations::Observations;
use crate::policy::{Policy, default_signal};
use crate::settings::Settings;
use crate::snapshot::{
    CheckFacts, KindFacts, Listed, NodeFacts, Nodes, RemediationFacts, RemediationKind, Snapshot, TemplateFacts,
    TemplateRef, TemplateState,
};

use self::ceph::CephWatches;
use self::leader_leases::LeaderLeases;
use self::peer::Peer;
use self::project::NodeProjector;
use self::steady_clock::SteadyClock;
use self::surroundings::Surroundings;
pub(crate) use self::surroundings::{ETCD_GUARDS, ETCD_NAMESPACE, infrastructure};

/// What may not be watched is read with each safety pass, and at least as often as this.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

/// How much longer than its duration the leader lease may go without renewal in an ordinary failover.
const FAILOVER_SLACK: Duration = Duration::from_secs(15);

/// The watches of health-check.
pub struct Observer {
    watches: Watches,
    client: Client,
    kinds: KindRegistry,
    leadership: Leadership,
    own_namespace: String,
    clock: SteadyClock,
    nodes: NodeWatch,
    checks: Cache<CheckFacts>,
    leases: LeaseWatch,
    templates: DynamicWatches<TemplateFacts>,
    remediations: DynamicWatches<RemediationFacts>,
    signal: SignalWatches,
    surroundings: Surroundings,
    ceph: CephWatches,
    leader_leases: LeaderLeases,
    peer: Peer,
    default_record: Option<Cache<BTreeMap<String, String>>>,
    /// What the NodeHealthChecks named at the start has been listed once, or waited for.
    has_started: bool,
}

struct NodeWatch {
    cache: Cache<NodeFacts>,
    keeps_all_annotations: bool,
    /// What the cache had at this revision.
    seen: Option<(u64, Nodes)>,
}

struct LeaseWatch {
    cache: Cache<LeaseView>,
    namespace: Arc<str>,
}

impl Observer {
    /// Opens the watches that are always needed.
    pub fn open(context: &OperatorContext<Settings>) -> Self {
        let (watches, readiness) = (&context.watches, &context.readiness);
        let client = context.clients.watches.clone();
        let policy = &context.config.current().policy;
        let clock = SteadyClock::new();
        let nodes = NodeWatch::open(watches, &client, &clock, keeps_all_annotations(policy));
        let checks = watches.cache(
            "nodehealthchecks",
            Api::<NodeHealthCheck>::all(client.clone()),
            Selection::all(),
            project::check,
        );
        let leases = LeaseWatch::open(watches, &client, &policy.lease_namespace);
        readiness.require_watch(&nodes.cache);
        readiness.require_watch(&checks);
        readiness.require_watch(&leases.cache);
        let kinds = KindRegistry::spawn(watches, client.clone());
        let templates = DynamicWatches::new("remediation templates", watches, &kinds, |_, object| {
            Some(project::template(&object))
        });
        let remediations = DynamicWatches::new("remediations", watches, &kinds, |watched, object| {
            project::remediation(project::kind_of(watched), &object)
        });
        let leader_leases = LeaderLeases::open(context, peer::leases(&policy.peer_namespaces).collect());
        peer::require(readiness, leader_leases.answers(), &policy.peer_namespaces);
        let safety_pass = Duration::try_from(policy.safety_pass).unwrap_or(POLL_INTERVAL);
        let poll_interval = safety_pass.min(POLL_INTERVAL);
        Self {
            templates: templates.or_polled(poll_interval).required_by(readiness),
            remediations: remediations.or_polled(poll_interval).required_by(readiness),
            signal: SignalWatches::new(watches, &kinds, readiness),
            surroundings: Surroundings::open(watches, &kinds),
            ceph: CephWatches::new(watches, &client),
            leader_leases,
            peer: Peer::default(),
            watches: watches.clone(),
            kinds,
            leadership: context.leadership.clone(),
            own_namespace: context.args.namespace.clone(),
            clock,
            nodes,
            checks,
            leases,
            client,
            default_record: None,
            has_started: false,
        }
    }

    /// Which kinds the API server serves.
    pub fn kinds(&self) -> &KindRegistry {
        &self.kinds
    }

    /// This moment, as the watches tell it, once all is complete that every decision rests on: absent from a cache that has
    /// not synced is not absent.
    pub fn snapshot(&mut self, policy: &Policy, memory: &Observations, now: Timestamp) -> Observed<Snapshot> {
        self.follow(policy);
        let clock_stepped_by = self.clock.now().stepped_by;
        if !(self.nodes.cache.is_fresh() && self.checks.is_fresh()) {
            return Observed::wait("nodes or NodeHealthChecks are incomplete or stale");
        }
        if !self.leases.cache.is_fresh() {
            return Observed::wait(self.leases.explain());
        }
        let checks = keyed(&self.checks, |check| Arc::clone(&check.name));
        self.follow_remediators(&checks);
        if let Some(until) = self.signal.waits_until().or_else(|| self.starts_until()) {
            return Observed::Wait {
                why: "what upgrade signal and templates name is still being listed".to_owned(),
                again: Some(until),
            };
        }
        if !self.has_started && (self.surroundings.is_starting() || self.ceph.is_starting()) {
            return Observed::wait("what may forbid remediations is still being listed");
        }
        self.has_started = true;
        let peer = match self.peer.live(&self.leader_leases, &policy.peer_namespaces) {
            Ok(peer) => peer,
            Err(why) => return Observed::wait(why),
        };
        let ceph = match self.ceph.observe(&self.leader_leases) {
            Ok(ceph) => ceph,
            Err(why) => return Observed::wait(why),
        };
        Observed::Ready(Snapshot {
            nodes: self.nodes.snapshot(),
            nodes_silent_for: silent_for(&self.nodes.cache),
            templates: template_states(&checks, &self.templates),
            remediations: self
                .remediations
                .iter()
                .flat_map(|(_, cache)| cache.snapshot().values().cloned().collect::<Vec<_>>())
                .collect(),
            kinds: self
                .remediations
                .iter()
                .map(|(watched, cache)| (project::kind_of(watched), kind_facts(cache)))
                .collect(),
            leases: keyed(&self.leases.cache, |lease| Arc::clone(&lease.name)),
            signals: self.signal.inputs(),
            ceph,
            peer,
            settle_until: settle_until(self.leadership.state(), self.clock.last_step(), policy.settle, now),
            clock_stepped_by,
            memory: memory.clone(),
            checks,
            ..self.surroundings.observe()
        })
    }

    /// Watches what the policy says, and nothing that an earlier one said.
    fn follow(&mut self, policy: &Policy) {
        let keeps_all = keeps_all_annotations(policy);
        if self.nodes.keeps_all_annotations != keeps_all {
            self.nodes = NodeWatch::open(&self.watches, &self.client, &self.clock, keeps_all);
        }
        if self.leases.namespace != policy.lease_namespace {
            self.leases = LeaseWatch::open(&self.watches, &self.client, &policy.lease_namespace);
        }
        self.signal.follow(&policy.upgrade_signal);
        self.ceph.follow(&policy.ceph_namespaces);
        let leases = peer::leases(&policy.peer_namespaces).chain(self.ceph.leases());
        self.leader_leases.follow(leases.collect());
        if policy.default_template.is_none() {
            self.default_record = None;
        } else if self.default_record.is_none() {
            let records = Api::<ConfigMap>::namespaced(self.client.clone(), &self.own_namespace);
            let selection = Selection::all().named(default::RECORD_NAME);
            let record = self.watches.cache("default record", records, selection, |record| {
                Some(record.data.unwrap_or_default())
            });
            self.default_record = Some(record);
        }
    }

    /// Watches the templates that specifications name, and every kind of remediation that they or a status names.
    fn follow_remediators(&mut self, checks: &BTreeMap<Arc<str>, Arc<CheckFacts>>) {
        let templates = || checks.values().flat_map(|check| templates_of(check));
        self.templates.follow(templates().map(watched_template).collect());
        let in_status = checks.values().flat_map(|check| kinds_in_status(check));
        let kinds = templates().map(TemplateRef::remediation_kind).chain(in_status);
        let mut watched: BTreeSet<WatchedResource> = kinds
            .map(|kind| WatchedResource::all(&kind.api_version, &kind.kind))
            .collect();
        if self.has_lease_of_gone_check(checks) {
            watched.extend(self.remediations.iter().map(|(watched, _)| watched.clone()));
        }
        self.remediations.follow(watched);
    }

    /// Finalizers may keep remediations of a NodeHealthCheck that is gone, and their nodes are not to be touched meanwhile.
    fn has_lease_of_gone_check(&self, checks: &BTreeMap<Arc<str>, Arc<CheckFacts>>) -> bool {
        let leases = self.leases.cache.snapshot();
        let mut holders = leases.values().filter_map(|lease| lease.holder.as_deref());
        holders.any(|holder| {
            let check = holder.strip_prefix(REMEDIATION_HOLDER_PREFIX);
            check.is_some_and(|check| !checks.contains_key(check.split('/').next().unwrap_or(check)))
        })
    }

    /// What a status rests on at the start is listed first, or else it would be rewritten twice. Later a kind that somebody
    /// names holds nobody up.
    fn starts_until(&self) -> Option<Timestamp> {
        if self.has_started {
            return None;
        }
        let waits = [self.templates.waits_until(), self.remediations.waits_until()];
        waits.into_iter().flatten().min()
    }

    /// How the API server serves the kinds of remediations.
    pub fn resources(&self) -> BTreeMap<RemediationKind, ApiResource> {
        let kinds = self.remediations.iter();
        kinds
            .filter_map(|(watched, cache)| Some((project::kind_of(watched), cache.resource()?)))
            .collect()
    }

    /// How the API server serves a template that may not be watched, and is therefore read before it is used.
    pub fn polled_templates(&self) -> BTreeMap<WatchedResource, ApiResource> {
        let polled = self.templates.iter().filter(|(_, cache)| cache.is_polled());
        polled
            .filter_map(|(watched, cache)| Some((watched.clone(), cache.resource()?)))
            .collect()
    }

    /// Whether the default NodeHealthCheck was created, where it is asked for; `None`: that is not known yet.
    pub fn default_record(&self) -> Option<Record> {
        let record = self.default_record.as_ref().filter(|record| record.is_fresh())?;
        Some(Record::read(record.snapshot().values().next().map(|data| &**data)))
    }
}

impl NodeWatch {
    fn open(watches: &Watches, client: &Client, clock: &SteadyClock, keeps_all_annotations: bool) -> Self {
        let mut projector = NodeProjector::new(keeps_all_annotations);
        let clock = clock.clone();
        let nodes = Api::<Node>::all(client.clone());
        let cache = watches.cache_comparing("nodes", nodes, Selection::all(), move |node, previous| {
            projector.project(&node, previous.value.as_deref(), previous.is_first_list, clock.now())
        });
        Self {
            cache,
            keeps_all_annotations,
            seen: None,
        }
    }

    /// All nodes, and while none has changed, the same.
    fn snapshot(&mut self) -> Nodes {
        // Before the content: what comes in between is seen again.
        let revision = *self.cache.changes().borrow();
        let known = self.seen.take().filter(|(of, _)| *of == revision);
        let look = || (revision, keyed(&self.cache, |node| node.view.name.clone()).into());
        let (_, nodes) = self.seen.insert(known.unwrap_or_else(look));
        nodes.clone()
    }
}

impl LeaseWatch {
    fn open(watches: &Watches, client: &Client, namespace: &Arc<str>) -> Self {
        let leases = Api::<Lease>::namespaced(client.clone(), namespace);
        let project = |lease: Lease| LeaseView::project(&lease);
        Self {
            cache: watches.cache("node leases", leases, Selection::all(), project),
            namespace: Arc::clone(namespace),
        }
    }

    /// Why nothing can be decided by them. In a namespace that does not exist nobody has rights.
    fn explain(&self) -> String {
        match self.cache.state() {
            KindState::Forbidden(why) => format!(
                "leases of namespace {0} may not be read ({why}): if {0} does not exist, create it; then `helm upgrade`, which \
                 grants the rights on leases in healthCheck.leases.namespace",
                self.namespace
            ),
            _ => format!("leases of namespace {} are incomplete or stale", self.namespace),
        }
    }
}

/// Only a signal of the user's reads other annotations than the few that are always kept.
fn keeps_all_annotations(policy: &Policy) -> bool {
    policy.upgrade_signal != default_signal()
}

/// A cache's content by another key than namespace and name.
fn keyed<K: Ord, V>(cache: &Cache<V>, key: impl Fn(&V) -> K) -> BTreeMap<K, Arc<V>> {
    let content = cache.snapshot();
    content.values().map(|value| (key(value), Arc::clone(value))).collect()
}

/// For how long a cache's watch has given no sign of life.
fn silent_for<V>(cache: &Cache<V>) -> SignedDuration {
    let silence = cache.health().last_response.map(|contact| contact.elapsed());
    silence
        .and_then(|silence| SignedDuration::try_from(silence).ok())
        .unwrap_or(SignedDuration::MAX)
}

/// Until when nothing is started: the API server or this operator was away, and nodes need a moment to report, or the clock by
/// which they are judged was stepped.
fn settle_until(
    leadership: LeaderState,
    last_step: Option<SignedDuration>,
    settle: SignedDuration,
    now: Timestamp,
) -> Option<Timestamp> {
    let ordinary = ElectionTimes::default().lease_duration + FAILOVER_SLACK;
    let after_outage = match leadership {
        LeaderState::Leading {
            since, unrenewed_for, ..
        } if ordinary < unrenewed_for => Some(saturating_add(since, settle)),
        LeaderState::Leading { .. } | LeaderState::Following => None,
    };
    let after_step = last_step.filter(|ago| *ago < settle);
    after_outage.max(after_step.map(|ago| saturating_add(now, settle - ago)))
}

fn templates_of(check: &CheckFacts) -> impl Iterator<Item = &TemplateRef> {
    check.spec.steps.iter().map(|step| &step.template)
}

fn kinds_in_status(check: &CheckFacts) -> impl Iterator<Item = RemediationKind> {
    let nodes = check.status.unhealthy_nodes.iter();
    nodes
        .flat_map(UnhealthyNode::all_remediations)
        .filter_map(|remediation| RemediationKind::of(&remediation.resource))
}

/// One that is named without a namespace is looked for in all, for its kind may have none.
pub(crate) fn watched_template(template: &TemplateRef) -> WatchedResource {
    let mut watched = WatchedResource::all(&template.api_version, &template.kind).named(&template.name);
    watched.namespace = Some(template.namespace.to_string()).filter(|namespace| !namespace.is_empty());
    watched
}

fn template_states(
    checks: &BTreeMap<Arc<str>, Arc<CheckFacts>>,
    watches: &DynamicWatches<TemplateFacts>,
) -> BTreeMap<TemplateRef, TemplateState> {
    let named: BTreeSet<&TemplateRef> = checks.values().flat_map(|check| templates_of(check)).collect();
    let state = |template: &TemplateRef| match watches.get(&watched_template(template)) {
        Some(cache) => template_state(cache, template),
        None => TemplateState::Unknown,
    };
    named
        .into_iter()
        .map(|template| (template.clone(), state(template)))
        .collect()
}

fn template_state(cache: &DynamicCache<TemplateFacts>, template: &TemplateRef) -> TemplateState {
    match cache.state() {
        KindState::Absent => TemplateState::KindAbsent,
        KindState::Forbidden(message) if !cache.is_settled() => TemplateState::Forbidden(message.to_string()),
        KindState::Syncing => TemplateState::Unknown,
        KindState::Synced(()) | KindState::Stale | KindState::Forbidden(_) => cache
            .get(&template.key())
            .map_or(TemplateState::NotFound, TemplateState::Found),
    }
}

fn kind_facts(cache: &DynamicCache<RemediationFacts>) -> KindFacts {
    use nodeward_runtime::discovery::Known;
    let listed = match (cache.known(), cache.state()) {
        (Known::Absent, _) => Listed::NotServed,
        (Known::Objects(_), _) => Listed::Complete,
        (Known::Unknown(_), KindState::Forbidden(message)) => Listed::Forbidden(message.to_string()),
        (Known::Unknown(_), _) => Listed::NotYet,
    };
    KindFacts {
        listed,
        may_annotate: true,
    }
}

#[cfg(test)]
mod tests;
