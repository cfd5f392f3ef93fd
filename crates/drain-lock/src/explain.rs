//! Explain: what stands in the way of a node's drain, as an answer to a request.
