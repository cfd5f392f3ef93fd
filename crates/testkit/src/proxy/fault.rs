//! What can go wrong between an operator and the API server, and for which requests.

use std::sync::Arc;
use std::time::Duration;

use super::request::{ApiRequest, Verb};

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// 429 from flow control.
    TooManyRequests {
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// 429 as the eviction handler answers where a budget has no room: with the cause `DisruptionBudget`.
    BudgetRefusal {
        /// `Retry-After`, in seconds; the API server sends it only while it is still counting.
        retry_after: Option<u32>,
    },
    /// Any HTTP error with a Status of this reason: 500 `InternalError`, 403 `Forbidden`, 409 `Conflict`, ...
    Status(u16, &'static str),
    /// A watch is refused with HTTP 410, any other request too.
    Gone,
    /// A watch is opened and brings a single ERROR event with code 410, as the watch cache does.
    GoneEvent,
    /// Is handed on so much later.
    Delay(Duration),
    /// Is handed on and carried out; the answer never arrives and the connection breaks.
    LostReply,
    /// Is not handed on; the connection breaks.
    BrokenConnection,
    /// Is not handed on, and never answered.
    Silence,
    /// A watch breaks off after so long.
    CutWatch(Duration),
}

type Condition = Arc<dyn Fn(&ApiRequest) -> bool + Send + Sync>;

/// A fault and the requests that it meets. Without conditions it meets all.
#[derive(Clone)]
pub struct Rule {
    pub(super) fault: Fault,
    conditions: Vec<Condition>,
    /// How often it strikes; `None`: always.
    pub(super) times: Option<u32>,
}

impl Rule {
    /// Always, for every request.
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            conditions: Vec::new(),
            times: None,
        }
    }

    /// Only for requests of which this is true, too.
    #[must_use]
    pub fn when(mut self, condition: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Only with one of these verbs.
    #[must_use]
    pub fn verbs<const N: usize>(self, verbs: [Verb; N]) -> Self {
        self.when(move |request| verbs.contains(&request.verb))
    }

    /// Only writes.
    #[must_use]
    pub fn writes(self) -> Self {
        self.when(ApiRequest::is_write)
    }

    /// Only of this resource, with its subresource: `pods`, `pods/eviction`.
    #[must_use]
    pub fn resource(self, resource: &'static str) -> Self {
        self.when(move |request| request.resource == resource)
    }

    /// Only of the object with this name.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.when(move |request| request.name == name)
    }

    /// Only where path or query contain this.
    #[must_use]
    pub fn uri_contains(self, part: impl Into<String>) -> Self {
        let part = part.into();
        self.when(move |request| request.uri.contains(&part))
    }

    /// Only of clients whose user agent contains this.
    #[must_use]
    pub fn user_agent(self, part: impl Into<String>) -> Self {
        let part = part.into();
        self.when(move |request| request.user_agent.contains(&part))
    }

    /// Strikes so often, then never again.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    pub(super) fn meets(&self, request: &ApiRequest) -> bool {
        self.times != Some(0) && self.conditions.iter().all(|condition| condition(request))
    }
}
