//! Builds the kernels.
