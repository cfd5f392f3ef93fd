//! Plans of whole clusters: what the rows and rules of the decision come to in writes.

mod answers;
mod daemons;
mod flags;
mod hand_over;
mod osds;
mod pools;
mod properties;
mod published;
mod states;
mod timeouts;
pub(crate) mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::ceph_state::{DisruptionsPreview, PublishedDisruptions};
use nodeward_api::reason::{CephCondition, CephReason};
use rstest::rstest;
use serde_json::json;

use self::world::World;
use super::daemon_budgets::{DaemonBudget, Daemons, Limit, MGR_BUDGET, MON_BUDGET};
use super::noout::{NooutPhase, NooutRecord};
use super::{Write, WriteKey};
use crate::budgets::OSD_BUDGET;
use crate::ceph::freshness::Doubt;
use crate::ceph::topology::DomainType;
use crate::plan::budget_steps::Layout;
use crate::snapshot::{
    BudgetFacts, BudgetForm, CephProblem, CephProblemKind, CephState, DefaultBudget, NodeState, OsdObjects, OsdPod,
    RookState,
};

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn leftover(form: BudgetForm) -> BudgetFacts {
    BudgetFacts {
        uid: "left".into(),
        resource_version: "1".into(),
        is_deleting: false,
        is_ours: false,
        is_exact: false,
        form: Some(form),
        selects_osds: false,
        selector: "app=x".into(),
    }
}

fn of_rack(domain: &str) -> BudgetForm {
    BudgetForm::OsdsOfDomain {
        max_unavailable: 0,
        domain: (world::rack(), domain.into()),
    }
}

/// With these numbers each daemon has a budget.
fn several_of_each(daemons: &mut Daemons) {
    let named = |name: &str| vec![(name.to_owned(), 2)];
    *daemons = Daemons {
        mons: 3,
        mgrs: Some(2),
        gateways: named("store"),
        metadata_servers: vec![("fs".to_owned(), 1, true)],
        block_mirrors: named("mirror"),
        nfs_servers: named("exports"),
        ..Daemons::default()
    };
}
