//! (workloads)
