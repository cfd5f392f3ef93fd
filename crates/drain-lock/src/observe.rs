//! Observe: from watches to what plans, the webhook and the explanations read.
