//! Placements and cordons as they are defined, pod by pod and node by node: what the fast forms have to agree with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_core::id::{NodeName, PodKey};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::requirements::PodTerm;
use crate::*;

/// Every pod that is somewhere, or is to be, and the index of its node.
type Places = Vec<(Arc<PodFacts>, usize)>;

/// One search over all nodes for each pod, with all other pods looked at anew.
#[derive(Clone)]
struct Plain<'a> {
    nodes: &'a [NodeCapacity],
    bound: &'a Places,
    cordoned: BTreeSet<usize>,
    promises: Places,
    waiting: BTreeSet<PodKey>,
}

impl<'a> Plain<'a> {
    fn new(nodes: &'a [NodeCapacity], bound: &'a Places, pending: &[Arc<PodFacts>], cordoned: BTreeSet<usize>) -> Self {
        let mut this = Self {
            nodes,
            bound,
            cordoned,
            promises: Places::new(),
            waiting: BTreeSet::new(),
        };
        for pod in pending {
            if this.place(pod, None).is_some() {
                this.waiting.insert(pod.key.clone());
            }
        }
        this
    }

    fn place(&mut self, pod: &Arc<PodFacts>, from: Option<&NodeName>) -> Option<NodeName> {
        let is_free = |index: &usize| Some(&self.nodes[*index].node.name) != from && self.takes(pod, *index);
        let index = (0..self.nodes.len()).find(is_free)?;
        self.promises.push((Arc::clone(pod), index));
        Some(self.nodes[index].node.name.clone())
    }

    fn takes(&self, pod: &PodFacts, index: usize) -> bool {
        let (capacity, asked) = (&self.nodes[index], &pod.requirements);
        let node = &*capacity.node;
        let mut usage = NodeUsage::clone(&capacity.usage);
        for (promised, _) in self.promises.iter().filter(|(_, at)| *at == index) {
            usage.add(promised);
        }
        let nothing = Resources::default();
        !node.is_cordoned()
            && !self.cordoned.contains(&index)
            && node
                .allocatable
                .shortage(&usage.requests, &nothing, &asked.requests)
                .is_none()
            && !self.is_repelled(pod, node)
            && self.is_wanted(pod, node)
            && self.keeps_even(pod, node)
    }

    /// The other pods, and their nodes.
    fn others<'s>(&'s self, pod: &'s PodFacts) -> impl Iterator<Item = (&'s PodFacts, &'s NodeFacts)> {
        let all = self
            .bound
            .iter()
            .chain(&self.promises)
            .filter(|(other, _)| other.uid != pod.uid);
        all.map(|(other, index)| (&**other, &*self.nodes[*index].node))
    }

    fn is_repelled(&self, pod: &PodFacts, node: &NodeFacts) -> bool {
        let (own, terms) = (&*pod.key.namespace, &pod.requirements.anti_affinity);
        self.others(pod).any(|(other, at)| {
            let theirs = &*other.key.namespace;
            let is_here = |term: &PodTerm| {
                let domain = node.labels.get(&term.topology_key);
                domain.is_some() && domain == at.labels.get(&term.topology_key)
            };
            let mut repelling = other.requirements.anti_affinity.iter();
            terms
                .iter()
                .any(|term| term.may_speak_of(own, theirs, &other.labels) && is_here(term))
                || repelling.any(|term| term.may_speak_of(theirs, own, &pod.labels) && is_here(term))
        })
    }

    fn is_wanted(&self, pod: &PodFacts, node: &NodeFacts) -> bool {
        let (own, terms) = (&*pod.key.namespace, &pod.requirements.affinity);
        let domains = |term: &PodTerm| -> BTreeSet<&str> {
            let sought = self
                .others(pod)
                .filter(|(other, _)| term.surely_speaks_of(own, &other.key.namespace, &other.labels));
            sought.filter_map(|(_, at)| at.labels.get(&term.topology_key)).collect()
        };
        let label = |term: &PodTerm| node.labels.get(&term.topology_key);
        let is_first = terms.iter().all(|term| {
            domains(term).is_empty() && term.surely_speaks_of(own, own, &pod.labels) && label(term).is_some()
        });
        is_first
            || terms
                .iter()
                .all(|term| label(term).is_some_and(|value| domains(term).contains(value)))
    }

    fn keeps_even(&self, pod: &PodFacts, node: &NodeFacts) -> bool {
        pod.requirements.spread.iter().all(|constraint| {
            let labels = self
                .nodes
                .iter()
                .filter_map(|capacity| capacity.node.labels.get(&constraint.topology_key));
            let mut counts: BTreeMap<&str, i64> = labels.map(|value| (value, 0)).collect();
            for (other, at) in self.others(pod) {
                let is_counted = other.key.namespace == pod.key.namespace
                    && other.deletion.is_none()
                    && constraint.counts(&pod.labels, &other.labels);
                let domain = at.labels.get(&constraint.topology_key).filter(|_| is_counted);
                if let Some(count) = domain.and_then(|value| counts.get_mut(value)) {
                    *count += 1;
                }
            }
            let least = counts.values().min().copied().unwrap_or_default();
            let itself = i64::from(constraint.counts(&pod.labels, &pod.labels));
            let here = node
                .labels
                .get(&constraint.topology_key)
                .and_then(|value| counts.get(value));
            here.is_some_and(|here| here + itself - least <= i64::from(constraint.max_skew))
        })
    }
}

/// The first pod that would have no place if the node were cordoned and its pods had to move, with every pod placed for each
/// question: of those that wait for a node, those that move and have a place, and the node's own.
fn without_room(
    view: &SchedulingView,
    bound: &Places,
    cordoned: &BTreeSet<usize>,
    moving: &[Arc<PodFacts>],
    (node, own): (usize, &[Arc<PodFacts>]),
) -> Option<PodKey> {
    let lost = |placement: &mut Plain<'_>, pods: &[Arc<PodFacts>]| {
        let found = pods
            .iter()
            .find(|pod| placement.place(pod, pod.node.as_ref()).is_none());
        found.map(|pod| pod.key.clone())
    };
    let mut now = Plain::new(&view.nodes, bound, &view.pending, cordoned.clone());
    assert_eq!(lost(&mut now, moving), None);
    let is_used = now.promises.iter().any(|(_, at)| *at == node);
    let has_no_room = lost(&mut now, own);
    if has_no_room.is_some() || !is_used {
        return has_no_room;
    }
    let mut without = cordoned.clone();
    without.insert(node);
    let mut then = Plain::new(&view.nodes, bound, &view.pending, without);
    let mut pending = view.pending.iter();
    let waits = pending.find(|pod| now.waiting.contains(&pod.key) && !then.waiting.contains(&pod.key));
    waits
        .map(|pod| pod.key.clone())
        .or_else(|| lost(&mut then, moving))
        .or_else(|| lost(&mut then, own))
}

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
const TEMPLATES: usize = 9;

/// What one of the templates asks beside room.
fn template(number: usize) -> Value {
    let term = |key: &str, app: &str| json!({ "topologyKey": key, "labelSelector": { "matchLabels": { "app": app } } });
    let terms = |kind: &str, term: Value| json!({ "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } });
    let spread = |key: &str| {
        json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "web" } },
    }] })
    };
    let mut far = term(HOST, "db");
    far["namespaces"] = json!(["shop", "bank"]);
    match number {
        0 => terms("podAntiAffinity", term(HOST, "web")),
        1 => terms("podAntiAffinity", term(ZONE, "db")),
        2 => terms("podAntiAffinity", far),
        3 => terms("podAffinity", term(ZONE, "web")),
        4 => spread(ZONE),
        5 => spread(HOST),
        _ => json!({}),
    }
}

/// One pod: template, app, namespace, CPU, its node, and whether it terminates.
type APod = (usize, bool, bool, i64, Option<usize>, bool);
/// One node: CPU, zone, and whether it is cordoned.
type ANode = (i64, usize, bool);

fn any_fleet() -> impl Strategy<Value = (Vec<ANode>, Vec<APod>)> {
    let a_node = (0..3000_i64, 0..3_usize, prop::bool::weighted(0.2));
    let a_pod = (
        0..TEMPLATES,
        any::<bool>(),
        prop::bool::weighted(0.3),
        0..1500_i64,
        prop::option::weighted(0.8, 0..7_usize),
        prop::bool::weighted(0.1),
    );
    (prop::collection::vec(a_node, 1..7), prop::collection::vec(a_pod, 0..16))
}

fn node(index: usize, (cpu, zone, cordoned): &ANode) -> NodeCapacity {
    let object = json!({
        "metadata": { "name": format!("n{index}"), "labels": { HOST: format!("n{index}"), ZONE: format!("z{zone}") } },
        "spec": { "unschedulable": cordoned },
        "status": {
            "allocatable": { "cpu": format!("{cpu}m"), "pods": "6" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    let node = NodeProjector::keeping(&[]).project(&serde_json::from_value(object).unwrap());
    NodeCapacity {
        node: Arc::new(node.unwrap()),
        usage: Arc::default(),
    }
}

fn fleet(nodes: &[ANode], pods: &[APod]) -> (SchedulingView, Places) {
    let mut projector = PodProjector::default();
    let mut view = SchedulingView {
        nodes: nodes
            .iter()
            .enumerate()
            .map(|(index, given)| node(index, given))
            .collect(),
        ..SchedulingView::default()
    };
    let mut bound = Places::new();
    for (index, (number, is_db, is_bank, cpu, on, terminates)) in pods.iter().enumerate() {
        let on = on.map(|on| on % nodes.len());
        let mut spec = template(*number);
        spec["nodeName"] = json!(on.map(|on| format!("n{on}")));
        // Few sizes, so that some pods are alike.
        let cpu = format!("{}m", cpu / 500 * 500);
        spec["containers"] = json!([{ "name": "c", "resources": { "requests": { "cpu": cpu } } }]);
        let deleted = (*terminates && on.is_some()).then_some("2026-01-01T00:00:00Z");
        let object = json!({
            "metadata": {
                "namespace": if *is_bank { "bank" } else { "shop" }, "name": format!("p{index:02}"), "uid": format!("p{index}"),
                "labels": { "app": if *is_db { "db" } else { "web" } }, "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": deleted,
            },
            "spec": spec,
            "status": { "phase": if on.is_some() { "Running" } else { "Pending" } },
        });
        let pod = Arc::new(projector.project(&serde_json::from_value(object).unwrap()).unwrap());
        match on {
            Some(on) => bound.push((pod, on)),
            None => view.pending.push(pod),
        }
    }
    view.neighbours = bound.iter().map(|(pod, _)| Arc::clone(pod)).collect();
    (view, bound)
}

fn is_placed_as_one_by_one(nodes: &[ANode], pods: &[APod]) -> Result<(), TestCaseError> {
    let (view, bound) = fleet(nodes, pods);
    let mut plain = Plain::new(&view.nodes, &bound, &view.pending, BTreeSet::new());
    let mut placement = Placement::new(&view);
    for pod in &view.pending {
        prop_assert_eq!(
            placement.finds_a_node(pod),
            plain.waiting.contains(&pod.key),
            "{} waits",
            pod.key
        );
    }
    for (pod, _) in &bound {
        let place = placement.place(pod, pod.node.as_ref());
        let others = view.nodes.len() - 1;
        if let Err(PlacementError::NoRoom(counts)) = &place {
            let told = counts.to_string();
            prop_assert!(
                told.starts_with(&format!("of {others} other nodes")),
                "{}: {}",
                pod.key,
                told
            );
        }
        prop_assert_eq!(place.ok(), plain.place(pod, pod.node.as_ref()), "{}", pod.key);
    }
    Ok(())
}

/// `p08` has its node short of CPU first, and of room for pods as well when it is asked about again.
#[test]
fn own_node_is_left_out_whatever_it_lacks() {
    let nodes = [(0, 0, false), (1500, 1, false)];
    let pods = [
        (4, false, true, 1000, None, false),
        (3, true, false, 0, None, false),
        (3, true, false, 0, None, false),
        (3, false, false, 0, Some(1), false),
        (0, false, false, 500, Some(1), false),
        (1, false, true, 0, Some(2), false),
        (3, true, false, 500, None, false),
        (1, false, true, 0, Some(2), false),
        (0, false, false, 500, Some(1), false),
    ];
    is_placed_as_one_by_one(&nodes, &pods).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn pods_are_placed_as_one_by_one((nodes, pods) in any_fleet()) {
        is_placed_as_one_by_one(&nodes, &pods)?;
    }

    #[test]
    fn cordons_ask_what_each_asks_by_itself((nodes, pods) in any_fleet()) {
        let (view, bound) = fleet(&nodes, &pods);
        let pods_of = |node: usize| -> Vec<_> {
            bound.iter().filter(|(_, on)| *on == node).map(|(pod, _)| Arc::clone(pod)).collect()
        };
        let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
        cordons.wait(view.pending.iter().cloned());
        // The first is cordoned whatever the room.
        cordons.cordon(&view.nodes[0].node.name, &pods_of(0));
        let mut cordoned = BTreeSet::from([0]);
        let mut now = Plain::new(&view.nodes, &bound, &view.pending, cordoned.clone());
        let mut moving = pods_of(0);
        moving.retain(|pod| now.place(pod, pod.node.as_ref()).is_some());
        for node in 1..view.nodes.len() {
            let (name, own) = (&view.nodes[node].node.name, pods_of(node));
            let found = cordons.cordon_if_room(name, &own).err().map(|pod| pod.key.clone());
            let expected = without_room(&view, &bound, &cordoned, &moving, (node, &own));
            prop_assert_eq!(&found, &expected, "cordon of {}", name);
            if found.is_none() {
                cordoned.insert(node);
                moving.extend(own);
            }
        }
    }
}

/// A node with room for all, behind so many that are to be cordoned, each with two pods, and with room for them.
fn replaced_for_cordons(draining: usize) -> usize {
    let nodes: Vec<ANode> = (0..=draining).map(|_| (1000, 0, false)).collect();
    let pods: Vec<APod> = (0..2 * draining)
        .map(|pod| (8, false, false, 500, Some(pod / 2), false))
        .collect();
    let (mut view, bound) = fleet(&nodes, &pods);
    let node = NodeFacts {
        allocatable: Resources {
            pods: 1000,
            cpu: 1_000_000,
            ..Resources::default()
        },
        ..NodeFacts::clone(&view.nodes[draining].node)
    };
    view.nodes[draining].node = Arc::new(node);
    let last: Vec<NodeName> = (0..draining)
        .rev()
        .map(|index| view.nodes[index].node.name.clone())
        .collect();
    let mut cordons = Cordons::new(&view, &BTreeSet::new(), &last);
    for pods in bound.chunks(2) {
        let own: Vec<_> = pods.iter().map(|(pod, _)| Arc::clone(pod)).collect();
        let name = own[0].node.clone().unwrap();
        cordons.cordon_if_room(&name, &own).unwrap();
    }
    cordons.replaced
}

#[test]
fn pods_are_placed_once_for_all_cordons() {
    for draining in [10, 20, 40] {
        assert_eq!(replaced_for_cordons(draining), 0, "{draining} cordons");
    }
}
