//! Which pods of a node a drain has to claim budget units for, and which only have to leave.
