//! Who waits for whom, where nobody sees to it that drains end: each drain needs a budget, and each budget's one disruption is held
//! by the node whose member is down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_testkit::lock;
use nodeward_testkit::workload::is_up;

use super::drains::Counts;
use super::environment::Environment;
use super::scenario;

/// How often the cluster is looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(250);

/// How long drains have waited for each other when they count as wedged. `kubectl drain` asks again every 5 s: each has
/// been refused twice more.
const WEDGED_AFTER: Duration = Duration::from_secs(12);

/// A member of a set, and where it runs while nothing is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    name: String,
    set: String,
    home: String,
    /// Whether it counts as healthy for its budget.
    is_up: bool,
}

/// A drain that cannot go on until somebody else has gone on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub node: String,
    pub budget: String,
    /// The nodes whose members are down, with these members.
    pub held_by: BTreeMap<String, String>,
}

impl Wait {
    /// As `waits for kafka (down: kafka-1 of db-2)`.
    pub fn text(&self) -> String {
        let holders = self.held_by.iter();
        let holders: Vec<String> = holders.map(|(node, member)| format!("{member} of {node}")).collect();
        format!("waits for {} (down: {})", self.budget, holders.join(" and "))
    }
}

/// Looks at the members of the databases until some drains can never end; gives what those wait for. All members are up now.
pub async fn wedge(env: &Environment, counts: &Mutex<Counts>) -> Result<Vec<Wait>> {
    let member = |(pod, set): (Pod, &str)| {
        let home = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Ok(Member {
            name: pod.name_any(),
            set: set.to_owned(),
            home: home.context("a Ready pod without a node")?,
            is_up: true,
        })
    };
    let members = scenario::members_ready(env).await?.into_iter().map(member);
    let mut members = members.collect::<Result<Vec<_>>>()?;
    let pods: Api<Pod> = Api::namespaced(env.client(), &scenario::data(env));
    let mut wedged_since = None;
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        let listed = pods.list(&ListParams::default()).await?;
        let up: BTreeSet<String> = listed
            .iter()
            .filter(|pod| is_up(pod))
            .map(ResourceExt::name_any)
            .collect();
        for member in &mut members {
            member.is_up = up.contains(&member.name);
        }
        let waits = waits(&members, &lock(counts).draining);
        let wedged = wedged(&waits);
        if wedged.is_empty() {
            wedged_since = None;
        } else if wedged_since.get_or_insert_with(Instant::now).elapsed() >= WEDGED_AFTER {
            return Ok(waits.into_iter().filter(|wait| wedged.contains(&wait.node)).collect());
        }
    }
}

/// What the drains of these nodes wait for, where one member of each set may be down.
fn waits(members: &[Member], draining: &BTreeSet<String>) -> Vec<Wait> {
    let mut waits = Vec::new();
    for member in members
        .iter()
        .filter(|member| member.is_up && draining.contains(&member.home))
    {
        let others = members.iter().filter(|other| other.set == member.set && !other.is_up);
        let held_by: BTreeMap<String, String> = others.map(|other| (other.home.clone(), other.name.clone())).collect();
        if !held_by.is_empty() {
            waits.push(Wait {
                node: member.home.clone(),
                budget: member.set.clone(),
                held_by,
            });
        }
    }
    waits.sort();
    waits
}

/// The nodes whose drains can never end: what each waits for is held by such nodes alone, and a member is back only when
/// the drain of its node has ended.
fn wedged(waits: &[Wait]) -> BTreeSet<String> {
    let mut stuck: BTreeSet<String> = waits.iter().map(|wait| wait.node.clone()).collect();
    loop {
        let still: BTreeSet<String> = waits
            .iter()
            .filter(|wait| wait.held_by.keys().all(|holder| stuck.contains(holder)))
            .map(|wait| wait.node.clone())
            .collect();
        if still == stuck {
            return stuck;
        }
        stuck = still;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kafka@db-1`, with `-` in front if it is down.
    fn members(texts: &[&str]) -> Vec<Member> {
        let member = |text: &&str| {
            let (up, text) = text.strip_prefix('-').map_or((true, *text), |text| (false, text));
            let (set, home) = text.split_once('@').unwrap();
            Member {
                name: format!("{set}-on-{home}"),
                set: set.to_owned(),
                home: home.to_owned(),
                is_up: up,
            }
        };
        texts.iter().map(member).collect()
    }

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[rstest::rstest]
    #[case::one_each(&["-a@1", "a@2", "a@3", "b@1", "-b@2", "b@3"], &["1", "2", "3"], &["1<-2", "2<-1", "3<-1", "3<-2"], &["1", "2", "3"])]
    #[case::one_has_both(&["-a@1", "a@2", "-b@1", "b@2"], &["1", "2"], &["2<-1", "2<-1"], &[])]
    #[case::the_holder_is_not_drained(&["-a@1", "a@2", "b@1", "-b@2"], &["2"], &["2<-1"], &[])]
    #[case::nothing_is_down(&["a@1", "a@2"], &["1", "2"], &[], &[])]
    #[case::three_in_a_circle(
        &["-a@1", "a@2", "-b@2", "b@3", "-c@3", "c@1"], &["1", "2", "3"], &["1<-3", "2<-1", "3<-2"], &["1", "2", "3"]
    )]
    #[case::behind_one_that_goes_on(&["-a@1", "a@2", "-b@2", "b@3"], &["1", "2", "3"], &["2<-1", "3<-2"], &[])]
    fn circular_waits_are_wedged(
        #[case] texts: &[&str],
        #[case] draining: &[&str],
        #[case] expected: &[&str],
        #[case] stuck: &[&str],
    ) {
        let waits = waits(&members(texts), &nodes(draining));
        let mut told: Vec<String> = waits
            .iter()
            .flat_map(|wait| {
                wait.held_by
                    .keys()
                    .map(move |holder| format!("{}<-{holder}", wait.node))
            })
            .collect();
        told.sort();
        assert_eq!(told, expected);
        assert_eq!(wedged(&waits), nodes(stuck));
    }

    #[test]
    fn waits_name_who_is_down() {
        let members = members(&["-a@1", "-a@3", "a@2"]);
        let texts: Vec<String> = waits(&members, &nodes(&["2"])).iter().map(Wait::text).collect();
        assert_eq!(texts, ["waits for a (down: a-on-1 of 1 and a-on-3 of 3)"]);
    }
}
