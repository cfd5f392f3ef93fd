//! The cluster: nodes, pods, budgets, and two leaders that may stop anywhere.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::budget_ref::BudgetRef;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::{
    BudgetFacts, BudgetPods, Claim, Disruptions, Facts, Fence, HeldPod, Ledger, Obstacle, Reservations, Unstored,
    Unusable,
};

use crate::memo::{self, Memo};
use crate::names::Names;
use crate::rules::Rule;

/// That some run ends: a check of runs in which nothing happens would find nothing.
pub const DONE: &str = "every drain is done";

pub const NOW: Timestamp = Timestamp::UNIX_EPOCH;

pub const NODES: usize = 3;
pub const BUDGETS: usize = 3;
/// The most pods that a cluster has.
pub const SLOTS: usize = 8;
/// In place of a budget: none has the pod.
pub const NO_BUDGET: usize = BUDGETS;

/// What may go wrong, or come from outside, a bounded number of times a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A leader forgets what it was about to do.
    Crash,
    /// A leader decides by budgets and pods as they were before anything happened.
    StaleRead,
    /// A request arrives twice, as after a lost reply.
    Duplicate,
    /// Something else evicts a pod on a node that does not drain.
    OtherEviction,
    /// A claim's time runs out.
    Overdue,
    /// A pod is bound to a node that drains already.
    LatePod,
    /// Whoever drains a node vanishes, and comes back.
    Vanish,
    /// A drain is called off.
    CallOff,
    /// A node is not Ready for a while, without a reboot.
    NotReady,
    /// A pod that has nothing to do with any drain becomes unready, for good.
    Breaks,
    /// A budget allows one disruption less from now on.
    Shrinks,
    /// Another drainer cordons a node whose last drain has ended, before its pods are back.
    DrainedAgain,
}

/// Where a pod runs, by which budget, and whether it stays there through a reboot.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    /// `None`: a node that is never drained.
    pub node: Option<usize>,
    pub pdb: usize,
    pub retained: bool,
    pub late: bool,
    /// Once it is evicted, another pod runs in its place where no drain ever is.
    pub movable: bool,
}

/// Nodes of which only so many may be away at once.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: &'static str,
    pub members: &'static [usize],
    pub max_unavailable: usize,
}

/// What is explored: a cluster, its faults, and the rule that is left out.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    pub slots: Vec<Slot>,
    /// `maxUnavailable` of each budget.
    pub budgets: [i32; BUDGETS],
    /// The budget that Ceph's operator keeps: once a pod of it is down, it leaves that pod's node out of it and closes it for
    /// all others, until all of its pods are up again.
    pub ceph: Option<usize>,
    pub foreign: [bool; NODES],
    /// How many of the nodes are drained, the first ones.
    pub drained: usize,
    /// Whether a reboot is shorter than the node monitor's grace: the node is Ready all the time, and its pods look as they
    /// did before until its kubelet reports.
    pub quick_reboots: bool,
    /// The nodes whose drainers ask for the movable pods last.
    pub held_first: [bool; NODES],
    /// Whether another drainer takes its node down once it has evicted what it evicts, as soon as it likes and without asking.
    pub requesters_reboot: bool,
    pub groups: Vec<Group>,
    /// The budget whose pods come back under other names, so that their number tells who is back.
    pub by_number: Option<usize>,
    pub faults: Vec<Fault>,
    pub fault_count: u8,
    /// Whether `disruptionsAllowed` follows the pods only after a while. An eviction lowers it at once in any case.
    pub status_lags: bool,
    /// How many leaders may stop between a decision and its act at the same time.
    pub paused_at_once: usize,
    pub missing: Option<Rule>,
    pub decisions: Arc<Memo<Option<Step>>>,
    pub admissions: Arc<Memo<Result<(), Obstacle>>>,
    pub waits: Arc<Memo<bool>>,
    pub names: Arc<Memo<Names>>,
}

fn runs(node: usize, pdb: usize) -> Slot {
    Slot {
        node: Some(node),
        pdb,
        retained: false,
        late: false,
        movable: false,
    }
}

fn moves(node: usize, pdb: usize) -> Slot {
    Slot {
        movable: true,
        ..runs(node, pdb)
    }
}

fn stays(node: usize, pdb: usize) -> Slot {
    Slot {
        retained: true,
        ..runs(node, pdb)
    }
}

fn comes_late(node: usize, pdb: usize) -> Slot {
    Slot {
        late: true,
        ..runs(node, pdb)
    }
}

/// A pod that no budget has.
fn unguarded(node: usize) -> Slot {
    runs(node, NO_BUDGET)
}

fn elsewhere(pdb: usize) -> Slot {
    Slot {
        node: None,
        ..runs(0, pdb)
    }
}

impl Plan {
    fn of(name: &'static str, slots: Vec<Slot>, faults: &[Fault]) -> Self {
        Self {
            name,
            slots,
            budgets: [1; BUDGETS],
            ceph: None,
            foreign: [false; NODES],
            drained: NODES,
            quick_reboots: false,
            held_first: [false; NODES],
            requesters_reboot: false,
            groups: Vec::new(),
            by_number: None,
            faults: faults.to_vec(),
            fault_count: 2,
            status_lags: false,
            paused_at_once: 1,
            missing: None,
            decisions: Arc::default(),
            admissions: Arc::default(),
            waits: Arc::default(),
            names: Arc::default(),
        }
    }

    /// Each node shares a budget with each other one.
    pub fn ring() -> Self {
        Self::of(
            "shared budgets",
            vec![runs(0, 0), runs(1, 0), runs(1, 1), runs(2, 1), runs(2, 2), runs(0, 2)],
            &[Fault::Crash, Fault::StaleRead, Fault::Duplicate, Fault::Overdue],
        )
    }

    /// Pods that stay on their nodes through the reboot, so that no eviction guards their budgets.
    pub fn retained() -> Self {
        Self::of(
            "pods that stay",
            vec![
                stays(0, 0),
                stays(1, 0),
                elsewhere(0),
                runs(1, 1),
                stays(2, 1),
                stays(2, 2),
                runs(0, 2),
            ],
            &[
                Fault::StaleRead,
                Fault::OtherEviction,
                Fault::Overdue,
                Fault::Vanish,
                Fault::Crash,
            ],
        )
        .with_faults(1)
    }

    /// Pods that stay, and budgets whose status says only after a while that they are down.
    pub fn lagging() -> Self {
        let mut plan = Self::of(
            "a status that lags",
            vec![
                stays(0, 0),
                stays(1, 0),
                elsewhere(0),
                stays(1, 1),
                runs(2, 1),
                stays(2, 2),
            ],
            &[Fault::OtherEviction],
        )
        .with_faults(1);
        plan.status_lags = true;
        plan
    }

    /// The oldest claim needs two budgets, each needed by a younger one.
    pub fn reserved() -> Self {
        Self::of(
            "one needs what two others need",
            vec![runs(0, 0), runs(1, 0), runs(1, 1), runs(2, 1), runs(1, 2)],
            &[],
        )
    }

    /// Two nodes that somebody else cordoned get a pod of each other's budget while their own is down; a third node needs
    /// nothing of what is down.
    pub fn foreign_circle() -> Self {
        let mut plan = Self::own_circle();
        plan.name = "late pods under a foreign cordon";
        plan.foreign = [true, true, false];
        plan
    }

    /// The same under our own cordon.
    pub fn own_circle() -> Self {
        Self::of(
            "late pods under our cordon",
            vec![
                runs(0, 0),
                runs(1, 1),
                comes_late(0, 1),
                comes_late(1, 0),
                comes_late(0, 2),
                runs(2, 2),
            ],
            &[Fault::LatePod],
        )
    }

    /// A node that somebody else cordoned holds a budget that an older claim needs, and needs another one that the older
    /// claim needs as well.
    pub fn goes_ahead() -> Self {
        let mut plan = Self::of(
            "one that holds and waits",
            vec![
                runs(0, 0),
                runs(0, 1),
                runs(1, 0),
                comes_late(1, 1),
                runs(2, 2),
                elsewhere(1),
            ],
            &[Fault::LatePod, Fault::OtherEviction],
        );
        plan.foreign = [false, true, false];
        plan
    }

    /// Two hosts of two OSDs each, one of them drained by another, beside a budget that they share with a third node.
    pub fn osds() -> Self {
        let mut plan = Self::of(
            "OSDs of two hosts",
            vec![
                runs(0, 0),
                runs(0, 0),
                runs(1, 0),
                runs(1, 0),
                runs(0, 1),
                runs(1, 1),
                runs(2, 1),
            ],
            &[Fault::Crash, Fault::StaleRead, Fault::Overdue, Fault::Duplicate],
        )
        .with_faults(1);
        plan.ceph = Some(0);
        plan.foreign = [false, true, false];
        plan
    }

    /// Two nodes and two budgets.
    fn pair(name: &'static str, slots: Vec<Slot>, faults: &[Fault]) -> Self {
        let mut plan = Self::of(name, slots, faults).with_faults(1);
        plan.drained = 2;
        plan
    }

    /// Nodes that may go down at any moment, though nobody wants their drains any more.
    pub fn called_off() -> Self {
        Self::pair(
            "a drain called off",
            vec![stays(0, 0), stays(1, 0), elsewhere(0), runs(0, 1), stays(1, 1)],
            &[Fault::CallOff, Fault::Overdue],
        )
    }

    /// Nodes that are not Ready for a while, and come back without a reboot.
    pub fn not_ready() -> Self {
        Self::pair(
            "a node not Ready",
            vec![stays(0, 0), stays(1, 0), runs(0, 1), runs(1, 1)],
            &[Fault::NotReady, Fault::Overdue],
        )
        .with_faults(2)
    }

    /// Reboots that no Ready condition shows.
    pub fn quick_reboots() -> Self {
        let mut plan = Self::pair(
            "a reboot that no Ready transition shows",
            vec![stays(0, 0), stays(1, 0), elsewhere(0), runs(0, 1), stays(1, 1)],
            &[Fault::StaleRead, Fault::Overdue, Fault::Vanish, Fault::CallOff],
        );
        plan.quick_reboots = true;
        plan
    }

    /// Drainers that take their nodes down as soon as they have evicted what they evict, and of which one falls silent.
    pub fn silence() -> Self {
        let mut plan = Self::pair(
            "a silent drainer",
            vec![stays(0, 0), runs(0, 1), stays(1, 0), runs(1, 1)],
            &[Fault::Vanish, Fault::Overdue],
        );
        plan.foreign = [true, true, false];
        plan.requesters_reboot = true;
        plan
    }

    /// Another drainer evicts a pod that no budget has, and not the one that stays.
    pub fn selector() -> Self {
        let mut plan = Self::pair(
            "a drain with a selector",
            vec![stays(0, 0), unguarded(0), stays(1, 0), runs(1, 1), elsewhere(1)],
            &[Fault::Vanish, Fault::Overdue, Fault::StaleRead],
        );
        plan.foreign = [true, false, false];
        plan.requesters_reboot = true;
        plan
    }

    /// A pod of a budget that both nodes need fails, and stays so.
    pub fn unrelated() -> Self {
        let mut plan = Self::pair(
            "an unrelated unhealthy pod",
            vec![
                runs(0, 0),
                runs(1, 0),
                elsewhere(0),
                elsewhere(0),
                runs(0, 1),
                runs(1, 1),
            ],
            &[Fault::Breaks],
        );
        plan.budgets[0] = 2;
        plan.by_number = Some(0);
        plan
    }

    /// All nodes are a group of which one may be away.
    pub fn one_at_a_time() -> Self {
        let mut plan = Self::pair(
            "one node at a time",
            vec![runs(0, 0), runs(1, 0), runs(0, 1), stays(1, 1)],
            &[Fault::Overdue, Fault::Vanish, Fault::Crash],
        );
        plan.groups = vec![Group {
            name: "all",
            members: &[0, 1],
            max_unavailable: 1,
        }];
        plan
    }

    /// Two nodes of the control plane, one of which another drainer empties, in a group of all nodes as well.
    pub fn control_plane() -> Self {
        let mut plan = Self::pair(
            "the control plane",
            vec![runs(0, 0), runs(1, 0), stays(1, 1), runs(0, 1)],
            &[Fault::Overdue, Fault::Vanish],
        );
        plan.foreign = [true, false, false];
        plan.requesters_reboot = true;
        plan.groups = vec![
            Group {
                name: "all",
                members: &[0, 1, 2],
                max_unavailable: 2,
            },
            Group {
                name: "control-plane",
                members: &[0, 1],
                max_unavailable: 1,
            },
        ];
        plan
    }

    /// Two nodes with a held and a movable pod each, by budgets over both kinds: each one's movable pod shares the budget of the
    /// other one's held pod. Of one budget there are two movable pods on a node.
    pub fn movable() -> Self {
        Self::pair(
            "movable pods",
            vec![runs(0, 0), moves(1, 0), moves(1, 0), runs(1, 1), moves(0, 1)],
            &[Fault::StaleRead, Fault::Overdue, Fault::Crash],
        )
    }

    /// The same of two drainers that ask for the held pods first.
    pub fn held_first() -> Self {
        let mut plan = Self::movable();
        plan.name = "held pods first";
        plan.foreign = [true, true, false];
        plan.held_first = [true, true, false];
        plan
    }

    /// A movable pod and one that stays down come late to a node, the one by a budget that the other node needs as well.
    pub fn need_grows() -> Self {
        let mut plan = Self::pair(
            "a need that grows",
            vec![
                runs(0, 0),
                moves(1, 0),
                runs(1, 1),
                Slot {
                    late: true,
                    ..moves(0, 1)
                },
                comes_late(0, 2),
            ],
            &[Fault::LatePod],
        );
        plan.foreign = [false, true, false];
        plan.with_faults(2)
    }

    /// A budget over pods of both kinds allows one disruption less than was granted.
    pub fn budget_shrinks() -> Self {
        let mut plan = Self::pair(
            "a budget that shrinks",
            vec![
                runs(0, 0),
                moves(1, 0),
                elsewhere(0),
                runs(1, 1),
                moves(0, 1),
                elsewhere(1),
            ],
            &[Fault::Shrinks, Fault::StaleRead],
        );
        plan.budgets = [2, 2, 1];
        plan.foreign = [false, true, false];
        plan
    }

    /// A node that another drainer drains again before its pods are back.
    pub fn drained_again() -> Self {
        Self::pair(
            "a node drained again",
            vec![runs(0, 0), runs(0, 1), runs(1, 0), moves(1, 1)],
            &[Fault::CallOff, Fault::DrainedAgain],
        )
        .with_faults(2)
    }

    pub fn with_faults(mut self, count: u8) -> Self {
        self.fault_count = count;
        self
    }

    /// No leader stops between a decision and its act.
    pub fn without_pauses(mut self) -> Self {
        self.paused_at_once = 0;
        self
    }

    /// One fault more, and any leader may forget what it was about to do.
    pub fn larger(mut self) -> Self {
        self.fault_count += 1;
        if !self.faults.contains(&Fault::Crash) {
            self.faults.push(Fault::Crash);
        }
        self
    }

    pub fn without(mut self, rule: Rule) -> Self {
        self.missing = Some(rule);
        self
    }

    pub fn keeps(&self, rule: Rule) -> bool {
        self.missing != Some(rule)
    }

    /// The groups that a node is in.
    pub fn groups_of(&self, node: usize) -> Vec<String> {
        let groups = self.groups.iter().filter(|group| group.members.contains(&node));
        groups.map(|group| group.name.to_owned()).collect()
    }

    pub fn slots_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(move |slot| self.slots[*slot].node == Some(node))
    }

    /// The movable pods that a node has or had.
    pub fn movable_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.slots_of(node).filter(|slot| self.slots[*slot].movable)
    }

    pub fn slots_of_budget(&self, pdb: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(move |slot| self.slots[*slot].pdb == pdb)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cordon {
    None,
    Ours,
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is true or not, whatever the others are"
)]
pub struct Node {
    pub cordon: Cordon,
    pub down: bool,
    pub boots: u8,
    /// Whether the node may reboot at any moment.
    pub told: bool,
    /// Whether its drain is still asked for.
    pub wanted: bool,
    /// Whether the time of its present grant has run out.
    pub overdue: bool,
    pub vanished: bool,
    /// It has booted anew, and what is seen of its pods is from before.
    pub unreported: bool,
    /// It is down without a reboot, and comes back as it was.
    pub not_ready: bool,
    /// Another drainer has taken it down.
    pub rebooted: bool,
    /// It is drained for the second time.
    pub again: bool,
}

impl Node {
    /// What a write to it rests on: the Node, and whether its NodeDrain is still there.
    pub fn as_stored(self) -> (Cordon, bool, u8, bool, bool) {
        (self.cordon, self.down, self.boots, self.told, self.wanted)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pod {
    Absent,
    Up(u8),
    Down(u8),
    /// One runs in its place, on a node that no drain empties.
    Moved,
}

/// What a leader has decided and not done yet. What it writes to a node rests on the node as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    Write {
        read: Text,
        write: Text,
        /// What is wrong about it, by what was read.
        breach: Option<&'static str>,
    },
    Evict {
        slot: usize,
        generation: u8,
        fence: Fence,
    },
    Cordon {
        node: usize,
    },
    Uncordon {
        node: usize,
        done: bool,
    },
    Tell {
        node: usize,
    },
}

/// A ledger as it is stored, with its hash: most of what is asked of two of them is whether they are the same.
#[derive(Clone)]
pub struct Text {
    ledger: Arc<Ledger>,
    hash: u64,
}

impl From<Ledger> for Text {
    fn from(mut ledger: Ledger) -> Self {
        // The pods of a need are not stored.
        for need in ledger.claims.iter_mut().flat_map(|claim| &mut claim.needs) {
            need.pods = Unstored::default();
            need.movable = Unstored::default();
        }
        // Nor what is kept of budgets that no claim names.
        let named: BTreeSet<BudgetKey> = ledger.claims.iter().flat_map(Claim::budgets).collect();
        ledger.budgets.retain(|pdb, _| named.contains(&BudgetKey::from(pdb)));
        Self {
            hash: memo::hash(&ledger),
            ledger: Arc::new(ledger),
        }
    }
}

impl Deref for Text {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for claim in self.claims() {
            write!(
                f,
                "[{} {} {:?} {}",
                claim.ticket, claim.node, claim.state, claim.may_go_down
            )?;
            let needs: Vec<(&str, i32)> = claim
                .needs
                .iter()
                .map(|u| (u.pdb.name.as_str(), u.disruptions))
                .collect();
            let pods = claim.holds.iter().flat_map(|u| &u.pods);
            let holds: Vec<&str> = pods.map(|pod| pod.uid.as_str()).collect();
            let movable = claim.holds.iter().filter(|held| held.movable);
            let movable: Vec<&str> = movable.map(|held| held.pdb.name.as_str()).collect();
            write!(f, " needs {needs:?} holds {holds:?} movable {movable:?}")?;
            f.write_str("]")?;
        }
        Ok(())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.hash.hash(hasher);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub ledger: Text,
    pub nodes: [Node; NODES],
    pub pods: [Pod; SLOTS],
    /// The node that Ceph's operator has left out of its budget.
    pub exempt: Option<usize>,
    /// `maxUnavailable` of each budget by now.
    pub caps: [i32; BUDGETS],
    /// `disruptionsAllowed` of each budget, which may lag.
    pub allowed: [i32; BUDGETS],
    /// What leaders that stopped have decided and not done.
    pub paused: [Option<Step>; 2],
    pub faults: u8,
    pub breach: Option<&'static str>,
}

pub fn node_uid(node: usize) -> String {
    format!("node-{node}")
}

pub fn parse_node(uid: &str) -> usize {
    uid.trim_start_matches("node-").parse().unwrap()
}

pub fn pod_uid(slot: usize, generation: u8) -> String {
    format!("{slot}.{generation}")
}

pub fn parse_pod(uid: &str) -> (usize, u8) {
    let (slot, generation) = uid.split_once('.').unwrap();
    (slot.parse().unwrap(), generation.parse().unwrap())
}

pub fn budget_key(pdb: usize) -> BudgetKey {
    BudgetKey::new("shop", format!("pdb-{pdb}"))
}

pub fn budget_ref(pdb: usize) -> BudgetRef {
    let key = budget_key(pdb);
    BudgetRef {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: key.name.to_string(),
    }
}

pub fn parse_budget(name: &str) -> usize {
    name.trim_start_matches("pdb-").parse().unwrap()
}

impl State {
    pub fn first(plan: &Plan) -> Self {
        let node = |number: usize| Node {
            cordon: match plan.foreign[number] {
                // A place in its groups comes before the cordon.
                false if number >= plan.drained || !plan.groups_of(number).is_empty() => Cordon::None,
                false => Cordon::Ours,
                true => Cordon::Foreign,
            },
            down: false,
            boots: 0,
            told: false,
            wanted: number < plan.drained,
            overdue: false,
            vanished: false,
            unreported: false,
            not_ready: false,
            rebooted: false,
            again: false,
        };
        Self {
            ledger: Text::from(Ledger::default()),
            nodes: std::array::from_fn(node),
            pods: std::array::from_fn(|number| match plan.slots.get(number) {
                Some(slot) if !slot.late => Pod::Up(0),
                _ => Pod::Absent,
            }),
            exempt: None,
            caps: plan.budgets,
            allowed: plan.budgets,
            paused: [None, None],
            faults: plan.fault_count,
            breach: None,
        }
    }

    pub fn is_up(&self, slot: usize) -> bool {
        matches!(self.pods[slot], Pod::Up(_))
    }

    /// Whether no budget has the pod now.
    pub fn is_exempt(&self, plan: &Plan, slot: usize) -> bool {
        let Slot { node, pdb, .. } = plan.slots[slot];
        pdb == NO_BUDGET || plan.ceph == Some(pdb) && node.is_some() && node == self.exempt
    }

    /// Whether a pod looks as if it ran: until its kubelet reports, one that went down with its node does.
    pub fn looks_up(&self, plan: &Plan, slot: usize) -> bool {
        let node = plan.slots[slot].node.map(|node| &self.nodes[node]);
        let is_unreported = plan.slots[slot].retained && node.is_some_and(|node| node.unreported);
        self.is_up(slot) || self.pods[slot] == Pod::Moved || is_unreported && matches!(self.pods[slot], Pod::Down(_))
    }

    /// Whether a pod stays on the node whose disruption its drain needs.
    pub fn retains(&self, plan: &Plan, node: usize) -> bool {
        plan.slots_of(node)
            .any(|slot| plan.slots[slot].retained && self.is_up(slot))
    }

    /// Whether pods of the node have yet to be evicted.
    pub fn has_to_leave(&self, plan: &Plan, node: usize) -> bool {
        plan.slots_of(node)
            .any(|slot| !plan.slots[slot].retained && self.is_up(slot))
    }

    pub fn is_closed(&self, plan: &Plan, pdb: usize) -> bool {
        plan.ceph == Some(pdb) && self.exempt.is_some()
    }

    fn count(&self, plan: &Plan, pdb: usize, counts: impl Fn(Pod) -> bool) -> i32 {
        let slots = plan.slots_of_budget(pdb).filter(|slot| !self.is_exempt(plan, *slot));
        i32::try_from(slots.filter(|slot| counts(self.pods[*slot])).count()).unwrap()
    }

    pub fn up_in(&self, plan: &Plan, pdb: usize) -> i32 {
        self.count(plan, pdb, |pod| matches!(pod, Pod::Up(_) | Pod::Moved))
    }

    pub fn down_in(&self, plan: &Plan, pdb: usize) -> i32 {
        self.count(plan, pdb, |pod| matches!(pod, Pod::Down(_)))
    }

    /// Whether a pod is unready that no drain has anything to do with.
    pub fn is_broken(&self, plan: &Plan, slot: usize) -> bool {
        plan.by_number == Some(plan.slots[slot].pdb)
            && plan.slots[slot].node.is_none()
            && matches!(self.pods[slot], Pod::Down(_))
    }

    /// The generation of the next pod of a slot: where numbers tell who is back, a later one than any that there was.
    pub fn next_generation(&self, plan: &Plan, generation: u8) -> u8 {
        let created = self.pods.iter().map(|pod| match pod {
            Pod::Up(generation) | Pod::Down(generation) => *generation,
            Pod::Absent | Pod::Moved => 0,
        });
        let last = created.filter(|_| plan.by_number.is_some()).max();
        last.unwrap_or_default().max(generation) + 1
    }

    /// What a budget's pods are by number.
    fn budget_pods(&self, plan: &Plan, pdb: usize) -> BudgetPods {
        if plan.by_number != Some(pdb) {
            return BudgetPods::default();
        }
        let count = |slots: &[usize]| i32::try_from(slots.len()).unwrap();
        let created = |slot: usize| match self.pods[slot] {
            Pod::Up(generation) | Pod::Down(generation) => NOW + SignedDuration::from_secs(generation.into()),
            Pod::Absent | Pod::Moved => NOW,
        };
        let slots: Vec<usize> = plan.slots_of_budget(pdb).collect();
        let is_there = |slot: &usize| self.is_up(*slot) || self.is_broken(plan, *slot);
        let there: Vec<usize> = slots.iter().copied().filter(is_there).collect();
        let row = self.ledger.budget_row(&budget_ref(pdb));
        let first = row.and_then(|row| row.first_grant).map(|first| first.newest_pod);
        let stands = |slot: &usize| self.is_up(*slot) || first.is_some_and(|first| created(*slot) <= first);
        let standing: Vec<usize> = there.iter().copied().filter(stands).collect();
        BudgetPods {
            all: count(&there),
            expected: count(&slots),
            standing: count(&standing),
            newest: there.iter().map(|slot| created(*slot)).max(),
        }
    }

    /// How many disruptions these pods of a budget are: those of one node are one of Ceph's.
    pub fn disruptions(&self, plan: &Plan, pdb: usize, counts: impl Fn(usize, Pod) -> bool) -> i32 {
        let slots = plan.slots_of_budget(pdb).filter(|slot| counts(*slot, self.pods[*slot]));
        let number = if plan.ceph == Some(pdb) {
            slots.map(|slot| plan.slots[slot].node).collect::<BTreeSet<_>>().len()
        } else {
            slots.count()
        };
        i32::try_from(number).unwrap()
    }

    pub fn expected(&self, plan: &Plan, pdb: usize) -> i32 {
        self.up_in(plan, pdb) + self.down_in(plan, pdb)
    }

    pub fn desired(&self, plan: &Plan, pdb: usize) -> i32 {
        let most = if self.is_closed(plan, pdb) { 0 } else { self.caps[pdb] };
        (self.expected(plan, pdb) - most).max(0)
    }

    /// What the disruption controller would write, by what it sees.
    pub fn allowed_by_pods(&self, plan: &Plan, pdb: usize) -> i32 {
        let slots = plan.slots_of_budget(pdb).filter(|slot| !self.is_exempt(plan, *slot));
        let up = slots.filter(|slot| self.looks_up(plan, *slot)).count();
        (i32::try_from(up).unwrap() - self.desired(plan, pdb)).max(0)
    }

    /// What is read of the budgets; a stale read shows every pod up and every budget unused.
    pub fn facts(&self, plan: &Plan, stale: bool) -> Facts {
        if stale && self.exempt.is_some() {
            let before = Self {
                exempt: None,
                ..self.clone()
            };
            return before.facts(plan, stale);
        }
        let facts = |pdb: usize| {
            let mut healthy = BTreeSet::new();
            for slot in plan.slots_of_budget(pdb).filter(|slot| !self.is_exempt(plan, *slot)) {
                match self.pods[slot] {
                    Pod::Up(generation) => healthy.insert(PodUid::from(pod_uid(slot, generation))),
                    Pod::Down(generation) if stale || self.looks_up(plan, slot) => {
                        healthy.insert(PodUid::from(pod_uid(slot, generation)))
                    }
                    Pod::Moved => healthy.insert(PodUid::from(pod_uid(slot, u8::MAX))),
                    Pod::Absent | Pod::Down(_) => false,
                };
            }
            let desired = self.desired(plan, pdb);
            let key = budget_key(pdb);
            let budget = BudgetFacts {
                uid: key.name.clone(),
                key: key.clone(),
                current: true,
                disruptions_allowed: if stale { self.caps[pdb] } else { self.allowed[pdb] },
                // Without the rule only the status counts.
                desired_healthy: if plan.keeps(Rule::CountHealthyPods) { desired } else { 0 },
                expected_pods: if plan.keeps(Rule::CountHealthyPods) {
                    self.expected(plan, pdb)
                } else {
                    self.caps[pdb]
                },
                unusable: self.is_closed(plan, pdb).then_some(Unusable::ClosedForNow),
                is_by_node: plan.ceph == Some(pdb) && plan.keeps(Rule::OneDisruptionANode),
                healthy,
                several: BTreeSet::new(),
                owner_disruptions: None,
                pods: self.budget_pods(plan, pdb),
            };
            (key, budget)
        };
        (0..BUDGETS).map(facts).collect()
    }

    /// What the node's drain needs: of each budget one disruption for each pod that stays down and one for its movable pods. With
    /// it, whether movable pods have to leave before it is asked for: the budget has none for them beside the others.
    pub fn needs(&self, plan: &Plan, node: usize) -> (Vec<Disruptions>, bool) {
        let mut needs = self.needs_of_held(plan, node);
        let mut movable_first = false;
        let here = plan.movable_of(node).filter(|slot| self.is_up(*slot));
        let budgets: BTreeSet<usize> = here.map(|slot| plan.slots[slot].pdb).collect();
        for pdb in budgets.into_iter().filter(|_| plan.keeps(Rule::MovablePodsFirst)) {
            let (own, mut needs_of_others) = needs.into_iter().partition(|needed| needed.pdb == budget_ref(pdb));
            let (pods, movable) = self.beside_movable(node, pdb, own);
            movable_first |= !movable;
            needs_of_others.push(Disruptions {
                pdb: budget_ref(pdb),
                healthy_at_grant: 0,
                movable,
                pods,
            });
            needs = needs_of_others;
        }
        (needs, movable_first)
    }

    /// The pods of a budget that go with its movable ones, or before them, and whether that leaves a disruption for these.
    fn beside_movable(&self, node: usize, pdb: usize, own: Vec<Disruptions>) -> (Vec<HeldPod>, bool) {
        let claim = self.ledger.claim(&node_uid(node));
        let has = |pod: &HeldPod| claim.is_some_and(|claim| claim.has_disruption(&pod.uid));
        let mut pods: Vec<HeldPod> = own.into_iter().flat_map(|needed| needed.pods).collect();
        if claim.is_some_and(|claim| claim.state.has_grant() && claim.has_movable_disruption(&budget_key(pdb))) {
            pods.retain(has);
            return (pods, true);
        }
        let is_here = |held: &HeldPod| pods.iter().any(|pod| pod.uid == held.uid);
        let held = claim
            .iter()
            .flat_map(|claim| &claim.holds)
            .filter(|held| held.pdb == budget_ref(pdb));
        let down = held.flat_map(|held| &held.pods).filter(|pod| !is_here(pod)).count();
        let cap = usize::try_from(self.caps[pdb]).unwrap();
        if pods.len() + down > cap {
            return (pods, true);
        }
        while pods.len() + down >= cap {
            let Some(last) = pods.iter().rposition(|pod| !pod.retained && !has(pod)) else {
                break;
            };
            pods.remove(last);
        }
        let leaves_one = pods.len() + down < cap || pods.is_empty();
        (pods, leaves_one)
    }

    /// The disruptions that the node's running pods need, and those that are down for a while.
    fn needs_of_held(&self, plan: &Plan, node: usize) -> Vec<Disruptions> {
        let is_unready = |slot: usize| plan.slots[slot].retained && self.nodes[node].not_ready;
        let there = |slot: usize| match self.pods[slot] {
            Pod::Down(generation) if is_unready(slot) => Pod::Up(generation),
            pod => pod,
        };
        let disruption = |slot: usize| match there(slot) {
            Pod::Up(generation) => Some(Disruptions {
                pdb: budget_ref(plan.slots[slot].pdb),
                healthy_at_grant: 0,
                movable: false,
                pods: vec![HeldPod {
                    name: format!("pod-{slot}"),
                    uid: pod_uid(slot, generation),
                    retained: plan.slots[slot].retained,
                    ..HeldPod::default()
                }],
            }),
            Pod::Absent | Pod::Down(_) | Pod::Moved => None,
        };
        // A pod that no budget has needs nothing, and what is held for it is not given back.
        let counts = |slot: &usize| {
            let held = |uid: String| self.ledger.is_held(&uid);
            !self.is_exempt(plan, *slot) || matches!(self.pods[*slot], Pod::Up(it) if held(pod_uid(*slot, it)))
        };
        let stays_down = plan.slots_of(node).filter(|slot| !plan.slots[*slot].movable);
        stays_down.filter(counts).filter_map(disruption).collect()
    }

    /// What the webhook says to a pod of a budget that no claim has a disruption for: a movable one of this node, or one of a node
    /// that nobody drains.
    pub fn admission(&self, plan: &Plan, node: Option<usize>, pdb: usize) -> Result<(), Obstacle> {
        let question = (node, pdb, &self.ledger, self.pods, self.allowed, self.exempt, self.caps);
        plan.admissions.get_or(question, || {
            let facts = self.facts(plan, false);
            let reservations = Reservations::of_all(&self.ledger, &facts);
            let node = node.map(node_uid);
            self.ledger
                .admits(node.as_deref(), &facts[&budget_key(pdb)], &reservations)
        })
    }

    /// Every drain is done, every pod runs but one that is not to, and nobody holds or asks for anything.
    pub fn is_done(&self, plan: &Plan) -> bool {
        self.nodes
            .iter()
            .all(|node| !node.wanted && node.cordon == Cordon::None && !node.down)
            && (0..SLOTS).all(|slot| !matches!(self.pods[slot], Pod::Down(_)) || self.is_broken(plan, slot))
            && self.ledger.claims().is_empty()
    }
}
