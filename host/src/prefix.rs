//! Keys and values that all entries of the batch share: the first ones of the first entry.

use crate::modifiers::Modifiers;
use crate::tensors::Tensors;
use anyhow::{Result, ensure};
use ferroattn::{Element, Problem, Sequences, Tensor};

impl Modifiers {
    /// Checks that a prefix fits the problem.
    ///
    /// # Errors
    /// Says what does not, and what is allowed.
    pub fn expect_prefix(&self, problem: &Problem) -> Result<()> {
        let Some(prefix) = self.prefix else {
            return Ok(());
        };
        for (option, is_on) in [
            ("--window", self.window.is_some()),
            ("--alibi", self.alibi),
            ("--bias", self.bias),
            ("--mask", self.mask),
            ("--packed", self.packed.is_some()),
        ] {
            ensure!(!is_on, "--prefix takes no {option}");
        }
        let Problem {
            seqlen_q: queries,
            seqlen_kv: keys,
            causal,
            ..
        } = *problem;
        ensure!(
            prefix < keys,
            "--prefix is {prefix}; it must be below seqlen_kv, which is {keys}"
        );
        let least = match causal {
            // Each query sees all of the prefix.
            true => prefix + queries - 1,
            // Calls show queries behind a length the prefix, where the check expects nothing.
            false if self.lengths.is_some() => prefix.max(queries),
            false => prefix,
        };
        let all = vec![keys];
        let (named, all) = match &self.lengths {
            Some(lengths) => ("--lengths has", lengths),
            None => ("seqlen_kv is", &all),
        };
        let beside = if causal { ", --causal" } else { "" };
        for found in all {
            ensure!(
                *found >= least,
                "{named} {found}; with --prefix {prefix}{beside} and seqlen {queries} it must be at least {least}"
            );
        }
        Ok(())
    }

    /// The problem of the keys that no prefix has, as calls take it.
    pub fn own(&self, problem: &Problem) -> Problem {
        let mut own = *problem;
        own.seqlen_kv -= self.prefix.unwrap_or(0);
        own
    }
}

impl Tensors {
    /// Takes so many keys off all lengths, as calls with a prefix count them.
    pub fn without_prefix(mut self, prefix: usize) -> ferroattn::Result<Self> {
        if let Some(Sequences::Padded { kv, .. }) = &mut self.sequences {
            let own: Vec<i32> = kv.to_vec()?.iter().map(|&n| n - prefix as i32).collect();
            *kv = Tensor::new(&kv.device(), kv.shape(), &own)?;
        }
        Ok(self)
    }
}

/// Tensors of the shared rows, `[1, heads, prefix, dim]`, and of each entry's own.
pub fn divided<T: Element>(all: &Tensor<T>, prefix: usize) -> ferroattn::Result<[Tensor<T>; 2]> {
    let [batch, heads, keys, dim] = all.shape();
    let rows = |entries, first, rows| -> ferroattn::Result<_> {
        let mut copy = Tensor::zeros(&all.device(), [entries, heads, rows, dim])?;
        let from = all.view().narrow(0, 0, entries)?;
        copy.copy_from(&from.narrow(2, first, rows)?)?;
        Ok(copy)
    };
    Ok([rows(1, 0, prefix)?, rows(batch, prefix, keys - prefix)?])
}
