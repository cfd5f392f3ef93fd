//! What the proxy saw and what became of it.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;

use super::request::ApiRequest;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is under way.
    Pending,
    /// Answered by the API server with this HTTP status.
    Answered(u16),
    /// Answered by the proxy with this HTTP status; the API server never saw it.
    Injected(u16),
    /// The API server answered with this HTTP status, the client never learnt of it.
    Lost(u16),
    /// The connection broke; the API server never saw it, or was not there.
    Broken,
}

/// One request and its outcome.
#[derive(Clone, Debug)]
pub struct Record {
    pub request: ApiRequest,
    /// What became of it.
    pub outcome: Outcome,
    /// When its answer began.
    pub answered: Option<Timestamp>,
}

/// All requests, in the order in which they arrived.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Vec<Record>>>);

impl Journal {
    pub fn begin(&self, request: ApiRequest) -> usize {
        let mut records = crate::lock(&self.0);
        records.push(Record {
            request,
            outcome: Outcome::Pending,
            answered: None,
        });
        records.len() - 1
    }

    /// The first end counts: a connection breaks after a lost reply, too.
    pub fn end(&self, index: usize, outcome: Outcome) {
        let mut records = crate::lock(&self.0);
        let record = records.get_mut(index);
        if let Some(record) = record.filter(|record| record.outcome == Outcome::Pending) {
            record.outcome = outcome;
            record.answered = Some(Timestamp::now());
        }
    }

    pub fn len(&self) -> usize {
        crate::lock(&self.0).len()
    }

    pub fn since(&self, mark: usize) -> Vec<Record> {
        let records = crate::lock(&self.0);
        records.get(mark..).unwrap_or_default().to_vec()
    }
}
