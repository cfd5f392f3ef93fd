//! Who holds what, looked up by budget and by pod: worked out once for all questions about one version of a ledger.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::HashMap;
use foldhash::fast::FixedState;

use super::{BudgetFacts, Claim, Disruptions, Ledger};
use crate::id::BudgetKey;

/// With no more claims than this nothing is gained by looking them up.
const FEW: usize = 8;

/// By a hash of what is looked up, the places of the claims that hold it. Where two hashes meet, a claim more is looked at.
#[derive(Debug, Clone, Default)]
struct Holders {
    by_budget: HashMap<u64, Vec<usize>>,
    by_pod: HashMap<u64, Vec<usize>>,
}

/// The holders, once somebody has asked. No part of what the ledger says.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownHolders(OnceLock<Arc<Holders>>);

impl PartialEq for KnownHolders {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KnownHolders {}

impl Hash for KnownHolders {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Where the claim is that was asked for last. No part of what the ledger says.
#[derive(Debug, Default)]
pub(super) struct LastFound(AtomicUsize);

impl LastFound {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, place: usize) {
        self.0.store(place, Ordering::Relaxed);
    }
}

impl Clone for LastFound {
    fn clone(&self) -> Self {
        Self(AtomicUsize::new(self.get()))
    }
}

impl PartialEq for LastFound {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastFound {}

impl Hash for LastFound {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

fn hash_of(value: impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}

impl Holders {
    fn of(claims: &[Claim]) -> Self {
        let mut this = Self::default();
        for (place, claim) in claims.iter().enumerate() {
            this.add(place, &claim.holds);
            this.add(place, &claim.moving);
        }
        this
    }

    fn add(&mut self, place: usize, holds: &[Disruptions]) {
        for held in holds {
            let budget = hash_of((&*held.pdb.namespace, &*held.pdb.name));
            note(self.by_budget.entry(budget).or_default(), place);
            for pod in &held.pods {
                note(self.by_pod.entry(hash_of(&*pod.uid)).or_default(), place);
            }
        }
    }
}

/// Keeps the places sorted, each once.
fn note(places: &mut Vec<usize>, place: usize) {
    if let Err(at) = places.binary_search(&place) {
        places.insert(at, place);
    }
}

impl Ledger {
    /// Claims among which all are that hold disruptions of the budget of this name, or whose moving pods are of it, in the order
    /// of their tickets.
    pub fn holders_of(&self, budget: &BudgetKey) -> impl Iterator<Item = &Claim> {
        let known = self.holders();
        let places = known.map(|known| known.by_budget.get(&hash_of((&*budget.namespace, &*budget.name))));
        self.at(places.map(|places| places.map(Vec::as_slice).unwrap_or_default().to_vec()))
    }

    /// Claims among which all are that have yet to take a disruption of the budget: for its own pods, or for one of its healthy
    /// pods that they hold by another budget.
    pub(super) fn holders_near(&self, budget: &BudgetFacts) -> impl Iterator<Item = &Claim> {
        let places = self.holders().map(|known| {
            let of_budget = known
                .by_budget
                .get(&hash_of((&*budget.key.namespace, &*budget.key.name)));
            let pods = budget.healthy.iter();
            let of_pods = pods.filter_map(|pod| known.by_pod.get(&hash_of(pod.as_str())));
            let mut places: Vec<usize> = of_budget.into_iter().chain(of_pods).flatten().copied().collect();
            places.sort_unstable();
            places.dedup();
            places
        });
        self.at(places)
    }

    /// Claims among which all are that hold a disruption for this pod.
    pub(super) fn holders_for(&self, pod_uid: &str) -> impl Iterator<Item = &Claim> {
        let known = self.holders();
        let places = known.map(|known| known.by_pod.get(&hash_of(pod_uid)).cloned().unwrap_or_default());
        self.at(places)
    }

    /// Notes what a claim is about to hold, so that of many grants in a row none has all claims looked at again.
    pub(super) fn note_taken(&mut self, node_uid: &str, taken: &[Disruptions]) {
        let place = self.place_of(node_uid);
        if let Some((holders, place)) = self.holders.0.get_mut().zip(place) {
            Arc::make_mut(holders).add(place, taken);
        }
        self.version.0 += 1;
    }

    fn holders(&self) -> Option<&Holders> {
        (self.claims.len() > FEW).then(|| {
            let holders = self.holders.0.get_or_init(|| Arc::new(Holders::of(&self.claims)));
            &**holders
        })
    }

    /// The claims at these places; `None`: all.
    fn at(&self, places: Option<Vec<usize>>) -> impl Iterator<Item = &Claim> {
        let all = self.claims.iter().filter({
            let is_all = places.is_none();
            move |_| is_all
        });
        all.chain(places.into_iter().flatten().filter_map(|place| self.claims.get(place)))
    }
}
