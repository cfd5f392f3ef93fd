//! Which nodes are being remediated, watched: the statuses of NodeHealthChecks, and the leases of nodes. Neither has to be there.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::DynamicObject;
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
}

impl RemediationWatches {
    /// Nothing watched yet.
    pub fn new(watches: &Watches, kinds: &KindRegistry) -> Self {
        Self(DynamicWatches::new("remediations", watches, kinds, Fact::of))
    }

    /// Watches the NodeHealthChecks, and the leases of nodes in this namespace.
    pub fn follow(&mut self, lease_namespace: Option<&str>) {
        let leases = lease_namespace.map(|namespace| {
            let mut all = WatchedResource::of::<Lease>();
            all.namespace = Some(namespace.to_owned());
            all
        });
        let checks = remediation::health_checks();
        self.0.follow([checks].into_iter().chain(leases).collect());
    }

    /// Until when to wait for a first list, if one is still to come and worth waiting for.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.0.waits_until()
    }

    /// What they tell. Where leases may not be read the statuses tell alone; where these cannot be read it is not known
    /// which nodes are being remediated.
    pub fn remediations(&self) -> Remediations {
        let mut remediations = Remediations::default();
        for (watched, cache) in self.0.iter() {
            match cache.known() {
                Known::Absent => {}
                Known::Objects(facts) => facts.values().for_each(|fact| match &**fact {
                    Fact::Check(check) => remediations.add_check(check),
                    Fact::Lease(lease) => remediations.add_lease(Arc::clone(lease)),
                }),
                Known::Unknown(_) if is_lease(watched) && is_forbidden(cache) => {}
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
        let check = RemediatedNodes::project(&object.try_parse().ok()?)?;
        Some(Self::Check(Arc::new(check)))
    }
}

fn is_lease(watched: &WatchedResource) -> bool {
    watched.namespace.is_some()
}

fn is_forbidden(cache: &DynamicCache<Fact>) -> bool {
    matches!(cache.state(), KindState::Forbidden(_))
}
