//! Opt-outs of a pod's owner and of its budgets' owners, and how far the administrator honours them.

use jiff::Timestamp;
use nodeward_core::deadline::{is_due, saturating_add, to_the_second};
use nodeward_core::hold::{Hold, Holder};
use nodeward_core::opt_out::{OptOut, OptOutSource};
use nodeward_core::pod::PodView;

use crate::policy::OptOutKind;

use super::{Evidence, eviction_due, is_covered, is_no_blocker};

/// An opt-out of the pod that counts.
pub(super) struct InForce {
    pub(super) opt_out: OptOut,
    /// Where it was read, unless the reason says that, or what is wrong with it.
    pub(super) detail: String,
    /// Until when it counts; `None`: for as long as it stands.
    pub(super) until: Option<Timestamp>,
}

/// The opt-out of the pod that counts, if one does: one of its own before a rule of its drainer.
pub(super) fn in_force(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Option<InForce> {
    let of_pod = pod.opt_outs.iter(now).find_map(|(opt_out, source)| {
        let kind = kind_of(source);
        let limit = honoured_until(kind, pod, evidence, now).ok()?;
        Some(InForce {
            opt_out,
            detail: match opt_out {
                OptOut::Unknown => format!("{} takes {}", source.key(), source.values()),
                // Nodeward's own mark is named by the reason.
                OptOut::Skip | OptOut::WaitCompleted if kind == OptOutKind::Nodeward => String::new(),
                OptOut::Skip | OptOut::WaitCompleted => source.key().to_owned(),
            },
            until: limit.into_iter().chain(pod.opt_outs.until(source)).min(),
        })
    });
    of_pod.or_else(|| {
        let (opt_out, detail) = evidence.drain_rules.opt_out(pod)?;
        let until = honoured_until(OptOutKind::ClusterApi, pod, evidence, now).ok()?;
        Some(InForce { opt_out, detail, until })
    })
}

/// The hold that keeps the pod from being forced, and until when: the last to end of those on its budgets that count.
pub fn hold_against<'a>(
    pod: &PodView,
    evidence: &Evidence<'a>,
    now: Timestamp,
) -> Option<(&'a Hold, Option<Timestamp>)> {
    let counted = holds_against(pod, evidence, now).filter_map(|hold| {
        let limit = match hold.holder {
            Holder::Owner(_) => honoured_until(OptOutKind::Holds, pod, evidence, now).ok()?,
            Holder::Node { .. } | Holder::Reserved { .. } | Holder::Unknown(_) => None,
        };
        Some((hold, [hold.until, limit].into_iter().flatten().min()))
    });
    counted.max_by_key(|(_, until)| until.unwrap_or(Timestamp::MAX))
}

/// What its owner, or the owner of its budget, asked for and is not granted, and why; the drain waits for the pod.
pub fn ignored_opt_outs(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Vec<String> {
    let policy = evidence.policy;
    let is_judged = !policy.opt_outs.are_none() && !policy.drain_for(evidence.node).disable_strategies;
    if !is_judged || is_no_blocker(pod, evidence.node) || in_force(pod, evidence, now).is_some() {
        return Vec::new();
    }
    let why_not = |kind| honoured_until(kind, pod, evidence, now).err();
    let marks = pod
        .opt_outs
        .iter(now)
        .map(|(_, source)| (kind_of(source), source.key().to_owned()));
    let rule = evidence
        .drain_rules
        .opt_out(pod)
        .map(|(_, rule)| (OptOutKind::ClusterApi, rule));
    let owners = holds_against(pod, evidence, now).filter(|hold| matches!(hold.holder, Holder::Owner(_)));
    let holds = owners.map(|hold| (OptOutKind::Holds, format!("its budget, {hold},")));
    let ignored = marks
        .chain(rule)
        .chain(holds)
        .filter_map(|(kind, what)| Some(format!("{what} does not count: {}", why_not(kind)?)));
    ignored.collect()
}

/// When the opt-outs of the pod and its budgets end by the configuration.
pub fn end_of_opt_outs(pod: &PodView, evidence: &Evidence<'_>) -> Option<Timestamp> {
    let longest = evidence.policy.opt_outs.max_duration?;
    Some(saturating_add(
        eviction_due(pod, is_covered(pod, evidence), evidence),
        longest,
    ))
}

/// Until when opt-outs of this kind count for the pod; `None`: for as long as they stand. In a namespace whose labels are not
/// known they do.
///
/// # Errors
/// With the setting by which they do not count.
fn honoured_until(
    kind: OptOutKind,
    pod: &PodView,
    evidence: &Evidence<'_>,
    now: Timestamp,
) -> Result<Option<Timestamp>, String> {
    if !evidence.policy.opt_outs.honours(kind) {
        return Err("optOuts.honour leaves it out".to_owned());
    }
    let namespace = &pod.key.namespace;
    if evidence.without_opt_outs.contains(namespace) {
        return Err(format!("optOuts.namespaces leaves {namespace} out"));
    }
    match end_of_opt_outs(pod, evidence) {
        Some(end) if is_due(end, now) => Err(format!("optOuts.maxDuration ended at {}", to_the_second(end))),
        end => Ok(end),
    }
}

/// Claims do not stand against a pod that leaves: it is down already, and they may wait for its successor.
fn holds_against<'a>(pod: &PodView, evidence: &Evidence<'a>, now: Timestamp) -> impl Iterator<Item = &'a Hold> {
    let Evidence {
        node, holds, budgets, ..
    } = *evidence;
    let leaves = pod.deletion.is_some();
    budgets
        .iter()
        .flat_map(move |budget| holds.against(&budget.key, &node.uid, &pod.uid, now))
        .filter(move |hold| !(leaves && matches!(hold.holder, Holder::Node { .. } | Holder::Reserved { .. })))
}

fn kind_of(source: OptOutSource) -> OptOutKind {
    match source {
        OptOutSource::Label | OptOutSource::Annotation => OptOutKind::Nodeward,
        OptOutSource::ClusterApi => OptOutKind::ClusterApi,
        OptOutSource::Karpenter => OptOutKind::Karpenter,
    }
}
