//! A cluster of three racks with two hosts each, an OSD a host, and an API server and a Ceph that take a plan's writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::LeaderLease;
use nodeward_api::reason::CephCondition;
use serde_json::json;

use super::super::budget_steps::{OsdBudgets, selected_by};
use super::super::daemon_budgets::{Daemons, Limit};
use super::super::{ClusterVerdict, Plan, Write, WriteKey, plan};
use crate::budgets::OSD_BUDGET;
use crate::ceph::OsdId;
use crate::ceph::answers::{OsdDump, PgCount};
use crate::ceph::freshness::Doubt;
use crate::ceph::pg_health::CleanPattern;
use crate::ceph::stop_check::{StopAnswer, Testimony};
use crate::ceph::topology::DomainType;
use crate::policy::Policy;
use crate::snapshot::{
    BudgetFacts, BudgetForm, CephClusterFacts, CephMap, CephProblem, CephProblemKind, CephState, CephView,
    ClusterSnapshot, DomainKey, NodeState, OsdObjects, OsdPod, Published, Snapshot, StateMap,
};

pub const RACKS: [&str; 3] = ["a", "b", "c"];

pub fn rack() -> DomainType {
    "rack".parse().unwrap()
}

#[derive(Clone)]
pub struct World {
    pub now: Timestamp,
    pub policy: Policy,
    pub cluster: CephClusterFacts,
    pub osds: BTreeMap<OsdId, OsdObjects>,
    pub osds_changed_at: Timestamp,
    pub budgets: BTreeMap<Arc<str>, BudgetFacts>,
    pub daemons: Daemons,
    pub refused_writes: BTreeMap<WriteKey, Arc<str>>,
    pub state_map: StateMap,
    pub published: Option<Published>,
    pub view: CephView,
    /// In place of a Ceph that answers with `view`.
    pub ceph: Option<CephState>,
    version: u64,
}

impl World {
    /// All is well, and no budget is there yet.
    pub fn new() -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let osds = (0..6).map(|id| {
            let osd = OsdObjects {
                pod: OsdPod::Running,
                node: Some(format!("node-{id}").as_str().into()),
                last_node: Some(format!("node-{id}").as_str().into()),
                node_state: NodeState::Schedulable,
                abandoned_at: None,
                is_unready: false,
                locations: [(rack(), RACKS[usize::try_from(id / 2).unwrap()].into())].into(),
                is_being_replaced: false,
            };
            (id, osd)
        });
        let mut world = Self {
            now,
            policy: Policy::default(),
            cluster: CephClusterFacts {
                namespace: "ns".into(),
                name: "rook".into(),
                uid: "u1".into(),
                is_deleting: false,
                is_external: false,
                is_managed_by_rook: false,
                osd_maintenance_timeout: None,
                pg_health_check_timeout: None,
                clean_pattern: CleanPattern::default(),
                unreadable: Vec::new(),
            },
            osds: osds.collect(),
            osds_changed_at: now,
            budgets: BTreeMap::new(),
            daemons: Daemons::default(),
            refused_writes: BTreeMap::new(),
            state_map: StateMap::default(),
            published: None,
            view: view(now),
            ceph: None,
            version: 1,
        };
        world.may_stop_all(true);
        world
    }

    /// All is well, and everything is written.
    pub fn settled() -> Self {
        let mut world = Self::new();
        world.run();
        world
    }

    /// The map of the OSDs, to be changed.
    pub fn dump(&mut self) -> &mut OsdDump {
        &mut Arc::make_mut(&mut self.view.map).dump
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            clusters: [("ns".into(), Arc::new(self.cluster_snapshot()))].into(),
            ..Snapshot::default()
        }
    }

    pub fn cluster_snapshot(&self) -> ClusterSnapshot {
        let answering = || CephState::Answering(Arc::new(self.view.clone()));
        ClusterSnapshot {
            cluster: self.cluster.clone(),
            osds: self.osds.clone(),
            osds_changed_at: self.osds_changed_at,
            budgets: self.budgets.clone(),
            daemons: self.daemons.clone(),
            refused_writes: self.refused_writes.clone(),
            state_map: self.state_map.clone(),
            published: self.published.clone(),
            leader_lease: Some(LeaderLease {
                namespace: "system".to_owned(),
                name: "ceph-pdb".to_owned(),
            }),
            target: None,
            ceph: self.ceph.clone().unwrap_or_else(answering),
        }
    }

    pub fn plan(&self) -> Plan {
        plan(&self.snapshot(), &self.policy, self.now)
    }

    pub fn verdict(&self) -> ClusterVerdict {
        self.plan().verdicts["ns"].clone()
    }

    /// Plans and writes until nothing is left to write.
    pub fn run(&mut self) {
        for _ in 0..100 {
            let actions = self.plan().actions;
            if actions.is_empty() {
                return;
            }
            for planned in &actions {
                self.apply(&planned.write);
            }
            // Ceph lists flags anew a moment later.
            if self.ceph.is_none() && self.osds_changed_at <= self.view.asked_at {
                self.view.asked_at = self.now;
            }
        }
        panic!("no end: {:?}", self.plan().actions);
    }

    pub fn apply(&mut self, write: &Write) {
        self.version += 1;
        let version: Arc<str> = self.version.to_string().into();
        match write {
            Write::WriteBudget {
                name,
                resource_version,
                form,
            } => {
                let before = self.budgets.insert(Arc::clone(name), ours(form, &version));
                assert_eq!(
                    before.map(|before| before.resource_version),
                    *resource_version,
                    "{name}"
                );
            }
            Write::DeleteBudget {
                name,
                resource_version,
                rests_on,
                ..
            } => {
                assert_eq!(self.budgets[name].resource_version, *resource_version, "{name}");
                assert!(
                    rests_on.iter().all(|other| self.budgets.contains_key(other)),
                    "{rests_on:?}"
                );
                self.budgets.remove(name);
            }
            Write::ReleaseBudget { name, .. } => {
                let budget = self.budgets.get_mut(name).unwrap();
                (budget.is_ours, budget.is_exact, budget.resource_version) = (false, false, version);
            }
            Write::WriteStateMap {
                resource_version,
                takes_over,
                noout,
            } => {
                assert_eq!(self.state_map.resource_version, *resource_version);
                self.state_map.resource_version = Some(version);
                self.state_map.noout.clone_from(noout);
                if *takes_over {
                    self.state_map.rook = crate::snapshot::RookState::default();
                }
            }
            Write::SetNoout {
                buckets,
                on,
                state_map_version,
                noout,
            } => {
                assert_eq!(self.state_map.resource_version.as_ref(), Some(state_map_version));
                assert_eq!(self.state_map.noout, *noout);
                for bucket in buckets {
                    assert!(noout.contains_key(bucket), "no record of {bucket}");
                    if *on {
                        self.flag(bucket);
                    } else {
                        self.dump().crush_node_flags.remove(&**bucket);
                    }
                }
            }
            Write::Publish {
                resource_version,
                state,
                ..
            } => {
                let before = self
                    .published
                    .as_ref()
                    .map(|published| published.resource_version.clone());
                assert_eq!(before, *resource_version);
                self.published = Some(Published {
                    resource_version: version,
                    state: Some((**state).clone()),
                });
            }
        }
    }

    pub fn state(&self) -> CephClusterState {
        self.published.as_ref().unwrap().state.clone().unwrap()
    }

    pub fn condition(&self, kind: CephCondition) -> Option<String> {
        let conditions = self.state().conditions;
        let found = conditions.into_iter().find(|condition| condition.kind == kind);
        found.map(|condition| condition.message)
    }

    /// `rook-ceph-osd`: its limit, and the racks and OSDs that it leaves out.
    pub fn default(&self) -> (i32, Vec<&str>, Vec<OsdId>) {
        let Some(BudgetForm::Osds(default)) = &self.budgets[OSD_BUDGET].form else {
            panic!("{:?}", self.budgets);
        };
        let racks = default
            .except_domains
            .iter()
            .filter(|(domain_type, _)| *domain_type == rack());
        let osds = default.except_osds.iter().copied().collect();
        (default.max_unavailable, racks.map(|(_, rack)| &**rack).collect(), osds)
    }

    /// Domains with a budget of their own.
    pub fn own(&self) -> Vec<&str> {
        let forms = self.budgets.values().filter_map(|budget| budget.form.as_ref());
        let domains = forms.filter_map(|form| match form {
            BudgetForm::OsdsOfDomain { domain, .. } => Some(&*domain.1),
            _ => None,
        });
        domains.collect()
    }

    pub fn limit(&self, name: &str) -> Option<Limit> {
        match &self.budgets.get(name)?.form {
            Some(BudgetForm::Daemon(budget)) => Some(budget.limit),
            _ => None,
        }
    }

    pub fn flags(&self) -> Vec<&str> {
        self.view.map.dump.crush_node_flags.keys().map(String::as_str).collect()
    }

    pub fn flag(&mut self, bucket: &str) {
        let flags = BTreeSet::from(["noout".to_owned()]);
        self.dump().crush_node_flags.insert(bucket.to_owned(), flags);
    }

    /// An OSD's pod goes, with its node or without.
    pub fn stop(&mut self, osd: OsdId, is_draining: bool) {
        self.now += SignedDuration::from_secs(1);
        self.osds_changed_at = self.now;
        let osd = self.osds.get_mut(&osd).unwrap();
        osd.pod = OsdPod::Missing;
        if is_draining {
            osd.node_state = NodeState::Draining("unschedulable".into());
        }
    }

    /// Ceph has seen it go; its statistics and its answers are of now.
    pub fn mark_down(&mut self, osd: OsdId) {
        self.dump().osds[usize::try_from(osd).unwrap()].up = false;
        self.ask();
    }

    /// A drained OSD that Ceph misses, where its rack may follow.
    pub fn drain(&mut self, osd: OsdId) {
        self.stop(osd, true);
        self.unclean("active+undersized+degraded");
        self.mark_down(osd);
        self.may_stop_all(true);
    }

    /// It is back, and Ceph has seen it.
    pub fn start(&mut self, osd: OsdId) {
        self.now += SignedDuration::from_secs(1);
        self.osds_changed_at = self.now;
        let objects = self.osds.get_mut(&osd).unwrap();
        (objects.pod, objects.node_state) = (OsdPod::Running, NodeState::Schedulable);
        self.dump().osds[usize::try_from(osd).unwrap()].up = true;
        self.ask();
        self.may_stop_all(true);
    }

    /// Ceph was asked now.
    pub fn ask(&mut self) {
        self.view.asked_at = self.now;
        self.ceph = None;
    }

    /// Time goes by.
    pub fn pass(&mut self, time: SignedDuration) {
        self.now += time;
        self.ask();
    }

    /// Another process leads, and finds the OSDs, pools and CRUSH as this name tells.
    pub fn lead_next(&mut self, basis: &str) {
        self.view.fresh_since = None;
        (self.view.doubt, self.view.basis) = (Doubt::Unwatched, basis.into());
    }

    pub fn silence(&mut self) {
        self.ceph = Some(CephState::Silent {
            problem: CephProblem {
                kind: CephProblemKind::Unreachable,
                message: "no monitor answers".into(),
            },
            since: self.now,
            last: Some(Arc::new(self.view.clone())),
        });
    }

    pub fn clean(&mut self) {
        self.unclean("active+clean");
    }

    pub fn unclean(&mut self, state: &str) {
        self.view.status.pgmap.pgs_by_state = vec![PgCount {
            state_name: state.to_owned(),
            count: 16,
        }];
        self.ask();
    }

    /// Ceph's answer to whether each rack may go beside what is down.
    pub fn may_stop_all(&mut self, is_safe: bool) {
        let down: Vec<OsdId> = self.down();
        let answer = loses(if is_safe { &[] } else { &["1.0"] });
        let racks = (0..3).map(|rack| [rack * 2, rack * 2 + 1].into_iter().chain(down.clone()).collect());
        let hosts = (0..6).map(|host| [host].into_iter().chain(down.clone()).collect());
        self.view.stop_answers = racks
            .chain(hosts)
            .map(|ids: BTreeSet<OsdId>| (ids, answer.clone()))
            .collect();
    }

    pub fn down(&self) -> Vec<OsdId> {
        let by_pod = self
            .osds
            .iter()
            .filter(|(_, osd)| osd.pod != OsdPod::Running)
            .map(|(id, _)| *id);
        let by_ceph = self.view.map.dump.osds.iter().filter(|osd| !osd.up).map(|osd| osd.id);
        let down: BTreeSet<OsdId> = by_pod.chain(by_ceph).collect();
        down.into_iter().collect()
    }

    /// How many budgets select an OSD: by whether they let it go.
    pub fn selected(&self, osd: OsdId) -> BTreeMap<bool, usize> {
        let mut budgets = OsdBudgets::default();
        for budget in self.budgets.values() {
            match budget.form.clone() {
                Some(BudgetForm::Osds(default)) => budgets.default = Some(default),
                Some(BudgetForm::OsdsOfDomain { domain, .. }) => drop(budgets.domains.insert(domain)),
                _ => {}
            }
        }
        let locations = self.osds[&osd].locations.iter();
        let keys: Vec<DomainKey> = locations
            .map(|(domain_type, name)| (*domain_type, Arc::clone(name)))
            .collect();
        selected_by(&budgets, osd, &keys)
    }
}

/// Both witnesses say that these placement groups would be lost.
pub fn loses(groups: &[&str]) -> StopAnswer {
    let said = Testimony {
        lost: groups.iter().map(|group| (*group).to_owned()).collect(),
        unknown: BTreeSet::new(),
    };
    StopAnswer {
        ceph: said.clone(),
        own: said,
    }
}

fn ours(form: &BudgetForm, version: &Arc<str>) -> BudgetFacts {
    BudgetFacts {
        uid: "p1".into(),
        resource_version: Arc::clone(version),
        is_deleting: false,
        is_ours: true,
        is_exact: true,
        form: Some(form.clone()),
        selects_osds: false,
        selector: "".into(),
    }
}

fn view(now: Timestamp) -> CephView {
    let osds = (0..6).map(|id| json!({"osd": id, "up": 1, "in": 1, "weight": 1.0, "state": ["exists"]}));
    let pools = json!([
        {"pool": 1, "pool_name": "data", "crush_rule": 0, "size": 3, "min_size": 2},
        {"pool": 2, "pool_name": "thin", "crush_rule": 0, "size": 2, "min_size": 1},
    ]);
    let mut nodes = vec![json!({"id": -100, "name": "default", "type": "root", "children": [-1, -2, -3]})];
    for (index, name) in RACKS.iter().enumerate() {
        let index = i64::try_from(index).unwrap();
        let hosts = [-10 - index * 2, -11 - index * 2];
        nodes.push(json!({"id": -1 - index, "name": name, "type": "rack", "children": hosts}));
    }
    for id in 0..6 {
        nodes.push(json!({"id": -10 - id, "name": format!("host-{id}"), "type": "host", "children": [id]}));
        nodes.push(json!({"id": id, "name": format!("osd.{id}"), "type": "osd"}));
    }
    let rule = json!([{"rule_id": 0, "steps": [{"op": "chooseleaf_firstn", "type": "rack"}]}]);
    let status = json!({
        "pgmap": {"num_pgs": 16, "pgs_by_state": [{"state_name": "active+clean", "count": 16}]},
        "osdmap": {"epoch": 1}, "monmap": {"epoch": 1}, "election_epoch": 1,
    });
    let map = CephMap {
        dump: serde_json::from_value(json!({"epoch": 1, "osds": osds.collect::<Vec<_>>(), "pools": pools})).unwrap(),
        tree: serde_json::from_value(json!({ "nodes": nodes })).unwrap(),
        rules: serde_json::from_value(rule).unwrap(),
        hostnames: BTreeMap::new(),
    };
    CephView {
        asked_at: now,
        status: serde_json::from_value(status).unwrap(),
        map: Arc::new(map),
        mons_out_of_quorum: BTreeSet::new(),
        fresh_since: Some(now),
        is_freshness_known: true,
        doubt: Doubt::None,
        basis: "basis".into(),
        stop_answers: BTreeMap::new(),
        pool_states: BTreeMap::new(),
        stop_problem: None,
    }
}
