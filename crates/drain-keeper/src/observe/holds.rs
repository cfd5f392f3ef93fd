//! Holds, watched: drain-lock's ledger with the drains that it is about, and what the owners of budgets hold. None of the
//! kinds has to be installed.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use nodeward_api::drain_ledger;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::budget::BudgetView;
use nodeward_core::drain::NodeDrains;
use nodeward_core::hold::{self, Held, Hold, Holds};
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{Claim, Ledger};
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::discovery::{Known, end_of_patience};
use nodeward_runtime::{DynamicCache, KindRegistry, KindState, Watches};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::planned_pods::{PlannedDrain, PlannedPods};
use crate::snapshot::LockKinds;

/// The watches of what can hold a budget.
pub(super) struct HoldWatches {
    drains: DynamicCache<Result<PlannedDrain, String>>,
    ledgers: DynamicCache<Result<Ledger, String>>,
    owners: DynamicCache<Hold>,
    opened: Instant,
}

impl HoldWatches {
    pub(super) fn open(watches: &Watches, kinds: &KindRegistry) -> Self {
        let drains = WatchedResource::of::<NodeDrain>();
        let ledger = WatchedResource::of::<DrainLedger>().named(drain_ledger::NAME);
        let owners = WatchedResource::of::<DisruptionHold>();
        Self {
            drains: watches.dynamic("nodedrains", kinds, drains, |object| match read::<NodeDrain>(object) {
                Ok(drain) => PlannedDrain::project(&drain).map(Ok),
                Err(why) => Some(Err(why)),
            }),
            ledgers: watches.dynamic("drainledgers", kinds, ledger, |object| {
                Some(read::<DrainLedger>(object).and_then(|ledger| of_stored(&ledger)))
            }),
            owners: watches.dynamic("disruptionholds", kinds, owners, owners_hold),
            opened: Instant::now(),
        }
    }

    /// Until when their first lists are waited for, if one is still to come. After that it cannot be told what is held.
    pub(super) fn waits_until(&self) -> Option<Timestamp> {
        let states = [self.drains.state(), self.ledgers.state(), self.owners.state()];
        end_of_patience(self.opened).filter(|_| states.contains(&KindState::Syncing))
    }

    /// Which of the kinds are served.
    pub(super) fn kinds(&self) -> LockKinds {
        LockKinds {
            drains: self.drains.state() != KindState::Absent,
            ledger: self.ledgers.state() != KindState::Absent,
            holds: self.owners.state() != KindState::Absent,
        }
    }

    /// All NodeDrains, and what each has planned for the pods of its node.
    pub(super) fn drains(&self) -> (NodeDrains, BTreeMap<NodeName, Arc<PlannedPods>>) {
        let objects = match self.drains.known() {
            Known::Absent => return (NodeDrains::default(), BTreeMap::new()),
            Known::Unknown(why) => return (NodeDrains::Unknown(why), BTreeMap::new()),
            Known::Objects(objects) => objects,
        };
        let all = || {
            let named = objects.iter();
            named.map(|(key, drain)| (NodeName::from(Arc::clone(&key.name)), &**drain))
        };
        let views = all().map(|(node, drain)| {
            let view = drain.as_ref().map(|drain| Arc::clone(&drain.view));
            (node, view.map_err(String::clone))
        });
        let pods = all().filter_map(|(node, drain)| Some((node, Arc::clone(&drain.as_ref().ok()?.pods))));
        (NodeDrains::Known(views.collect()), pods.collect())
    }

    /// All holds: of claims, of owners' objects, and those that owners set on `budgets` themselves.
    pub(super) fn holds<'a>(
        &self,
        budgets: impl IntoIterator<Item = &'a Arc<BudgetView>>,
        drains: &NodeDrains,
    ) -> Holds {
        let annotated = budgets.into_iter().filter_map(|budget| hold::of_annotation(budget));
        let mut holds: Holds = annotated.collect();
        match self.ledgers.known() {
            Known::Absent => {}
            Known::Objects(ledgers) => {
                for ledger in ledgers.values() {
                    match &**ledger {
                        Ok(ledger) => holds.extend(claims_holds(ledger.claims(), drains)),
                        Err(why) => holds.add(Hold::unknown(why.clone())),
                    }
                }
            }
            Known::Unknown(why) => holds.add(Hold::unknown(why)),
        }
        match self.owners.known() {
            Known::Absent => {}
            Known::Objects(owners) => holds.extend(owners.values().map(|hold| Hold::clone(hold))),
            Known::Unknown(why) => holds.add(Hold::unknown(why)),
        }
        holds
    }
}

/// The holds of the ledger's claims. Where a claim's drain cannot be read its hold has no end.
pub fn claims_holds<'a>(claims: impl IntoIterator<Item = &'a Claim>, drains: &NodeDrains) -> Vec<Hold> {
    let mut holds = Vec::new();
    for claim in claims {
        match drains.of(&claim.node.as_str().into()) {
            Ok(drain) => holds.extend(hold::of_claim(claim, drain)),
            Err(_) => holds.extend(hold::of_claim(claim, None).map(|hold| Hold { until: None, ..hold })),
        }
    }
    holds
}

/// What the ledger says, or why it cannot be read.
pub fn of_stored(ledger: &DrainLedger) -> Result<Ledger, String> {
    Ledger::try_from(&ledger.spec).map_err(|why| format!("DrainLedger {} cannot be read: {why}", ledger.name_any()))
}

/// The object, typed; what says what it cannot be read for names it.
fn read<K: Resource<DynamicType = ()> + DeserializeOwned>(object: DynamicObject) -> Result<K, String> {
    let name = match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    let kind = K::kind(&());
    object
        .try_parse()
        .map_err(|error| format!("{kind} {name} cannot be read: {error}"))
}

/// An owner's hold. One that cannot be read may be on any budget of its namespace.
fn owners_hold(object: DynamicObject) -> Option<Hold> {
    let namespace = object.namespace()?;
    match read::<DisruptionHold>(object) {
        Ok(hold) => hold::of_owner(&hold),
        Err(why) => Some(Hold {
            held: Held::Namespace(namespace.into()),
            ..Hold::unknown(why)
        }),
    }
}
