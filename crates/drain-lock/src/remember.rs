//! What this process remembers between two plans, kept up from what actions came to. No I/O.
