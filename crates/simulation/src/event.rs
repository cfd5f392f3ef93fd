//! What happens, and how unreliable things are.

use std::sync::Arc;

use drain_lock::observe::Objects;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_core::drain_request::EvictionSign;

/// Something that happens at its time.
#[derive(Debug, Clone)]
pub enum Event {
    /// A watch of a process tells of a change.
    Told(Watcher, Change),
    /// drain-lock plans, in the process with this number.
    LockPlans(u64),
    /// A task of drain-lock goes on.
    LockTask(u64),
    /// Another process takes the lead.
    LockLeads,
    /// An eviction of this user asks for a drain of a node.
    DrainRequested {
        node: String,
        user: String,
        eviction: EvictionSign,
    },
    KeeperPlans,
    KeeperTask(u64),
    /// A drainer goes on.
    Drainer(usize),
    /// The disruption controller has looked at a budget, and writes what it saw.
    Counted(Box<PodDisruptionBudget>),
    /// It looks at the budget of an application.
    Counts(usize),
    /// The controllers of an application's pods look at them.
    Replaces(usize),
    /// The scheduler tries a pod of this UID, for the so-manieth time.
    Schedules(String, u32),
    /// A kubelet has started the containers of a pod of this UID.
    Running(String),
    /// They are Ready.
    Ready(String),
    /// A kubelet has ended a pod of this UID.
    Gone(String),
    /// A node is not heard of.
    Silent(String),
    /// It has booted anew.
    Booted(String),
}

/// Who watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watcher {
    /// A process of drain-lock.
    Lock(usize),
    Keeper,
}

/// An object as it was written, or as it went.
#[derive(Debug, Clone)]
pub struct Change {
    pub object: Arc<Objects>,
    pub is_gone: bool,
}

/// How unreliable things are; all in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// drain-lock's leader dies at a write, before or after it.
    pub death: u32,
    /// The answer to a write of the ledger is lost.
    pub lost_answer: u32,
    /// The webhook does not answer in time, and the eviction is admitted.
    pub webhook_timeout: u32,
    /// A pod fails soon after it was Ready, and is Ready again later.
    pub failing_pod: u32,
}
