//! Who waits for whom: each drain needs a budget, and each budget's one disruption is held by the node whose member is down.

use std::collections::{BTreeMap, BTreeSet};

use super::and;

/// A member of a set, and where it runs while nothing is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub set: String,
    pub home: String,
    /// Whether it counts as healthy for its budget.
    pub is_up: bool,
}

/// A drain that cannot go on until somebody else has gone on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    pub node: String,
    pub budget: String,
    /// The nodes whose members are down, with these members.
    pub held_by: BTreeMap<String, String>,
}

/// A drain and all that it waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter {
    pub node: String,
    /// The budgets, by the nodes whose members are down, with these members.
    pub for_nodes: BTreeMap<String, BTreeMap<String, String>>,
}

impl Waiter {
    /// Each drain of these waits.
    pub fn all(waits: &[Wait]) -> Vec<Self> {
        let mut waiters: BTreeMap<&str, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
        for wait in waits {
            for (holder, member) in &wait.held_by {
                let of_node = waiters
                    .entry(&wait.node)
                    .or_default()
                    .entry(holder.clone())
                    .or_default();
                of_node.insert(wait.budget.clone(), member.clone());
            }
        }
        let waiter = |(node, for_nodes): (&str, _)| Self {
            node: node.to_owned(),
            for_nodes,
        };
        waiters.into_iter().map(waiter).collect()
    }

    /// As `db-2, which has kafka (kafka-1 is down)`.
    pub fn text(&self) -> String {
        let holders = self.for_nodes.iter().map(|(holder, budgets)| {
            let budgets: Vec<String> = budgets
                .iter()
                .map(|(budget, member)| format!("{budget} ({member} is down)"))
                .collect();
            format!("{holder}, which has {}", and(&budgets))
        });
        holders.collect::<Vec<_>>().join(" and for ")
    }
}

/// What the drains of these nodes wait for, where a budget allows so many members to be down.
pub fn waits(members: &[Member], draining: &BTreeSet<String>, may_be_down: usize) -> Vec<Wait> {
    let mut waits = Vec::new();
    let sets: BTreeSet<&str> = members.iter().map(|member| member.set.as_str()).collect();
    for set in sets {
        let of_set = || members.iter().filter(|member| member.set == set);
        let down: BTreeMap<String, String> = of_set()
            .filter(|member| !member.is_up)
            .map(|member| (member.home.clone(), member.name.clone()))
            .collect();
        if down.len() < may_be_down {
            continue;
        }
        for member in of_set().filter(|member| member.is_up && draining.contains(&member.home)) {
            waits.push(Wait {
                node: member.home.clone(),
                budget: set.to_owned(),
                held_by: down.clone(),
            });
        }
    }
    waits.sort();
    waits
}

/// The nodes whose drains can never end: what each waits for is held by such nodes alone, and a member is back only when
/// the drain of its node has ended.
pub fn wedged(waits: &[Wait]) -> BTreeSet<String> {
    let mut stuck: BTreeSet<String> = waits.iter().map(|wait| wait.node.clone()).collect();
    loop {
        let still: BTreeSet<String> = waits
            .iter()
            .filter(|wait| !wait.held_by.is_empty() && wait.held_by.keys().all(|holder| stuck.contains(holder)))
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
        let waits = waits(&members(texts), &nodes(draining), 1);
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
    fn one_line_names_all_waits() {
        let members = members(&["-a@1", "a@2", "a@3", "-b@1", "b@2", "b@3", "-c@3", "c@2"]);
        let waiters = Waiter::all(&waits(&members, &nodes(&["2"]), 1));
        let texts: Vec<String> = waiters.iter().map(Waiter::text).collect();
        let (both, one) = (
            "1, which has a (a-on-1 is down) and b (b-on-1 is down)",
            "3, which has c (c-on-3 is down)",
        );
        assert_eq!(texts, [format!("{both} and for {one}")]);
    }

    #[test]
    fn budgets_with_room_block_nobody() {
        let members = members(&["-a@1", "a@2", "a@3"]);
        assert!(waits(&members, &nodes(&["2", "3"]), 2).is_empty());
        assert_eq!(waits(&members, &nodes(&["2", "3"]), 1).len(), 2);
    }
}
