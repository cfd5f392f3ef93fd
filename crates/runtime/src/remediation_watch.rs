//! Which nodes are being remediated, watched: the statuses of NodeHealthChecks, the leases of nodes, and further kinds of
//! remediations. None has to be there.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::core::DynamicObject;
use nodeward_core::id::NodeName;
use nodeward_core::lease::LeaseView;
use nodeward_core::remediation::{self, RemediatedNodes, Remediations};
use nodeward_core::signal::WatchedResource;

use crate::cache::{KindState, Watches};
use crate::discovery::{DynamicCache, DynamicWatches, KindRegistry, Known};

pub struct RemediationWatches(DynamicWatches<Fact>);

#[derive(PartialEq)]
enum Fact {
    Check(Arc<RemediatedNodes>),
    Lease(Arc<LeaseView>),
    /// Its node.
    Remediation(NodeName),
}

impl RemediationWatches {
    /// Nothing watched yet.
    pub fn new(watches: &Watches, kinds: &KindRegistry) -> Self {
        Self(DynamicWatches::new("remediations", watches, kinds, Fact::of))
    }

    /// Watches the NodeHealthChecks, the leases of nodes in this namespace, and these kinds of remediations.
    pub fn follow(&mut self, lease_namespace: Option<&str>, kinds: &[WatchedResource]) {
        let leases = lease_namespace.map(|namespace| {
            let mut all = WatchedResource::of::<Lease>();
            all.namespace = Some(namespace.to_owned());
            all
        });
        let checks = remediation::health_checks();
        let watched = [checks].into_iter().chain(leases).chain(kinds.iter().cloned());
        self.0.follow(watched.collect());
    }

    /// Until when to wait for a first list, if one is still to come and worth waiting for.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.0.waits_until()
    }

    /// What they tell. Where leases or further kinds may not be read the statuses tell alone; where these cannot be read it is
    /// not known which nodes are being remediated.
    pub fn remediations(&self) -> Remediations {
        let mut remediations = Remediations::default();
        for (watched, cache) in self.0.iter() {
            match cache.known() {
                Known::Absent => {}
                Known::Objects(facts) => facts.iter().for_each(|(key, fact)| match &**fact {
                    Fact::Check(check) => remediations.add_check(check),
                    Fact::Lease(lease) => remediations.add_lease(Arc::clone(lease)),
                    Fact::Remediation(node) => {
                        remediations.add_object(node.clone(), watched.kind.as_str().into(), key.clone());
                    }
                }),
                Known::Unknown(_) if *watched != remediation::health_checks() && is_forbidden(cache) => {}
                Known::Unknown(why) => remediations.add_unknown(why),
            }
        }
        remediations
    }
}

impl Fact {
    /// What cannot be read of an object its own decoding leaves out, entry by entry.
    fn of(watched: &WatchedResource, object: DynamicObject) -> Option<Self> {
        if is_lease(watched) {
            let lease = LeaseView::project(&object.try_parse().ok()?)?;
            return Some(Self::Lease(Arc::new(lease)));
        }
        if *watched == remediation::health_checks() {
            let check = RemediatedNodes::project(&object.try_parse().ok()?)?;
            return Some(Self::Check(Arc::new(check)));
        }
        if remediation::is_over(object.annotations(), &object.data) {
            return None;
        }
        let node = remediation::node_of(&object.name_any(), object.annotations());
        Some(Self::Remediation(node))
    }
}

fn is_lease(watched: &WatchedResource) -> bool {
    watched.namespace.is_some()
}

fn is_forbidden(cache: &DynamicCache<Fact>) -> bool {
    matches!(cache.state(), KindState::Forbidden(_))
}
