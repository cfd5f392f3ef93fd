//! Amounts of what pods ask for and nodes offer.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nodeward_core::intern::Pool;

use crate::quantity;

/// Amounts of resources: what a pod requests, what a node can allocate, or what runs on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub cpu: i64,
    /// Bytes of memory.
    pub memory: i64,
    /// Bytes of local ephemeral storage.
    pub ephemeral: i64,
    pub pods: i64,
    /// Any other resource by its name, huge pages included.
    pub extended: BTreeMap<Arc<str>, i64>,
}

type Amount = fn(&Resources) -> i64;

impl Resources {
    /// Reads a list of resources, as of a container's requests or of what a node can allocate.
    pub fn parse(list: &BTreeMap<String, Quantity>, texts: &mut Pool<str>) -> Self {
        let mut amounts = Self::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => amounts.cpu = quantity::thousandths(quantity),
                "memory" => amounts.memory = quantity::units(quantity),
                "ephemeral-storage" => amounts.ephemeral = quantity::units(quantity),
                "pods" => amounts.pods = quantity::units(quantity),
                _ => {
                    let amount = quantity::units(quantity);
                    if amount != 0 {
                        amounts.extended.insert(texts.text(name), amount);
                    }
                }
            }
        }
        amounts
    }

    /// The first resource of which `request` asks more than is left of these after `taken` and `promised`; `None` if it
    /// fits. What is not asked for is not looked at, as in the scheduler: a node that is overcommitted in memory takes a
    /// pod that requests none.
    pub fn shortage(&self, taken: &Self, promised: &Self, request: &Self) -> Option<&'static str> {
        let is_short = |offered: i64, taken: i64, promised: i64, asked: i64| {
            asked > 0 && asked > offered.saturating_sub(taken).saturating_sub(promised)
        };
        let of = |amounts: &Self, name: &str| amounts.extended.get(name).copied().unwrap_or_default();
        let amounts: [(&str, Amount); 4] = [
            ("pods", |amounts| amounts.pods),
            ("cpu", |amounts| amounts.cpu),
            ("memory", |amounts| amounts.memory),
            ("ephemeral storage", |amounts| amounts.ephemeral),
        ];
        for (name, of) in amounts {
            if is_short(of(self), of(taken), of(promised), of(request)) {
                return Some(name);
            }
        }
        let is_short =
            |(name, asked): (&Arc<str>, &i64)| is_short(of(self, name), of(taken, name), of(promised, name), *asked);
        request.extended.iter().any(is_short).then_some("an extended resource")
    }

    /// What is left of it beside `taken`; less than nothing, where more is taken than there is.
    #[must_use]
    pub fn less(&self, taken: &Self) -> Self {
        let mut left = self.clone();
        left.combine(taken, i64::saturating_sub);
        left
    }

    /// Takes `other` away; an extended resource of which nothing is left is forgotten.
    pub fn take_away(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
        self.extended.retain(|_, amount| *amount > 0);
    }

    /// The greater of each amount.
    #[must_use]
    pub fn max(mut self, other: &Self) -> Self {
        self.combine(other, i64::max);
        self
    }

    fn combine(&mut self, other: &Self, combine: fn(i64, i64) -> i64) {
        self.cpu = combine(self.cpu, other.cpu);
        self.memory = combine(self.memory, other.memory);
        self.ephemeral = combine(self.ephemeral, other.ephemeral);
        self.pods = combine(self.pods, other.pods);
        for (name, amount) in &other.extended {
            let own = self.extended.entry(Arc::clone(name)).or_default();
            *own = combine(*own, *amount);
        }
    }
}

impl AddAssign<&Self> for Resources {
    fn add_assign(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn amounts(cpu: i64, memory: i64, pods: i64, gpus: i64) -> Resources {
        Resources {
            cpu,
            memory,
            pods,
            extended: [(Arc::from("example.com/gpu"), gpus)].into(),
            ..Resources::default()
        }
    }

    #[rstest]
    #[case::fits_exactly(amounts(500, 50, 1, 1), None)]
    #[case::no_cpu_left(amounts(501, 50, 1, 1), Some("cpu"))]
    #[case::no_memory_left(amounts(500, 51, 1, 1), Some("memory"))]
    #[case::no_pod_left(amounts(0, 0, 2, 0), Some("pods"))]
    #[case::no_gpu_left(amounts(0, 0, 1, 2), Some("an extended resource"))]
    fn what_is_taken_and_what_is_promised_both_count(#[case] request: Resources, #[case] short: Option<&str>) {
        let offered = amounts(1000, 100, 3, 3);
        let (taken, promised) = (amounts(300, 30, 1, 1), amounts(200, 20, 1, 1));
        assert_eq!(offered.shortage(&taken, &promised, &request), short);
    }

    #[test]
    fn unrequested_overcommitted_resource_stops_nobody() {
        let (offered, taken) = (amounts(1000, 100, 10, 0), amounts(2000, 200, 1, 0));
        let nothing = Resources::default();
        assert_eq!(offered.shortage(&taken, &nothing, &amounts(0, 0, 1, 0)), None);
        assert_eq!(offered.shortage(&taken, &nothing, &amounts(1, 0, 1, 0)), Some("cpu"));
    }

    #[test]
    fn adding_and_subtracting_leaves_nothing() {
        let mut total = Resources::default();
        total += &amounts(1, 2, 3, 4);
        total.take_away(&amounts(1, 2, 3, 4));
        assert_eq!(total, Resources::default());
    }
}
