//! How an action ended.

use crate::api_error::ApiError;

use super::Outcome;
use super::permit::Stop;

/// How an action ended. `W` is what was written, or done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionResult<W = ()> {
    /// It was done.
    Acted(W),
    /// There was nothing left to do: the object is gone, or as it should be.
    AlreadyDone,
    /// Something that it rested on has changed since the plan, which is made anew.
    Outdated(String),
    /// The API server did not do it.
    Failed(ApiError),
    /// The next write was not permitted; nothing was sent.
    Stopped(Stop),
}

impl<W> ActionResult<W> {
    /// The same without what was written.
    pub fn erased(&self) -> ActionResult {
        match self {
            Self::Acted(_) => ActionResult::Acted(()),
            Self::AlreadyDone => ActionResult::AlreadyDone,
            Self::Outdated(what) => ActionResult::Outdated(what.clone()),
            Self::Failed(error) => ActionResult::Failed(error.clone()),
            Self::Stopped(stop) => ActionResult::Stopped(*stop),
        }
    }

    /// Whether it was done, or its answer was lost and it may have been.
    pub fn may_have_acted(&self) -> bool {
        match self {
            Self::Acted(_) => true,
            Self::Failed(error) => error.is_ambiguous(),
            Self::AlreadyDone | Self::Outdated(_) | Self::Stopped(_) => false,
        }
    }
}

impl<W: Send + 'static> Outcome for ActionResult<W> {
    fn result(&self) -> ActionResult {
        self.erased()
    }
}

impl<W> From<Stop> for ActionResult<W> {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

/// For actions whose steps end early by `?`.
impl<W> From<Result<W, Self>> for ActionResult<W> {
    fn from(outcome: Result<W, Self>) -> Self {
        outcome.map_or_else(|early| early, Self::Acted)
    }
}

/// "Not found" is success, and a conflict means that the plan is made anew.
impl<W> From<ApiError> for ActionResult<W> {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NotFound => Self::AlreadyDone,
            ApiError::Conflict => Self::Outdated("the object has changed".to_owned()),
            error => Self::Failed(error),
        }
    }
}

impl<W> From<kube::Error> for ActionResult<W> {
    fn from(error: kube::Error) -> Self {
        ApiError::from(error).into()
    }
}
