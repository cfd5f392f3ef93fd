//! Nodes that are drained at the same time by plain `kubectl drain`, rebooted and uncordoned, and what is told of that.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use console::Style;
use nodeward_testkit::lock;
use tokio::task::JoinSet;

use super::narrator::{Line, Narrator, Voice};
use super::page::seconds;
use crate::maintenance::{Maintenance, Step};

/// What the maintenance of all nodes has come to.
#[derive(Default)]
pub struct Counts {
    pub draining: BTreeSet<String>,
    /// Nodes that were drained, rebooted and uncordoned.
    pub maintained: usize,
    pub of: usize,
    /// Evictions that `kubectl drain` was refused.
    pub refused: usize,
}

/// Nodes under maintenance. It ends when it is dropped.
pub struct Drains {
    narrator: Arc<Narrator>,
    maintenance: Maintenance,
    tasks: JoinSet<anyhow::Result<()>>,
    counts: Arc<Mutex<Counts>>,
}

impl Drains {
    /// None yet, of so many in all.
    pub fn new(narrator: &Arc<Narrator>, maintenance: &Maintenance, of: usize) -> Self {
        let counts = Counts {
            of,
            ..Counts::default()
        };
        Self {
            narrator: Arc::clone(narrator),
            maintenance: maintenance.clone(),
            tasks: JoinSet::new(),
            counts: Arc::new(Mutex::new(counts)),
        }
    }

    /// Begins them, each so much later.
    pub fn begin(&mut self, nodes: impl IntoIterator<Item = (String, Duration)>) {
        for (node, begin) in nodes {
            let (maintenance, narrator, counts) = (
                self.maintenance.clone(),
                Arc::clone(&self.narrator),
                Arc::clone(&self.counts),
            );
            self.tasks.spawn(async move {
                tokio::time::sleep(begin).await;
                let mut teller = Teller::new(&narrator, &counts, &node);
                maintenance.of(&node, |step| teller.tell(&step)).await
            });
        }
    }

    /// Waits until all that have begun have ended; gives why one failed, in its own words.
    pub async fn ended(&mut self) -> Option<String> {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended.context("a drain panicked").and_then(|outcome| outcome) {
                return Some(format!("{error:#}"));
            }
        }
        None
    }

    /// Ends those that still go on, by force.
    pub async fn interrupt(&mut self) {
        self.tasks.shutdown().await;
        lock(&self.counts).draining.clear();
    }

    pub fn counts(&self) -> Arc<Mutex<Counts>> {
        Arc::clone(&self.counts)
    }
}

/// Tells the maintenance of one node.
struct Teller<'a> {
    narrator: &'a Narrator,
    counts: &'a Mutex<Counts>,
    node: &'a str,
    /// Why it was refused last, but for the names in it.
    refused: Option<Vec<String>>,
}

impl<'a> Teller<'a> {
    const fn new(narrator: &'a Narrator, counts: &'a Mutex<Counts>, node: &'a str) -> Self {
        Self {
            narrator,
            counts,
            node,
            refused: None,
        }
    }

    fn tell(&mut self, step: &Step) {
        let mut counts = lock(self.counts);
        let remark = |voice, line| self.narrator.remark(voice, self.node, line);
        match step {
            Step::Begins(command) => {
                counts.draining.insert(self.node.to_owned());
                remark(
                    Voice::Admin,
                    Line::plain(format!("$ {command}")).look(Style::new().bold()),
                );
            }
            Step::Says(line) => {
                let said = Said::of(line);
                counts.refused += usize::from(matches!(said, Said::Refused { .. }));
                let text = match said {
                    // It asks again every 5 s, for each pod, and is told the same.
                    Said::Refused { pod, why } if self.refused.as_ref() != Some(&without_names(why)) => {
                        self.refused = Some(without_names(why));
                        Some(format!("{pod} is refused, asks again every 5 s: {why}"))
                    }
                    Said::Evicted => Some(line.clone()),
                    Said::Refused { .. } | Said::Else => None,
                };
                if let Some(text) = text {
                    remark(Voice::Kubectl, Line::plain(text).look(Style::new().dim()));
                }
            }
            Step::Drained(after) => {
                counts.draining.remove(self.node);
                let text = format!("drained in {}; it reboots", seconds(*after));
                remark(Voice::Admin, Line::plain(text).look(Style::new().green()));
            }
            Step::Rebooted => {}
            Step::Done => {
                counts.maintained += 1;
                let text = "is back, and is uncordoned";
                remark(Voice::Admin, Line::plain(text).look(Style::new().green()));
                self.narrator.progress(counts.maintained, counts.of, "");
            }
        }
    }
}

/// The words that are no names, as those of pods and nodes here, which have numbers.
fn without_names(text: &str) -> Vec<String> {
    let words = text.split_whitespace();
    let words = words.filter(|word| !word.contains(|char: char| char.is_ascii_digit() || char == '/'));
    words.map(str::to_owned).collect()
}

/// What `kubectl drain` says in a line.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    /// An eviction was refused, and is tried again.
    Refused {
        pod: &'a str,
        why: &'a str,
    },
    /// A pod is gone.
    Evicted,
    Else,
}

impl<'a> Said<'a> {
    fn of(line: &'a str) -> Self {
        if let Some((pod, why)) = line.split_once("will retry after") {
            let why = why.split_once("): ").map_or(why, |(_, why)| why);
            return Self::Refused {
                pod: pod.split('"').nth(1).unwrap_or("a pod"),
                why: why.split_once("denied the request: ").map_or(why, |(_, why)| why),
            };
        }
        if line.starts_with("pod/") && line.ends_with(" evicted") {
            return Self::Evicted;
        }
        Self::Else
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

    #[rstest::rstest]
    #[case(
        r#"error when evicting pods/"kafka-1" -n "data" (will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget."#,
        Said::Refused { pod: "kafka-1", why: BUDGET }
    )]
    #[case(
        r#"error when evicting pods/"kafka-1" -n "data" (will retry after 5s): admission webhook "evictions.example" denied the request: node db-2 has it"#,
        Said::Refused { pod: "kafka-1", why: "node db-2 has it" }
    )]
    #[case("evicting pod data/kafka-1", Said::Else)]
    #[case("pod/kafka-1 evicted", Said::Evicted)]
    #[case("node/db-1 cordoned", Said::Else)]
    #[case("node/db-1 evicted", Said::Else)]
    fn refusals_and_evictions_are_recognized(#[case] line: &str, #[case] said: Said<'_>) {
        assert_eq!(Said::of(line), said);
    }
}
