//! What this kernel, user and network namespace can do.
